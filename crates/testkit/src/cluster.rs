//! One running cluster: private etcd members, a private Redis, and instances of the service.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use hyper::{Method, StatusCode};

use crate::server::{START_TIMEOUT, until_ready};
use crate::{
    Child, EtcdOptions, LOCK_NAME, OwnedDir, PrivateEtcd, PrivateRedis, PrivateRedisCluster,
    Program, Proxy, RedisOptions, Sentinels, ServerError, ports, probe,
};

/// The error of a proxy.
const NO_PROXY: &str = "a proxy has no port";

/// How long an instance may take to finish its requests when it is asked to end.
const SHUTDOWN_GRACE: &str = "5s";

/// How long an instance may take to end, including giving up its claims.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A running cluster. Dropping it ends everything; [`stop`](Self::stop) ends it in order.
#[derive(Debug)]
pub struct Cluster {
    /// The instances, in the order in which they were started.
    pub instances: Vec<Instance>,
    /// The stock.
    pub redis: PrivateRedis,
    /// If there are sentinels, the instances ask them for the address of Redis.
    pub sentinels: Option<Sentinels>,
    /// If there is a Redis Cluster, the stock is there, and not in `redis`.
    pub shards: Option<PrivateRedisCluster>,
    /// The members of etcd.
    pub etcd: Vec<PrivateEtcd>,
    /// The data and logs of all servers and instances.
    pub dir: OwnedDir,
    /// The program that the instances run; by default the program of this process.
    pub program: PathBuf,
}

/// One instance of the service, and the proxies around it.
#[derive(Debug)]
pub struct Instance {
    /// Its name, by default its port.
    pub name: String,
    /// Its port on the loopback address.
    pub port: u16,
    /// Its process.
    pub child: Child,
    /// One proxy to each member of etcd.
    pub etcd_proxies: Vec<Proxy>,
    /// The proxy between the instance and Redis.
    pub redis_proxy: Option<Proxy>,
    /// The proxy between the clients and the instance.
    pub client_proxy: Option<Proxy>,
    /// The proxy at the address at which other instances reach it.
    pub peer_proxy: Option<Proxy>,
    args: Vec<String>,
}

/// How an instance is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spec<'a> {
    /// The instance's name; `None` for its port.
    pub name: Option<&'a str>,
    /// How many instances share this machine's cores.
    pub instances: usize,
    /// Further flags of the instance.
    pub flags: &'a [String],
    /// The connections that run through a proxy.
    pub proxied: Proxied,
    /// Whether the instance knows only the first member of etcd.
    pub one_endpoint: bool,
}

/// Which connections of an instance run through a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proxied {
    /// No connection.
    #[default]
    Nothing,
    /// The connections to etcd.
    Etcd,
    /// The connections to Redis.
    Redis,
    /// The connections to etcd and to Redis.
    Servers,
    /// The connections of its clients.
    Clients,
    /// The connections of other instances, which send their orders to the holder.
    Peers,
}

impl Proxied {
    fn has_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::Servers)
    }

    fn has_redis(self) -> bool {
        matches!(self, Self::Redis | Self::Servers)
    }
}

impl Cluster {
    /// Starts the servers, in a directory in `parent`, and waits until they answer. With no members of etcd, the instances
    /// need another lock.
    ///
    /// # Errors
    /// A server does not start.
    pub async fn open(
        parent: &OwnedDir,
        members: usize,
        etcd: EtcdOptions,
        redis: RedisOptions,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("the path of this program is not known")?;
        let dir = OwnedDir::create_in(parent).context("no temporary directory could be made")?;
        let (etcd, redis) = tokio::try_join!(
            async {
                match members {
                    0 => Ok(Vec::new()),
                    _ => PrivateEtcd::start_cluster_in(&dir, members, etcd).await,
                }
            },
            PrivateRedis::start_in(&dir, redis),
        )?;
        let instances = Vec::new();
        let (sentinels, shards) = (None, None);
        Ok(Self { instances, redis, sentinels, shards, etcd, dir, program })
    }

    /// Starts another instance on this port, without waiting for it.
    ///
    /// # Errors
    /// The system refuses its process or a proxy.
    pub async fn start(&mut self, port: u16, spec: Spec<'_>) -> Result<()> {
        let mut etcd_proxies = Vec::new();
        for member in self.etcd.iter().filter(|_| spec.proxied.has_etcd()) {
            etcd_proxies.push(Proxy::to(member.port()).await.context(NO_PROXY)?);
        }
        let (mut redis_proxy, mut client_proxy, mut peer_proxy) = (None, None, None);
        let mut peer_flags = Vec::new();
        if spec.proxied.has_redis() {
            redis_proxy = Some(Proxy::to(self.redis.port()).await.context(NO_PROXY)?);
        } else if spec.proxied == Proxied::Clients {
            client_proxy = Some(Proxy::to(port).await.context(NO_PROXY)?);
        } else if spec.proxied == Proxied::Peers {
            let [door] = ports::free_ports().context("no port is free")?;
            let proxy = Proxy::to(door).await.context(NO_PROXY)?;
            peer_flags.push(format!("--peer-listen=127.0.0.1:{door}"));
            peer_flags.push(format!("--peer-address=127.0.0.1:{}", proxy.port()));
            peer_proxy = Some(proxy);
        }
        let mut endpoints: Vec<_> = self.etcd.iter().map(PrivateEtcd::endpoint).collect();
        if spec.proxied.has_etcd() {
            endpoints = etcd_proxies.iter().map(Proxy::url).collect();
        } else if spec.one_endpoint {
            endpoints.truncate(1);
        }
        let redis = match (&redis_proxy, &self.sentinels, &self.shards) {
            (Some(proxy), _, _) => vec![format!("--redis=redis://127.0.0.1:{}", proxy.port())],
            (None, Some(sentinels), _) => vec![format!("--redis={}", sentinels.url())],
            (None, None, Some(shards)) => vec![format!("--redis={}", shards.url())],
            (None, None, None) => self.redis.flags(),
        };
        let name = spec.name.map_or_else(|| port.to_string(), str::to_owned);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = (cores / spec.instances.max(1)).max(1);
        let mut args = vec![
            "serve".to_owned(),
            format!("--listen=127.0.0.1:{port}"),
            format!("--instance={name}"),
            format!("--workers={workers}"),
            format!("--shutdown-grace={SHUTDOWN_GRACE}"),
            format!("--lock-name={LOCK_NAME}"),
        ];
        if let Some(member) = self.etcd.first() {
            args.push(format!("--etcd={}", endpoints.join(",")));
            args.extend(member.flags());
        }
        args.extend(redis);
        args.extend(peer_flags);
        args.extend_from_slice(spec.flags);
        self.instances.push(Instance {
            name,
            port,
            child: spawn(port, &self.program, &args, &self.dir)?,
            etcd_proxies,
            redis_proxy,
            client_proxy,
            peer_proxy,
            args,
        });
        Ok(())
    }

    /// Starts another instance on a free port, and waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready in time.
    pub async fn add(&mut self, spec: Spec<'_>) -> Result<()> {
        let mut attempt = 1;
        loop {
            let [port] = ports::free_ports().context("no port is free")?;
            self.start(port, spec).await?;
            let added = self.instances.last_mut().expect("it was started just now");
            match added.until_ready().await {
                Err(error)
                    if error.downcast_ref().is_some_and(ServerError::is_port_taken)
                        && attempt < ports::PORT_ATTEMPTS =>
                {
                    attempt += 1;
                    self.instances.pop();
                }
                added => return added,
            }
        }
    }

    /// The addresses of the instances for clients.
    pub fn urls(&self) -> Vec<String> {
        self.instances.iter().map(Instance::url).collect()
    }

    /// Stops the instances, which give up their claims.
    ///
    /// # Errors
    /// An instance does not end.
    pub async fn stop_instances(&mut self) -> io::Result<()> {
        let stops = self.instances.iter_mut().map(|instance| instance.child.stop());
        let stopped: Result<Vec<_>, _> = join_all(stops).await.into_iter().collect();
        self.instances.clear();
        stopped.map(drop)
    }

    /// Stops the instances first, because they need the servers in order to stop, then the servers.
    ///
    /// # Errors
    /// A process does not end.
    pub async fn stop(&mut self) -> io::Result<()> {
        let instances = self.stop_instances().await;
        let servers = self.servers().map(Child::stop);
        let servers: Result<Vec<_>, _> = join_all(servers).await.into_iter().collect();
        instances.and(servers.map(drop))
    }

    /// Ends everything at once.
    pub async fn kill(&mut self) {
        // the guardians of the instances end whatever is left
        join_all(self.instances.iter_mut().map(|instance| instance.child.kill())).await;
        join_all(self.servers().map(Child::kill)).await;
    }

    /// Waits until every process and every file is gone.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn remove(self) -> io::Result<()> {
        let Self { instances, redis, sentinels, shards, etcd, dir, .. } = self;
        drop((instances, redis, sentinels, shards, etcd));
        dir.remove().await
    }

    fn servers(&mut self) -> impl Iterator<Item = &mut Child> {
        let etcd = self.etcd.iter_mut().map(PrivateEtcd::child);
        let sentinels = self.sentinels.iter_mut().flat_map(Sentinels::children);
        etcd.chain(sentinels).chain([self.redis.child()])
    }
}

impl Instance {
    /// Starts the instance again after its end, and waits until it answers; it may not be ready yet.
    ///
    /// # Errors
    /// It ends, or does not answer in time.
    pub async fn start_again(&mut self, program: &Path, dir: &OwnedDir) -> Result<()> {
        self.child = spawn(self.port, program, &self.args, dir)?;
        self.until_ok("/healthz").await
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready in time.
    pub async fn until_ready(&mut self) -> Result<()> {
        self.until_ok("/readyz").await
    }

    async fn until_ok(&mut self, path: &str) -> Result<()> {
        let port = self.port;
        let is_ready = async || {
            let answer = probe::http(Method::GET, port, path, "").await;
            answer.is_ok_and(|(status, _)| status == StatusCode::OK)
        };
        Ok(until_ready(&title(port), &mut self.child, START_TIMEOUT, is_ready).await?)
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        self.client_proxy.as_ref().map_or_else(|| url(self.port), Proxy::url)
    }
}

/// The URL of the instance on this port.
pub fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// The name of an instance in messages.
pub fn title(port: u16) -> String {
    format!("instance {port}")
}

/// Whether an environment variable is a setting of the service, which the instances of a cluster must not inherit.
pub fn is_setting(name: &str) -> bool {
    name.starts_with("FLASH_SALE_")
}

fn spawn(port: u16, program: &Path, args: &[String], dir: &OwnedDir) -> Result<Child, ServerError> {
    let log = dir.path().join(format!("instance-{port}.log"));
    let program = Program::new(program, dir, &log, STOP_GRACE);
    Program { without_env: is_setting, ..program }
        .start(args)
        .map_err(ServerError::system(&title(port)))
}
