//! A private PostgreSQL.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Signal, geteuid};
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::certificates::{Certificates, text, write_secret};
use super::child::User;
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::replication::{Follow, Replicated};
use super::server::{Kind, Launch, Private, START_TIMEOUT, ServerError, find_program};
use super::wait::until;

/// Options of a private PostgreSQL.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    /// Whether connections from every machine are encrypted, with certificates of the server's own authority, and all users but
    /// `postgres` need a password.
    pub secured: bool,
    /// More settings, as `name=value`.
    pub settings: Vec<String>,
    /// Whether its data are made for it alone. Otherwise they are copied from data that this process makes once, and removes at
    /// its end.
    pub own_data: bool,
}

/// A PostgreSQL on a free port of 127.0.0.1, with data in its own directory, and the superuser `postgres` without a password.
///
/// It refuses to run as `root`, so a `root` runs it as the user `nobody`.
pub type PrivatePostgres = Private<Postgres>;

/// The user `nobody` and its group.
const NOBODY: (u32, u32) = (65534, 65534);

/// The kind of a private PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    data: PathBuf,
    user: User,
    certificates: Option<Certificates>,
}

impl Kind for Postgres {
    const NAME: &str = "PostgreSQL";
    const PROGRAM: &str = "postgres";
    const PACKAGES: &str = "postgresql";

    /// This signal ends the connections; after `TERM` PostgreSQL would wait for them.
    const END_SIGNAL: &str = "INT";

    fn program() -> Option<PathBuf> {
        Some(programs()?.join("postgres"))
    }

    fn user(&self) -> User {
        self.user
    }

    /// The server writes its process id and its state into this file.
    async fn is_ready(&self, _: u16, pid: u32) -> bool {
        let state = std::fs::read_to_string(self.data.join("postmaster.pid"));
        state.is_ok_and(|state| {
            let (first, last) = (state.lines().next(), state.lines().last());
            first == Some(&pid.to_string()) && last.is_some_and(|last| last.trim_end() == "ready")
        })
    }
}

/// The directory of its programs: on the `PATH`, or where Debian and Fedora install the newest version.
fn programs() -> Option<PathBuf> {
    if let Some(server) = find_program("FLASH_SALE_POSTGRES", &["postgres"]) {
        // the directory of a link to it may lack the other programs
        return server.canonicalize().ok()?.parent().map(Path::to_owned);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(number);
    newest.map(|path| path.join("bin")).filter(|path| path.join("postgres").is_file())
}

/// Whether PostgreSQL is installed.
pub fn is_installed() -> bool {
    programs().is_some()
}

/// The same for a test. Without PostgreSQL, the test is [left out](crate::or_left_out).
pub fn can_test() -> bool {
    let missing = "PostgreSQL is not installed (apt-get install postgresql)";
    crate::or_left_out(programs(), missing).is_some()
}

/// The client `psql`, beside the server.
pub fn psql() -> PathBuf {
    let beside = programs().map(|programs| programs.join("psql")).filter(|psql| psql.is_file());
    beside.unwrap_or_else(|| PathBuf::from("psql"))
}

/// The user for servers that refuse to run as `root`; `None` if this process is not `root`.
pub(crate) fn nobody() -> User {
    geteuid().is_root().then_some(NOBODY)
}

/// Gives a directory and its contents to this user.
pub(crate) async fn give(user: User, dir: &Path) -> io::Result<()> {
    let Some((user, group)) = user else { return Ok(()) };
    run(None, "chown".into(), ["-R", &format!("{user}:{group}"), &text(dir)]).await.map(drop)
}

impl PrivatePostgres {
    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// When PostgreSQL is not installed, ends, or does not answer within
    /// [`START_TIMEOUT`].
    pub async fn start(options: PostgresOptions) -> Result<Self, ServerError> {
        Self::start_one(async |program| prepare(program, &options, None).await).await
    }

    /// The address of the database `postgres`, for its superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres", self.port())
    }

    /// The address for another user, and through another port.
    pub fn url_of(&self, user: &str, port: u16) -> String {
        let mode = if self.launch.kind.certificates.is_some() { "?sslmode=require" } else { "" };
        format!("postgres://{user}@127.0.0.1:{port}/postgres{mode}")
    }

    /// Runs a statement in `psql` as the superuser. Returns its rows, one a line, with `|` between the columns.
    ///
    /// # Errors
    /// When there is no answer, or PostgreSQL refuses.
    pub async fn run(&self, statement: &str) -> io::Result<String> {
        run(None, psql(), [&self.url(), "-XAtc", statement]).await
    }

    /// The certificates of a secured server.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.launch.kind.certificates.as_ref()
    }

    /// Ends all its processes at once, as a crash of the machine does. The data stay for [`restart`](Self::restart), which
    /// recovers them.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn crash(&mut self) -> io::Result<()> {
        self.child().signal(Signal::QUIT)?;
        self.child().wait().await.map(drop)
    }
}

/// A primary, and a standby that can take its place.
pub type ReplicatedPostgres = Replicated<Postgres>;

impl ReplicatedPostgres {
    /// Starts both, and waits until they answer. If `is_synchronous`, the standby has each write before the write is answered.
    ///
    /// # Errors
    /// As [`PrivatePostgres::start`]; and when the system gives a proxy no port.
    pub async fn start(is_synchronous: bool) -> Result<Self, ServerError> {
        let names = is_synchronous.then(|| "synchronous_standby_names=*".to_owned());
        let settings = names.into_iter().collect();
        let options = PostgresOptions { settings, own_data: true, ..Default::default() };
        Self::of(PrivatePostgres::start(options).await?, async |_, port| {
            let options = PostgresOptions::default();
            Private::start_one(async |server| prepare(server, &options, Some(port)).await).await
        })
        .await
    }
}

impl Follow for Postgres {
    type Error = io::Error;

    fn url_at(primary: &PrivatePostgres, port: u16) -> String {
        primary.url_of("postgres", port)
    }

    async fn until_caught_up(
        standby: &PrivatePostgres,
        primary: &PrivatePostgres,
    ) -> io::Result<()> {
        let written = primary.run("SELECT pg_current_wal_lsn()").await?;
        let has_it = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        let follows = async || Ok(standby.run(&has_it).await? == "t");
        until("the standby follows", START_TIMEOUT, follows).await
    }

    async fn promote(standby: &PrivatePostgres) -> io::Result<()> {
        let is_primary = standby.run("SELECT pg_promote()").await? == "t";
        if is_primary { Ok(()) } else { Err(io::Error::other("the standby is not promoted")) }
    }
}

/// Makes a server ready, with a data directory.
async fn prepare(
    server: &Path,
    options: &PostgresOptions,
    primary: Option<u16>,
) -> io::Result<Launch<Postgres>> {
    let dir = OwnedDir::create()?;
    let [port] = free_ports()?;
    let user = nobody();
    let data = dir.path().join("data");
    let certificates = options.secured.then(|| Certificates::create_in(dir.path())).transpose()?;
    let mut settings = vec![
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        "unix_socket_directories=".to_owned(),
        "max_connections=300".to_owned(),
        "shared_buffers=16MB".to_owned(),
        // in the server's directory, which is removed with it
        "dynamic_shared_memory_type=mmap".to_owned(),
    ];
    if let Some(certificates) = &certificates {
        let (certificate, key) = certificates.server();
        let access = dir.path().join("access.conf");
        let lines =
            "hostssl all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
        write_secret(&access, lines)?;
        settings.extend([
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", text(&certificate)),
            format!("ssl_key_file={}", text(&key)),
            format!("ssl_ca_file={}", text(&certificates.ca())),
            format!("hba_file={}", text(&access)),
        ]);
    }
    settings.extend_from_slice(&options.settings);
    give(user, dir.path()).await?;
    match primary {
        None if options.own_data => init(user, server, &data).await?,
        // `-a` keeps the owner, because the server starts only for the owner
        None => {
            let template = template(user, server).await?;
            run(None, "cp".into(), ["-a", &text(&template), &text(&data)]).await?;
        }
        Some(port) => {
            let port = format!("--port={port}");
            let flags = ["--host=127.0.0.1", &port, "--write-recovery-conf", "--checkpoint=fast"];
            make_data(user, server.with_file_name("pg_basebackup"), &flags, &data).await?;
        }
    }
    let settings = settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]);
    let args = ["-D".to_owned(), text(&data)].into_iter().chain(settings).collect();
    Ok(Launch { args, dir, port, kind: Postgres { data, user, certificates } })
}

/// The data directory of a new server, made once in a process and removed at its end. A copy takes a fraction of the time of a
/// new one.
async fn template(user: User, server: &Path) -> io::Result<PathBuf> {
    static TEMPLATE: OnceCell<OwnedDir> = OnceCell::const_new();
    let make = async || -> io::Result<OwnedDir> {
        let dir = OwnedDir::create()?;
        give(user, dir.path()).await?;
        init(user, server, &dir.path().join("data")).await?;
        Ok(dir)
    };
    Ok(TEMPLATE.get_or_try_init(make).await?.path().join("data"))
}

/// Makes the data directory of a new server.
async fn init(user: User, server: &Path, data: &Path) -> io::Result<()> {
    // small log files, because they are most of the bytes to copy
    let flags = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--wal-segsize=1"];
    make_data(user, server.with_file_name("initdb"), &flags, data).await
}

/// Makes a data directory by a program of PostgreSQL.
async fn make_data(user: User, program: PathBuf, flags: &[&str], data: &Path) -> io::Result<()> {
    let data = format!("--pgdata={}", text(data));
    let flags = [flags, &["--username=postgres", "--no-sync", &data]].concat();
    run(user, program, flags).await.map(drop)
}

/// Runs a program to its end as this user. Returns what it printed.
async fn run(
    user: User,
    program: PathBuf,
    args: impl IntoIterator<Item = &str>,
) -> io::Result<String> {
    let mut command = Command::new(&program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    let output = command.output().await?;
    if !output.status.success() {
        let name = program.file_name().unwrap_or_default().display();
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{name}: {}", errors.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
