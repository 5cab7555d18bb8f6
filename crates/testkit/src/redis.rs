//! A private Redis.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, RedisResult};
use tokio::time::timeout;

use super::certificates::{Certificates, password, text, write_secret};
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::replication::{Follow, Replicated};
use super::server::{Kind, Launch, Private, START_TIMEOUT, ServerError, find_program, flags};
use super::wait::until;

/// Options of a private Redis.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// How many numbered databases it has; `None` for 16.
    pub databases: Option<u32>,
    /// Whether it keeps its data in memory only.
    pub volatile: bool,
    /// Mutual TLS, and two users: `root`, and [`USER`] with the rights of an instance.
    pub secured: bool,
    /// If set, it is a node of a Redis Cluster, in which a node counts as gone after a silence of this length.
    pub node_timeout: Option<Duration>,
}

/// How long a starting Redis may take to answer with its process id.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The user of a secured Redis with an instance's rights alone.
pub const USER: &str = "flash-sale";

/// The rights of an instance, for `ACL SETUSER`: the keys of all items, and the commands of the service and its
/// scripts.
pub const RIGHTS: &str = include_str!("redis.acl");

/// Certificates and passwords of a secured Redis.
#[derive(Clone, Debug)]
struct Keys {
    certificates: Certificates,
    root_password: String,
    /// The file with the address, which contains [`USER`] and its password.
    address_file: PathBuf,
}

/// A Redis on a free port of 127.0.0.1, with data in its own directory.
///
/// By default it loses no acknowledged write: each one is on the disk before its answer, and nothing is
/// evicted.
pub type PrivateRedis = Private<Redis>;

/// The kind of a private Redis.
#[derive(Debug)]
pub struct Redis {
    keys: Option<Keys>,
}

impl Kind for Redis {
    const NAME: &str = "Redis";
    const PROGRAM: &str = "redis-server";
    const PACKAGES: &str = "redis-server";

    /// Valkey serves if Redis is not installed.
    fn program() -> Option<PathBuf> {
        find_program("FLASH_SALE_REDIS", &["redis-server", "valkey-server"])
    }

    async fn is_ready(&self, port: u16, pid: u32) -> bool {
        let info = async {
            // this fails while the data are being loaded
            self.run::<String>(port, "PING").await?;
            self.run::<String>(port, "INFO server").await
        };
        // the process id distinguishes our Redis from another one that took the port
        let ours = format!("process_id:{pid}\r\n");
        let info = timeout(PROBE_TIMEOUT, info).await;
        info.is_ok_and(|info| info.is_ok_and(|info| info.contains(&ours)))
    }
}

impl Keys {
    fn create_in(dir: &Path, port: u16) -> io::Result<Self> {
        let certificates = Certificates::create_in(dir)?;
        let (root_password, address_file) = (password(), dir.join("address"));
        let keys = Self { certificates, root_password, address_file };
        let password = password();
        keys.write_address(port, &password)?;
        let users = [
            "user default off".to_owned(),
            format!("user root on >{} ~* &* +@all", keys.root_password),
            // a sale without the script needs one more right
            format!("user {USER} on >{password} {} +incrby", RIGHTS.trim()),
        ];
        write_secret(&dir.join("users.acl"), &users.join("\n"))?;
        Ok(keys)
    }

    /// Makes the keys of a sentinel in `dir`, with the same passwords. [`USER`] has no rights there.
    fn for_sentinel_in(&self, dir: &Path) -> io::Result<Self> {
        let users = std::fs::read_to_string(self.address_file.with_file_name("users.acl"))?;
        let (others, user) = users.rsplit_once('\n').unwrap_or_default();
        let user: Vec<_> = user.split(' ').take(4).collect();
        write_secret(&dir.join("users.acl"), &format!("{others}\n{}", user.join(" ")))?;
        Ok(Self { address_file: dir.join("address"), ..self.clone() })
    }

    fn write_address(&self, port: u16, password: &str) -> io::Result<()> {
        write_secret(&self.address_file, &format!("rediss://{USER}:{password}@127.0.0.1:{port}"))
    }

    #[cfg(feature = "certificates")]
    fn client(&self, url: &str) -> RedisResult<Client> {
        let (certificate, key) = self.certificates.client();
        let client_tls = Some(redis::ClientTlsConfig {
            client_cert: std::fs::read(certificate)?,
            client_key: std::fs::read(key)?,
        });
        let root_cert = Some(std::fs::read(self.certificates.ca())?);
        let url = url.replace("://", &format!("://root:{}@", self.root_password));
        // if two cryptography libraries are linked, rustls chooses none; an error means that one was chosen already
        let _ = rustls::crypto::ring::default_provider().install_default();
        Client::build_with_tls(url, redis::TlsCertificates { client_tls, root_cert })
    }

    fn server_flags(&self) -> Vec<String> {
        let (certificate, key) = self.certificates.server();
        let users = self.address_file.with_file_name("users.acl");
        flags([
            ("--port", "0"),
            ("--tls-cert-file", &text(&certificate)),
            ("--tls-key-file", &text(&key)),
            ("--tls-ca-cert-file", &text(&self.certificates.ca())),
            ("--tls-auth-clients", "yes"),
            ("--tls-cluster", "yes"),
            ("--aclfile", &text(&users)),
        ])
    }
}

impl PrivateRedis {
    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// When Redis is not installed, ends, or does not answer within [`START_TIMEOUT`].
    pub async fn start(options: RedisOptions) -> Result<Self, ServerError> {
        Self::start_in(None, options).await
    }

    /// Starts it as [`start`](Self::start) does, with its directory in `parent`, if there is one. The parent then stays until
    /// this Redis is gone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_in(
        parent: impl Into<Option<&OwnedDir>>,
        options: RedisOptions,
    ) -> Result<Self, ServerError> {
        let parent = parent.into();
        Self::start_one(async |_| prepare(parent, &options)).await
    }

    /// The address, without user and password.
    pub fn url(&self) -> String {
        self.launch.kind.url(self.port())
    }

    /// The flags of an instance.
    pub fn flags(&self) -> Vec<String> {
        let Some(keys) = &self.launch.kind.keys else {
            return vec!["--redis".to_owned(), self.url()];
        };
        let file = ["--redis-file".to_owned(), text(&keys.address_file)];
        file.into_iter().chain(keys.certificates.flags("redis")).collect()
    }

    /// The flags of `redis-cli`.
    pub fn tool_flags(&self) -> String {
        match &self.launch.kind.keys {
            None => format!("-p {}", self.port()),
            Some(Keys { certificates, address_file, .. }) => {
                format!("-u \"$(cat {})\" {certificates}", address_file.display())
            }
        }
    }

    /// Runs `line`, split at spaces, with all rights.
    ///
    /// # Errors
    /// When there is no answer, or Redis refuses.
    pub async fn run<T: FromRedisValue>(&self, line: &str) -> RedisResult<T> {
        self.launch.kind.run(self.port(), line).await
    }

    /// Changes the password of [`USER`]. The old one is valid until the file has the new one.
    ///
    /// # Errors
    /// When Redis refuses.
    pub async fn rotate_password(&self) -> RedisResult<()> {
        let Some(keys) = &self.launch.kind.keys else { return Ok(()) };
        let new = password();
        self.run::<()>(&format!("ACL SETUSER {USER} >{new}")).await?;
        keys.write_address(self.port(), &new)?;
        self.run::<()>(&format!("ACL SETUSER {USER} resetpass >{new}")).await
    }

    /// The certificates of a secured Redis.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.launch.kind.keys.as_ref().map(|keys| &keys.certificates)
    }
}

impl Redis {
    pub(crate) fn for_sentinel_in(&self, dir: &Path) -> io::Result<Self> {
        let keys = self.keys.as_ref().map(|keys| keys.for_sentinel_in(dir)).transpose()?;
        Ok(Self { keys })
    }

    /// The flags for a server of this kind on this port.
    pub(crate) fn flags(&self, port: u16) -> Vec<String> {
        let flag = if self.keys.is_some() { "--tls-port" } else { "--port" };
        let port = [flag.to_owned(), port.to_string()];
        port.into_iter().chain(self.keys.iter().flat_map(Keys::server_flags)).collect()
    }

    fn url(&self, port: u16) -> String {
        let scheme = if self.keys.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{port}")
    }

    /// A client with all rights.
    fn client(&self, port: u16) -> RedisResult<Client> {
        #[cfg(feature = "certificates")]
        if let Some(keys) = &self.keys {
            return keys.client(&self.url(port));
        }
        Client::open(self.url(port))
    }

    /// Runs a command, split at spaces, with all rights.
    async fn run<T: FromRedisValue>(&self, port: u16, line: &str) -> RedisResult<T> {
        command(line).query_async(&mut connect(&self.client(port)?).await?).await
    }
}

/// A connection whose time limits suit a busy disk. The default is half a second.
///
/// # Errors
/// When Redis does not accept it.
pub async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(START_TIMEOUT))
        .set_response_timeout(Some(START_TIMEOUT));
    client.get_multiplexed_async_connection_with_config(&patient).await
}

pub(crate) fn command(line: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(line.split(' ').collect::<Vec<_>>());
    command
}

fn prepare(parent: Option<&OwnedDir>, options: &RedisOptions) -> io::Result<Launch<Redis>> {
    let dir = OwnedDir::create_in(parent)?;
    // a free port for the other nodes: the system may use Redis' default port for outgoing connections
    let [port, cluster_port] = free_ports()?;
    let mut args = flags([
        ("--bind", "127.0.0.1"),
        ("--daemonize", "no"),
        ("--dir", &text(dir.path())),
        ("--appendonly", if options.volatile { "no" } else { "yes" }),
        ("--appendfsync", "always"),
        // no snapshots: the append-only file has everything
        ("--save", ""),
        ("--maxmemory-policy", "noeviction"),
        // otherwise a search in a small sale would pass over all of its orders
        ("--hash-max-listpack-entries", "0"),
        ("--databases", &options.databases.unwrap_or(16).to_string()),
    ]);
    if let Some(timeout) = options.node_timeout {
        args.extend(flags([
            ("--cluster-enabled", "yes"),
            ("--cluster-port", &cluster_port.to_string()),
            ("--cluster-node-timeout", &timeout.as_millis().to_string()),
            // if a shard is gone, the others go on selling
            ("--cluster-require-full-coverage", "no"),
            // do not wait for further replicas
            ("--repl-diskless-sync-delay", "0"),
        ]));
    }
    let kind =
        Redis { keys: options.secured.then(|| Keys::create_in(dir.path(), port)).transpose()? };
    args.extend(kind.flags(port));
    Ok(Launch { args, dir, port, kind })
}

/// A Redis with a replica.
pub type ReplicatedRedis = Replicated<Redis>;

impl ReplicatedRedis {
    /// Starts both, with their directories in `parent`, and waits until the replica follows.
    ///
    /// # Errors
    /// As [`PrivateRedis::start`], or when the replica does not follow within [`START_TIMEOUT`].
    pub async fn start_in(parent: &OwnedDir, options: RedisOptions) -> Result<Self, ServerError> {
        let primary = PrivateRedis::start_in(parent, options.clone()).await?;
        Self::of(primary, async |primary, port| {
            let replica = PrivateRedis::start_in(parent, options).await?;
            let follows = follow(&replica, primary, port).await;
            follows.map(|()| replica).map_err(ServerError::system("Redis"))
        })
        .await
    }
}

impl Follow for Redis {
    type Error = RedisError;

    fn url_at(_: &PrivateRedis, port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }

    async fn until_caught_up(replica: &PrivateRedis, primary: &PrivateRedis) -> RedisResult<()> {
        let written =
            offset(&primary.run::<String>("INFO replication").await?, "master_repl_offset:");
        until("the replica follows", START_TIMEOUT, async || {
            let known: String = replica.run("INFO replication").await?;
            let is_up = known.contains("master_link_status:up");
            Ok(is_up && offset(&known, "slave_repl_offset:") >= written)
        })
        .await
    }

    async fn promote(replica: &PrivateRedis) -> RedisResult<()> {
        replica.run("REPLICAOF NO ONE").await
    }
}

/// Makes `replica` follow `primary`, which it reaches at `port`, and waits until it does.
///
/// # Errors
/// When one of the two does not answer, or that takes longer than [`START_TIMEOUT`].
pub async fn follow(replica: &PrivateRedis, primary: &PrivateRedis, port: u16) -> RedisResult<()> {
    // by default Redis waits 5 s for more replicas
    primary.run::<()>("CONFIG SET repl-diskless-sync-delay 0").await?;
    replica.run::<()>(&format!("REPLICAOF 127.0.0.1 {port}")).await?;
    Redis::until_caught_up(replica, primary).await
}

/// How much of the replication was written or read.
fn offset(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()
}
