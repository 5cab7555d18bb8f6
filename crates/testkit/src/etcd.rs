//! A private etcd.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission, ResponseHeader};

use super::certificates::{Certificates, password, text, write_secret};
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::server::{Kind, Launch, Private, ServerError, find_program, flags};
use crate::LOCK_NAME;

/// Options of a private etcd.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// More flags.
    pub flags: Vec<String>,
    /// Mutual TLS, and users with tokens of this kind: `root`, and [`USER`] for an instance's locks.
    pub secured: Option<AuthTokens>,
}

/// The tokens of a secured etcd.
#[derive(Clone, Copy, Debug)]
pub enum AuthTokens {
    /// A word in each member's memory that expires after this many seconds without use.
    Simple(u64),
    /// A signed text that expires after this many seconds.
    Jwt(u64),
}

/// The user of a secured etcd, with rights only for the lock `stock-lock` and the locks of its items.
pub const USER: &str = "flash-sale";

/// How long etcd may take to answer a request of this crate.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Certificates and passwords of a secured cluster.
#[derive(Clone, Debug)]
struct Keys {
    certificates: Certificates,
    root_password: String,
    /// The file with the password of [`USER`].
    password_file: PathBuf,
    has_users: bool,
}

impl Keys {
    fn create_in(dir: &Path) -> io::Result<Self> {
        let password_file = dir.join("password");
        write_secret(&password_file, &password())?;
        let certificates = Certificates::create_in(dir)?;
        write_secret(&dir.join("token-key"), &password())?;
        Ok(Self { certificates, root_password: password(), password_file, has_users: false })
    }

    #[cfg(feature = "certificates")]
    fn tls(&self) -> io::Result<etcd_client::TlsOptions> {
        use etcd_client::{Certificate, Identity, TlsOptions};

        let (certificate, key) = self.certificates.client();
        let ca = Certificate::from_pem(std::fs::read(self.certificates.ca())?);
        let ours = Identity::from_pem(std::fs::read(certificate)?, std::fs::read(key)?);
        Ok(TlsOptions::new().ca_certificate(ca).identity(ours))
    }

    fn member_flags(&self, tokens: AuthTokens) -> Vec<String> {
        let (certificate, key) = self.certificates.server();
        let token_key = text(&self.password_file.with_file_name("token-key"));
        let (kind, seconds) = match tokens {
            AuthTokens::Simple(seconds) => ("simple".to_owned(), seconds),
            AuthTokens::Jwt(seconds) => {
                (format!("jwt,sign-method=HS256,priv-key={token_key},ttl={seconds}s"), seconds)
            }
        };
        let mut all = flags([
            ("--trusted-ca-file", text(&self.certificates.ca()).as_str()),
            ("--cert-file", &text(&certificate)),
            ("--key-file", &text(&key)),
            ("--auth-token", &kind),
            ("--auth-token-ttl", &seconds.to_string()),
            // the minimum: the passwords are random
            ("--bcrypt-cost", "4"),
        ]);
        all.push("--client-cert-auth".to_owned());
        all
    }
}

/// A member of etcd, alone unless started in a cluster, on a free port of 127.0.0.1, with data in its own directory. Each cluster
/// has its own id.
pub type PrivateEtcd = Private<Etcd>;

/// The kind of a private etcd.
#[derive(Debug)]
pub struct Etcd {
    name: String,
    keys: Option<Keys>,
}

impl Kind for Etcd {
    const NAME: &str = "etcd";
    const PROGRAM: &str = "etcd";
    const PACKAGES: &str = "etcd-server etcd-client";

    fn program() -> Option<PathBuf> {
        find_program("FLASH_SALE_ETCD", &["etcd"])
    }

    async fn is_ready(&self, port: u16, _: u32) -> bool {
        let Ok(mut root) = self.root(port).await else { return false };
        // etcd answers like this after a test has added users
        let has_users =
            |error: &etcd_client::Error| error.to_string().contains("user name is empty");
        let is_ours = match root.member_list().await {
            Ok(answer) => answer.members().iter().any(|member| member.name() == self.name),
            Err(error) => has_users(&error),
        };
        // this read succeeds only while there is a leader
        let read = Box::pin(root.get("ready", None)).await;
        is_ours && read.map_or_else(|error| has_users(&error), |_| true)
    }
}

impl Etcd {
    fn endpoint(&self, port: u16) -> String {
        let scheme = if self.keys.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{port}")
    }

    /// A client of this member with all rights.
    async fn root(&self, port: u16) -> Result<Client, etcd_client::Error> {
        let mut options = ConnectOptions::new()
            .with_timeout(TIMEOUT)
            .with_connect_timeout(TIMEOUT)
            .with_auto_token_refresh(true);
        if let Some(keys) = &self.keys {
            #[cfg(feature = "certificates")]
            {
                options = options.with_tls(keys.tls()?);
            }
            if keys.has_users {
                options = options.with_user("root", &keys.root_password);
            }
        }
        // boxed because it is large
        Box::pin(Client::connect([self.endpoint(port)], Some(options))).await
    }
}

impl PrivateEtcd {
    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// When etcd is not installed, ends, or does not answer within [`START_TIMEOUT`](super::server::START_TIMEOUT).
    pub async fn start(options: EtcdOptions) -> Result<Self, ServerError> {
        Ok(Self::start_cluster_in(None, 1, options).await?.remove(0))
    }

    /// Starts a cluster of `members`, with their directories in `parent` if there is one, and waits until all of them
    /// answer.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_cluster_in(
        parent: impl Into<Option<&OwnedDir>>,
        members: usize,
        options: EtcdOptions,
    ) -> Result<Vec<Self>, ServerError> {
        let parent = parent.into();
        let mut all = Self::start_all(async |_| prepare(parent, members, &options)).await?;
        if options.secured.is_some() {
            all[0].add_users().await.map_err(ServerError::system("etcd"))?;
            for keys in all.iter_mut().filter_map(|member| member.launch.kind.keys.as_mut()) {
                keys.has_users = true;
            }
        }
        Ok(all)
    }

    /// Adds `root` and [`USER`].
    async fn add_users(&self) -> Result<(), etcd_client::Error> {
        let Some(keys) = &self.launch.kind.keys else { return Ok(()) };
        let mut client = self.root().await?;
        let password = std::fs::read_to_string(&keys.password_file)?;
        for (user, password) in [("root", &keys.root_password), (USER, &password)] {
            client.user_add(user, password, None).await?;
            client.role_add(user).await?;
            client.user_grant_role(user, user).await?;
        }
        for claims in [format!("{LOCK_NAME}/"), format!("{LOCK_NAME}:")] {
            let claims = Permission::read_write(claims).with_prefix();
            client.role_grant_permission(USER, claims).await?;
        }
        client.auth_enable().await?;
        Ok(())
    }

    /// A client with all rights.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn root(&self) -> Result<Client, etcd_client::Error> {
        self.launch.kind.root(self.port()).await
    }

    /// The flags of an instance for a secured etcd, besides the address.
    pub fn flags(&self) -> Vec<String> {
        let Some(keys) = &self.launch.kind.keys else { return Vec::new() };
        let user = ["--etcd-user", USER, "--etcd-password-file"].map(str::to_owned);
        let flags = keys.certificates.flags("etcd").chain(user);
        flags.chain([text(&keys.password_file)]).collect()
    }

    /// The flags of `etcdctl`.
    pub fn tool_flags(&self) -> String {
        let endpoint = format!("--endpoints {}", self.endpoint());
        let Some(Keys { certificates, password_file, .. }) = &self.launch.kind.keys else {
            return endpoint;
        };
        let password = password_file.display();
        format!("{endpoint} {certificates} --user \"{USER}:$(cat {password})\"")
    }

    /// Changes the password of [`USER`]: first in the file, so that the next login finds it there.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn rotate_password(&self) -> Result<(), etcd_client::Error> {
        let Some(keys) = &self.launch.kind.keys else { return Ok(()) };
        let password = password();
        write_secret(&keys.password_file, &password)?;
        self.root().await?.user_change_password(USER, password).await.map(drop)
    }

    /// The certificates of a secured etcd.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.launch.kind.keys.as_ref().map(|keys| &keys.certificates)
    }

    /// Whether it says that it leads its cluster.
    pub async fn is_leader(&self) -> bool {
        let Ok(mut root) = self.root().await else { return false };
        let member = |header: &ResponseHeader| header.member_id();
        let status = root.status().await;
        status.is_ok_and(|status| status.header().map(member) == Some(status.leader()))
    }

    /// The address for clients.
    pub fn endpoint(&self) -> String {
        self.launch.kind.endpoint(self.port())
    }
}

/// Makes the members of a cluster ready.
fn prepare(
    parent: Option<&OwnedDir>,
    members: usize,
    options: &EtcdOptions,
) -> io::Result<Vec<Launch<Etcd>>> {
    let mut places = Vec::with_capacity(members);
    for _ in 0..members {
        let [port, peer_port] = free_ports()?;
        // the name tells this member from another etcd that took its port
        let name = format!("flash-sale-{}", uuid::Uuid::new_v4().simple());
        places.push((name, port, format!("http://127.0.0.1:{peer_port}")));
    }
    let cluster: Vec<_> =
        places.iter().map(|(name, _, peer_url)| format!("{name}={peer_url}")).collect();
    // etcd derives the cluster's id from this
    let token = places[0].0.clone();
    let mut all: Vec<Launch<Etcd>> = Vec::with_capacity(members);
    for (name, port, peer_url) in places {
        let dir = OwnedDir::create_in(parent)?;
        // all members share the keys of the first one
        let keys = match (all.first(), options.secured) {
            (Some(first), _) => first.kind.keys.clone(),
            (None, Some(_)) => Some(Keys::create_in(dir.path())?),
            (None, None) => None,
        };
        let kind = Etcd { name, keys };
        let client_url = kind.endpoint(port);
        let mut args = flags([
            ("--name", kind.name.as_str()),
            ("--data-dir", &text(&dir.path().join("data"))),
            ("--listen-client-urls", &client_url),
            ("--advertise-client-urls", &client_url),
            ("--listen-peer-urls", &peer_url),
            ("--initial-advertise-peer-urls", &peer_url),
            ("--initial-cluster", &cluster.join(",")),
            ("--initial-cluster-token", &token),
            ("--initial-cluster-state", "new"),
            // 3.4 logs in another format by default, which has no levels
            ("--logger", "zap"),
            ("--log-level", "warn"),
        ]);
        args.extend_from_slice(&options.flags);
        if let (Some(keys), Some(tokens)) = (&kind.keys, options.secured) {
            args.extend(keys.member_flags(tokens));
        }
        all.push(Launch { args, dir, port, kind });
    }
    Ok(all)
}
