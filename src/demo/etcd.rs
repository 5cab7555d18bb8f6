//! A private etcd.

use std::io;
use std::path::PathBuf;

use hyper::Method;

use super::child::Child;
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::probe;
use super::server::{
    PORT_ATTEMPTS, START_TIMEOUT, STOP_GRACE, ServerError, find_program, until_ready,
};

/// How a private etcd differs from the usual one.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// The size in bytes beyond which it refuses to write; etcd's own default if `None`.
    pub quota_backend_bytes: Option<u64>,
    /// More flags.
    pub flags: Vec<String>,
}

/// A member of etcd, the only one if not said otherwise, on a free port of 127.0.0.1, with data in a directory of its own.
///
/// Process and directory go when this value is dropped, and when our process ends, however it
/// ends. Each cluster has an id of its own.
#[derive(Debug)]
pub struct PrivateEtcd {
    // before the directory: it is told to end first
    child: Child,
    dir: OwnedDir,
    program: PathBuf,
    args: Vec<String>,
    name: String,
    port: u16,
}

impl PrivateEtcd {
    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// When etcd is not installed, ends, or does not answer within [`START_TIMEOUT`].
    pub async fn start(options: EtcdOptions) -> Result<Self, ServerError> {
        Self::start_somewhere(OwnedDir::create, &options).await
    }

    /// As [`start`](Self::start), with its directory in `parent`, which then stays until it is gone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_in(parent: &OwnedDir, options: EtcdOptions) -> Result<Self, ServerError> {
        Self::start_somewhere(|| OwnedDir::create_in(parent), &options).await
    }

    /// Starts a cluster of `members` in `parent`, and waits until all of them answer.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_cluster_in(
        parent: &OwnedDir,
        members: usize,
        options: EtcdOptions,
    ) -> Result<Vec<Self>, ServerError> {
        Self::start_members(|| OwnedDir::create_in(parent), members, &options).await
    }

    async fn start_somewhere(
        create_dir: impl Fn() -> io::Result<OwnedDir>,
        options: &EtcdOptions,
    ) -> Result<Self, ServerError> {
        let mut members = Self::start_members(create_dir, 1, options).await?;
        Ok(members.remove(0))
    }

    async fn start_members(
        create_dir: impl Fn() -> io::Result<OwnedDir>,
        members: usize,
        options: &EtcdOptions,
    ) -> Result<Vec<Self>, ServerError> {
        let program = find_program(&["etcd"]).ok_or(ServerError::NotInstalled {
            program: "etcd",
            apt: "etcd-server etcd-client",
            dnf: "etcd",
            brew: "etcd",
        })?;
        let mut attempt = 1;
        loop {
            match Self::start_on_free_ports(&program, &create_dir, members, options).await {
                Err(error) if error.is_port_taken() && attempt < PORT_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn start_on_free_ports(
        program: &std::path::Path,
        create_dir: &impl Fn() -> io::Result<OwnedDir>,
        members: usize,
        options: &EtcdOptions,
    ) -> Result<Vec<Self>, ServerError> {
        let system = ServerError::system("etcd");
        let mut seats = Vec::with_capacity(members);
        for _ in 0..members {
            let [port, peer_port] = free_ports().map_err(&system)?;
            // also tells our member from one of somebody else that took the port before us
            let name = format!("flash-sale-{}", uuid::Uuid::new_v4().simple());
            seats.push((name, port, format!("http://127.0.0.1:{peer_port}")));
        }
        let cluster: Vec<_> =
            seats.iter().map(|(name, _, peer_url)| format!("{name}={peer_url}")).collect();
        // etcd derives the cluster's id from it
        let token = seats.first().map(|(name, ..)| name.clone()).unwrap_or_default();
        let mut all = Vec::with_capacity(members);
        for (name, port, peer_url) in seats {
            let dir = create_dir().map_err(&system)?;
            let client_url = format!("http://127.0.0.1:{port}");
            let mut args: Vec<String> = [
                ("--name", name.as_str()),
                ("--data-dir", &dir.path().join("data").to_string_lossy()),
                ("--listen-client-urls", &client_url),
                ("--advertise-client-urls", &client_url),
                ("--listen-peer-urls", &peer_url),
                ("--initial-advertise-peer-urls", &peer_url),
                ("--initial-cluster", &cluster.join(",")),
                ("--initial-cluster-token", &token),
                ("--initial-cluster-state", "new"),
                // 3.4 has an older logger as its default, which knows no levels
                ("--logger", "zap"),
                ("--log-level", "warn"),
            ]
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()])
            .collect();
            if let Some(bytes) = options.quota_backend_bytes {
                args.extend(["--quota-backend-bytes".to_owned(), bytes.to_string()]);
            }
            args.extend_from_slice(&options.flags);
            let child = spawn(program, &args, &dir)?;
            all.push(Self { child, dir, program: program.to_owned(), args, name, port });
        }
        // none of several answers before most of them run
        for member in &mut all {
            member.until_ready().await?;
        }
        Ok(all)
    }

    /// The port for clients, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address for clients, as etcd's tools want it.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
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
    pub fn dir(&self) -> &std::path::Path {
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
        self.child.stop().await.map_err(ServerError::system("etcd"))?;
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
        let (port, name) = (self.port, self.name.as_str());
        until_ready("etcd", &mut self.child, START_TIMEOUT, async || {
            let health = probe::http(Method::GET, port, "/health", "").await;
            let members = probe::http(Method::POST, port, "/v3/cluster/member/list", "{}").await;
            health.is_ok_and(|(status, _)| status.is_success())
                && members.is_ok_and(|(_, members)| members.contains(name))
        })
        .await
    }
}

fn spawn(program: &std::path::Path, args: &[String], dir: &OwnedDir) -> Result<Child, ServerError> {
    let log = dir.path().join("etcd.log");
    // etcd takes each flag from the environment as well, and what it finds there is not for us; but
    // on some machines it refuses to run without being told there that they are fine
    let foreign = |name: &str| name.starts_with("ETCD_") && name != "ETCD_UNSUPPORTED_ARCH";
    Child::start(program, args, dir, &log, STOP_GRACE, foreign).map_err(ServerError::system("etcd"))
}
