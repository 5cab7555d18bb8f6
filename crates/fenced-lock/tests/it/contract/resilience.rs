//! Processes, connections and servers that fail.

use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    BackendErrorKind, Claim, Ends, Guard, LockError, LostReason, PutMode, Released, Session,
    SessionOptions, Token, TokenLife,
};
use fork::{Fork, fork, waitpid};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rustix::process::Signal;
use testkit::wait::{eventually, within};
use testkit::{Direction, Proxy, Run};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::lab::{
    EtcdLab, FoundLab, HOUR, LONG, Lab, ServerLab, TTL, kind_of, number_of, queue_length, queue_of,
    unseen_waiter, waiter,
};

/// A worker that holds the lock and prints its token.
async fn start_holder<L: FoundLab>(lab: &L, name: &str, ttl: Duration) -> (Run, i64) {
    let ttl = ttl.as_secs().to_string();
    let variables = [("LOCK_DOES", "hold"), ("LOCK_NAME", name), ("LOCK_TTL", &ttl)];
    let mut holder = lab.start_worker("contract::resilience::worker", &variables);
    let token = holder.line_after("held ").await.parse().unwrap();
    (holder, token)
}

/// The work of a separate process of a test.
#[tokio::test]
#[ignore = "run by the contract"]
async fn worker() {
    work_on_lab().await;
}

/// The same in two children, which inherit what this process drew at random so far.
#[test]
#[ignore = "run by the contract"]
fn forking_worker() {
    if std::env::var("LOCK_LAB").is_err() {
        return;
    }
    // draws what a hash map draws, as any program has before it forks
    let _seeds = std::hash::RandomState::new();
    let children = [(); 2].map(|()| match fork().unwrap() {
        Fork::Parent(child) => child,
        Fork::Child => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let work = AssertUnwindSafe(|| runtime.unwrap().block_on(work_on_lab()));
            exit(i32::from(catch_unwind(work).is_err()));
        }
    });
    for child in children {
        assert_eq!(waitpid(child).unwrap(), 0, "the child ends well");
    }
}

async fn work_on_lab() {
    let Ok(lab) = std::env::var("LOCK_LAB") else { return };
    macro_rules! work_on {
        ($lab:ty) => {
            if lab == std::any::type_name::<$lab>() {
                return work::<$lab>().await;
            }
        };
    }
    work_on!(EtcdLab);
    work_on!(crate::file::FileLab);
    work_on!(crate::postgres::PostgresLab);
    work_on!(crate::redis::RedisLab);
    work_on!(crate::redlock::RedlockLab);
    work_on!(crate::zookeeper::ZooKeeperLab);
    panic!("an unknown lab: {lab}");
}

fn variable(what: &str) -> String {
    std::env::var(format!("LOCK_{what}")).unwrap()
}

async fn work<L: FoundLab>() {
    let lab = L::at(&variable("ADDRESS"));
    match variable("DOES").as_str() {
        "hold" => hold(&lab).await,
        "add" => add(&lab).await,
        other => panic!("unknown: {other}"),
    }
}

/// Holds the lock until it is told to write, and then looks at its guard.
async fn hold<L: FoundLab>(lab: &L) {
    let session = lab.session_for(Duration::from_secs(variable("TTL").parse().unwrap())).await;
    let mutex = session.mutex(&variable("NAME")).unwrap();
    let guard = mutex.lock().await.unwrap();
    let waiters = std::env::var("LOCK_WAITERS").map_or(0, |waiters| waiters.parse().unwrap());
    let _waiters: Vec<_> = (0..waiters).map(|_| unseen_waiter(&mutex)).collect();
    let token = number_of(guard.token());
    // the test harness has begun a line
    println!("\nheld {token}");
    let order = || std::io::stdin().read_line(&mut String::new());
    tokio::task::spawn_blocking(order).await.unwrap().unwrap();
    println!("wrote {token}");
    println!("{}", if guard.is_lost() { "lost" } else { "kept" });
    let _ = guard.unlock().await;
}

/// Goal: when a holder is stopped beyond its lease, the next one is granted a larger token, and the holder knows of its loss when
/// it goes on. But it can write before it looks: a store that takes every write then has the older one, and its smaller token
/// shows that. Method: the holder is a process of its own, stopped and continued by signals.
pub(crate) async fn a_stopped_holder_can_write_late<L: FoundLab>(lab: &L) {
    let mutex = lab.session_for(LONG).await.mutex(&lab.name()).unwrap();
    let (mut holder, token) = start_holder(lab, mutex.name(), TTL).await;
    holder.signal(Signal::STOP);
    let guard = within("the next is served", mutex.lock()).await.unwrap();
    let has_tokens = lab.backend().promises().token != TokenLife::None;
    holder.send("write").await;
    holder.signal(Signal::CONT);
    let written: i64 = holder.line_after("wrote ").await.parse().unwrap();
    assert_eq!(written, token);
    assert_eq!(written < number_of(guard.token()), has_tokens, "a fence would refuse the write");
    assert_eq!(holder.line().await, "lost");
    assert!(holder.ended().await.success());
    assert!(!guard.is_lost());
    assert_eq!(queue_of(&mutex).await, [guard.key()], "the earlier holder took nothing with it");
}

/// Goal: when a holder is killed, the next one is granted. A service that sees the end of a process does not wait for a TTL. (How
/// soon after the TTL the next one is granted, the fault suite measures under load.)
pub(crate) async fn a_killed_holder_is_succeeded<L: FoundLab>(lab: &L) {
    let mutex = lab.mutex(&lab.name()).await;
    let promises = lab.backend().promises();
    let is_seen = promises.ends == Ends::Process || promises.wake == fenced_lock::Wake::ServerWait;
    let ttl = if is_seen { HOUR } else { TTL };
    let (mut holder, _) = start_holder(lab, mutex.name(), ttl).await;
    let waiter = waiter(&mutex, 2).await;
    holder.kill().await;
    let guard = within("the next is served", waiter).await.unwrap().unwrap();
    assert_eq!(queue_of(&mutex).await, [guard.key()]);
}

/// Goal: an opening that is given up leaves no session behind. Method: openings are dropped after different times, with leases
/// that outlive the test.
pub(crate) async fn an_open_that_was_given_up_leaves_no_session<L: ServerLab>(_: &L) {
    let (server, lab) = L::start().await;
    let backend = lab.backend();
    for number in 0..30 {
        let open = Session::open(Arc::clone(&backend), SessionOptions::new(HOUR));
        drop(timeout(Duration::from_millis(number), open).await);
    }
    let session = Session::open(backend, SessionOptions::new(HOUR)).await.unwrap();
    let one = async || lab.claims_and_sessions(&server).await.1 == 1;
    eventually("one session is left", one).await;
    session.close().await.unwrap();
    assert_eq!(lab.claims_and_sessions(&server).await, (0, 0));
}

/// Goal: two processes with 34 waiters each exclude each other, also as children of one process that inherit the seeds of the
/// standard library's random numbers. Method: each waiter adds one to a number in a file by reading and writing it; without
/// exclusion some additions get lost, or a reader meets half a number.
pub(crate) async fn forked_processes_exclude_each_other(lab: &impl FoundLab) {
    let (name, dir) = (lab.name(), tempfile::tempdir().unwrap());
    let file = dir.path().join("number");
    std::fs::write(&file, "0").unwrap();
    let path = file.to_str().unwrap();
    let variables = [("LOCK_DOES", "add"), ("LOCK_NAME", &name), ("LOCK_FILE", path)];
    let mut worker = lab.start_worker("contract::resilience::forking_worker", &variables);
    assert!(worker.ended().await.success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "68");
}

async fn add<L: FoundLab>(lab: &L) {
    let (session, file) = (lab.session().await, variable("FILE"));
    let mut waiters = JoinSet::new();
    for _ in 0..34 {
        let (mutex, file) = (session.mutex(&variable("NAME")).unwrap(), file.clone());
        waiters.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            let number: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
            tokio::task::yield_now().await;
            std::fs::write(&file, (number + 1).to_string()).unwrap();
            guard.unlock().await.unwrap();
        });
    }
    let threads = Path::new("/proc/self/task").read_dir().unwrap().count();
    if lab.backend().promises().ends == Ends::Process {
        assert!(threads <= 4, "the test's two, and two of the backend: {threads}");
    }
    waiters.join_all().await;
    session.close().await.unwrap();
}

/// Goal: a grant is pushed: with a TTL of an hour, no timer of a waiter could explain it. Nor does the end of a session wait
/// for a timer.
pub(crate) async fn a_grant_is_pushed(lab: &impl Lab) {
    let (one, other) = (lab.session_for(HOUR).await, lab.session_for(HOUR).await);
    let name = lab.name();
    let mut guard = one.mutex(&name).unwrap().lock().await.unwrap();
    for mutex in [other.mutex(&name).unwrap(), one.mutex(&name).unwrap()] {
        let waiter = waiter(&mutex, 2).await;
        guard.unlock().await.unwrap();
        guard = within("the waiter is granted", waiter).await.unwrap().unwrap();
    }
    let waiter = waiter(&other.mutex(&name).unwrap(), 2).await;
    one.close().await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    assert!(guard.is_lost());
}

/// Goal: a guard tells how long its claim took to get into the queue, including the way to the service and back, also after a
/// hand-over.
pub(crate) async fn the_way_to_the_service_is_measured(lab: &impl FoundLab) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let mutex = proxied.session_for(LONG).await.mutex(&lab.name()).unwrap();
    for each_way in [Duration::from_millis(30), Duration::from_millis(60)] {
        proxy.delay(each_way);
        let guard = mutex.lock().await.unwrap();
        assert!(guard.enqueued_in() >= 2 * each_way);
        let guard = guard.requeue().await.unwrap();
        assert!(guard.enqueued_in() >= 2 * each_way);
        guard.unlock().await.unwrap();
    }
}

/// Goal: a connection that is cut, also just before a grant, hides no grant and ends no hold, and hides from no holder that
/// somebody begins to wait. Method: leases that outlive the test, so that no timer helps.
pub(crate) async fn a_cut_connection_hides_nothing(lab: &impl ServerLab) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let (direct, session) = (lab.session_for(HOUR).await, proxied.session_for(HOUR).await);
    let name = lab.name();
    for _ in 0..3 {
        let guard = direct.mutex(&name).unwrap().lock().await.unwrap();
        let waiter = waiter(&session.mutex(&name).unwrap(), 2).await;
        proxy.refuse();
        guard.unlock().await.unwrap();
        proxy.accept();
        let granted = within("the waiter is granted", waiter).await.unwrap().unwrap();
        proxy.cut();
        assert!(!granted.is_lost());
        granted.unlock().await.unwrap();
    }
    let guard = session.mutex(&name).unwrap().lock().await.unwrap();
    eventually("alone in the queue", async || !guard.is_contended()).await;
    proxy.refuse();
    let waiter = waiter(&direct.mutex(&name).unwrap(), 2).await;
    proxy.accept();
    eventually("somebody waits", async || guard.is_contended()).await;
    waiter.abort();
}

/// Goal: the renewals alone reach a service that is far away again in time, though a connection takes many times as long as an
/// answer.
pub(crate) async fn a_far_service_is_reached_again(lab: &impl ServerLab) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let session = proxied.session_for(LONG).await;
    let guard = session.mutex(&lab.name()).unwrap().lock().await.unwrap();
    proxy.delay(Duration::from_millis(150));
    proxy.cut();
    let valid_until = guard.valid_until();
    eventually("a renewal", async || guard.valid_until() > valid_until).await;
}

/// Goal: a connection that dies without a word, as behind a router that forgot it, hides no grant and ends no session: the
/// waiter's process notices by its renewals. Method: the holder's lease outlives the test, so nothing else has the waiter ask.
pub(crate) async fn a_silent_connection_hides_no_grant(lab: &impl ServerLab) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let (direct, session) = (lab.session_for(HOUR).await, proxied.session_for(LONG).await);
    let name = lab.name();
    let guard = direct.mutex(&name).unwrap().lock().await.unwrap();
    let waiter = waiter(&session.mutex(&name).unwrap(), 2).await;
    proxy.silence();
    guard.unlock().await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    assert!(!session.is_lost());
}

/// Goal: a request whose answer got lost has been carried out only once: the lock finds its claim again, counts the release as
/// done, and a try leaves nothing behind.
pub(crate) async fn a_lost_answer_is_asked_for_again(lab: &impl ServerLab) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let session = proxied.session_for(HOUR).await;
    let mutex = session.mutex(&lab.name()).unwrap();
    let direct = lab.mutex(mutex.name()).await;
    for _ in 0..3 {
        let swallowed = proxy.lost_answers();
        proxy.lose_answers(1);
        let guard = within("the grant", mutex.lock()).await.unwrap();
        let first = guard.token();
        assert_eq!(queue_of(&direct).await, [guard.key()]);
        proxy.lose_answers(1);
        let guard = within("the hand-over", guard.requeue()).await.unwrap();
        assert!(guard.token() > first);
        assert_eq!(queue_of(&direct).await, [guard.key()]);
        proxy.lose_answers(1);
        within("the release", guard.unlock()).await.unwrap();
        assert!(queue_of(&direct).await.is_empty());
        let mut lost = 3;
        eventually("the answer to a try is lost", async || {
            lost += 1;
            proxy.lose_answers(1);
            let tried = within("the try", mutex.try_lock()).await;
            if let Ok(Some(guard)) = tried {
                // lost was another message, such as that of a watch, which tells of the release
                guard.unlock().await.unwrap();
                return false;
            }
            assert_eq!(kind_of(tried), BackendErrorKind::Transient, "a try asks once");
            true
        })
        .await;
        queue_length(&direct, 0).await;
        assert_eq!(proxy.lost_answers(), swallowed + lost);
    }
    assert!(!session.is_lost());
}

/// Goal: a request that got lost is sent again, and is carried out once.
pub(crate) async fn a_lost_request_is_sent_again(lab: &impl ServerLab) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let mutex = proxied.session_for(HOUR).await.mutex(&lab.name()).unwrap();
    let direct = lab.mutex(mutex.name()).await;
    for _ in 0..3 {
        let guard = lose_request(&proxy, mutex.lock()).await.unwrap();
        assert_eq!(queue_of(&direct).await, [guard.key()]);
        let guard = lose_request(&proxy, guard.requeue()).await.unwrap();
        assert_eq!(queue_of(&direct).await, [guard.key()]);
        lose_request(&proxy, guard.unlock()).await.unwrap();
        assert!(queue_of(&direct).await.is_empty());
    }
}

async fn lose_request<T>(proxy: &Proxy, request: impl Future<Output = T>) -> T {
    proxy.hold(Direction::ToServer);
    let lose = async {
        eventually("the request is under way", async || proxy.has_held_data()).await;
        proxy.cut();
        proxy.release();
    };
    let (done, ()) = within("it is done", async { tokio::join!(request, lose) }).await;
    done
}

/// Goal: when a server that keeps its data is killed and started again, holds and places in the queue stand, and tokens go on.
/// What is asked for while it is away is done when it is back, except for a try, which does not wait.
pub(crate) async fn a_server_killed_and_started_again<L: ServerLab>(_: &L) {
    let (mut server, lab) = L::start().await;
    let ttl = 3 * LONG;
    let (holder, session) = (lab.session_for(ttl).await, lab.session_for(ttl).await);
    let held = holder.mutex("held").unwrap().lock().await.unwrap();
    let guard = holder.mutex("a").unwrap().lock().await.unwrap();
    let mutex = session.mutex("a").unwrap();
    let waiting = waiter(&mutex, 2).await;
    L::crash(&mut server).await;
    server.restart().await.unwrap();
    assert!(!guard.is_lost());
    let before = guard.token();
    within("the release", guard.unlock()).await.unwrap();
    let granted = within("the waiter is granted", waiting).await.unwrap().unwrap();
    assert!(granted.token().revision() > before.revision());
    let is_durable = lab.backend().promises().token == TokenLife::Durable;
    assert_eq!(granted.token() > before, is_durable, "else it is another cluster's");

    L::crash(&mut server).await;
    let releasing = tokio::spawn(granted.unlock());
    let tried = within("the try", mutex.try_lock()).await;
    assert_eq!(kind_of(tried), BackendErrorKind::Transient, "a try does not wait");
    let waiting = unseen_waiter(&mutex);
    eventually("the session notices", async || !session.is_answered()).await;
    server.restart().await.unwrap();
    within("the release", releasing).await.unwrap().unwrap();
    drop(within("granted when it is back", waiting).await.unwrap().unwrap());
    queue_length(&mutex, 0).await;
    eventually("the session notices", async || session.is_answered()).await;
    assert!(!held.is_lost());
    assert!(held.requeue().await.unwrap().token().revision() > before.revision());
}

/// Goal: an error and its sources tell the cause, and this library's part of the text does not repeat it.
pub(crate) async fn an_error_leaves_its_cause_to_its_source<L: ServerLab>(_: &L) {
    let (mut server, lab) = L::start().await;
    L::crash(&mut server).await;
    let error = Session::open(lab.backend(), SessionOptions::new(TTL)).await.unwrap_err();
    let source = error.source().unwrap().to_string();
    assert!(!error.to_string().contains(&source), "{error}");
    let all = format!("{error:#}");
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    for cause in causes.map(ToString::to_string) {
        assert!(all.matches(&cause).count() <= 1, "{cause:?} in {all:?}");
    }
    let reasons = ["Connection refused", "no available hosts"];
    assert_eq!(reasons.map(|reason| all.matches(reason).count()).iter().sum::<usize>(), 1, "{all}");
    assert_eq!(kind_of::<()>(Err(error)), BackendErrorKind::Transient);
}

/// Goal: when the service says nothing, holder and waiter know by their own clock when they cannot rely on their lease any more,
/// and another claim is granted only after that. What the service says afterwards does not bring the lease back.
pub(crate) async fn silence_means_loss_in_time(lab: &impl ServerLab) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let (session, bystander) = (proxied.session().await, lab.session_for(LONG).await);
    let (name, other) = (lab.name(), lab.name());
    let guard = session.mutex(&name).unwrap().lock().await.unwrap();
    let _theirs = bystander.mutex(&other).unwrap().lock().await.unwrap();
    let waiting = waiter(&session.mutex(&other).unwrap(), 2).await;
    let next = waiter(&bystander.mutex(&name).unwrap(), 2).await;
    proxy.freeze();
    within("the holder is told", guard.lost()).await;
    assert!(!next.is_finished(), "the lease ends later than its holder believes");
    let ended = within("the waiter is told", waiting).await.unwrap().unwrap_err();
    assert_eq!(ended, LockError::SessionLost { reason: LostReason::Expired });
    drop(within("the next is served", next).await.unwrap().unwrap());
    proxy.release();
    assert!(guard.is_lost());
    assert_eq!(session.lost_reason(), Some(LostReason::Expired));
}

/// Goal: a hundred waiters cost a few requests each, and hardly any while they wait.
pub(crate) async fn a_hundred_waiters_make_few_requests<L: ServerLab>(_: &L) {
    let (server, lab) = L::start().await;
    let sessions = [lab.session_for(HOUR).await, lab.session_for(HOUR).await];
    let guard = sessions[0].mutex("a").unwrap().lock().await.unwrap();
    let before = lab.requests(&server).await;
    let mut waiters = JoinSet::new();
    for number in 0..100 {
        let mutex = sessions[number % 2].mutex("a").unwrap();
        waiters.spawn(async move { mutex.lock().await.unwrap().unlock().await.unwrap() });
    }
    eventually("all wait", async || lab.claims_and_sessions(&server).await.0 == 101).await;
    guard.unlock().await.unwrap();
    within("all are served", waiters.join_all()).await;
    let requests = lab.requests(&server).await - before;
    assert!(requests <= 100 * L::REQUESTS_OF_A_WAITER + 1, "{requests} requests");
}

/// Goal: a thousand names that are held cost no requests while nothing happens, none of them is lost, and closing their session
/// leaves nothing behind. Method: while the lease is renewed three times, the server counts fewer requests than a tenth of the
/// names.
pub(crate) async fn a_thousand_names_cost_no_requests<L: ServerLab>(_: &L) {
    let (server, lab) = L::start().await;
    let session = lab.session_for(Duration::from_secs(6)).await;
    let mutexes = (0..1000).map(|number| session.mutex(&format!("name-{number}")).unwrap());
    let locks = stream::iter(mutexes.map(async |mutex| mutex.lock().await)).buffer_unordered(100);
    let mut guards: Vec<Guard> = locks.try_collect().await.unwrap();
    eventually("nobody waits", async || !guards.iter().any(Guard::is_contended)).await;
    let before = lab.requests(&server).await;
    for _ in 0..3 {
        let valid_until = guards[0].valid_until();
        eventually("a renewal", async || guards[0].valid_until() > valid_until).await;
    }
    let requests = lab.requests(&server).await - before;
    assert!(requests < 100, "{requests} requests for names at which nothing happened");
    assert!(guards.iter().all(|guard| !guard.is_lost() && !guard.is_contended()));
    guards.pop().unwrap().unlock().await.unwrap();
    session.close().await.unwrap();
    assert!(guards.iter().all(Guard::is_lost));
    assert_eq!(lab.claims_and_sessions(&server).await, (0, 0));
}

/// Goal: a session lives on although its locks have such long names that what it has to say after a reconnect exceeds one
/// request, as in go-zookeeper#167, and it is told of what happens to the first and to the last of them. (Where a service is asked,
/// nothing is said of a name after a reconnect.)
pub(crate) async fn many_long_names_outlive_a_reconnect<L: ServerLab>(lab: &L) {
    let (proxy, lab) = lab.behind_proxy().await;
    let session = lab.session_for(LONG).await;
    let (own, long) = (lab.name(), "x".repeat(230));
    let lock = async |number| {
        let mutex = session.mutex(&format!("{own}-{number:05}-{long}")).unwrap();
        mutex.lock().await.unwrap()
    };
    let mut guards: Vec<_> = stream::iter(0..2000).map(lock).buffered(50).collect().await;
    let connections = proxy.connections();
    proxy.cut();
    eventually("it connects again", async || proxy.connections() > connections).await;
    let mutex = session.mutex("any").unwrap();
    eventually("it is answered", async || {
        assert!(!session.is_lost());
        mutex.queue().await.is_ok()
    })
    .await;
    for is_last in [true, false] {
        let guard = guards.remove(if is_last { guards.len() - 1 } else { 0 });
        let waiter = waiter(&session.mutex(guard.name()).unwrap(), 2).await;
        within("the waiter is seen", guard.contended()).await;
        lab.delete(&guard.key()).await;
        within("the loss is told", guard.lost()).await;
        within("a grant", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    assert!(!session.is_lost() && guards.iter().all(|guard| !guard.is_lost()));
    drop(guards);
    within("all are released", session.close()).await.unwrap();
}

/// Goal: a process can withdraw a claim that it does not know, of a request that was given up.
pub(crate) async fn a_claim_of_another_process_is_withdrawn(lab: &impl Lab<Token = Token>) {
    let session = lab.session_for(LONG).await;
    let claim = Claim::new(lab.name(), session.lease().id, 99);
    lab.backend().put(&claim, &PutMode::AtEnd).await.unwrap();
    let another = lab.backend();
    assert_eq!(another.release(&claim).await.unwrap(), Released::Done);
    assert_eq!(another.release(&claim).await.unwrap(), Released::Gone);
}
