//! A private `PgBouncer`, a pooler for PostgreSQL.

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::TcpStream;

use super::certificates::text;
use super::child::User;
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::postgres::{give, nobody};
use super::server::{Kind, Launch, Private, ServerError, find_program};

/// A `PgBouncer` on a free port of 127.0.0.1. It refuses to run as `root`, so a `root` runs it as the user `nobody`.
pub type PrivatePgBouncer = Private<PgBouncer>;

/// The kind of a private `PgBouncer`.
#[derive(Debug)]
pub struct PgBouncer(());

impl Kind for PgBouncer {
    const NAME: &str = "PgBouncer";
    const PROGRAM: &str = "pgbouncer";
    const PACKAGES: &str = "pgbouncer";

    /// This signal ends `PgBouncer` at once. `TERM` works differently in different versions.
    const END_SIGNAL: &str = "INT";

    fn program() -> Option<PathBuf> {
        find_program("FLASH_SALE_PGBOUNCER", &["pgbouncer"]).or_else(|| {
            // Debian installs it outside of a user's `PATH`
            let program = Path::new("/usr/sbin/pgbouncer");
            program.exists().then(|| program.into())
        })
    }

    fn user(&self) -> User {
        nobody()
    }

    async fn is_ready(&self, port: u16, _pid: u32) -> bool {
        TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    }
}

impl PrivatePgBouncer {
    /// Whether it is installed; if not, the test is [left out](crate::or_left_out).
    pub fn can_test() -> bool {
        let missing = "PgBouncer is not installed (Debian: apt-get install pgbouncer)";
        crate::or_left_out(PgBouncer::program(), missing).is_some()
    }

    /// Starts it in front of the PostgreSQL on this port, with these settings, and waits until it answers. The superuser
    /// `postgres` there needs no password.
    ///
    /// # Errors
    /// When `PgBouncer` is not installed, ends, or does not answer within
    /// [`START_TIMEOUT`](super::server::START_TIMEOUT).
    pub async fn start(postgres: u16, settings: &[&str]) -> Result<Self, ServerError> {
        Self::start_one(async |_| prepare(postgres, settings).await).await
    }
}

async fn prepare(postgres: u16, settings: &[&str]) -> io::Result<Launch<PgBouncer>> {
    let dir = OwnedDir::create()?;
    let [port] = free_ports()?;
    let file = dir.path().join("pgbouncer.ini");
    let settings = settings.join("\n");
    let all = format!(
        "[databases]\n* = host=127.0.0.1 port={postgres} user=postgres\n[pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n{settings}\n"
    );
    std::fs::write(&file, all)?;
    give(nobody(), dir.path()).await?;
    Ok(Launch { args: vec![text(&file)], dir, port, kind: PgBouncer(()) })
}
