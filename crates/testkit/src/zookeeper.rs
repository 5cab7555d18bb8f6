//! A private ZooKeeper.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::certificates::{Certificates, text, write_secret};
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::probe;
use super::server::{Kind, Private, ServerError, find_program, on_free_ports};

/// Where Debian's `libzookeeper-java` and what it needs are.
const JARS: &str = "/usr/share/java";

/// Options of a private ZooKeeper.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    /// The unit of its times: sessions live for 2 to 300 of it. A tenth of a second by default, for short sessions.
    pub tick: Duration,
    /// Mutual TLS on a second port, with the certificates of an authority of its own. The first one stays plain.
    pub secured: bool,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self { tick: Duration::from_millis(100), secured: false }
    }
}

impl ZooKeeperOptions {
    fn settings(&self, port: u16, data: &Path, ensemble: &str) -> String {
        let tick = self.tick.as_millis();
        let (session, data) = (tick * 300, text(data));
        // the limits are in ticks: how long a member may take to join the leader, and to answer it
        format!(
            "tickTime={tick}
            maxSessionTimeout={session}
            initLimit=100
            syncLimit=20
            dataDir={data}
            clientPort={port}
            clientPortAddress=127.0.0.1
            maxClientCnxns=0
            admin.enableServer=false
            4lw.commands.whitelist=conf,mntr,srvr
            {ensemble}"
        )
    }
}

/// A ZooKeeper on a free port of 127.0.0.1, with data in a directory of its own.
pub type PrivateZooKeeper = Private<ZooKeeper>;

/// What makes a private server a ZooKeeper.
#[derive(Debug)]
pub struct ZooKeeper {
    /// Where it keeps its data: no other server has the same.
    data: String,
    secured: Option<Secured>,
}

#[derive(Debug)]
struct Secured {
    port: u16,
    certificates: Certificates,
}

impl Secured {
    fn create_in(dir: &Path) -> io::Result<Self> {
        let ([port], certificates) = (free_ports()?, Certificates::create_in(dir)?);
        // ZooKeeper wants both in one file
        let (certificate, key) = certificates.server();
        let both = [std::fs::read_to_string(key)?, std::fs::read_to_string(certificate)?];
        write_secret(&Self::key_store(dir), &both.concat())?;
        Ok(Self { port, certificates })
    }

    fn key_store(dir: &Path) -> PathBuf {
        dir.join("server.pem")
    }

    fn settings(&self, dir: &Path) -> String {
        let (port, key_store, ca) =
            (self.port, text(&Self::key_store(dir)), text(&self.certificates.ca()));
        format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
            secureClientPort={port}
            secureClientPortAddress=127.0.0.1
            ssl.keyStore.location={key_store}
            ssl.keyStore.type=PEM
            ssl.trustStore.location={ca}
            ssl.trustStore.type=PEM"
        )
    }
}

impl Kind for ZooKeeper {
    const NAME: &str = "ZooKeeper";

    fn is_setting(variable: &str) -> bool {
        variable == "CLASSPATH"
            || variable.ends_with("JAVA_OPTIONS")
            || variable == "JAVA_TOOL_OPTIONS"
    }

    async fn is_ready(&self, port: u16, _pid: u32) -> bool {
        let settings = probe::zookeeper(port, "conf").await;
        let state = probe::zookeeper(port, "srvr").await;
        // it counts as up once it has read its data
        settings.is_ok_and(|settings| settings.contains(&self.data))
            && state.is_ok_and(|state| state.contains("Mode: "))
    }
}

/// Java, and the class path that begins with these of Debian's jars; `None` if one is missing.
pub fn java(jars: &[&str]) -> Option<(PathBuf, String)> {
    let java = find_program("FLASH_SALE_JAVA", &["java"])?;
    // the last one lets the others write a log
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

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// When ZooKeeper is not installed, ends, or does not answer within
    /// [`START_TIMEOUT`](super::server::START_TIMEOUT).
    pub async fn start(options: ZooKeeperOptions) -> Result<Self, ServerError> {
        let mut members = Self::start_members(OwnedDir::create, 1, &options).await?;
        Ok(members.remove(0))
    }

    /// Starts an ensemble of `members` in `parent`, which then stays until they are gone, and waits until all of them
    /// answer.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_ensemble_in(
        parent: &OwnedDir,
        members: usize,
        options: ZooKeeperOptions,
    ) -> Result<Vec<Self>, ServerError> {
        Self::start_members(|| OwnedDir::create_in(parent), members, &options).await
    }

    async fn start_members(
        create_dir: impl Fn() -> io::Result<OwnedDir>,
        members: usize,
        options: &ZooKeeperOptions,
    ) -> Result<Vec<Self>, ServerError> {
        // ZooKeeper's jar names the others that encryption takes
        let for_tls: &[_] = &["netty-codec.jar", "netty-resolver.jar"];
        let jars = if options.secured { for_tls } else { &[] };
        let (java, class_path) = java(jars).ok_or(ServerError::NotInstalled {
            program: "zookeeper.jar",
            apt: "libzookeeper-java openjdk-17-jre-headless",
            dnf: "java-17-openjdk-headless, and ZooKeeper's jars in /usr/share/java",
            brew: "openjdk@17, and ZooKeeper's jars in /usr/share/java",
        })?;
        on_free_ports(async || {
            let system = ServerError::system("ZooKeeper");
            let mut places = Vec::with_capacity(members);
            for number in 1..=members {
                let [port, to_leader, election] = free_ports().map_err(&system)?;
                places.push((port, format!("server.{number}=127.0.0.1:{to_leader}:{election}")));
            }
            let ensemble: Vec<_> = places.iter().map(|(_, line)| line.clone()).collect();
            // one server alone is no ensemble
            let ensemble = if members > 1 { ensemble.join("\n") } else { String::new() };
            let mut all = Vec::with_capacity(members);
            for (number, (port, _)) in (1..).zip(places) {
                let dir = create_dir().map_err(&system)?;
                let (settings, data) = (dir.path().join("zoo.cfg"), dir.path().join("data"));
                std::fs::create_dir(&data).map_err(&system)?;
                std::fs::write(data.join("myid"), format!("{number}")).map_err(&system)?;
                let secured = options.secured.then(|| Secured::create_in(dir.path()));
                let secured = secured.transpose().map_err(&system)?;
                let mut written = options.settings(port, &data, &ensemble);
                if let Some(secured) = &secured {
                    written = format!("{written}\n{}", secured.settings(dir.path()));
                }
                std::fs::write(&settings, written).map_err(&system)?;
                let args = [
                    // up in a second, and small
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-Xmx192m",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-cp",
                    &class_path,
                    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                    &text(&settings),
                ];
                let args = args.map(ToOwned::to_owned).to_vec();
                let kind = ZooKeeper { data: text(&data), secured };
                all.push(Self::spawn(java.clone(), args, dir, port, kind)?);
            }
            // none answers before most of them run
            for member in &mut all {
                member.until_ready().await?;
            }
            Ok(all)
        })
        .await
    }

    /// Whether it leads its ensemble.
    pub async fn is_leader(&self) -> bool {
        let state = probe::zookeeper(self.port(), "srvr").await;
        state.is_ok_and(|state| state.contains("Mode: leader"))
    }

    /// Its address, as clients want it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The port with TLS and the certificates of a secured server.
    pub fn secured(&self) -> Option<(u16, &Certificates)> {
        self.kind.secured.as_ref().map(|secured| (secured.port, &secured.certificates))
    }
}
