//! Servers that ask for certificates and users.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{ClusterId, EtcdBackend, Session, SessionOptions, Token};
use flash_sale::config::Servers;
use flash_sale::inventory::{
    Action, Inventory, InventoryError, InventoryOptions, Item, LedgerPosition, NewSale, Order,
    RedisAccess, Replaces, Replicas, Terms, User,
};
use flash_sale::secret::{Secret, SecretSource};
use hyper::Method;
use testkit::probe;
use testkit::redis::{RIGHTS, USER};
use testkit::shared::{fresh_database, fresh_lock_name, shared_endpoint};
use testkit::wait::{eventually, within};
use testkit::{
    AuthTokens, Certificates, EtcdOptions, OwnedDir, PrivateEtcd, PrivateRedis, RedisOptions,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::http::instance::Instance;
use crate::program::{program, run};
use crate::support::store::{PATIENT, open, order};

/// The lock that the user of a secured etcd may use.
const LOCK: &str = "stock-lock";

fn servers(flags: &[impl AsRef<str>]) -> Servers {
    testkit::flags::parse(flags).unwrap()
}

async fn secured_etcd(tokens: AuthTokens) -> PrivateEtcd {
    let options = EtcdOptions { secured: Some(tokens), ..EtcdOptions::default() };
    PrivateEtcd::start(options).await.unwrap()
}

async fn secured_redis() -> PrivateRedis {
    let options = RedisOptions { secured: true, ..RedisOptions::default() };
    PrivateRedis::start(options).await.unwrap()
}

fn flags_of(etcd: &PrivateEtcd) -> Vec<String> {
    [vec!["--etcd".to_owned(), etcd.endpoint()], etcd.flags()].concat()
}

async fn session(etcd: &PrivateEtcd) -> Session {
    let options = servers(&flags_of(etcd)).etcd_options().unwrap();
    let backend = Arc::new(EtcdBackend::new(options).unwrap());
    Session::open(backend, SessionOptions::new(Duration::from_secs(10))).await.unwrap()
}

/// Goal: the lock works over mutual TLS as without, with both kinds of token, also after a restart that lost the tokens and a
/// change of the password; a name beyond the role is refused.
#[tokio::test]
async fn the_lock_over_mutual_tls() {
    for tokens in [AuthTokens::Simple(300), AuthTokens::Jwt(300)] {
        let mut etcd = secured_etcd(tokens).await;
        let (one, other) = (session(&etcd).await, session(&etcd).await);
        let first = one.mutex(LOCK).unwrap().lock().await.unwrap();
        let mutex = other.mutex(LOCK).unwrap();
        let waiter = tokio::spawn(async move { mutex.lock().await });
        etcd.rotate_password().await.unwrap();
        // killed, since a stopping etcd waits for its streams, sometimes for longer than a lease lives
        etcd.kill().await.unwrap();
        etcd.restart().await.unwrap();
        first.unlock().await.unwrap();
        let second = within("the waiter is granted", waiter).await.unwrap().unwrap();
        second.unlock().await.unwrap();
        let item = one.mutex(&format!("{LOCK}:tea")).unwrap().lock().await.unwrap();
        item.unlock().await.unwrap();
        one.mutex("beyond").unwrap().try_lock().await.unwrap_err();
    }
}

fn serve(flags: &[String]) -> Command {
    let mut serve = program();
    serve.args(["serve", "--listen", "127.0.0.1:0"]).args(flags);
    serve.env_remove("FLASH_SALE_ETCD").env_remove("FLASH_SALE_REDIS");
    serve
}

/// The output of `serve` with these flags until it listens.
async fn warnings(flags: &[String]) -> String {
    Instance::start(serve(flags)).await.log()
}

/// How `serve` ends with these flags, and what it says. If the answer of a server that refuses is lost
/// with the connection, `serve` takes the server for one that is away, and listens: then `serve` is started again.
async fn refusal(flags: &[String]) -> String {
    let mut serve = serve(flags);
    let ended = async {
        loop {
            let mut started = serve.spawn().unwrap();
            let mut lines = BufReader::new(started.stderr.take().unwrap()).lines();
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.starts_with("flash-sale: ") {
                    assert_eq!(started.wait().await.unwrap().code(), Some(1));
                    return line;
                }
                if line.contains("listening on") {
                    break;
                }
            }
        }
    };
    within("it ends", ended).await
}

/// `flags` without the flags `without` and their values, and with `others`.
fn with(flags: &[String], without: &[&str], others: &[(&str, &Path)]) -> Vec<String> {
    let pairs = flags.chunks(2).filter(|pair| !without.contains(&pair[0].as_str()));
    let mut all: Vec<_> = pairs.flatten().cloned().collect();
    for (flag, path) in others {
        all.extend([(*flag).to_owned(), path.display().to_string()]);
    }
    all
}

/// Goal: an instance that does not trust Redis, or that a server does not trust, is not ready and says so. One that does not
/// trust etcd, has a file that cannot be used or a wrong password is refused with the reason.
#[tokio::test]
async fn a_start_without_trust_says_why() {
    let (etcd, redis) = (secured_etcd(AuthTokens::Simple(300)).await, secured_redis().await);
    let right = [flags_of(&etcd), redis.flags()].concat();
    let dir = tempfile::tempdir().unwrap();
    let foreign = Certificates::create_in(dir.path()).unwrap();
    let (foreign_ca, (certificate, key)) = (foreign.ca(), foreign.client());
    let (file, address) = (dir.path().join("password"), dir.path().join("address"));
    std::fs::write(&file, "wrong\n").unwrap();
    std::fs::write(&address, format!("rediss://{USER}:wrong@127.0.0.1:{}", redis.port())).unwrap();
    for server in ["etcd", "redis"] {
        let [ca, cert, key_flag] = ["ca", "cert", "key"].map(|part| format!("--{server}-{part}"));
        let (ca, cert, key_flag) = (ca.as_str(), cert.as_str(), key_flag.as_str());
        let foreign = with(&right, &[ca], &[(ca, &foreign_ca)]);
        // the store is asked again
        let said =
            if server == "etcd" { refusal(&foreign).await } else { warnings(&foreign).await };
        assert!(said.contains("invalid peer certificate"), "{server}, another authority: {said}");
        for others in [vec![], vec![(cert, &*certificate), (key_flag, &*key)]] {
            let said = warnings(&with(&right, &[cert, key_flag], &others)).await;
            assert!(said.contains("not ready until it does"), "{server}, {others:?}: {said}");
            assert!(said.contains("if it expects TLS"), "{server}, {others:?}: {said}");
        }
        for (flag, file, reason) in [
            (cert, &certificate, "keys may not be consistent"),
            // no certificate
            (ca, &file, ca),
        ] {
            let said = refusal(&with(&right, &[flag], &[(flag, file)])).await;
            assert!(said.contains(reason), "{flag}: {said}");
        }
    }
    for (without, others, reason) in [
        ("--etcd-password-file", vec![("--etcd-password-file", &*file)], "password"),
        ("--etcd-password-file", vec![], "password"),
        ("--redis-file", vec![("--redis-file", &*address)], "WRONGPASS"),
    ] {
        let said = refusal(&with(&right, &[without], &others)).await;
        assert!(said.contains(reason), "{without}: {said}");
        let server = if without == "--redis-file" { redis.port() } else { etcd.port() };
        assert!(said.contains(&format!("127.0.0.1:{server}")), "{without}: {said}");
    }
    // certificates for a server without TLS
    for (without, plain, needed) in [
        ("--redis-file", ["--redis", "redis://127.0.0.1:1"], "rediss://"),
        ("--etcd", ["--etcd", "http://127.0.0.1:1"], "https://"),
    ] {
        let plain = plain.map(str::to_owned);
        let said = refusal(&[&with(&right, &[without], &[])[..], &plain].concat()).await;
        assert!(said.contains(needed) && said.contains("127.0.0.1:1"), "{said}");
    }
}

/// Goal: after a readiness check the log says that the user of etcd may not use this lock; at the start it says that orders
/// wait for less time than a lease lasts.
#[tokio::test]
async fn an_instance_without_rights_says_so() {
    let (etcd, redis) = (secured_etcd(AuthTokens::Simple(300)).await, secured_redis().await);
    let flags = [flags_of(&etcd), redis.flags()].concat();
    let of_another_lock = ["--lock-name", "other"].map(str::to_owned);
    let other = Instance::start(serve(&[&flags[..], &of_another_lock].concat())).await;
    let url = format!("http://{}/readyz", other.address);
    eventually("it is refused", async || {
        let (status, said) = run(&["health", &url]).await;
        assert_eq!(status, Some(1), "{said}");
        other.log().contains("the lock service refuses this item's lock")
    })
    .await;
    let hasty = ["--wait-timeout".to_owned(), "1s".to_owned()];
    let said = warnings(&[flags.as_slice(), &hasty].concat()).await;
    assert!(said.contains("--wait-timeout (1s) is shorter than --lock-ttl (8s)"), "{said}");
}

/// Every call of an instance to its store.
async fn ask_everything(access: RedisAccess) -> Result<(), Box<dyn Error>> {
    let inventory = Inventory::new(access, InventoryOptions::default())?;
    inventory.ping().await?;
    let token = |revision| Some(Token::new(ClusterId(7), revision));
    let replicas = Replicas { count: 1, timeout: Duration::from_millis(1) };
    let patient = inventory.clone().with_replicas(replicas);
    let warnings = patient.durability().await?;
    let [warning] = &warnings[..] else { return Err(format!("{warnings:?}").into()) };
    if !warning.contains("0 connected replicas") {
        return Err(warning.clone().into());
    }
    for item in [Item::DEFAULT, "tea".parse()?] {
        let order = |id| {
            let user = User::new("alice").expect("a user");
            Order { item: item.clone(), user, ..order(id, 1) }
        };
        let terms = Terms { per_user: Some(9), hold_seconds: Some(9), ..Terms::default() };
        let held = NewSale { terms, is_named: true, ..NewSale::from(5) };
        inventory.start(&item, token(1), held.clone()).await?;
        inventory.reduce(&item, token(2), "8080", &[order("a"), order("b")]).await?;
        let confirm = Order { action: Action::Confirm, ..order("a") };
        inventory.reduce(&item, token(2), "8080", &[confirm]).await?;
        inventory.stock(&item).await?;
        let other = NewSale { replaces: Replaces::Any, ..NewSale::from(5) };
        inventory.start(&item, token(2), other).await?;
        let kept = LedgerPosition { sale: Some(held.id.clone()), of: None, after: 0 };
        inventory.ledger(&item, kept, 10).await?;
        inventory.sales(&item).await?;
        inventory.forget(&item, &held.id).await?;
        inventory.available(&item).await?;
        inventory.stock(&item).await?;
        inventory.look_up(&item, &[order("a").key()]).await?;
        inventory.ledger(&item, 0, 10).await?;
        inventory.inspect(&item).await?;
        inventory.check(None).await.map_err(|(_, error)| error)?;
        inventory.recover_cluster(&item, Token::new(ClusterId(8), 1)).await?;
        inventory.recover_store(&item, Token::new(ClusterId(8), 2)).await?;
        let later = Some(Token::new(ClusterId(8), 3));
        match patient.reduce(&item, later, "8080", &[order("c")]).await {
            // there is no replica, and only a user with the right to ask learns that
            Err(InventoryError::NotReplicated { count: 0, .. }) => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Goal: the rights that the documentation lists are enough, and without any one of them something is refused.
#[tokio::test]
async fn an_instance_needs_each_of_its_rights_and_no_more() {
    assert!(include_str!("../../docs/operations.md").contains(RIGHTS.trim()));
    let redis = secured_redis().await;
    let rights: Vec<_> = RIGHTS.split_whitespace().collect();
    let without = |right: &str| {
        let rest = rights.iter().filter(|other| **other != right).copied().collect::<Vec<_>>();
        rest.join(" ")
    };
    let access = |password: &str| {
        let address = format!("rediss://{USER}:{password}@127.0.0.1:{}", redis.port());
        at(&address, access_of(&redis))
    };
    let mut enough = Vec::new();
    for missing in std::iter::once("").chain(rights.iter().copied()) {
        redis.run::<()>("FLUSHALL").await.unwrap();
        redis.run::<()>("SCRIPT FLUSH").await.unwrap();
        let user = format!("ACL SETUSER {USER} reset on >word {}", without(missing));
        redis.run::<()>(&user).await.unwrap();
        if ask_everything(access("word")).await.is_ok() {
            enough.push(missing);
        }
    }
    assert_eq!(enough, [""], "without these it works as well");

    let database = |number: u32| {
        let place = format!("127.0.0.1:{}/{number}", redis.port());
        at(&format!("rediss://{USER}:word@{place}"), access_of(&redis))
    };
    for (right, is_enough) in [("", false), (" +select", true)] {
        let user = format!("ACL SETUSER {USER} reset on >word {}{right}", without(""));
        redis.run::<()>(&user).await.unwrap();
        let opened = open(database(3), InventoryOptions::default()).await.map(drop);
        let is_refused = opened.as_ref().is_err_and(InventoryError::is_wrong_server);
        assert_eq!((opened.is_ok(), is_refused), (is_enough, !is_enough), "{opened:?}");
    }
    let error = open(database(99), InventoryOptions::default()).await.unwrap_err();
    assert!(error.is_wrong_server(), "{error:?}");
}

/// Goal: changing a password while a sale runs stops no instance that has it in a file: open connections stay open, and a new one
/// reads the file. Whoever still has the old password is refused from then on.
#[tokio::test]
async fn a_password_of_redis_can_be_changed() {
    let redis = secured_redis().await;
    let access = access_of(&redis);
    let old = SecretSource::Text(access.address.read().unwrap());
    let inventory = Inventory::new(access.clone(), InventoryOptions::default()).unwrap();
    inventory.start(&Item::DEFAULT, None, 5).await.unwrap();
    redis.rotate_password().await.unwrap();
    inventory.reduce(&Item::DEFAULT, None, "8080", &[order("a", 1)]).await.unwrap();
    redis.run::<i64>(&format!("CLIENT KILL USER {USER}")).await.unwrap();
    eventually("it is connected anew", async || inventory.ping().await.is_ok()).await;
    inventory.reduce(&Item::DEFAULT, None, "8080", &[order("b", 1)]).await.unwrap();

    let access = RedisAccess { address: old, ..access };
    let error = open(access, InventoryOptions::default()).await.unwrap_err();
    assert!(error.is_wrong_server(), "{error:?}");
}

/// Goal: sentinels and their primary work over mutual TLS. A sentinel that asks for a user gets the primary's, which needs one
/// right there.
#[tokio::test]
async fn a_sentinel_over_mutual_tls() {
    let redis = secured_redis().await;
    let sentinel = redis.start_sentinel_in(&OwnedDir::create().unwrap()).await.unwrap();
    let access = access_of(&redis);
    let [at_redis, at_sentinel] = [&redis, &sentinel].map(|it| format!("@127.0.0.1:{}", it.port()));
    let address = access.address.read().unwrap().expose().replace(&at_redis, &at_sentinel);
    let access = at(&(address.replace("rediss:", "rediss-sentinel:") + "#sale"), access);
    let connect = || open(access.clone(), PATIENT);
    let error = connect().await.unwrap_err();
    assert!(error.is_wrong_server(), "{error:?}");
    let right = format!("ACL SETUSER {USER} +sentinel|get-master-addr-by-name");
    sentinel.run::<()>(&right).await.unwrap();
    connect().await.unwrap().start(&Item::DEFAULT, None, 5).await.unwrap();
}

/// Goal: a Redis Cluster works over mutual TLS, also at the addresses that it announces. Method: one node with all slots.
#[tokio::test]
async fn a_redis_cluster_over_mutual_tls() {
    let node_timeout = Some(Duration::from_secs(20));
    let options = RedisOptions { secured: true, node_timeout, ..Default::default() };
    let redis = PrivateRedis::start(options).await.unwrap();
    redis.run::<()>("CONFIG SET cluster-announce-ip 127.0.0.1").await.unwrap();
    redis.run::<()>("CLUSTER ADDSLOTSRANGE 0 16383").await.unwrap();
    let rights = format!("ACL SETUSER {USER} +cluster|slots");
    redis.run::<()>(&rights).await.unwrap();
    let access = access_of(&redis);
    let address = access.address.read().unwrap().expose().replace("rediss:", "rediss-cluster:");
    let inventory = open(at(&address, access), PATIENT).await.unwrap();
    let tea: Item = "tea".parse().unwrap();
    let (order, first) = (Order { item: tea.clone(), ..order("a", 1) }, NewSale::from(5));
    let start = async |sale: &NewSale| inventory.start(&tea, None, sale.clone()).await;
    eventually("the slots are served", async || start(&first).await.is_ok()).await;
    inventory.reduce(&tea, None, "8080", &[order]).await.unwrap();
    assert_eq!(inventory.available(&tea).await.unwrap(), 4);
    // the keys of the kept sale are derived from keys in the same slot
    start(&NewSale { replaces: Replaces::Any, ..NewSale::from(5) }).await.unwrap();
    let kept = LedgerPosition { sale: Some(first.id.clone()), ..LedgerPosition::default() };
    assert_eq!(inventory.ledger(&tea, kept, 9).await.unwrap().entries.len(), 1);
    inventory.forget(&tea, &first.id).await.unwrap();
}

/// This address, with the certificates of another one.
fn at(address: &str, access: RedisAccess) -> RedisAccess {
    RedisAccess { address: SecretSource::Text(Secret::from(address)), ..access }
}

fn access_of(redis: &PrivateRedis) -> RedisAccess {
    let servers = servers(&redis.flags());
    let identity = servers.redis_cert.zip(servers.redis_key);
    let address = SecretSource::File(servers.redis_file.unwrap());
    RedisAccess { address, ca: servers.redis_ca, identity }
}

/// Starts an instance with these flags for its peers.
async fn peer(servers: &[String], peers: &[&str]) -> Instance {
    let mut serve = serve(servers);
    serve.args(["--peer-listen", "127.0.0.1:0"]).args(peers);
    Instance::start(serve).await
}

/// Orders a unit, and returns the answer.
async fn buy(at: &Instance) -> String {
    let port = at.address.port();
    let (status, answer) = probe::http(Method::POST, port, "/stock/reduce", "").await.unwrap();
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Goal: instances send each other orders over mutual TLS. One whose certificate another authority has signed, and one that has
/// none, are refused, which the logs say; they take turns, and no order fails. A file that cannot be used is named at the start.
#[tokio::test]
async fn peers_over_mutual_tls() {
    let (etcd, redis, lock) = (shared_endpoint().await, fresh_database().await, fresh_lock_name());
    let inventory = open(redis.as_str(), PATIENT).await.unwrap();
    inventory.start(&Item::DEFAULT, None, 10_000).await.unwrap();
    let servers = ["--etcd", &etcd, "--redis", &redis, "--lock-name", &lock].map(str::to_owned);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [ours, foreign] = dirs.each_ref().map(|dir| Certificates::create_in(dir.path()).unwrap());
    let flags = |of: &Certificates| {
        let (cert, key) = of.client();
        let files = [("--peer-tls-cert", cert), ("--peer-tls-key", key), ("--peer-ca", ours.ca())];
        files.map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).concat()
    };
    let right = flags(&ours);
    let right: Vec<_> = right.iter().map(String::as_str).collect();
    let [a, b] = [peer(&servers, &right).await, peer(&servers, &right).await];
    buy(&a).await;
    eventually("it sends its orders", async || buy(&b).await.contains("\"holder\"")).await;
    // to the end: one that is killed may keep the lock for its TTL
    let mut others = Vec::new();
    for (peers, refused) in
        [(flags(&foreign), "refuses the certificate of this instance"), (Vec::new(), "")]
    {
        let peers: Vec<_> = peers.iter().map(String::as_str).collect();
        let other = peer(&servers, &peers).await;
        eventually("it says why", async || {
            let is_alone = !buy(&other).await.contains("\"holder\"");
            buy(&b).await;
            assert!(is_alone, "nobody lets it in");
            let (said, log) =
                (["the holder cannot be reached", "the holder did not answer"], other.log());
            said.iter().any(|said| log.contains(said)) && log.contains(refused)
        })
        .await;
        others.push(other);
    }
    let said = "a connection without the peers' TLS: refused";
    assert!([&a, &b].iter().any(|peer| peer.log().contains(said)));

    let unusable = dirs[0].path().join("none.pem");
    let unusable = unusable.to_str().unwrap();
    let flags = [&right[..4], &["--peer-ca", unusable, "--peer-listen", "127.0.0.1:0"]].concat();
    let flags: Vec<_> =
        servers.iter().map(String::as_str).chain(flags).map(str::to_owned).collect();
    let said = refusal(&flags).await;
    assert!(said.contains(unusable), "{said}");
}
