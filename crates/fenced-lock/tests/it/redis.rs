//! What is particular to Redis: its messages, its restarts, its failovers, its rights.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend as _, BackendErrorKind, Claim, Clock, Ends, Guard, LockError, LostReason, Mutex,
    RedisBackend, RedisOptions, Released, Session, SessionOptions, TokenLife,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rustix::process::Signal;
use testkit::wait::{eventually, within};
use testkit::{
    Certificates, OwnedDir, PrivateRedis, Proxy, RedisOptions as ServerOptions, ReplicatedRedis,
    Way,
};
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::lab::{Lab, TTL, queue_length, run_again, signal};
use super::lab_redis::{RedisLab, server_that_says};

/// A TTL that outlives what these tests do.
const LONG: Duration = Duration::from_secs(20);

/// The rights that the documentation asks for.
const RIGHTS: &str = "~{fenced-lock}:* &{fenced-lock}:* +info +subscribe +publish +evalsha +script|load +time \
    +get +set +del +pexpire +pttl +hget +hset +hsetnx +hincrby +hdel +zadd +zrem +zscore +zcard +zrange";

async fn session_for(lab: &RedisLab, ttl: Duration) -> Session {
    Session::open(lab.backend(), SessionOptions::new(ttl)).await.unwrap()
}

/// A waiter in a task, seen in the queue.
async fn waiter(mutex: &Mutex, length: usize) -> JoinHandle<Result<Guard, LockError>> {
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(mutex, length).await;
    waiter
}

async fn volatile() -> PrivateRedis {
    let options = ServerOptions { volatile: true, ..ServerOptions::default() };
    PrivateRedis::start(options).await.unwrap()
}

/// A lab behind a proxy to a Redis of its own.
async fn proxied() -> (PrivateRedis, Proxy, RedisLab) {
    let redis = volatile().await;
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let lab = RedisLab::at(format!("redis://127.0.0.1:{}", proxy.port()));
    (redis, proxy, lab)
}

/// Goal: a grant is pushed: with a TTL of an hour, no timer of a waiter could explain it.
#[tokio::test]
async fn a_grant_is_pushed() {
    let lab = RedisLab::shared().await;
    let hour = Duration::from_hours(1);
    let (one, other) = (session_for(&lab, hour).await, session_for(&lab, hour).await);
    let name = lab.name();
    let mut guard = one.mutex(&name).unwrap().lock().await.unwrap();
    for mutex in [other.mutex(&name).unwrap(), one.mutex(&name).unwrap()] {
        let waiter = waiter(&mutex, 2).await;
        guard.unlock().await.unwrap();
        guard = within("the waiter is granted", waiter).await.unwrap().unwrap();
    }
    // nor does the end of a session wait for a timer
    let waiter = waiter(&other.mutex(&name).unwrap(), 2).await;
    one.close().await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    assert!(guard.is_lost());
}

/// Goal: a message that got lost delays a grant and loses none: the waiter asks by itself.
#[tokio::test]
async fn a_lost_message_is_made_good() {
    let lab = RedisLab::shared().await;
    let (holder, other) = (session_for(&lab, TTL).await, session_for(&lab, TTL).await);
    let mutex = other.mutex(&lab.name()).unwrap();
    let guard = holder.mutex(mutex.name()).unwrap().lock().await.unwrap();
    let waiter = waiter(&mutex, 2).await;
    // a release past the script sends no message
    lab.delete(&guard.key()).await;
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    within("the holder is told by its renewal", guard.lost()).await;
    assert!(!holder.is_lost());
}

/// Goal: a connection that is cut, also just before a grant, hides no grant and ends no hold.
#[tokio::test]
async fn a_cut_connection_hides_no_grant() {
    let (redis, proxy, lab) = proxied().await;
    let direct = session_for(&RedisLab::of(&redis), LONG).await;
    let session = session_for(&lab, LONG).await;
    let name = lab.name();
    for _ in 0..3 {
        let guard = direct.mutex(&name).unwrap().lock().await.unwrap();
        let waiter = waiter(&session.mutex(&name).unwrap(), 2).await;
        proxy.refuse();
        guard.unlock().await.unwrap();
        proxy.admit();
        let granted = within("the waiter is granted", waiter).await.unwrap().unwrap();
        proxy.cut();
        assert!(!granted.is_lost());
        granted.unlock().await.unwrap();
    }
}

/// Goal: an answer that gets lost, to whichever request, leaves no claim behind and loses none.
#[tokio::test]
async fn a_lost_answer_is_asked_for_again() {
    let (redis, proxy, lab) = proxied().await;
    let session = session_for(&lab, LONG).await;
    let mutex = session.mutex(&lab.name()).unwrap();
    let other = session_for(&RedisLab::of(&redis), LONG).await.mutex(mutex.name()).unwrap();
    for _ in 0..3 {
        let swallowed = proxy.swallowed_answers();
        proxy.swallow(1);
        let guard = within("a grant", mutex.lock()).await.unwrap();
        assert_eq!(
            guard.token().revision(),
            raw_number(&redis, "HGET {fenced-lock}:last ticket").await
        );
        proxy.swallow(1);
        let guard = within("a hand-over", guard.hand_over()).await.unwrap();
        queue_length(&other, 1).await;
        proxy.swallow(1);
        within("a release", guard.unlock()).await.unwrap();
        queue_length(&other, 0).await;
        proxy.swallow(1);
        assert!(matches!(mutex.try_lock().await, Err(LockError::Backend(_))), "a try asks once");
        queue_length(&other, 0).await;
        assert_eq!(proxy.swallowed_answers(), swallowed + 4);
    }
    assert!(!session.is_lost());
}

/// Goal: a request that gets lost is sent again, and is carried out once.
#[tokio::test]
async fn a_lost_request_is_sent_again() {
    let (redis, proxy, lab) = proxied().await;
    let session = session_for(&lab, LONG).await;
    let mutex = session.mutex(&lab.name()).unwrap();
    let mut guard: Option<Guard> = None;
    for requests in 0..3 {
        proxy.hold(Way::There);
        let (mutex, held) = (mutex.clone(), guard.take());
        let request = tokio::spawn(async move {
            match held {
                Some(held) if requests == 1 => held.hand_over().await.map(Some),
                Some(held) => held.unlock().await.map(|()| None),
                None => mutex.lock().await.map(Some),
            }
        });
        eventually("it is under way", async || proxy.holds_something()).await;
        proxy.cut();
        proxy.release();
        guard = within("it is done", request).await.unwrap().unwrap();
    }
    assert_eq!(raw_number(&redis, "HGET {fenced-lock}:last ticket").await, 2);
    queue_length(&mutex, 0).await;
}

async fn raw_number(redis: &PrivateRedis, line: &str) -> i64 {
    redis.run(line).await.unwrap()
}

/// Goal: a claim that nobody knows of, such as one of a request that came late, does not block the lock for as long
/// as its session lives: neither waiters nor tries.
#[tokio::test]
async fn an_orphan_is_removed() {
    let lab = RedisLab::shared().await;
    let (session, other) = (session_for(&lab, LONG).await, session_for(&lab, LONG).await);
    let orphan = format!("{:x}-999999", session.lease().id);
    for tries in [false, true] {
        let mutex = other.mutex(&lab.name()).unwrap();
        let zadd = format!("ZADD {{fenced-lock}}:queue:{} 1", mutex.name());
        lab.raw().await.run_with::<()>(&zadd, &orphan).await;
        if tries {
            assert!(mutex.try_lock().await.unwrap().is_none());
            queue_length(&mutex, 0).await;
        }
        drop(within("the lock is free", mutex.lock()).await.unwrap());
    }
    assert!(!session.is_lost());
}

/// Goal: a Redis that keeps its data, killed and started again: the hold stands, since its session does, and the
/// waiter is granted when it ends. The token's cluster is another one, since Redis cannot say that nothing was lost.
#[tokio::test]
async fn redis_killed_and_started_again() {
    let mut redis = PrivateRedis::start(ServerOptions::default()).await.unwrap();
    let lab = RedisLab::of(&redis);
    let (holder, session) = (session_for(&lab, LONG).await, session_for(&lab, LONG).await);
    let guard = holder.mutex(&lab.name()).unwrap().lock().await.unwrap();
    let mutex = session.mutex(guard.name()).unwrap();
    let waiter = waiter(&mutex, 2).await;
    let before = guard.token();
    redis.kill().await.unwrap();
    redis.restart().await.unwrap();
    assert!(!guard.is_lost());
    within("the release", guard.unlock()).await.unwrap();
    let granted = within("the waiter is granted", waiter).await.unwrap().unwrap();
    assert!(granted.token().revision() > before.revision());
    assert_eq!(granted.token().partial_cmp(&before), None, "another cluster");
    within("the release", granted.unlock()).await.unwrap();
    // requests that come while it is away are done when it is back
    redis.kill().await.unwrap();
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually("the session notices", async || !session.is_answered()).await;
    assert!(matches!(mutex.try_lock().await, Err(LockError::Backend(_))), "a try does not wait");
    redis.restart().await.unwrap();
    drop(within("granted when it is back", waiter).await.unwrap().unwrap());
    queue_length(&mutex, 0).await;
}

/// Goal: what is not promised is missing. A Redis that lost its data numbers its grants anew, so a token's number comes
/// twice; the cluster tells the two tokens apart. The first holder learns of its loss.
#[tokio::test]
async fn a_number_that_comes_twice_is_another_token() {
    let mut redis = volatile().await;
    let lab = RedisLab::of(&redis);
    assert_eq!(lab.backend().promises().token, TokenLife::Volatile);
    let mut before = None;
    for loss in ["nothing", "a flush", "a restart"] {
        match loss {
            "a flush" => redis.run::<()>("FLUSHALL").await.unwrap(),
            "a restart" => {
                redis.kill().await.unwrap();
                redis.restart().await.unwrap();
            }
            _ => {}
        }
        let session = session_for(&lab, TTL).await;
        let guard = session.mutex("a").unwrap().lock().await.unwrap();
        let (token, held) = (guard.token(), before.replace(guard));
        assert_eq!((token.revision(), token.cluster()), (1, session.lease().cluster));
        if let Some(held) = held {
            assert_eq!(held.token().partial_cmp(&token), None, "{loss}");
            within("the loss is told", held.lost()).await;
        }
    }
}

/// Goal: what is not promised is missing. A failover to a replica that had not got a grant lets two hold the lock with
/// the same number, until the first one's renewal; the cluster tells the two tokens apart.
#[tokio::test]
async fn a_failover_lets_two_hold() {
    let options = ServerOptions { volatile: true, ..ServerOptions::default() };
    let redis = ReplicatedRedis::start_in(&OwnedDir::create().unwrap(), options).await.unwrap();
    let lab = RedisLab::at(redis.url());
    let (one, other) = (session_for(&lab, LONG).await, session_for(&lab, LONG).await);
    redis.hold_writes_back().await.unwrap();
    let guard = one.mutex("a").unwrap().lock().await.unwrap();
    redis.fail_over().await.unwrap();
    let theirs = within("a grant", other.mutex("a").unwrap().lock()).await.unwrap();
    assert!(!guard.is_lost(), "two hold");
    assert_eq!(guard.token().revision(), theirs.token().revision());
    assert_eq!(guard.token().partial_cmp(&theirs.token()), None);
    within("the first is told by its renewal", guard.lost()).await;
    assert!(!one.is_lost() && !theirs.is_lost());
}

/// Goal: when Redis says nothing, holder and waiter know by their own clock, and another one is granted only then.
#[tokio::test]
async fn a_silent_redis_means_loss_in_time() {
    let (redis, proxy, lab) = proxied().await;
    let (session, direct) = (session_for(&lab, TTL).await, RedisLab::of(&redis));
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    let bystander = session_for(&direct, LONG).await;
    let _theirs = bystander.mutex("b").unwrap().lock().await.unwrap();
    let waiting = waiter(&session.mutex("b").unwrap(), 2).await;
    let next = waiter(&bystander.mutex("a").unwrap(), 2).await;
    proxy.freeze();
    within("the holder is told", guard.lost()).await;
    assert!(!next.is_finished(), "the lease ends later than its holder believes");
    let ended = within("the waiter is told", waiting).await.unwrap().unwrap_err();
    assert!(matches!(ended, LockError::SessionLost { reason: LostReason::Expired }), "{ended}");
    drop(within("the next is served", next).await.unwrap().unwrap());
    proxy.release();
    assert_eq!(session.lost_reason(), Some(LostReason::Expired));
}

/// Goal: Redis measures a TTL by its wall clock, as the promises say. Method: the end of a session is a date, and the
/// time while Redis was down counts.
#[tokio::test]
async fn a_lease_ends_by_the_wall_clock() {
    let mut redis = PrivateRedis::start(ServerOptions::default()).await.unwrap();
    let lab = RedisLab::of(&redis);
    assert_eq!(lab.backend().promises().ends, Ends::Lease(Clock::Wall));
    let lease = lab.backend().open(TTL).await.unwrap();
    let key = format!("{{fenced-lock}}:session:{:x}", lease.id);
    let ends_at = raw_number(&redis, &format!("PEXPIRETIME {key}")).await;
    redis.kill().await.unwrap();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    eventually("the date has passed", async || now().as_millis() > ends_at.unsigned_abs().into())
        .await;
    redis.restart().await.unwrap();
    assert_eq!(raw_number(&redis, &format!("EXISTS {key}")).await, 0);
}

/// Goal: the rights that are documented suffice, over TLS, with a certificate of ours; and without any one of them
/// an error says which, and nothing is left behind.
#[tokio::test]
async fn rights_and_certificates() {
    let options = ServerOptions { secured: true, ..ServerOptions::default() };
    let redis = PrivateRedis::start(options).await.unwrap();
    redis.run::<()>(&format!("ACL SETUSER locker on >secret {RIGHTS}")).await.unwrap();
    let certificates = redis.certificates().unwrap();
    let (certificate, key) = certificates.client();
    let read = |path| std::fs::read(path).unwrap();
    let options = |address: &str| RedisOptions {
        ca: Some(read(certificates.ca())),
        identity: Some((read(certificate.clone()), read(key.clone()))),
        ..RedisOptions::new(address)
    };
    let address = redis.url().replace("://", "://locker:secret@");
    let backend = || Arc::new(RedisBackend::new(options(&address)).unwrap());
    let open = async || Session::open(backend(), SessionOptions::new(LONG)).await;
    let (one, other) = (open().await.unwrap(), open().await.unwrap());
    let guard = one.mutex("a").unwrap().lock().await.unwrap();
    assert!(other.mutex("a").unwrap().try_lock().await.unwrap().is_none());
    let waiter = waiter(&other.mutex("a").unwrap(), 2).await;
    let handing_over = tokio::spawn(guard.hand_over());
    within("a grant", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    let guard = within("the lock is back", handing_over).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    one.close().await.unwrap();
    other.close().await.unwrap();

    let wrong = RedisBackend::new(options(&address.replace("secret", "wrong"))).unwrap();
    let error = wrong.open(TTL).await.unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Permanent, "{error}");
    assert!(!format!("{wrong:?}{error}").contains("wrong"), "the password is not shown");

    // what does not fit together
    let refused = async |said: &str, options: RedisOptions| {
        let opened = RedisBackend::new(options).unwrap();
        let error = within("an end", opened.open(TTL)).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Permanent, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    };
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Certificates::create_in(elsewhere.path()).unwrap();
    let ours = options(&address);
    refused("certificate", RedisOptions { ca: Some(read(others.ca())), ..ours.clone() }).await;
    refused("CertificateRequired", RedisOptions { identity: None, ..ours.clone() }).await;
    // these two end without a word
    let plain = RedisOptions::new(address.replace("rediss:", "redis:"));
    let url = volatile().await.url().replace("redis:", "rediss:");
    for options in [plain, RedisOptions { url, ..ours }] {
        let opened = RedisBackend::new(options).unwrap();
        within("an end", opened.open(TTL)).await.unwrap_err();
    }

    for right in RIGHTS.split_whitespace().filter(|right| right.starts_with('+')) {
        let taken = right.replace('+', "-");
        redis.run::<()>(&format!("ACL SETUSER locker {taken}")).await.unwrap();
        let used = async || -> Result<(), LockError> {
            let (one, other) = (open().await?, open().await?);
            let (mutex, other) = (one.mutex("a")?, other.mutex("a")?);
            let guard = mutex.lock().await?;
            let claim = Claim {
                name: "a".into(),
                lease: one.lease().id,
                number: 1 << 40,
                label: "".into(),
            };
            let backend = backend();
            backend.enqueue(&claim).await?;
            backend.release(&claim).await?;
            backend.renew(one.lease()).await?;
            other.queue().await?;
            guard.unlock().await?;
            one.close().await
        };
        redis.run::<()>("SCRIPT FLUSH").await.unwrap();
        let error = within("an end", used()).await.expect_err(right);
        let LockError::Backend(error) = &error else { panic!("{right}: {error}") };
        assert_eq!(error.kind, BackendErrorKind::Permanent, "{right}: {error}");
        redis.run::<()>(&format!("ACL SETUSER locker {right}")).await.unwrap();
        redis.run::<()>("FLUSHALL").await.unwrap();
    }
}

/// Goal: a server on which a lock would not hold is refused, with a sentence that says why.
#[tokio::test]
async fn a_wrong_server_is_refused() {
    let open = async |address: String| {
        let error = RedisLab::at(address).backend().open(TTL).await.unwrap_err();
        (error.kind, error.to_string())
    };
    let (redis, replica) = (volatile().await, volatile().await);
    replica.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", redis.port())).await.unwrap();
    let (kind, text) = open(replica.url()).await;
    assert!(kind == BackendErrorKind::Transient && text.contains("a replica"), "{text}");
    redis.run::<()>("CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru").await.unwrap();
    let (kind, text) = open(redis.url()).await;
    assert!(kind == BackendErrorKind::Permanent && text.contains("evicts keys"), "{text}");

    let says = async |answer| open(server_that_says(answer).await).await;
    let (kind, text) = says("-ERR unknown command 'HELLO'\r\n").await;
    assert!(kind == BackendErrorKind::Permanent && text.contains("before 6.0"), "{text}");
    let (kind, text) = says("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    assert!(kind == BackendErrorKind::Permanent && text.contains("no Redis"), "{text}");
    let error = RedisBackend::new(RedisOptions::new("http://127.0.0.1:1")).unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Permanent, "no address: {error}");
}

/// Goal: nor is a node of a cluster taken.
#[tokio::test]
async fn a_cluster_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [port, cluster_port] = testkit::ports::free_ports().unwrap();
    let names = ["redis-server", "valkey-server"];
    let program = testkit::server::find_program("FLASH_SALE_REDIS", &names).unwrap();
    let _server = Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(["--cluster-enabled", "yes", "--cluster-port", &cluster_port.to_string()])
        .arg("--dir")
        .arg(dir.path())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let lab = RedisLab::at(format!("redis://127.0.0.1:{port}"));
    eventually("it is refused for good", async || {
        let error = lab.backend().open(TTL).await.unwrap_err();
        error.kind == BackendErrorKind::Permanent
            && error.to_string().contains("a node of a Redis Cluster")
    })
    .await;
}

/// How many scripts Redis has run.
async fn scripts(redis: &PrivateRedis) -> u64 {
    let stats: String = redis.run("INFO commandstats").await.unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split_once(',').unwrap().0.parse().unwrap())
}

/// Goal: each of a hundred waiters costs two requests, and none while it waits.
#[tokio::test]
async fn a_hundred_waiters_cost_two_requests_each() {
    let redis = volatile().await;
    let lab = RedisLab::of(&redis);
    let hour = Duration::from_hours(1);
    let (one, other) = (session_for(&lab, hour).await, session_for(&lab, hour).await);
    let guard = one.mutex("a").unwrap().lock().await.unwrap();
    let before = scripts(&redis).await;
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..100 {
        let mutex = [&one, &other][number % 2].mutex("a").unwrap();
        waiters.spawn(async move { mutex.lock().await.unwrap().unlock().await.unwrap() });
    }
    let length = "ZCARD {fenced-lock}:queue:a";
    eventually("all wait", async || raw_number(&redis, length).await == 101).await;
    assert_eq!(scripts(&redis).await - before, 100);
    guard.unlock().await.unwrap();
    within("all have had it", waiters.join_all()).await;
    assert_eq!(scripts(&redis).await - before, 201);
}

/// Goal: a thousand names are kept by one renewal, each is let go, and nothing is left of them.
#[tokio::test]
async fn a_thousand_names_cost_one_renewal() {
    let redis = volatile().await;
    let lab = RedisLab::of(&redis);
    let backend = lab.backend_of_its_own();
    let options = SessionOptions::new(Duration::from_secs(6));
    let session = Session::open(Arc::clone(&backend) as _, options).await.unwrap();
    let mutexes = (0..1000).map(|number| session.mutex(&format!("name-{number}")).unwrap());
    let locks = stream::iter(mutexes.map(async |mutex| mutex.lock().await)).buffer_unordered(100);
    let mut guards: Vec<_> = locks.try_collect().await.unwrap();
    let before = scripts(&redis).await;
    eventually("three renewals", async || scripts(&redis).await >= before + 3).await;
    assert!(guards.iter().all(|guard| !guard.is_lost() && !guard.is_contended()));
    assert!(scripts(&redis).await < before + 10, "one request for all names");
    guards.pop().unwrap().unlock().await.unwrap();
    session.close().await.unwrap();
    assert!(guards.iter().all(Guard::is_lost));
    let left: Vec<String> = redis.run("KEYS *").await.unwrap();
    assert_eq!(left, ["{fenced-lock}:last"]);
    assert!(format!("{backend:?}").contains("claims: 0"));
}

/// Goal: nothing is remembered of claims that were handed over, tried in vain, or given up.
#[tokio::test]
async fn nothing_is_left_in_memory() {
    let lab = RedisLab::shared().await;
    let backend = lab.backend_of_its_own();
    let session =
        Session::open(Arc::clone(&backend) as _, SessionOptions::new(LONG)).await.unwrap();
    let mutex = session.mutex(&lab.name()).unwrap();
    let guard = mutex.lock().await.unwrap().hand_over().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    waiter(&mutex, 2).await.abort();
    queue_length(&mutex, 1).await;
    guard.unlock().await.unwrap();
    let what = "no claim is known any more";
    eventually(what, async || format!("{backend:?}").contains("claims: 0")).await;
}

/// Goal: a claim whose request was given up can be withdrawn by a process that does not know it.
#[tokio::test]
async fn a_claim_of_another_process_is_withdrawn() {
    let lab = RedisLab::shared().await;
    let session = session_for(&lab, LONG).await;
    let (lease, label) = (session.lease().id, Arc::from(""));
    let claim = Claim { name: lab.name().into(), lease, number: 99, label };
    lab.backend().enqueue(&claim).await.unwrap();
    let another = lab.backend();
    assert_eq!(another.release(&claim).await.unwrap(), Released::Done);
    assert_eq!(another.release(&claim).await.unwrap(), Released::Gone);
}

const WORKER: &str = "REDIS_WORKER";

/// Goal: a holder that is stopped beyond its lease is succeeded, and learns of its loss when it goes on. But it can
/// write before it looks: a store that takes every write then has the older one, and its smaller token shows it.
/// Method: the holder is a process of its own, stopped and continued by signals.
#[tokio::test]
async fn a_stopped_holder_can_write_late() {
    let lab = RedisLab::shared().await;
    let mut raw = lab.raw().await;
    let mut holder = run_again("redis::writing_worker", [(WORKER, lab.url())]);
    let mutex = session_for(&lab, LONG).await.mutex("a").unwrap();
    queue_length(&mutex, 1).await;
    let waiter = waiter(&mutex, 2).await;
    signal(&holder, Signal::STOP);
    let guard = within("the next is served", waiter).await.unwrap().unwrap();
    let own = guard.token().revision();
    raw.run::<()>(&format!("SET data {own}")).await;
    raw.run::<()>("SET go 1").await;
    signal(&holder, Signal::CONT);
    let status = within("the holder ends", holder.wait()).await.unwrap();
    assert!(status.success(), "it knows of its loss");
    let written: i64 = raw.run("GET data").await;
    assert!(
        written < own,
        "the write of the earlier holder came later, and a fence would refuse it"
    );
    assert!(!guard.is_lost());
}

#[tokio::test]
#[ignore = "run by a_stopped_holder_can_write_late"]
async fn writing_worker() {
    let Ok(url) = std::env::var(WORKER) else { return };
    let lab = RedisLab::at(url);
    let mut raw = lab.raw().await;
    let guard = lab.mutex("a").await.lock().await.unwrap();
    // it has looked, and writes later
    assert!(!guard.is_lost());
    eventually("the pause is over", async || raw.run::<bool>("EXISTS go").await).await;
    raw.run::<()>(&format!("SET data {}", guard.token().revision())).await;
    assert!(guard.is_lost());
}
