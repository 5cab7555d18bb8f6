//! Options: secrets, settings without effect, and times that are too short or endless.

use std::error::Error;
use std::fmt::{Debug, Write as _};
use std::io::{Read as _, Seek as _};
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, BackendError, BackendErrorKind, EtcdBackend, EtcdOptions, EtcdUser, FileBackend,
    FileOptions, GrantToken, LockError, PostgresAdvisoryBackend, PostgresBackend, PostgresOptions,
    RedisBackend, RedisOptions, RedlockBackend, Session, SessionKeeper, SessionOptions, Token,
    ZooKeeperBackend, ZooKeeperOptions,
};
use testkit::wait::{eventually, within};
use testkit::{
    AuthTokens, EtcdOptions as EtcdServer, PostgresOptions as PostgresServer, PrivateEtcd,
    PrivatePostgres, PrivateRedis, RedisOptions as RedisServer, Run, run,
};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::file::FileLab;
use super::lab::{EtcdLab, FoundLab as _, LONG, with};
use super::postgres::fresh_database;
use super::redis::RedisLab;
use super::redlock::RedlockLab;
use super::zookeeper::ZooKeeperLab;

/// Stands in each field that may have a secret.
const SECRET: &str = "hunter2";

/// Adds what an error says, in each of its forms, with its causes.
fn add_error(told: &mut String, error: &(dyn Error + 'static)) {
    for cause in successors(Some(error), |cause| (*cause).source()) {
        writeln!(told, "{cause} {cause:#} {cause:?} {cause:#?}").unwrap();
    }
}

/// Adds what these options, the backend and the failures to open a session say.
async fn add<O: Debug + Clone, B: Backend + Debug>(
    told: &mut String,
    options: O,
    make: impl Fn(O) -> Result<B, BackendError>,
) {
    writeln!(told, "{options:?} {options:#?}").unwrap();
    let backend = match make(options) {
        Ok(backend) => Arc::new(backend),
        Err(error) => return add_error(told, &error),
    };
    writeln!(told, "{backend:?} {backend:#?}").unwrap();
    let session = SessionOptions::new(LONG);
    let opened = within("an end", Session::open(Arc::clone(&backend) as _, session.clone()));
    add_error(told, &opened.await.expect_err("nobody lets it in"));
    let keeper = SessionKeeper::start(backend, session);
    eventually("it fails", async || keeper.latest_error().is_some()).await;
    add_error(told, &keeper.latest_error().unwrap());
    writeln!(told, "{keeper:?}").unwrap();
    keeper.close().await;
}

/// Goal: no `Debug`, no error with its causes and no event shows a secret of any option, in whatever form of address it stands,
/// when nobody listens, the password is refused, a key cannot be read or an address is malformed. Method: a process of its own,
/// which records all events.
#[tokio::test]
async fn no_secret_is_shown() {
    let mut worker = Run::start(&mut run::worker(&[], "options::shows_everything"));
    assert!(worker.ended().await.success());
}

#[tokio::test]
#[ignore = "a process of another test"]
#[allow(clippy::too_many_lines, reason = "a table of options")]
async fn shows_everything() {
    let mut log = tempfile::tempfile().unwrap();
    let events = tracing_subscriber::fmt::layer().with_writer(log.try_clone().unwrap());
    let of_ours = Targets::new().with_target("fenced_lock", LevelFilter::TRACE);
    tracing_subscriber::registry().with(of_ours).with(events).init();
    let mut told = String::new();
    let told = &mut told;
    let address = |address: &str| address.replace("SECRET", SECRET);
    // a key that has lost its line breaks
    let pem =
        |text: &str| format!("-----BEGIN {text}-----{SECRET}-----END {text}-----").into_bytes();
    let identity = Some((pem("CERTIFICATE"), pem("PRIVATE KEY")));

    let secured = Some(AuthTokens::Simple(300));
    let secured =
        PrivateEtcd::start(EtcdServer { secured, ..EtcdServer::default() }).await.unwrap();
    let certificates = secured.certificates().unwrap();
    let (certificate, key) = certificates.client();
    let read = |path| std::fs::read(path).unwrap();
    let ca = read(certificates.ca());
    let valid = Some((read(certificate.clone()), read(key)));
    let identities = [identity, Some((read(certificate), pem("PRIVATE KEY")))];
    for endpoint in [
        "http://127.0.0.1:1",
        "http://app:SECRET@127.0.0.1:1",
        "http://127.0.0.1:1?password=SECRET",
        "http://127.0.0.1:1/?password=SE@SECRET:1",
        "http://127.0.0.1:1#SECRET",
        "SECRET@127.0.0.1:1",
        &secured.endpoint(),
    ] {
        let options = with(EtcdOptions::new([address(endpoint)]), |options| {
            options.user = Some(EtcdUser::new(testkit::etcd::USER, SECRET));
            if endpoint.starts_with("https") {
                (options.ca, options.identity) = (Some(ca.clone()), valid.clone());
            }
        });
        add(told, options, EtcdBackend::new).await;
    }

    let redis = PrivateRedis::start(RedisServer::default()).await.unwrap();
    let refusing = redis.url().replace("://", "://app:SECRET@");
    let urls = [
        &refusing,
        "redis://app:SECRET@127.0.0.1:1",
        "redis://:SECRET@127.0.0.1:1/3",
        "redis://app:SECRET@127.0.0.1:port",
        "redis://app:1?SECRET@127.0.0.1:1",
        "redis://app:1#SECRET@127.0.0.1:1",
        "redis://app:1/SECRET@127.0.0.1:1",
        "redis://127.0.0.1:1?password=SECRET",
        "unix:///nowhere?user=app&pass=SECRET",
        "unix:///nowhere?user=app&pass=a@SECRET",
        "unix:///nowhere?password=SECRET",
        "redis+unix:///nowhere?pass=SECRET",
        "redis-sentinel://app:SECRET@127.0.0.1:1,127.0.0.1:2#sale",
        "redis-sentinel://app:1#SECRET@127.0.0.1:1#sale",
        "SECRET@127.0.0.1:1",
    ];
    for url in urls.map(address) {
        add(told, RedisOptions::new(&url), RedisBackend::new).await;
        let make = |options| RedlockBackend::new(vec![options; 3]);
        add(told, RedisOptions::new(&url), make).await;
    }

    let mut urls = vec![
        address("postgres://app:SECRET@127.0.0.1:1/sale"),
        address("host=127.0.0.1 port=1 user=app password=SECRET"),
        address("host=127.0.0.1 port=1 user=app password=two SECRET=words"),
        address("postgres://127.0.0.1:1/sale?user=app&password=two&SECRET=words"),
        address("postgres://app:two@SECRET:x@127.0.0.1:1/sale"),
    ];
    let options = PostgresServer { secured: true, ..PostgresServer::default() };
    let mut server = None;
    if testkit::postgres::can_test() {
        let server = server.insert(PrivatePostgres::start(options).await.unwrap());
        server.run("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'another'").await.unwrap();
        urls.push(server.url_of(&address("app:SECRET"), server.port()));
    }
    let ca_of_server = server.as_ref().map(|server| read(server.certificates().unwrap().ca()));
    for url in urls {
        let options = with(PostgresOptions::new(&url), |options| {
            options.ca = ca_of_server.clone().filter(|_| url.contains("sslmode"));
            options.request_timeout = LONG;
        });
        add(told, options.clone(), |options| PostgresBackend::new(&options)).await;
        add(told, options, |options| PostgresAdvisoryBackend::new(&options)).await;
    }

    for servers in ["127.0.0.1:1", "app:SECRET@127.0.0.1:1", "127.0.0.1:1?pass=SECRET"] {
        let user = Some(address("app:SECRET"));
        let options = ZooKeeperOptions::new(address(servers));
        add(told, with(options, |options| options.user = user), ZooKeeperBackend::new).await;
    }

    for identity in identities {
        let etcd = EtcdOptions::new(["https://127.0.0.1:1"]);
        let etcd = with(etcd, |options| options.identity = identity.clone());
        add(told, etcd, EtcdBackend::new).await;
        let redis = RedisOptions::new("rediss://127.0.0.1:1");
        let redis = with(redis, |options| options.identity = identity.clone());
        add(told, redis, RedisBackend::new).await;
        let postgres = PostgresOptions::new("postgres://127.0.0.1:1?sslmode=require");
        let postgres = with(postgres, |options| options.identity = identity.clone());
        add(told, postgres, |options| PostgresBackend::new(&options)).await;
        let zookeeper = with(ZooKeeperOptions::new("127.0.0.1:1"), |options| {
            (options.ca, options.identity) = (Some(ca.clone()), identity.clone());
        });
        add(told, zookeeper, ZooKeeperBackend::new).await;
    }

    let secret = format!("{:?}", SECRET.as_bytes());
    log.rewind().unwrap();
    let begin = told.len();
    log.read_to_string(told).unwrap();
    assert!(told[begin..].contains("could not open a lock session"), "events are recorded");
    for line in told.lines() {
        let is_shown = line.contains(SECRET) || line.contains(secret.trim_matches(['[', ']']));
        assert!(!is_shown, "{line}");
    }
}

/// Goal: a part of an address that would not be used is refused, and so is a setting for encryption where another setting asks
/// for none.
#[tokio::test]
async fn what_would_not_be_used_is_refused() {
    let some = || Some(Vec::new());
    let etcd = |endpoint: &str, ca| {
        let options = with(EtcdOptions::new([endpoint]), |options| options.ca = ca);
        EtcdBackend::new(options).map(drop)
    };
    let redis = |url: &str, ca: Option<Vec<u8>>| {
        let options = with(RedisOptions::new(url), |options| options.ca = ca);
        let redlock = RedlockBackend::new(vec![options.clone(); 3]).map(drop);
        assert_eq!(redlock.is_err(), RedisBackend::new(options.clone()).is_err(), "{url}");
        RedisBackend::new(options).map(drop)
    };
    let postgres = |url: &str, ca, identity| {
        let options = with(PostgresOptions::new(url), |options| {
            (options.ca, options.identity) = (ca, identity);
        });
        let advisory = PostgresAdvisoryBackend::new(&options).map(drop);
        assert_eq!(advisory.is_err(), PostgresBackend::new(&options).is_err(), "{url}");
        PostgresBackend::new(&options).map(drop)
    };
    let zookeeper = |servers: &str, ca| {
        let options = with(ZooKeeperOptions::new(servers), |options| options.ca = ca);
        ZooKeeperBackend::new(options).map(drop)
    };
    let identity = || some().zip(some());
    for (number, (made, said)) in [
        (etcd("http://app:a@127.0.0.1:1", None), "has no user"),
        (etcd("http://127.0.0.1:1/etcd:1", None), "HOST:PORT"),
        (etcd("http://127.0.0.1:1?a=b:1", None), "HOST:PORT"),
        (etcd("http://127.0.0.1:1#a:1", None), "HOST:PORT"),
        (etcd("http://127.0.0.1:1", some()), "https://"),
        (redis("redis://127.0.0.1:1?timeout=3", None), "not used"),
        (redis("redis://127.0.0.1:1/3#a", None), "not used"),
        (redis("rediss://127.0.0.1:1#insecure", None), "not used"),
        (redis("unix:///nowhere?protocol=resp2", None), "not used"),
        (redis("redis-sentinel://127.0.0.1:1?a=b#sale", None), "not used"),
        (redis("redis-sentinel://127.0.0.1:1#", None), "#NAME"),
        (redis("redis://127.0.0.1:1", some()), "rediss://"),
        (redis("unix:///nowhere", some()), "rediss://"),
        (redis("redis-sentinel://127.0.0.1:1#sale", some()), "rediss://"),
        (postgres("postgres://127.0.0.1?application_name=a", None, None), "application_name"),
        (postgres("postgres://127.0.0.1?connect_timeout=3", None, None), "connect_timeout"),
        (postgres("postgres://127.0.0.1?keepalives_idle=3", None, None), "keepalives_idle"),
        (postgres("host=a target_session_attrs=read-only", None, None), "target_session_attrs"),
        (postgres("postgres://127.0.0.1?sslmode=disable", some(), None), "sslmode=disable"),
        (postgres("postgres://127.0.0.1", None, identity()), "encrypted"),
        (postgres("postgres://127.0.0.1?channel_binding=require", None, None), "encrypted"),
        (postgres("postgres://127.0.0.1?sslnegotiation=direct", None, None), "encrypted"),
        (zookeeper("app:a@127.0.0.1:1", None), "without a user"),
        (zookeeper("127.0.0.1:1,http://127.0.0.1:2", None), "scheme"),
        (zookeeper("127.0.0.1:1,tcp://127.0.0.1:2/root", None), "scheme"),
        (zookeeper("tcp+tls://127.0.0.1:1", some()), "scheme"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = made.expect_err(&number.to_string());
        assert!(format!("{error:#}").contains(said), "{number}: {error:#}");
        assert_eq!(error.kind, BackendErrorKind::Permanent, "{number}");
    }
    assert_eq!(redis("unix:///nowhere?user=a&pass=b&db=3", None), Ok(()));
    assert_eq!(zookeeper("127.0.0.1:1,127.0.0.1:2/a@b", None), Ok(()));
}

/// Takes a lock and releases it, or is refused for a time that is too short.
async fn use_it<T: GrantToken>(
    backend: Result<Arc<dyn Backend<Token = T>>, BackendError>,
    options: SessionOptions,
) -> Result<(), LockError> {
    let session = within("a session", Session::open(backend?, options)).await?;
    let mutex = session.mutex("extreme")?;
    let guard = within("a grant", mutex.lock()).await?;
    assert!(!guard.is_lost());
    within("a release", guard.unlock()).await?;
    within("an end", session.close()).await
}

/// Goal: no time that can be set breaks a backend: zero, a nanosecond and for ever either serve, or are refused at once with a
/// sentence.
#[tokio::test]
async fn a_time_serves_or_is_refused() {
    let second = Duration::from_secs(1);
    let (files, redlock) = (FileLab::new(), RedlockLab::shared().await);
    let (etcd, redis) = (EtcdLab::shared().await.address(), RedisLab::shared().await.address());
    let zookeeper = ZooKeeperLab::shared().await.map(|lab| lab.options);
    let postgres = [fresh_database().await, fresh_database().await];
    for time in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let options: [(_, _, SessionOptions); 4] = [
            ("request_timeout", time, SessionOptions::new(LONG)),
            ("TTL", LONG, SessionOptions::new(time)),
            ("margin", LONG, SessionOptions::new(LONG).margin(time)),
            ("longest hold", LONG, SessionOptions::new(LONG).hold_for(time)),
        ];
        for (what, limit, session) in options {
            type Made<T> = Result<Arc<dyn Backend<Token = T>>, BackendError>;
            fn of<B: Backend>(made: Result<B, BackendError>) -> Made<B::Token> {
                Ok(Arc::new(made?))
            }
            let check = |backend: &str, used: Result<(), LockError>| {
                let refused = time < second && what != "margin";
                let is_right = match &used {
                    Err(LockError::Backend(error)) => {
                        let text = format!("{error:#}");
                        refused && text.contains(what) && text.contains("too short")
                    }
                    used => used.is_ok() && !refused,
                };
                assert!(is_right, "{backend}, {what} of {time:?}: {used:?}");
            };
            let mut made: Vec<(&str, Made<Token>)> = Vec::new();
            let options = with(EtcdOptions::new([&etcd]), |o| o.request_timeout = limit);
            made.push(("etcd", of(EtcdBackend::new(options))));
            let options = with(FileOptions::new(files.directory()), |o| o.request_timeout = limit);
            made.push(("files", of(FileBackend::new(options))));
            let options = with(RedisOptions::new(&redis), |o| o.request_timeout = limit);
            made.push(("Redis", of(RedisBackend::new(options))));
            if let Some(options) = zookeeper.clone() {
                let options = with(options, |o| o.request_timeout = limit);
                made.push(("ZooKeeper", of(ZooKeeperBackend::new(options))));
            }
            if let [Some(queue), Some(advisory)] = &postgres {
                let options = with(PostgresOptions::new(queue), |o| o.request_timeout = limit);
                made.push(("PostgreSQL", of(PostgresBackend::new(&options))));
                let options = with(PostgresOptions::new(advisory), |o| o.request_timeout = limit);
                made.push(("advisory", of(PostgresAdvisoryBackend::new(&options))));
            }
            for (name, backend) in made {
                check(name, use_it(backend, session.clone()).await);
            }
            let nodes = redlock
                .urls()
                .iter()
                .map(|url| with(RedisOptions::new(url), |options| options.request_timeout = limit));
            check("Redlock", use_it(of(RedlockBackend::new(nodes)), session).await);
        }
    }
}
