//! A private ZooKeeper.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::certificates::{Certificates, text, write_secret};
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::probe;
use super::server::{Kind, Launch, Private, ServerError, find_program};

/// The directory of Debian's `libzookeeper-java` and the jars that it needs.
const JARS: &str = "/usr/share/java";

/// Options of a private ZooKeeper.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    /// Its unit of time. A session lives for 2 to 900 units. The default, a tenth of a second, allows short sessions.
    pub tick: Duration,
    /// Whether it has a second port with mutual TLS, with certificates of its own authority. The first port stays plain.
    pub secured: bool,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self { tick: Duration::from_millis(100), secured: false }
    }
}

/// A ZooKeeper on a free port of 127.0.0.1, with data in its own directory.
pub type PrivateZooKeeper = Private<ZooKeeper>;

/// The kind of a private ZooKeeper.
#[derive(Debug)]
pub struct ZooKeeper {
    /// The directory of its data, which no other server has.
    data: String,
    /// The port with TLS, and the certificates.
    secured: Option<(u16, Certificates)>,
}

impl Kind for ZooKeeper {
    const NAME: &str = "ZooKeeper";
    const PROGRAM: &str = "zookeeper.jar";
    const PACKAGES: &str = "libzookeeper-java openjdk-17-jre-headless";

    fn program() -> Option<PathBuf> {
        Some(java(&[])?.0)
    }

    async fn is_ready(&self, port: u16, _pid: u32) -> bool {
        let settings = probe::zookeeper(port, "conf").await;
        let state = probe::zookeeper(port, "srvr").await;
        // the server is up once it has read its data
        settings.is_ok_and(|settings| settings.contains(&self.data))
            && state.is_ok_and(|state| state.contains("Mode: "))
    }
}

/// Java, and a class path that begins with these jars of Debian; `None` if one is missing.
pub fn java(jars: &[&str]) -> Option<(PathBuf, String)> {
    let java = find_program("FLASH_SALE_JAVA", &["java"])?;
    // the last jar lets the others write a log
    let jars = jars.iter().chain(&["zookeeper.jar", "slf4j-simple.jar"]);
    let paths: Vec<_> = jars.map(|jar| Path::new(JARS).join(jar)).collect();
    let paths = paths.iter().all(|path| path.exists()).then_some(paths)?;
    Some((java, paths.iter().map(|path| text(path)).collect::<Vec<_>>().join(":")))
}

impl PrivateZooKeeper {
    /// Whether ZooKeeper is installed.
    pub fn is_installed() -> bool {
        java(&[]).is_some()
    }

    /// The same for a test. Without ZooKeeper, the test is [left out](crate::or_left_out).
    pub fn can_test() -> bool {
        let missing = "ZooKeeper is not installed (apt-get install libzookeeper-java)";
        crate::or_left_out(java(&[]), missing).is_some()
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// When ZooKeeper is not installed, ends, or does not answer within
    /// [`START_TIMEOUT`](super::server::START_TIMEOUT).
    pub async fn start(options: ZooKeeperOptions) -> Result<Self, ServerError> {
        Ok(Self::start_ensemble_in(None, 1, options).await?.remove(0))
    }

    /// Starts an ensemble of `members`, with their directories in `parent`, if there is one; the parent then stays until they are
    /// gone. Waits until all of them answer.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_ensemble_in(
        parent: impl Into<Option<&OwnedDir>>,
        members: usize,
        options: ZooKeeperOptions,
    ) -> Result<Vec<Self>, ServerError> {
        let parent = parent.into();
        Self::start_all(async |_| prepare(parent, members, &options)).await
    }

    /// Whether it leads its ensemble.
    pub async fn is_leader(&self) -> bool {
        let state = probe::zookeeper(self.port(), "srvr").await;
        state.is_ok_and(|state| state.contains("Mode: leader"))
    }

    /// Its address, in the form that clients expect.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The port with TLS and the certificates of a secured server.
    pub fn secured(&self) -> Option<(u16, &Certificates)> {
        self.launch.kind.secured.as_ref().map(|(port, certificates)| (*port, certificates))
    }
}

/// Makes the members of an ensemble ready.
fn prepare(
    parent: Option<&OwnedDir>,
    members: usize,
    options: &ZooKeeperOptions,
) -> io::Result<Vec<Launch<ZooKeeper>>> {
    // ZooKeeper's jar names all other jars that encryption needs, but not these
    let for_tls: &[_] =
        if options.secured { &["netty-codec.jar", "netty-resolver.jar"] } else { &[] };
    let (_, class_path) = java(for_tls).ok_or_else(|| io::Error::other("no jars for TLS"))?;
    let ports = (0..members).map(|_| free_ports()).collect::<io::Result<Vec<[u16; 3]>>>()?;
    let member = |(number, [_, to_leader, election]): (usize, &[u16; 3])| {
        format!("server.{number}=127.0.0.1:{to_leader}:{election}")
    };
    // a single server is no ensemble
    let ensemble: Vec<_> = (1..).zip(&ports).filter(|_| members > 1).map(member).collect();
    let mut all = Vec::with_capacity(members);
    for (number, [port, ..]) in (1..).zip(ports) {
        let dir = OwnedDir::create_in(parent)?;
        let (file, data) = (dir.path().join("zoo.cfg"), dir.path().join("data"));
        std::fs::create_dir(&data)?;
        std::fs::write(data.join("myid"), format!("{number}"))?;
        let (tick, data) = (options.tick.as_millis(), text(&data));
        let session = tick * 900;
        // limits in ticks: the time for a member to join the leader, and to answer it
        let mut settings = ensemble.clone();
        settings.push(format!(
            "tickTime={tick}
            maxSessionTimeout={session}
            initLimit=100
            syncLimit=20
            dataDir={data}
            clientPort={port}
            clientPortAddress=127.0.0.1
            maxClientCnxns=0
            admin.enableServer=false
            4lw.commands.whitelist=conf,mntr,srvr"
        ));
        let mut secured = None;
        if options.secured {
            let ([port], certificates) = (free_ports()?, Certificates::create_in(dir.path())?);
            // ZooKeeper expects key and certificate in one file
            let (certificate, key) = certificates.server();
            let both = [std::fs::read_to_string(key)?, std::fs::read_to_string(certificate)?];
            let key_store = dir.path().join("server.pem");
            write_secret(&key_store, &both.concat())?;
            let (key_store, ca) = (text(&key_store), text(&certificates.ca()));
            settings.push(format!(
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
                secureClientPort={port}
                secureClientPortAddress=127.0.0.1
                ssl.keyStore.location={key_store}
                ssl.keyStore.type=PEM
                ssl.trustStore.location={ca}
                ssl.trustStore.type=PEM"
            ));
            secured = Some((port, certificates));
        }
        std::fs::write(&file, settings.join("\n"))?;
        let args = [
            // for a small server that is up within a second
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xmx192m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            &class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            &text(&file),
        ];
        let args = args.map(ToOwned::to_owned).to_vec();
        let kind = ZooKeeper { data, secured };
        all.push(Launch { args, dir, port, kind });
    }
    Ok(all)
}
