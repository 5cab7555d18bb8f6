//! ZooKeeper for the contract and for its own tests.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use fenced_lock::{Backend, Session, SessionOptions, Token, ZooKeeperBackend, ZooKeeperOptions};
use testkit::wait::eventually;
use testkit::{PrivateZooKeeper, ZooKeeperOptions as ServerOptions, probe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use zookeeper_client::Client;

use super::lab::{FoundLab, LONG, Lab, ServerLab, TTL};

/// Statics are not dropped: its guardian ends it with the process.
static SERVER: OnceCell<PrivateZooKeeper> = OnceCell::const_new();

pub(crate) struct ZooKeeperLab {
    /// That without encryption.
    port: u16,
    pub(crate) options: ZooKeeperOptions,
}

impl ZooKeeperLab {
    /// A ZooKeeper that the tests of this process share, each with locks of its own; `None` where none is installed.
    pub(crate) async fn shared() -> Option<Self> {
        if !Self::is_installed() {
            return None;
        }
        let start = async || PrivateZooKeeper::start(ServerOptions::default()).await.unwrap();
        Some(Self::on(SERVER.get_or_init(start).await.port()))
    }

    /// A ZooKeeper of its own, whose port with TLS the backends use.
    pub(crate) async fn secured() -> Option<(PrivateZooKeeper, Self)> {
        if !Self::is_installed() {
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

    fn is_installed() -> bool {
        let is_installed = PrivateZooKeeper::is_installed();
        if !is_installed {
            eprintln!("left out: ZooKeeper is not installed (apt-get install libzookeeper-java)");
        }
        is_installed
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
        // the id is that of no session if there is no such session any more
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

    /// A claim, a release and what is asked between them; pings, renewals and the looks of the test come on top.
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
