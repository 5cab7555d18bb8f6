//! Redis: how the contract has it, and what is particular to it: its messages, its restarts, its failovers, its rights.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fenced_lock::{
    Backend, BackendErrorKind, Claim, Clock, Ends, LockError, PutMode, RedisBackend, RedisOptions,
    RedlockBackend, Session, SessionOptions, Token, TokenLife,
};
use testkit::shared::{Raw, fresh_database};
use testkit::wait::{eventually, within};
use testkit::{
    Certificates, OwnedDir, PrivateRedis, PrivateRedisCluster, Proxy, RedisClusterOptions,
    RedisOptions as ServerOptions, Sentinels,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::lab::{
    FoundLab, LONG, Lab, ServerLab, TTL, kind_of, queue_length, server_that_says, with,
};

pub(crate) struct RedisLab {
    url: String,
}

impl RedisLab {
    /// A database of its own in a Redis that the tests of this process share.
    pub(crate) async fn shared() -> Self {
        Self { url: fresh_database().await }
    }

    pub(crate) fn of(redis: &PrivateRedis) -> Self {
        Self { url: redis.url() }
    }

    /// A connection of the server itself, past the library.
    pub(crate) async fn raw(&self) -> Raw {
        Raw::connect(&self.url).await
    }
}

impl Lab for RedisLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        Arc::new(RedisBackend::new(RedisOptions::new(&self.url)).unwrap())
    }

    async fn revoke(&self, lease: i64) {
        let key = format!("{{fenced-lock}}:session:{lease:x}");
        assert!(self.raw().await.run_with::<bool>("DEL", &key).await);
    }

    async fn delete(&self, key: &str) {
        let (name, claim) = key.rsplit_once('/').unwrap();
        let zrem = format!("ZREM {{fenced-lock}}:queue:{name}");
        assert!(self.raw().await.run_with::<bool>(&zrem, claim).await);
    }
}

impl FoundLab for RedisLab {
    fn address(&self) -> String {
        self.url.clone()
    }

    fn at(address: &str) -> Self {
        Self { url: address.to_owned() }
    }
}

impl ServerLab for RedisLab {
    type Kind = testkit::redis::Redis;

    const REQUESTS_OF_A_WAITER: u64 = 2;

    async fn start() -> (PrivateRedis, Self) {
        let redis = PrivateRedis::start(ServerOptions::default()).await.unwrap();
        let lab = Self::of(&redis);
        (redis, lab)
    }

    async fn requests(&self, redis: &PrivateRedis) -> u64 {
        let stats: String = redis.run("INFO commandstats").await.unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split_once(',').unwrap().0.parse().unwrap())
    }

    /// All keys but the number of the latest grant.
    async fn claims_and_sessions(&self, redis: &PrivateRedis) -> (u64, u64) {
        let keys: Vec<String> = redis.run("KEYS *").await.unwrap();
        let (mut claims, mut sessions) = (0, 0);
        for key in keys {
            if key.contains(":queue:") {
                claims += redis.run::<u64>(&format!("ZCARD {key}")).await.unwrap();
            } else if key != "{fenced-lock}:last" {
                sessions += 1;
            }
        }
        (claims, sessions)
    }
}

/// The rights that the documentation asks for.
const RIGHTS: &str = "~{fenced-lock}:* &{fenced-lock}:* +info +subscribe +publish +evalsha +eval +time \
    +get +set +del +pexpire +pttl +hget +hset +hsetnx +hincrby +hdel +zadd +zrem +zscore +zcard +zrange";

pub(super) async fn volatile() -> PrivateRedis {
    let options = ServerOptions { volatile: true, ..ServerOptions::default() };
    PrivateRedis::start(options).await.unwrap()
}

/// Goal: a claim that nobody knows of, such as one from a request that came late, does not block the lock for as long as its
/// session lives, neither for waiters nor for tries, nor for callers that soon give up.
#[tokio::test]
async fn an_orphan_is_removed() {
    let lab = RedisLab::shared().await;
    let (session, other) = (lab.session_for(LONG).await, lab.session_for(LONG).await);
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
    // two of them, about which no message came, and callers that give up long before they ask where their claims stand
    let mutex = other.mutex(&lab.name()).unwrap();
    for ticket in [1, 2] {
        let zadd = format!("ZADD {{fenced-lock}}:queue:{} {ticket}", mutex.name());
        lab.raw().await.run_with::<()>(&zadd, &format!("{orphan}{ticket}")).await;
    }
    let granted = async || timeout(Duration::from_millis(100), mutex.lock()).await.is_ok();
    eventually("the lock is free", granted).await;
    assert!(!session.is_lost());
}

/// Goal: the claims of a process that died, however many, are removed in small steps, since a script that runs for long delays
/// everybody.
#[tokio::test]
async fn many_dead_claims_are_removed_in_steps() {
    let redis = volatile().await;
    let lab = RedisLab::of(&redis);
    let mutex = lab.session_for(LONG).await.mutex("a").unwrap();
    let mut command = redis::cmd("ZADD");
    command.arg("{fenced-lock}:queue:a");
    for ticket in 1..=10_000 {
        command.arg(ticket).arg(format!("dead-{ticket}"));
    }
    let client = redis::Client::open(redis.url()).unwrap();
    let mut operator = testkit::redis::connect(&client).await.unwrap();
    command.query_async::<()>(&mut operator).await.unwrap();
    let before = lab.requests(&redis).await;
    drop(within("a free lock is taken", mutex.try_lock()).await.unwrap().unwrap());
    let requests = lab.requests(&redis).await - before;
    assert!((10..=100).contains(&requests), "{requests} scripts for 10,000 claims");
}

/// Goal: as documented, a Redis that lost its data begins again to number its grants, so a token's number comes twice; the
/// cluster tells the two tokens apart. The first holder learns of its loss.
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
        let session = lab.session_for(TTL).await;
        let guard = session.mutex("a").unwrap().lock().await.unwrap();
        let (token, held) = (guard.token(), before.replace(guard));
        assert_eq!((token.revision(), token.cluster()), (1, session.lease().cluster));
        if let Some(held) = held {
            assert_eq!(held.token().partial_cmp(&token), None, "{loss}");
            within("the loss is told", held.lost()).await;
        }
    }
}

/// Goal: sentinels lead an open session to the new primary after a failover. The new primary grants the lock under a token of
/// another cluster, and a holder that it does not know is told of its loss. So is a holder at a primary that lives on when the
/// sentinels name another one. A wrong name is an error.
#[tokio::test]
async fn sentinels_lead_to_the_new_primary() {
    let dir = OwnedDir::create().unwrap();
    let mut primary = PrivateRedis::start_in(&dir, ServerOptions::default()).await.unwrap();
    let mut watch = Sentinels::start_in(&dir, &primary, 1).await.unwrap();
    let lab = RedisLab::at(&watch.url());
    let wrong = RedisLab::at(&watch.url().replace("#sale", "#other"));
    let error = wrong.backend().open(TTL).await.unwrap_err();
    assert!(error.kind == BackendErrorKind::Permanent && format!("{error:#}").contains("other"));
    let (one, other) = (lab.session_for(2 * LONG).await, lab.session_for(2 * LONG).await);
    watch.hold_writes_back(&primary).await.unwrap();
    let guard = one.mutex("a").unwrap().lock().await.unwrap();
    primary.kill().await.unwrap();
    watch.until_failed_over(&mut primary).await.unwrap();
    let theirs = within("a grant", other.mutex("a").unwrap().lock()).await.unwrap();
    assert_eq!(guard.token().partial_cmp(&theirs.token()), None);
    within("the first is told", guard.lost()).await;
    assert!(!one.is_lost() && !theirs.is_lost());

    let elsewhere = volatile().await;
    let monitor = format!("MONITOR sale 127.0.0.1 {} 2", elsewhere.port());
    for command in ["REMOVE sale", &monitor] {
        for sentinel in &watch.sentinels {
            sentinel.run::<()>(&format!("SENTINEL {command}")).await.unwrap();
        }
    }
    within("the other is told", theirs.lost()).await;
    drop(within("a grant", lab.mutex("a").await.lock()).await.unwrap());
    assert!(elsewhere.run::<bool>("EXISTS {fenced-lock}:last").await.unwrap());
}

/// Goal: a holder that is cut off from most of the sentinels is told, since they may have replaced its primary, which lives on. The
/// lock does without the others. Method: two of three sentinels are behind proxies that refuse.
#[tokio::test]
async fn a_holder_needs_most_of_the_sentinels() {
    let dir = OwnedDir::create().unwrap();
    let primary = PrivateRedis::start_in(&dir, ServerOptions::default()).await.unwrap();
    let watch = Sentinels::start_in(&dir, &primary, 0).await.unwrap();
    let (mut url, mut proxies) = (watch.url(), Vec::new());
    for sentinel in &watch.sentinels[1..] {
        let proxy = Proxy::to(sentinel.port()).await.unwrap();
        let [from, to] = [sentinel.port(), proxy.port()].map(|port| format!(":{port}"));
        url = url.replace(&from, &to);
        proxies.push(proxy);
    }
    let lab = RedisLab::at(&url);
    proxies[0].refuse();
    let guard = lab.mutex("a").await.lock().await.unwrap();
    let valid_until = guard.valid_until();
    eventually("a renewal", async || guard.valid_until() > valid_until).await;
    proxies[1].refuse();
    within("the holder is told", guard.lost()).await;
    let opened = within("an end", lab.backend().open(TTL)).await;
    assert_eq!(opened.unwrap_err().kind, BackendErrorKind::Transient);
    proxies[1].accept();
    drop(within("a grant", lab.mutex("a").await.lock()).await.unwrap());
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
    let ends_at: u64 = redis.run(&format!("PEXPIRETIME {key}")).await.unwrap();
    redis.kill().await.unwrap();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    eventually("the date has passed", async || now().as_millis() > ends_at.into()).await;
    redis.restart().await.unwrap();
    assert!(!redis.run::<bool>(&format!("EXISTS {key}")).await.unwrap());
}

/// Goal: the documented rights suffice, over TLS, with a client certificate, also through a sentinel. Without any one of them an
/// error says which, and nothing is left behind.
#[tokio::test]
async fn rights_and_certificates() {
    let options = ServerOptions { secured: true, ..ServerOptions::default() };
    let redis = PrivateRedis::start(options).await.unwrap();
    redis.run::<()>(&format!("ACL SETUSER locker on >secret {RIGHTS}")).await.unwrap();
    let certificates = redis.certificates().unwrap();
    let (certificate, key) = certificates.client();
    let read = |path| std::fs::read(path).unwrap();
    let options = |address: &str| {
        with(RedisOptions::new(address), |options| {
            options.ca = Some(read(certificates.ca()));
            options.identity = Some((read(certificate.clone()), read(key.clone())));
        })
    };
    let address = redis.url().replace("://", "://locker:secret@");
    let backend = || Arc::new(RedisBackend::new(options(&address)).unwrap());
    let open = async || Session::open(backend(), SessionOptions::new(LONG)).await;
    let used = async || -> Result<(), LockError> {
        let (one, other) = (open().await?, open().await?);
        let (mutex, other) = (one.mutex("a")?, other.mutex("a")?);
        let guard = mutex.lock().await?;
        let claim = Claim::new("a", one.lease().id, 1 << 40);
        let backend = backend();
        backend.put(&claim, &PutMode::AtEnd).await?;
        backend.release(&claim).await?;
        backend.renew(one.lease()).await?;
        other.queue().await?;
        guard.requeue().await?.unlock().await?;
        one.close().await
    };
    used().await.unwrap();
    let sentinel = redis.start_sentinel_in(&OwnedDir::create().unwrap()).await.unwrap();
    let right = "ACL SETUSER locker on >secret +sentinel|get-master-addr-by-name";
    sentinel.run::<()>(right).await.unwrap();
    let [at_redis, at_sentinel] = [&redis, &sentinel].map(|server| format!(":{}", server.port()));
    let named = address.replace("rediss:", "rediss-sentinel:").replace(&at_redis, &at_sentinel);
    let named = RedisBackend::new(options(&(named + "#sale"))).unwrap();
    let mut lease = None;
    // the sentinel has just started
    eventually("the sentinel names the primary", async || {
        lease = named.open(LONG).await.ok();
        lease.is_some()
    })
    .await;
    named.close(lease.unwrap()).await.unwrap();

    // what does not fit together
    let refused = async |said: &str, options: RedisOptions| {
        let opened = RedisBackend::new(options).unwrap();
        let error = within("an end", opened.open(TTL)).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Permanent, "{error}");
        assert!(format!("{error:#}").contains(said), "{error:?}");
        let shown = format!("{opened:?}{error:?}{error:#}");
        assert!(!shown.contains("pass-word"), "the password is not shown: {shown}");
    };
    refused("WRONGPASS", options(&address.replace("secret", "pass-word"))).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Certificates::create_in(elsewhere.path()).unwrap();
    let ours = options(&address);
    refused("certificate", with(ours.clone(), |options| options.ca = Some(read(others.ca()))))
        .await;
    refused("CertificateRequired", with(ours.clone(), |options| options.identity = None)).await;
    // these two end without a word
    let plain = RedisOptions::new(address.replace("rediss:", "redis:"));
    let url = volatile().await.url().replace("redis:", "rediss:");
    for options in [plain, with(ours, |options| options.url = url)] {
        let opened = RedisBackend::new(options).unwrap();
        within("an end", opened.open(TTL)).await.unwrap_err();
    }

    for right in RIGHTS.split_whitespace().filter(|right| right.starts_with('+')) {
        let taken = right.replace('+', "-");
        redis.run::<()>(&format!("ACL SETUSER locker {taken}")).await.unwrap();
        redis.run::<()>("SCRIPT FLUSH").await.unwrap();
        assert_eq!(kind_of(within("an end", used()).await), BackendErrorKind::Permanent, "{right}");
        redis.run::<()>(&format!("ACL SETUSER locker {right}")).await.unwrap();
        redis.run::<()>("FLUSHALL").await.unwrap();
    }
}

/// A Redis that gives all scripts the same answer, and how many it was sent.
async fn server_without_scripts(answer: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, scripts) = (server.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&scripts);
    tokio::spawn(async move {
        loop {
            let (client, count) = (server.accept().await.unwrap().0, Arc::clone(&count));
            tokio::spawn(async move {
                let (from, mut to) = client.into_split();
                let mut lines = BufReader::new(from).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    // the words that commands begin with
                    let told = match &*line {
                        "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n",
                        "INFO" => "$12\r\nmaxmemory:0\n\r\n",
                        "SUBSCRIBE" => ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
                        "SETINFO" | "PUBLISH" | "LOAD" => ":0\r\n",
                        "EVALSHA" | "EVAL" => {
                            count.fetch_add(1, Ordering::Relaxed);
                            answer
                        }
                        _ => continue,
                    };
                    if to.write_all(told.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, scripts)
}

/// Goal: a server that never has the script, as behind a proxy that sends each request to another server, is sent it once more,
/// as text; a server that always has more to do is asked a thousand times. Then it is an error.
#[tokio::test]
async fn no_script_is_sent_for_ever() {
    for (answer, most) in [("-NOSCRIPT No matching script\r\n", 2), ("-MORE to do\r\n", 1000)] {
        let (address, scripts) = server_without_scripts(answer).await;
        let url = format!("redis://{address}");
        let opened = within("an end", RedisLab::at(&url).backend().open(LONG)).await;
        assert_eq!(opened.unwrap_err().kind, BackendErrorKind::Refused);
        assert_eq!(scripts.load(Ordering::Relaxed), most);
        // three nodes, each asked once
        let redlock = RedlockBackend::new(vec![RedisOptions::new(&url); 3]).unwrap();
        let opened = within("an end", redlock.open(LONG)).await;
        assert_eq!(opened.unwrap_err().kind, BackendErrorKind::Refused);
        assert_eq!(scripts.load(Ordering::Relaxed), 4 * most);
    }
}

/// Goal: what a server refuses inside a script has the same kind before Redis 7, which wraps the refusal, and since; a server that
/// has become a replica is left.
#[tokio::test]
async fn a_refusal_inside_a_script_has_its_kind() {
    use BackendErrorKind::{Refused, Transient};
    for wrap in ["", "ERR Error running script (call to f_0): @user_script:4: @user_script: 4: -"] {
        for (refusal, expected, connections) in [
            ("READONLY You can't write against a read only replica.", Transient, 2),
            ("MISCONF Errors writing to the AOF file: No space left on device", Refused, 1),
            ("OOM command not allowed when used memory > 'maxmemory'.", Refused, 1),
            ("NOREPLICAS Not enough good replicas to write.", Refused, 1),
        ] {
            let answer = format!("-{wrap}{refusal}\r\n");
            let (address, _) = server_without_scripts(answer.clone().leak()).await;
            let proxy = Proxy::to(address.port()).await.unwrap();
            let backend = RedisLab::at(&format!("redis://127.0.0.1:{}", proxy.port())).backend();
            for _ in 0..2 {
                let opened = within("an end", backend.open(LONG)).await;
                assert_eq!(opened.unwrap_err().kind, expected, "{answer}");
            }
            assert_eq!(proxy.connections(), connections, "{answer}");
        }
    }
}

/// Goal: a Redis so far away that a handshake takes longer than a request may take is reached all the same. Method: with TLS, the
/// client library alone takes longer; a sentinel gets only a part of the time.
#[tokio::test]
async fn a_handshake_may_take_longer_than_a_request() {
    for (secured, by_sentinel, delay) in
        [(false, false, 80), (false, true, 150), (true, false, 150)]
    {
        let options = ServerOptions { secured, ..ServerOptions::default() };
        let redis = PrivateRedis::start(options).await.unwrap();
        let dir = OwnedDir::create().unwrap();
        let sentinel = if by_sentinel { redis.start_sentinel_in(&dir).await.ok() } else { None };
        let port = sentinel.as_ref().map_or(redis.port(), PrivateRedis::port);
        let proxy = Proxy::to(port).await.unwrap();
        proxy.delay(Duration::from_millis(delay));
        let [server, proxied] = [redis.port(), proxy.port()].map(|port| format!(":{port}"));
        let read = |path| std::fs::read(path).unwrap();
        redis.run::<()>("ACL SETUSER far on >secret ~* &* +@all").await.unwrap();
        let url = redis.url().replace("://", "://far:secret@");
        let mut options = with(RedisOptions::new(url), |options| {
            if let Some(certificates) = redis.certificates() {
                let (certificate, key) = certificates.client();
                options.ca = Some(read(certificates.ca()));
                options.identity = Some((read(certificate), read(key)));
            }
        });
        // the server has the script from now on, so one answer will do
        RedisBackend::new(options.clone()).unwrap().open(LONG).await.unwrap();
        options.url = options.url.replace(&server, &proxied);
        if by_sentinel {
            options.url = options.url.replace("redis:", "redis-sentinel:") + "#sale";
        }
        options.request_timeout = Duration::from_millis(400);
        let backend = RedisBackend::new(options).unwrap();
        let mut lease = None;
        eventually("a session opens", async || {
            lease = backend.open(LONG).await.ok();
            lease.is_some()
        })
        .await;
        eventually("it is renewed", async || backend.renew(lease.unwrap()).await.is_ok()).await;
    }
}

/// Goal: a server that refuses connections is left alone for a while after each refusal, however often it is asked for.
#[tokio::test]
async fn a_server_that_refuses_is_not_flooded() {
    let server = server_that_says("-ERR unknown command 'HELLO'\r\n").await;
    let proxy = Proxy::to(server.port()).await.unwrap();
    let backend = RedisLab::at(&format!("redis://127.0.0.1:{}", proxy.port())).backend();
    for _ in 0..100 {
        within("a refusal", backend.queue("a")).await.unwrap_err();
    }
    assert!(proxy.connections() < 50, "{} connections", proxy.connections());
}

/// Goal: a server that would not keep a lock is refused, with a sentence that says why.
#[tokio::test]
async fn a_wrong_server_is_refused() {
    let (redis, replica) = (volatile().await, volatile().await);
    replica.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", redis.port())).await.unwrap();
    redis.run::<()>("CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru").await.unwrap();
    let options = RedisClusterOptions { replicas: 0, ..RedisClusterOptions::default() };
    let cluster = PrivateRedisCluster::start(options).await.unwrap();
    let old = server_that_says("-ERR unknown command 'HELLO'\r\n").await;
    let other = server_that_says("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    for (address, kind, said) in [
        (replica.url(), BackendErrorKind::Transient, "a replica"),
        (redis.url(), BackendErrorKind::Permanent, "evicts keys"),
        (cluster.nodes[0].url(), BackendErrorKind::Permanent, "a node of a Redis Cluster"),
        (format!("redis://{old}"), BackendErrorKind::Permanent, "HELLO"),
        (format!("redis://{other}"), BackendErrorKind::Permanent, "no Redis"),
    ] {
        let error = RedisLab::at(&address).backend().open(TTL).await.unwrap_err();
        let text = format!("{error:#}");
        assert!(error.kind == kind && text.contains(said), "{text}");
    }
    let error = RedisBackend::new(RedisOptions::new("http://127.0.0.1:1")).unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Permanent, "no address: {error}");
}
