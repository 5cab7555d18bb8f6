//! A private Redis.

use std::io;
use std::path::{Path, PathBuf};

use super::child::Child;
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::probe;
use super::server::{
    PORT_ATTEMPTS, START_TIMEOUT, STOP_GRACE, ServerError, find_program, until_ready,
};

/// How a private Redis differs from the usual one.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// How many numbered databases it has; 16 if `None`.
    pub databases: Option<u32>,
    /// The size in bytes beyond which it refuses to write; no limit if `None`.
    pub maxmemory_bytes: Option<u64>,
    /// Whether it keeps its data in memory alone, so that they go with the process.
    pub volatile: bool,
}

/// A Redis on a free port of 127.0.0.1, with data in a directory of its own.
///
/// If not said otherwise, it is set up to lose nothing that it acknowledged: each write is on the disk
/// before its answer, and nothing is evicted. Process and directory go when this value is dropped, and when our
/// process ends, however it ends.
#[derive(Debug)]
pub struct PrivateRedis {
    // before the directory: it is told to end first
    child: Child,
    dir: OwnedDir,
    program: PathBuf,
    args: Vec<String>,
    port: u16,
}

impl PrivateRedis {
    /// Starts it, and waits until it answers. Valkey serves where Redis is not installed.
    ///
    /// # Errors
    /// When Redis is not installed, ends, or does not answer within [`START_TIMEOUT`].
    pub async fn start(options: RedisOptions) -> Result<Self, ServerError> {
        Self::start_somewhere(OwnedDir::create, &options).await
    }

    /// As [`start`](Self::start), with its directory in `parent`, which then stays until it is gone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_in(parent: &OwnedDir, options: RedisOptions) -> Result<Self, ServerError> {
        Self::start_somewhere(|| OwnedDir::create_in(parent), &options).await
    }

    async fn start_somewhere(
        create_dir: impl Fn() -> io::Result<OwnedDir>,
        options: &RedisOptions,
    ) -> Result<Self, ServerError> {
        let program =
            find_program(&["redis-server", "valkey-server"]).ok_or(ServerError::NotInstalled {
                program: "redis-server",
                apt: "redis-server",
                dnf: "redis (or valkey)",
                brew: "redis",
            })?;
        let mut attempt = 1;
        loop {
            let dir = create_dir().map_err(ServerError::system("Redis"))?;
            match Self::start_on_free_port(program.clone(), dir, options).await {
                Err(error) if error.is_port_taken() && attempt < PORT_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn start_on_free_port(
        program: PathBuf,
        dir: OwnedDir,
        options: &RedisOptions,
    ) -> Result<Self, ServerError> {
        let [port] = free_ports().map_err(ServerError::system("Redis"))?;
        let mut args: Vec<String> = [
            ("--port", port.to_string().as_str()),
            ("--bind", "127.0.0.1"),
            ("--daemonize", "no"),
            ("--dir", &dir.path().to_string_lossy()),
            ("--appendonly", if options.volatile { "no" } else { "yes" }),
            ("--appendfsync", "always"),
            // the log has everything already
            ("--save", ""),
            ("--maxmemory-policy", "noeviction"),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()])
        .collect();
        if let Some(databases) = options.databases {
            args.extend(["--databases".to_owned(), databases.to_string()]);
        }
        if let Some(bytes) = options.maxmemory_bytes {
            args.extend(["--maxmemory".to_owned(), bytes.to_string()]);
        }
        let child = spawn(&program, &args, &dir)?;
        let mut redis = Self { child, dir, program, args, port };
        redis.until_ready().await?;
        Ok(redis)
    }

    /// The port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, as Redis clients want it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The process: its id, its log, pause and resume.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Where it keeps its data and its log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends it with SIGKILL; the data stay for [`restart`](Self::restart).
    ///
    /// # Errors
    /// When it does not end.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await.map(drop)
    }

    /// Starts it again on the same port with the same data, after stopping it if it still runs.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.child.stop().await.map_err(ServerError::system("Redis"))?;
        self.child = spawn(&self.program, &self.args, &self.dir)?;
        self.until_ready().await
    }

    /// Stops it and removes its directory.
    ///
    /// # Errors
    /// When it does not end, or its directory cannot be removed.
    pub async fn stop(mut self) -> io::Result<()> {
        self.child.stop().await?;
        self.dir.remove().await
    }

    async fn until_ready(&mut self) -> Result<(), ServerError> {
        let port = self.port;
        // the process id tells ours from one of somebody else that took the port before us
        let ours = format!("process_id:{}\r\n", self.pid());
        until_ready("Redis", &mut self.child, START_TIMEOUT, async || {
            // an answer to PING is an error while the data are being loaded
            let pong = probe::redis(port, "PING").await;
            let info = probe::redis(port, "INFO server").await;
            pong.is_ok_and(|pong| pong.starts_with("+PONG"))
                && info.is_ok_and(|info| info.contains(&ours))
        })
        .await
    }
}

fn spawn(program: &Path, args: &[String], dir: &OwnedDir) -> Result<Child, ServerError> {
    let log = dir.path().join("redis.log");
    Child::start(program, args, dir, &log, STOP_GRACE, |_| false)
        .map_err(ServerError::system("Redis"))
}
