//! ZooKeeper: how the contract has it, and what is particular to it: its sessions, its ensembles, its rights, and other
//! libraries on the same locks.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, BackendErrorKind, LockError, Session, SessionOptions, Token, ZooKeeperBackend,
    ZooKeeperOptions,
};
use testkit::Certificates;
use testkit::wait::{eventually, within};
use testkit::{
    OwnedDir, PrivateRedis, PrivateZooKeeper, RedisOptions, Run, ZooKeeperOptions as ServerOptions,
    probe,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::OnceCell;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use super::lab::{
    FoundLab, LONG, Lab, ServerLab, TTL, assert_refused, kind_of, queue_length, waiter, with,
};
use crate::contract::{basics, queueing};

/// Statics are not dropped: its guardian ends it with the process.
static SERVER: OnceCell<PrivateZooKeeper> = OnceCell::const_new();

pub(crate) struct ZooKeeperLab {
    /// The port without encryption.
    port: u16,
    pub(crate) options: ZooKeeperOptions,
}

impl ZooKeeperLab {
    /// A ZooKeeper that the tests of this process share, each with locks of its own; `None` if ZooKeeper is not installed.
    pub(crate) async fn shared() -> Option<Self> {
        if !PrivateZooKeeper::can_test() {
            return None;
        }
        let start = async || PrivateZooKeeper::start(ServerOptions::default()).await.unwrap();
        Some(Self::on(SERVER.get_or_init(start).await.port()))
    }

    /// A ZooKeeper of its own, whose port with TLS the backends use.
    pub(crate) async fn secured() -> Option<(PrivateZooKeeper, Self)> {
        if !PrivateZooKeeper::can_test() {
            return None;
        }
        let options = ServerOptions { secured: true, ..ServerOptions::default() };
        let server = PrivateZooKeeper::start(options).await.unwrap();
        let (port, certificates) = server.secured().unwrap();
        let (certificate, key) = certificates.client();
        let read = |path| std::fs::read(path).unwrap();
        let mut lab = Self::on(server.port());
        lab.options.servers = format!("127.0.0.1:{port}");
        lab.options.ca = Some(read(certificates.ca()));
        lab.options.identity = Some((read(certificate), read(key)));
        // a Java that has just started takes its time for the first handshakes
        let backend = lab.backend();
        eventually("a handshake", async || backend.open(LONG).await.is_ok()).await;
        Some((server, lab))
    }

    pub(crate) fn on(port: u16) -> Self {
        Self { port, options: ZooKeeperOptions::new(format!("127.0.0.1:{port}")) }
    }

    /// A client of the server itself, past the library.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(&format!("127.0.0.1:{}", self.port)).await.unwrap()
    }

    /// The nodes of a lock, in no order.
    pub(crate) async fn nodes(&self, name: &str) -> Vec<String> {
        self.client().await.list_children(&format!("/locks/{name}")).await.unwrap()
    }

    /// Takes a session over and closes it. The server makes a session's password of its id.
    async fn close_session(&self, session: i64) -> io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        let mut request = Vec::new();
        // version, last transaction seen, timeout, session, password, whether a server cut off from the others will do
        request.extend([0; 12]);
        request.extend(10_000_i32.to_be_bytes());
        request.extend(session.to_be_bytes());
        request.extend(16_i32.to_be_bytes());
        request.extend(java_random(session ^ 0xB341_5C00));
        request.push(0);
        let length = i32::try_from(request.len()).unwrap();
        stream.write_all(&length.to_be_bytes()).await?;
        stream.write_all(&request).await?;
        // a request to close: its length, its number, its kind
        let close = [8_i32, 1, -11].map(i32::to_be_bytes).concat();
        stream.write_all(&close).await?;
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).await?;
        // the id is 0 if the session has ended
        Ok(answers.get(12..20) == Some(&[0; 8]))
    }
}

/// The first 16 bytes of Java's random numbers from this seed.
fn java_random(seed: i64) -> [u8; 16] {
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut state = (seed.cast_unsigned() ^ MULTIPLIER) & MASK;
    let mut bytes = [0; 16];
    for four in bytes.chunks_mut(4) {
        state = (state.wrapping_mul(MULTIPLIER) + 0xB) & MASK;
        four.copy_from_slice(&(state >> 16).to_le_bytes()[..4]);
    }
    bytes
}

impl Lab for ZooKeeperLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        Arc::new(ZooKeeperBackend::new(self.options.clone()).unwrap())
    }

    /// Over TLS with a longer TTL: in a short session there is little time for a handshake.
    async fn session_called(&self, label: &str) -> Session {
        let ttl = if self.options.ca.is_some() { LONG } else { TTL };
        let options = SessionOptions::new(ttl).label(label);
        Session::open(self.backend(), options).await.unwrap()
    }

    async fn revoke(&self, lease: i64) {
        eventually("the session is closed", async || {
            self.close_session(lease).await.unwrap_or(false)
        })
        .await;
    }

    async fn delete(&self, key: &str) {
        let (name, claim) = key.rsplit_once('/').unwrap();
        let (lease, number) = claim.split_once('-').unwrap();
        let lease = u64::from_str_radix(lease, 16).unwrap();
        let number: u64 = number.parse().unwrap();
        let digits = format!("{lease:016x}{number:016x}");
        let nodes = self.nodes(name).await;
        let node = nodes.iter().find(|node| node.replace('-', "").contains(&digits)).unwrap();
        self.client().await.delete(&format!("/locks/{name}/{node}"), None).await.unwrap();
    }
}

impl FoundLab for ZooKeeperLab {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn at(address: &str) -> Self {
        Self::on(address.rsplit_once(':').unwrap().1.parse().unwrap())
    }
}

impl ServerLab for ZooKeeperLab {
    type Kind = testkit::zookeeper::ZooKeeper;

    /// A claim, a release and the requests between them, with some room for pings, renewals and the looks of the test.
    const REQUESTS_OF_A_WAITER: u64 = 10;

    async fn start() -> (PrivateZooKeeper, Self) {
        let server = PrivateZooKeeper::start(ServerOptions::default()).await.unwrap();
        let lab = Self::on(server.port());
        (server, lab)
    }

    async fn requests(&self, server: &PrivateZooKeeper) -> u64 {
        number_in(server, "zk_packets_received").await
    }

    /// A session has nothing but its claims.
    async fn claims_and_sessions(&self, server: &PrivateZooKeeper) -> (u64, u64) {
        let number = async |name| number_in(server, name).await;
        (number("zk_ephemerals_count").await, number("zk_global_sessions").await)
    }
}

/// A number that the server counts.
async fn number_in(server: &PrivateZooKeeper, name: &str) -> u64 {
    let page = probe::zookeeper(server.port(), "mntr").await.unwrap();
    page.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

async fn open(options: ZooKeeperOptions) -> Result<Session, LockError> {
    let backend = ZooKeeperBackend::new(options)?;
    Session::open(Arc::new(backend), SessionOptions::new(LONG)).await
}

/// Goal: a later token is larger, also when the sequence numbers begin anew because the lock's node was deleted.
#[tokio::test]
async fn tokens_grow_though_a_locks_node_is_made_anew() {
    let Some(lab) = ZooKeeperLab::shared().await else { return };
    let (name, client) = (lab.name(), lab.client().await);
    let mutex = lab.mutex(&name).await;
    let mut latest = None;
    for _ in 0..3 {
        let guard = mutex.lock().await.unwrap();
        assert!(lab.nodes(&name).await[0].ends_with("-lock-0000000000"), "a new count");
        assert!(latest.is_none_or(|latest| guard.token() > latest));
        latest = Some(guard.token());
        guard.unlock().await.unwrap();
        client.delete(&format!("/locks/{name}"), None).await.unwrap();
    }
}

/// Goal: in an ensemble, a hold outlives the death of the leader, and the waiter behind it is granted after that, with
/// a larger token. Another server is another cluster, whose tokens are neither larger nor smaller.
#[tokio::test]
async fn a_killed_leader_ends_nothing() {
    let Some(lab) = ZooKeeperLab::shared().await else { return };
    let dir = OwnedDir::create().unwrap();
    let members = PrivateZooKeeper::start_ensemble_in(&dir, 3, ServerOptions::default()).await;
    let mut members = members.unwrap();
    let servers: Vec<_> = members.iter().map(PrivateZooKeeper::address).collect();
    let options = ZooKeeperOptions::new(servers.join(","));
    let (holder, session) = (open(options.clone()).await.unwrap(), open(options).await.unwrap());
    let name = lab.name();
    let guard = holder.mutex(&name).unwrap().lock().await.unwrap();
    let waiting = waiter(&session.mutex(&name).unwrap(), 2).await;
    let mut killed = false;
    for member in &mut members {
        if member.is_leader().await {
            member.kill().await.unwrap();
            killed = true;
        }
    }
    assert!(killed, "one of them leads");
    let first = guard.token();
    within("the release", guard.unlock()).await.unwrap();
    let second = within("the waiter is granted", waiting).await.unwrap().unwrap();
    assert!(second.token() > first);
    let elsewhere = lab.mutex(&name).await.lock().await.unwrap();
    assert_eq!(elsewhere.token().partial_cmp(&first), None);
    within("the release", second.unlock()).await.unwrap();
    assert!(!holder.is_lost() && !session.is_lost());
}

/// Goal: the lease lasts for what the server grants, not for what was asked for, and that is no shorter if the server allows it.
#[tokio::test]
async fn the_lease_is_what_the_server_grants() {
    let Some(lab) = ZooKeeperLab::shared().await else { return };
    for (asked, granted) in [(2, 2), (20, 20), (3600, 60)] {
        let session = lab.session_for(Duration::from_secs(asked)).await;
        assert_eq!(session.lease().ttl, Duration::from_secs(granted));
    }
}

/// Goal: a renewal is a write: a server that was cut off from the others cannot answer it.
#[tokio::test]
async fn a_renewal_is_a_write() {
    if ZooKeeperLab::shared().await.is_none() {
        return;
    }
    let (server, lab) = ZooKeeperLab::start().await;
    let backend = lab.backend();
    let lease = backend.open(LONG).await.unwrap();
    let writes = async || {
        let page = probe::zookeeper(server.port(), "srvr").await.unwrap();
        page.lines().find_map(|line| line.strip_prefix("Zxid: ").map(ToOwned::to_owned)).unwrap()
    };
    let before = writes().await;
    assert_eq!(before, writes().await);
    assert_eq!(backend.renew(lease).await.unwrap(), lease.ttl);
    assert_ne!(before, writes().await);
    backend.close(lease).await.unwrap();
    assert_eq!(backend.renew(lease).await.unwrap_err().kind, BackendErrorKind::LeaseGone);
}

/// Goal: a user without rights to the root, or to one lock in it, is told so, and the session goes on with the other locks.
#[tokio::test]
async fn wrong_rights_are_refused() {
    let Some(lab) = ZooKeeperLab::shared().await else { return };
    let owned = with(lab.options.clone(), |options| {
        (options.root, options.user) = ("/owned/locks".into(), Some("app:secret".into()));
    });
    let session = open(owned.clone()).await.unwrap();
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    for user in [None, Some("app:wrong".to_owned()), Some("other:secret".to_owned())] {
        let opened = open(with(owned.clone(), |options| options.user = user)).await;
        assert_refused(opened, "not authorized");
    }
    let again = open(owned).await.unwrap();
    assert!(again.mutex("a").unwrap().try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();

    // one may look, but not queue; the other one not even look
    let (session, client) = (lab.session().await, lab.client().await);
    for permission in [Permission::READ, Permission::CREATE] {
        let name = lab.name();
        let acls = [Acl::new(permission, AuthId::anyone())];
        let mode = CreateMode::Persistent.with_acls(Acls::new(&acls));
        client.create(&format!("/locks/{name}"), b"", &mode).await.unwrap();
        let mutex = session.mutex(&name).unwrap();
        for refused in [mutex.lock().await, mutex.try_lock().await.map(Option::unwrap)] {
            assert_eq!(kind_of(refused), BackendErrorKind::Permanent);
        }
    }
    drop(session.mutex(&lab.name()).unwrap().lock().await.unwrap());
}

/// Goal: opening a session ends in time when the port is silent, or when another program listens there.
#[tokio::test]
async fn another_server_opens_no_session() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    for port in [redis.port(), port] {
        let opened = within("an end", open(ZooKeeperLab::on(port).options)).await;
        assert_eq!(kind_of(opened), BackendErrorKind::Transient);
    }
    drop(silent);
    let opened = within("an end", open(ZooKeeperLab::on(port).options)).await;
    assert_eq!(kind_of(opened), BackendErrorKind::Transient);
}

/// Goal: with TLS the lock is granted and released as without it; with wrong certificates or settings no session opens, and the
/// attempt ends in time.
#[tokio::test]
async fn certificates() {
    let Some((server, lab)) = ZooKeeperLab::secured().await else { return };
    basics::one_holder_at_a_time(&lab).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Certificates::create_in(elsewhere.path()).unwrap();
    let (others, key) =
        (std::fs::read(others.ca()).unwrap(), lab.options.identity.clone().unwrap().1);
    let refused = async |kind, wrong: &[&dyn Fn(&mut ZooKeeperOptions)]| {
        for (number, set) in wrong.iter().enumerate() {
            let opened = within("an end", open(with(lab.options.clone(), set))).await;
            assert_eq!(kind_of(opened), kind, "{number}");
        }
    };
    let transient: &[&dyn Fn(&mut _)] = &[
        &|options: &mut ZooKeeperOptions| options.ca = Some(others.clone()),
        &|options| options.identity = None,
        &|options| options.servers = server.address(),
        &|options| (options.ca, options.identity) = (None, None),
        &|options| options.servers = options.servers.replace("127.0.0.1", "localhost"),
    ];
    refused(BackendErrorKind::Transient, transient).await;
    let permanent: &[&dyn Fn(&mut _)] = &[
        &|options: &mut ZooKeeperOptions| options.identity = Some((key.clone(), key.clone())),
        &|options| options.ca = Some(Vec::new()),
        &|options| options.ca = None,
    ];
    refused(BackendErrorKind::Permanent, permanent).await;
}

/// A client of Java's libraries, if they are installed.
fn java() -> Option<Command> {
    let jars = [
        "curator-recipes.jar",
        "curator-framework.jar",
        "curator-client.jar",
        "guava.jar",
        "zookeeper-recipes-lock.jar",
    ];
    let (java, class_path) = testkit::zookeeper::java(&jars)?;
    java.with_file_name("javac").exists().then(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/ZooKeeperPeer.java");
        let quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off";
        let mut command = Command::new(java);
        command.args(["-XX:+UseSerialGC", quiet, "-cp"]).arg(class_path).arg(source);
        command
    })
}

/// A client of kazoo, by the Python of the system, which has the libraries of the system.
fn python() -> Option<Command> {
    const PYTHON: &str = "/usr/bin/python3";
    const PEER: &str = r#"
import sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[2], timeout=5)
client.start()
lock = client.Lock(sys.argv[3], extra_lock_patterns=["-lock-"])
with lock:
    # a lock that did not wait for us would be granted with our claim before its own
    first = min(client.get_children(sys.argv[3]), key=lambda node: node[-10:])
    print("held" if first == lock.node else "too early", flush=True)
    sys.stdin.readline()
client.stop()
"#;
    let has_kazoo = std::process::Command::new(PYTHON).args(["-c", "import kazoo"]).output();
    has_kazoo.is_ok_and(|output| output.status.success()).then(|| {
        let mut command = Command::new(PYTHON);
        command.args(["-c", PEER]);
        command
    })
}

/// Goal: another library's lock and ours are the same lock: each waits for the other, first come, first served. The libraries are
/// Curator, with its `InterProcessMutex`; `ZooKeeper`'s own recipe, whose nodes have names of another form; and kazoo, which is
/// told how to recognise our claims.
#[tokio::test]
async fn other_libraries_take_their_turns() {
    let Some(lab) = ZooKeeperLab::shared().await else { return };
    let meets = async |recipe: &str| {
        let client = || if recipe == "kazoo" { python() } else { java() };
        let packages = "libcurator-recipes-java default-jdk-headless python3-kazoo";
        let missing = format!("{recipe} is not installed (apt-get install {packages})");
        if testkit::or_left_out(client(), &missing).is_none() {
            return;
        }
        let start = |name: &str| {
            let path = format!("/locks/{name}");
            Run::start(client().unwrap().args([recipe, &lab.options.servers, &path]))
        };
        queueing::a_peer_takes_its_turns(&lab, start, "held", async |_: &str, mut peer| {
            peer.send("release").await;
            assert!(peer.ended().await.success());
        })
        .await;
    };
    tokio::join!(meets("curator"), meets("recipe"), meets("kazoo"));
}

/// Goal: changes deeper in the tree, or of the lock's own node, do not change its queue. Method: a second backend has its root
/// below the lock's node, and nodes with names like those of the claims come and go there.
#[tokio::test]
async fn deeper_nodes_say_nothing() {
    let Some(lab) = ZooKeeperLab::shared().await else { return };
    let (name, client) = (lab.name(), lab.client().await);
    let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let holder = lab.session_for(LONG).await.mutex(&name).unwrap();
    let guard = holder.lock().await.unwrap();
    let mutex = lab.session_for(LONG).await.mutex(&name).unwrap();
    let next = waiter(&mutex, 2).await;
    let root = format!("/locks/{name}/root");
    client.create(&root, b"", &mode).await.unwrap();
    for node in lab.nodes(&name).await {
        let path = format!("{root}/{node}");
        client.create(&path, b"", &mode).await.unwrap();
        client.delete(&path, None).await.unwrap();
    }
    // through the connections of both: what came before the answers has been heard
    queue_length(&mutex, 2).await;
    queue_length(&holder, 2).await;
    assert!(!next.is_finished() && !guard.is_lost());
    guard.unlock().await.unwrap();
    let guard = within("the waiter is granted", next).await.unwrap().unwrap();
    let inner = with(lab.options.clone(), |options| options.root = root);
    let inner = open(inner).await.unwrap().mutex("x-0000000000").unwrap().lock().await.unwrap();
    assert!(!guard.is_contended() && !guard.is_lost());
    guard.unlock().await.unwrap();
    let guard = within("nothing is in the way", holder.lock()).await.unwrap();
    drop((guard, inner));
}

/// Goal: a missing chroot, the node that follows the servers' addresses, is an error at once, since only an operator makes it.
#[tokio::test]
async fn a_missing_chroot_is_told() {
    let Some(mut lab) = ZooKeeperLab::shared().await else { return };
    lab.options.servers.push_str("/missing");
    let refused = within("an end", open(lab.options)).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Permanent);
}

/// Goal: a root that ZooKeeper would refuse is refused before anything is sent.
#[tokio::test]
async fn roots_are_checked() {
    for root in
        ["", "/", "locks", "/locks/", "//locks", "/locks/..", "/./locks", "/\u{1f389}", "/a\nb"]
    {
        let options = with(ZooKeeperLab::on(1).options, |options| options.root = root.to_owned());
        let refused = ZooKeeperBackend::new(options).expect_err(root);
        assert_eq!(refused.kind, BackendErrorKind::Permanent, "{root:?}");
    }
}
