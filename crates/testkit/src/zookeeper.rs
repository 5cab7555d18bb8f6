//! A private ZooKeeper.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::certificates::text;
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
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self { tick: Duration::from_millis(100) }
    }
}

/// A ZooKeeper on a free port of 127.0.0.1, with data in a directory of its own.
pub type PrivateZooKeeper = Private<ZooKeeper>;

/// What makes a private server a ZooKeeper.
#[derive(Debug)]
pub struct ZooKeeper {
    /// Where it keeps its data: no other server has the same.
    data: String,
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
        let (java, class_path) = java(&[]).ok_or(ServerError::NotInstalled {
            program: "zookeeper.jar",
            apt: "libzookeeper-java openjdk-17-jre-headless",
            dnf: "java-17-openjdk-headless, and ZooKeeper's jars in /usr/share/java",
            brew: "openjdk@17, and ZooKeeper's jars in /usr/share/java",
        })?;
        on_free_ports(async || {
            let system = ServerError::system("ZooKeeper");
            let dir = OwnedDir::create().map_err(&system)?;
            let [port] = free_ports().map_err(&system)?;
            let (settings, data) = (dir.path().join("zoo.cfg"), text(&dir.path().join("data")));
            let ZooKeeperOptions { tick } = options;
            let lines = [
                format!("tickTime={}", tick.as_millis()),
                format!("maxSessionTimeout={}", (tick * 300).as_millis()),
                format!("dataDir={data}"),
                format!("clientPort={port}"),
                "clientPortAddress=127.0.0.1".to_owned(),
                "maxClientCnxns=0".to_owned(),
                "admin.enableServer=false".to_owned(),
                "4lw.commands.whitelist=conf,mntr,srvr".to_owned(),
            ];
            std::fs::write(&settings, lines.join("\n")).map_err(&system)?;
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
            let mut server = Self::spawn(java.clone(), args, dir, port, ZooKeeper { data })?;
            server.until_ready().await?;
            Ok(server)
        })
        .await
    }

    /// Its address, as clients want it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }
}
