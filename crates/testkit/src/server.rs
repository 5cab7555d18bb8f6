//! The parts that the private servers share: process and directory, finding the program, waiting for its answer, errors.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::child::{Child, Program, User};
use super::dir::OwnedDir;
use super::ports::PORT_ATTEMPTS;
use super::wait::until;

/// How long a server may take from its start to its first answer.
pub const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a server may take to end.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// How many lines of the end of a log are shown.
const TAIL_LINES: usize = 10;

/// A kind of server.
pub trait Kind: Sized {
    /// The server's name in messages.
    const NAME: &str;

    /// The program that may be missing, for the message.
    const PROGRAM: &str;

    /// The packages of Debian and Ubuntu that contain the program.
    const PACKAGES: &str;

    /// The name of the signal that asks the server to end.
    const END_SIGNAL: &str = "TERM";

    /// The program's path, if it is installed.
    fn program() -> Option<PathBuf>;

    /// The user that runs the server.
    fn user(&self) -> User {
        None
    }

    /// Whether the server on this port answers, and is the process `pid`.
    fn is_ready(&self, port: u16, pid: u32) -> impl Future<Output = bool> + Send;
}

/// A server that is ready to be started.
#[derive(Debug)]
pub(crate) struct Launch<K> {
    pub(crate) args: Vec<String>,
    pub(crate) dir: OwnedDir,
    pub(crate) port: u16,
    pub(crate) kind: K,
}

/// A server on a free port of 127.0.0.1, with data in its own directory.
///
/// The process and the directory go when this value is dropped, and when this process ends in any way.
#[derive(Debug)]
pub struct Private<K> {
    // declared before the directory, because it must end first
    child: Child,
    program: PathBuf,
    pub(crate) launch: Launch<K>,
}

impl<K: Kind> Private<K> {
    /// Prepares servers with `prepare`, starts them, and waits until they answer. Repeats this if another program took a port
    /// meanwhile.
    pub(crate) async fn start_all(
        prepare: impl AsyncFn(&Path) -> io::Result<Vec<Launch<K>>>,
    ) -> Result<Vec<Self>, ServerError> {
        let program = K::program().ok_or_else(ServerError::not_installed::<K>)?;
        let start = async || {
            let prepared = prepare(&program).await.map_err(ServerError::system(K::NAME))?;
            let mut all = Vec::with_capacity(prepared.len());
            for launch in prepared {
                let child = Self::child_of(&program, &launch)?;
                all.push(Self { child, program: program.clone(), launch });
            }
            // no member of a cluster answers before a majority of them runs
            for server in &mut all {
                server.until_ready().await?;
            }
            Ok::<_, ServerError>(all)
        };
        let mut attempt = 1;
        loop {
            // boxed because it is large
            match Box::pin(start()).await {
                Err(error) if error.is_port_taken() && attempt < PORT_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// The same as [`start_all`](Self::start_all), for one server.
    pub(crate) async fn start_one(
        prepare: impl AsyncFn(&Path) -> io::Result<Launch<K>>,
    ) -> Result<Self, ServerError> {
        let mut all = Self::start_all(async |program| Ok(vec![prepare(program).await?])).await?;
        Ok(all.remove(0))
    }

    fn child_of(
        path: &Path,
        Launch { args, dir, kind, .. }: &Launch<K>,
    ) -> Result<Child, ServerError> {
        let log = dir.path().join(format!("{}.log", K::NAME.to_lowercase()));
        let (end_signal, without_env, user) =
            (K::END_SIGNAL, is_setting as fn(&str) -> _, kind.user());
        let program = Program::new(path, dir, &log, STOP_GRACE);
        let program = Program { end_signal, without_env, user, ..program };
        program.start(args).map_err(ServerError::system(K::NAME))
    }

    /// Its port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.launch.port
    }

    /// The process: its id, its log, pause and resume.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// The directory of its data and its log.
    pub fn dir(&self) -> &Path {
        self.launch.dir.path()
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
    /// When it does not end, ends again, or does not answer within [`START_TIMEOUT`].
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.child.stop().await.map_err(ServerError::system(K::NAME))?;
        self.child = Self::child_of(&self.program, &self.launch)?;
        self.until_ready().await
    }

    /// Stops it and removes its directory.
    ///
    /// # Errors
    /// When it does not end, or its directory cannot be removed.
    pub async fn stop(mut self) -> io::Result<()> {
        self.child.stop().await?;
        self.launch.dir.remove().await
    }

    async fn until_ready(&mut self) -> Result<(), ServerError> {
        let (Launch { kind, port, .. }, pid) = (&self.launch, self.child.pid());
        let is_ready = async || kind.is_ready(*port, pid).await;
        until_ready(K::NAME, &mut self.child, START_TIMEOUT, is_ready).await
    }
}

/// Whether a server would read this environment variable as a setting. (On some machines etcd needs `ETCD_UNSUPPORTED_ARCH` to
/// run.)
fn is_setting(variable: &str) -> bool {
    let is_of = |prefix| variable.starts_with(prefix);
    (is_of("ETCD_") && variable != "ETCD_UNSUPPORTED_ARCH")
        || is_of("PG")
        || variable == "CLASSPATH"
        || variable.ends_with("JAVA_OPTIONS")
        || variable == "JAVA_TOOL_OPTIONS"
}

pub(crate) fn flags<const N: usize>(flags: [(&str, &str); N]) -> Vec<String> {
    flags.iter().flat_map(|(flag, value)| [*flag, *value]).map(str::to_owned).collect()
}

/// Why a server did not start, as text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ServerError(String);

impl ServerError {
    fn not_installed<K: Kind>() -> Self {
        let (program, packages) = (K::PROGRAM, K::PACKAGES);
        Self(format!(
            "{program} is not installed: run `make setup`, or `apt-get install {packages}` on Debian and Ubuntu"
        ))
    }

    /// Makes an error of the system an error of the server with this name.
    pub fn system<E: std::fmt::Display>(name: &str) -> impl Fn(E) -> Self {
        move |error| Self(format!("{name} could not be started: {error}"))
    }

    /// Whether another program had taken its port.
    pub fn is_port_taken(&self) -> bool {
        self.0.to_lowercase().contains("address already in use")
    }
}

/// The program at the path in `variable`, or the first of `names` on the `PATH`.
pub fn find_program(variable: &str, names: &[&str]) -> Option<PathBuf> {
    // relative values are ignored, because an instance reads the same variable as an address
    let given = std::env::var_os(variable).map(PathBuf::from).filter(|given| given.is_absolute());
    if given.is_some() {
        return given;
    }
    let path = std::env::var_os("PATH")?;
    let dirs: Vec<_> = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
    let mut candidates = names.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    candidates.find(|candidate| candidate.is_file())
}

/// Waits until `is_ready` is true.
///
/// # Errors
/// If `child` ends before, or takes longer than `within`.
pub async fn until_ready(
    name: &str,
    child: &mut Child,
    within: Duration,
    is_ready: impl AsyncFn() -> bool,
) -> Result<(), ServerError> {
    let what = format!("{name} answers");
    let answered = until(&what, within, async || match child.exited()? {
        Some(status) => {
            Err(io::Error::other(format!("{name} ended before it answered ({status})")))
        }
        None => Ok(is_ready().await),
    });
    let answered = answered.await;
    let at_the_end = |error| format!("{error}; the end of its log:\n{}", tail(child.log()));
    answered.map_err(|error| ServerError(at_the_end(error)))
}

/// The last lines of a log, indented, or the reason why it cannot be read.
pub fn tail(log: &Path) -> String {
    let bytes = match std::fs::read(log) {
        Ok(bytes) => bytes,
        Err(error) => return format!("  (unreadable: {error})"),
    };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    if last.is_empty() { "  (empty)".to_owned() } else { format!("  {}", last.join("\n  ")) }
}
