//! PostgreSQL behind `PgBouncer`.

use std::time::Duration;

use fenced_lock::{BackendErrorKind, PostgresOptions};
use testkit::wait::{eventually, within};
use testkit::{PostgresOptions as ServerOptions, PrivatePgBouncer, PrivatePostgres, Proxy};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::NoTls;

use super::contract::queueing;
use super::lab::{FoundLab, HOUR, LONG, Lab, TTL, assert_refused, kind_of, queue_of, with};
use super::postgres::{KINDS, LockKind, PostgresLab};

/// A server, and a pooler with these settings in front of it, if both are installed.
async fn pooled(settings: &[&str]) -> Option<(PrivatePostgres, PrivatePgBouncer)> {
    if !testkit::postgres::can_test() || !PrivatePgBouncer::can_test() {
        return None;
    }
    let postgres = PrivatePostgres::start(ServerOptions::default()).await.unwrap();
    let pooler = PrivatePgBouncer::start(postgres.port(), settings).await.unwrap();
    Some((postgres, pooler))
}

fn lab(kind: LockKind, server: &PrivatePostgres, port: u16) -> PostgresLab {
    PostgresLab::at(&format!("{kind:?} {}", server.url_of("postgres", port)))
}

/// Goal: a pooler that gives a server process to several clients is refused, since it would give one lock to two clients (as in
/// pgdog#1407): with one client or many, whichever process a statement is given.
#[tokio::test]
async fn a_pooler_that_shares_processes_is_refused() {
    for (mode, is_busy) in [
        ("pool_mode=transaction", false),
        ("pool_mode=statement", false),
        ("pool_mode=transaction\nserver_round_robin=1", true),
        ("pool_mode=transaction\nserver_reset_query_always=1", true),
    ] {
        let Some((server, pooler)) = pooled(&[mode]).await else { return };
        let url = server.url_of("postgres", pooler.port());
        let mut others = busy_clients(&url, if is_busy { 10 } else { 0 }).await;
        for kind in KINDS {
            for _ in 0..2 {
                let options = PostgresOptions::new(lab(kind, &server, pooler.port()).url());
                let refused = within("an answer", kind.open(&options, HOUR)).await;
                assert_refused(refused, "in session mode");
            }
        }
        // the server processes of the other clients keep their settings
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        others.spawn(connection);
        let left = "SELECT concat_ws(' ', current_setting('statement_timeout'),
            current_setting('idle_session_timeout'), current_setting('enable_seqscan'))";
        let left = client.query_typed_one(left, &[]).await.unwrap();
        assert_eq!(left.get::<_, &str>(0), "0 0 on", "{mode}");
    }
}

/// Clients that send statements all the time, until these tasks are dropped.
async fn busy_clients(url: &str, count: usize) -> JoinSet<Result<(), tokio_postgres::Error>> {
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        clients.spawn(connection);
        clients.spawn(async move {
            loop {
                client.simple_query("SELECT pg_sleep(random() / 100)").await?;
            }
        });
    }
    clients
}

/// Goal: the lock works through a pooler in session mode, although that knows no settings for a connection.
#[tokio::test]
async fn a_pooler_in_session_mode_serves() {
    let settings = ["pool_mode=session", "default_pool_size=150", "max_client_conn=200"];
    let Some((server, pooler)) = pooled(&settings).await else { return };
    for kind in KINDS {
        let (ours, direct) = (lab(kind, &server, pooler.port()), lab(kind, &server, server.port()));
        // the second one gets connections that the first one has left
        for hold in [Duration::ZERO, TTL * 3 / 2] {
            let (mutex, other) = (ours.mutex("a").await, direct.mutex("a").await);
            let guard = within("a grant", mutex.lock()).await.unwrap().requeue().await.unwrap();
            tokio::time::sleep(hold).await;
            assert!(other.try_lock().await.unwrap().is_none());
            assert_eq!(queue_of(&other).await, [guard.key()]);
            guard.unlock().await.unwrap();
        }
        queueing::a_hundred_waiters_are_served_in_their_order(&ours).await;
    }
}

/// Goal: a pooler's refusal with the code of a protocol violation is permanent, unless the pooler lacks room or its server.
#[tokio::test]
async fn what_a_pooler_says_has_its_kind() {
    for (setting, parameters, expected) in [
        ("pool_mode=session", "?options=-c%20geqo=off", BackendErrorKind::Permanent),
        ("max_client_conn=1", "", BackendErrorKind::Refused),
        ("query_wait_timeout=1", "", BackendErrorKind::Refused),
    ] {
        let Some((mut server, pooler)) = pooled(&[setting]).await else { return };
        let url = format!("{}{parameters}", lab(LockKind::Queue, &server, pooler.port()).url());
        if setting.starts_with("query") {
            server.kill().await.unwrap();
        }
        for kind in KINDS {
            let options =
                with(PostgresOptions::new(&url), |options| options.request_timeout = LONG);
            let refused = within("an answer", kind.open(&options, HOUR)).await;
            let said = format!("{:#}", refused.as_ref().unwrap_err());
            assert_eq!(kind_of(refused), expected, "{said}");
        }
    }
}

/// Goal: when a pooler comes in between while sessions are open, no lock is given to two; and when it puts another server process
/// in the place of a holder's, the next renewal finds that out. Method: a transaction of another client keeps the holder's
/// process busy.
#[tokio::test]
async fn a_pooler_that_comes_between_gives_no_lock_to_two() {
    let Some((server, pooler)) = pooled(&["pool_mode=transaction"]).await else { return };
    let proxy = Proxy::to(server.port()).await.unwrap();
    let lab = lab(LockKind::Advisory, &server, proxy.port());
    let (session, other) = (lab.session_for(HOUR).await, lab.mutex("a").await);
    let one = lab.mutex("a").await;
    proxy.redirect_to(pooler.port());
    let guard = one.try_lock().await.unwrap().unwrap();
    for waits in [false, true] {
        eventually("the second is refused, or the first is told", async || {
            let second = if waits {
                timeout(TTL, other.lock()).await.map_or(Ok(None), |locked| locked.map(Some))
            } else {
                other.try_lock().await
            };
            // a busy pooler may start another process for this client: the lock is taken there, and the holder's renewals meet it
            let Ok(second) = second else {
                assert_refused(second, "in session mode");
                return true;
            };
            assert!(second.is_none() || guard.is_lost());
            guard.is_lost()
        })
        .await;
    }
    let url = server.url_of("postgres", pooler.port());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute("BEGIN").await.unwrap();
    within("the loss is told", guard.lost()).await;
    connection.abort();

    // successive statements now reach different processes
    let _others = busy_clients(&url, 10).await;
    let mutex = session.mutex("b").unwrap();
    for _ in 0..40 {
        if let Ok(Some(guard)) = within("an answer", mutex.try_lock()).await {
            guard.unlock().await.ok();
        }
    }
    let url = server.url_of("postgres", server.port());
    let (operator, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let take = "SELECT pg_try_advisory_lock(hashtextextended('b', 0))";
    eventually("no process is left with it", async || {
        operator.query_typed_one(take, &[]).await.unwrap().get(0)
    })
    .await;
}
