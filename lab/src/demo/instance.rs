//! One instance of the service, as a process.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::baselines::LockMode;
use hyper::{Method, StatusCode};
use testkit::server::{START_TIMEOUT, ServerError, until_ready};
use testkit::{Child, OwnedDir, probe};

use super::error::DemoError;

/// How long requests in flight may take when an instance is asked to end.
const SHUTDOWN_GRACE: &str = "5s";

/// How long it may take to end after that: it gives up its claims as well.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A running instance.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) port: u16,
    pub(crate) child: Child,
    program: PathBuf,
    args: Vec<String>,
}

/// What all instances share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<'a> {
    pub(crate) program: &'a Path,
    pub(crate) dir: &'a OwnedDir,
    /// The flags that lead to etcd and Redis.
    pub(crate) servers: &'a [String],
    pub(crate) lock: LockMode,
    pub(crate) lock_name: &'a str,
    /// How many instances share this machine's cores.
    pub(crate) instances: usize,
    /// Further flags.
    pub(crate) flags: &'a [&'a str],
}

impl Instance {
    /// Starts it, without waiting for it.
    pub(crate) fn start(port: u16, shared: Shared<'_>) -> Result<Self, DemoError> {
        Self::start_as(&port.to_string(), port, shared)
    }

    /// As [`start`](Self::start), under another name than its port.
    pub(crate) fn start_as(
        instance: &str,
        port: u16,
        shared: Shared<'_>,
    ) -> Result<Self, DemoError> {
        let lock = shared.lock.name();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = (cores / shared.instances.max(1)).max(1);
        let args = [
            "serve",
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--instance",
            instance,
            "--workers",
            &workers.to_string(),
            "--shutdown-grace",
            SHUTDOWN_GRACE,
            "--lock-name",
            shared.lock_name,
            "--lock",
            lock,
        ];
        let args = args.iter().chain(shared.flags).map(|arg| (*arg).to_owned());
        let args: Vec<String> = args.chain(shared.servers.iter().cloned()).collect();
        let child = spawn(port, shared.program, &args, shared.dir)?;
        Ok(Self { port, child, program: shared.program.to_owned(), args })
    }

    /// Starts it again, once it has ended, and waits until it answers.
    pub(crate) async fn start_again(&mut self, dir: &OwnedDir) -> Result<(), DemoError> {
        self.child = spawn(self.port, &self.program, &self.args, dir)?;
        self.until_live().await
    }

    /// Waits until it can sell.
    pub(crate) async fn until_ready(&mut self) -> Result<(), DemoError> {
        self.until_ok("/readyz").await
    }

    /// Waits until it answers: there may be nothing that it can sell.
    pub(crate) async fn until_live(&mut self) -> Result<(), DemoError> {
        self.until_ok("/healthz").await
    }

    async fn until_ok(&mut self, path: &str) -> Result<(), DemoError> {
        let port = self.port;
        let is_ready = async || {
            let answer = probe::http(Method::GET, port, path, "").await;
            answer.is_ok_and(|(status, _)| status == StatusCode::OK)
        };
        Ok(until_ready(&name(port), &mut self.child, START_TIMEOUT, is_ready).await?)
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }
}

/// Where the instance of this port is.
pub(crate) fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn spawn(port: u16, program: &Path, args: &[String], dir: &OwnedDir) -> Result<Child, DemoError> {
    let log = dir.path().join(format!("instance-{port}.log"));
    Ok(Child::start(program, args, dir, &log, STOP_GRACE, is_setting)
        .map_err(ServerError::system(&name(port)))?)
}

/// How an instance is called in sentences.
pub(crate) fn name(port: u16) -> String {
    format!("instance {port}")
}

/// A setting in our environment is meant for us or for another instance, not for those of the demo.
pub(crate) fn is_setting(name: &str) -> bool {
    name.starts_with("FLASH_SALE_")
}

/// Says it now if an instance will not be able to listen.
pub(crate) fn check_ports(ports: &[u16]) -> Result<(), DemoError> {
    for &port in ports {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                return Err(DemoError::PortTaken(port));
            }
            Err(source) => return Err(DemoError::PortRefused { port, source }),
        }
    }
    Ok(())
}
