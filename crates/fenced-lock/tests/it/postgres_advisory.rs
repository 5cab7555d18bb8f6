//! What is particular to advisory locks of PostgreSQL.

use std::time::Duration;

use fenced_lock::{BackendErrorKind, Mutex, PostgresOptions, SessionOptions};
use futures_util::{StreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process};
use testkit::wait::{eventually, within};
use testkit::{Direction, PostgresOptions as ServerOptions, Run};
use tokio::process::Command;

use super::contract::queueing;
use super::lab::{
    FoundLab, HOUR, LONG, Lab, TTL, assert_refused, kind_of, opened, queue_length, queue_of,
    unseen_waiter, waiter, with,
};
use super::postgres::{KINDS, LockKind, PostgresLab};

/// How many claims of a worker wait behind the one that holds.
const WAITERS_OF_A_WORKER: usize = 5;

/// A lab in a database of its own, if PostgreSQL is installed.
async fn lab() -> Option<PostgresLab> {
    PostgresLab::shared(LockKind::Advisory).await
}

impl PostgresLab {
    /// The mutex `a` in a session of its own that no timer ends.
    async fn a(&self) -> Mutex {
        self.session_for(HOUR).await.mutex("a").unwrap()
    }
}

/// Goal: `psql` and the library exclude each other, with the calls that the documentation names.
#[tokio::test]
async fn psql_takes_its_turns() {
    let Some(lab) = lab().await else { return };
    let start = |name: &str| {
        let lock =
            format!("SELECT concat(pg_advisory_lock(hashtextextended('{name}', 0)), 'held')");
        let mut psql = Command::new(testkit::postgres::psql());
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", lab.url()]);
        Run::start(psql.args(["--command", &lock, "--file", "-"]))
    };
    queueing::a_peer_takes_its_turns(&lab, start, "held", async |name: &str, mut peer| {
        peer.send(&format!("SELECT pg_advisory_unlock(hashtextextended('{name}', 0));")).await;
        assert_eq!(peer.line().await, "t");
    })
    .await;
}

/// Goal: a stopped process is granted the lock once or twice, however many of its claims wait. Method: the test counts which of
/// its connections have the lock and are idle for longer than it takes to notice that the session has ended.
#[tokio::test]
async fn a_stopped_process_takes_no_turn_for_each_claim() {
    let Some(lab) = lab().await else { return };
    let mutex = lab.a().await;
    let (ttl, waiters) = (TTL.as_secs().to_string(), WAITERS_OF_A_WORKER.to_string());
    let variables =
        [("LOCK_DOES", "hold"), ("LOCK_NAME", "a"), ("LOCK_TTL", &ttl), ("LOCK_WAITERS", &waiters)];
    let holder = lab.start_worker("contract::resilience::worker", &variables);
    queue_length(&mutex, 1 + WAITERS_OF_A_WORKER).await;
    let lease = mutex.queue().await.unwrap()[0].lease;
    holder.signal(Signal::STOP);
    let waiter = unseen_waiter(&mutex);
    let operator = lab.client().await;
    let idle = format!(
        "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^fenced-lock {lease:x}-'
        AND state ~ '^idle' AND clock_timestamp() - state_change > interval '200 ms'"
    );
    let mut holders = std::collections::BTreeSet::new();
    eventually("the next is served", async || {
        let rows = operator.query(&idle, &[]).await.unwrap();
        holders.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        waiter.is_finished()
    })
    .await;
    waiter.await.unwrap().unwrap().unlock().await.unwrap();
    assert!((1..=2).contains(&holders.len()), "{holders:?}");
}

/// Goal: a hold that lasts longer than its TTL goes on, and so does one that waited for longer. A session that nobody uses any
/// more ends all its connections; a guard counts as use.
#[tokio::test]
async fn a_long_hold_and_a_long_wait_live_on() {
    let Some(lab) = lab().await else { return };
    let [ours, theirs] = lab.two_mutexes().await;
    let guard = ours.lock().await.unwrap();
    let waiter = waiter(&theirs, 2).await;
    tokio::time::sleep(TTL * 3 / 2).await;
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    let guard = within("the waiter is granted", waiter).await.unwrap().unwrap();
    tokio::time::sleep(TTL * 3 / 2).await;
    assert!(!guard.is_lost());
    assert_eq!(queue_of(&ours).await, [guard.key()]);
    drop((ours, theirs));
    eventually("only the guard's session is left", async || lab.connections().await == 3).await;
    tokio::time::sleep(TTL).await;
    assert!(!guard.is_lost());
    drop(guard);
    eventually("all connections have ended", async || lab.connections().await == 0).await;
}

/// Goal: as documented, a crash of the server ends the locks with the connections. Their holders are told, and no token comes
/// twice.
#[tokio::test]
async fn a_crash_of_the_server_takes_the_locks() {
    let Some(lab) = lab().await else { return };
    let (mut postgres, lab) = lab.private(ServerOptions::default()).await;
    let session = lab.session().await;
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    let token = guard.token();
    postgres.crash().await.unwrap();
    within("the holder is told", guard.lost()).await;
    within("the session is lost", session.lost()).await;
    postgres.restart().await.unwrap();
    let next = lab.a().await.lock().await.unwrap();
    assert!(next.token() > token);
}

/// Goal: wherever a request or an answer is lost with its connection, the call comes to an end, and nothing is left
/// behind. Method: each chunk of a session that locks, hands over and unlocks is lost once.
#[tokio::test]
async fn a_cut_at_any_request_leaves_nothing_behind() {
    let Some(lab) = lab().await else { return };
    let (proxy, proxied) = lab.behind_proxy().await;
    let options = PostgresOptions::new(proxied.url());
    let observer = lab.a().await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let mut chunks = 0;
        loop {
            proxy.lose_after(direction, chunks);
            let course = async {
                let session = lab.kind.open(&options, HOUR).await?;
                let guard = session.mutex("a")?.lock().await?;
                guard.requeue().await?.unlock().await?;
                session.close().await
            };
            let ended = within("the calls end", course).await;
            queue_length(&observer, 0).await;
            drop(within("the lock is free", observer.lock()).await.unwrap());
            queue_length(&observer, 0).await;
            if !proxy.has_lost() {
                ended.unwrap();
                break;
            }
            chunks += 1;
        }
        assert!(chunks > 10, "{chunks} chunks");
    }
}

/// Goal: each claim takes a connection, and the server has only so many: of a thousand names at once some are held and the others
/// refused; none waits for ever, and no held lock is lost.
#[tokio::test]
async fn each_claim_takes_a_connection() {
    let Some(lab) = lab().await else { return };
    let settings = vec!["max_connections=30".to_owned()];
    let (_postgres, lab) = lab.private(ServerOptions { settings, ..Default::default() }).await;
    let session = lab.session_for(HOUR).await;
    let lock = async |number| session.mutex(&format!("name-{number}")).unwrap().lock().await;
    let locks = stream::iter(0..1000).map(lock).buffer_unordered(100).collect::<Vec<_>>();
    let (guards, refused): (Vec<_>, Vec<_>) =
        within("all end", locks).await.into_iter().partition(Result::is_ok);
    // the session has two, which a claim cannot take
    assert_eq!(guards.len(), 28);
    for error in refused {
        let said = format!("{:#}", error.as_ref().unwrap_err());
        assert!(said.contains("too many clients"), "{said}");
        assert_eq!(kind_of(error), BackendErrorKind::Refused);
    }
    let mut guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    guards.pop().unwrap().unlock().await.unwrap();
    let mutex = session.mutex("another").unwrap();
    eventually("there is room", async || match mutex.lock().await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(kind_of::<()>(Err(error)), BackendErrorKind::Refused);
            false
        }
    })
    .await;
}

/// Goal: nobody overtakes a waiter. Method: the server process
/// of a waiter is stopped, so that it takes nothing by itself; then the lock is released, and tried.
#[tokio::test]
async fn nobody_overtakes_a_waiter() {
    let Some(lab) = lab().await else { return };
    let [first, second, late] = [lab.a().await, lab.a().await, lab.a().await];
    let guard = first.lock().await.unwrap();
    let waiter = waiter(&second, 2).await;
    let pid = Pid::from_raw(lab.blocked().await[0]).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    guard.unlock().await.unwrap();
    let late = late.try_lock().await;
    kill_process(pid, Signal::CONT).unwrap();
    assert!(late.unwrap().is_none());
    drop(within("the waiter is served", waiter).await.unwrap().unwrap());
}

/// Goal: a claim whose request is repeated, because it had no answer in time, is granted. Method: an operator keeps the table of
/// the names locked until the request has come on a second connection.
#[tokio::test]
async fn a_repeated_request_is_granted() {
    let Some(lab) = lab().await else { return };
    let options = with(PostgresOptions::new(lab.url()), |options| {
        options.request_timeout = Duration::from_millis(500);
    });
    let backend = lab.kind.backend(&options).unwrap();
    let session = opened(backend, SessionOptions::new(HOUR)).await;
    let operator = lab.client().await;
    let lock = "BEGIN; LOCK TABLE fenced_lock.names IN ACCESS EXCLUSIVE MODE";
    operator.batch_execute(lock).await.unwrap();
    let waiter = unseen_waiter(&session.mutex("a").unwrap());
    let mut seen = std::collections::BTreeSet::new();
    eventually("the request comes again", async || {
        seen.extend(lab.blocked().await);
        seen.len() > 1
    })
    .await;
    operator.batch_execute("COMMIT").await.unwrap();
    drop(within("it is granted", waiter).await.unwrap().unwrap());
}

/// Goal: a lock that a prepared transaction holds, which has no process, is shown as another program's, and nobody else's claim is.
#[tokio::test]
async fn a_prepared_transaction_is_shown() {
    let Some(lab) = lab().await else { return };
    let settings = vec!["max_prepared_transactions=1".to_owned()];
    let (_postgres, lab) = lab.private(ServerOptions { settings, ..Default::default() }).await;
    let session = lab.session_for(HOUR).await;
    let _other = session.mutex("b").unwrap().lock().await.unwrap();
    let (mutex, operator) = (session.mutex("a").unwrap(), lab.client().await);
    let prepare = "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('a', 0));
        PREPARE TRANSACTION 'p'";
    operator.batch_execute(prepare).await.unwrap();
    assert_eq!(queue_of(&mutex).await, ["a/prepared"]);
    let holder = mutex.probe().await.unwrap().unwrap();
    assert_eq!((holder.lease, holder.token), (0, None));
    operator.batch_execute("COMMIT PREPARED 'p'").await.unwrap();
    drop(within("it is granted", mutex.lock()).await.unwrap());
}

/// Goal: rights to lock and to count the grants are needed, and enough.
#[tokio::test]
async fn rights_are_needed_and_enough() {
    let Some(lab) = lab().await else { return };
    let operator = lab.client().await;
    let text = include_str!("../../src/postgres/schema.sql");
    operator.batch_execute("CREATE ROLE advisory_user LOGIN").await.unwrap();
    operator.batch_execute(text).await.unwrap();
    let options = PostgresOptions::new(lab.url_of("advisory_user"));
    operator.batch_execute("GRANT USAGE ON SCHEMA fenced_lock TO advisory_user").await.unwrap();
    assert_refused(lab.kind.open(&options, HOUR).await, "permission denied");
    let grant = "GRANT SELECT, INSERT, UPDATE ON fenced_lock.names TO app";
    assert!(text.contains(grant));
    operator.batch_execute(&grant.replace("TO app", "TO advisory_user")).await.unwrap();
    let mutex = lab.kind.open(&options, HOUR).await.unwrap().mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap().requeue().await.unwrap();
    assert_eq!(mutex.queue().await.unwrap()[0].token, Some(guard.token()));
}

/// Goal: a server that is too old for the statements is an error that says so, at once and for all backends. Method: a function
/// that comes before the server's own one returns a wrong version.
#[tokio::test]
async fn a_server_that_is_too_old_is_an_error() {
    let Some(lab) = lab().await else { return };
    let lie = "CREATE SCHEMA lies;
        CREATE FUNCTION lies.current_setting(text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE $1 WHEN 'server_version_num' THEN '130014' ELSE pg_catalog.current_setting($1) END $$";
    lab.client().await.batch_execute(lie).await.unwrap();
    let url = format!("{}?options=-c%20search_path=lies,pg_catalog", lab.url());
    let options = PostgresOptions::new(url);
    for kind in KINDS {
        let refused = kind.open(&options, HOUR).await;
        assert_refused(refused, "PostgreSQL 14 or later is needed");
    }
}

/// Goal: where each answer takes longer than a tenth of the TTL, a claim never knows in time that it is held: its caller is told
/// so, and does not wait for ever.
#[tokio::test]
async fn a_server_too_far_away_for_the_ttl_is_told() {
    let Some(lab) = lab().await else { return };
    let (proxy, proxied) = lab.behind_proxy().await;
    let options =
        with(PostgresOptions::new(proxied.url()), |options| options.request_timeout = LONG);
    let session = LockKind::Advisory.open(&options, TTL).await.unwrap();
    proxy.delay(TTL / 14);
    within("an end", session.mutex("a").unwrap().lock()).await.unwrap_err();
}

/// Goal: both locks report a refusal with its kind, on opening and in an open session, and it affects no other name. Method: real
/// refusals, and a trigger that refuses with the other codes.
#[tokio::test]
async fn refusals_have_their_kinds() {
    use BackendErrorKind::{Permanent, Refused, Transient};
    for kind in KINDS {
        let Some(lab) = PostgresLab::shared(kind).await else { return };
        let operator = lab.client().await;
        let run = async |sql: &str| operator.batch_execute(sql).await.unwrap();
        let role = format!("refused_{kind:?}");
        run(include_str!("../../src/postgres/schema.sql")).await;
        run(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fenced_lock TO {role};
            GRANT ALL ON ALL TABLES IN SCHEMA fenced_lock TO {role};
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = TG_ARGV[0]; END $$"
        ))
        .await;
        let options = PostgresOptions::new(lab.url_of(&role.to_lowercase()));
        let session = kind.open(&options, HOUR).await.unwrap();
        let [mutex, other] = ["a", "b"].map(|name| session.mutex(name).unwrap());
        let mut guard = other.lock().await.unwrap();
        for (code, expected) in [
            ("53100", Refused),
            ("0A000", Permanent),
            ("22P05", Permanent),
            ("23514", Permanent),
            ("54000", Permanent),
            ("P0001", Permanent),
            ("40001", Transient),
            ("57014", Transient),
        ] {
            run(&format!(
                "CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON fenced_lock.names
                FOR EACH STATEMENT EXECUTE FUNCTION refuse('{code}')"
            ))
            .await;
            assert_eq!(kind_of(mutex.try_lock().await), expected, "{kind:?} {code}");
            if expected != Transient {
                let refused = within("an answer", mutex.lock()).await;
                assert_eq!(kind_of(refused), expected, "{kind:?} {code}");
            }
        }
        run("DROP TRIGGER refuse ON fenced_lock.names").await;
        guard = within("a hand-over", guard.requeue()).await.unwrap();
        run(&format!("REVOKE INSERT ON fenced_lock.names FROM {role}")).await;
        for refused in
            within("answers", async { [mutex.lock().await, guard.requeue().await] }).await
        {
            assert_refused(refused, "permission denied");
        }
        run(&format!("GRANT INSERT ON fenced_lock.names TO {role}")).await;
        for mutex in [mutex, other] {
            within("a grant", mutex.lock()).await.unwrap().unlock().await.unwrap();
        }
        run(&format!("ALTER ROLE {role} CONNECTION LIMIT 0")).await;
        assert_eq!(kind_of(kind.open(&options, HOUR).await), Refused);
        run(&format!("ALTER ROLE {role} CONNECTION LIMIT -1")).await;
        run("UPDATE pg_database SET datallowconn = false WHERE datname = current_database()").await;
        let closed = kind.open(&options, HOUR).await;
        assert_refused(closed, "not currently accepting connections");
    }
}
