//! Who takes part in a run.

mod harm;
mod look;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::baselines::LockMode;
use testkit::LOCK_NAME;
use testkit::{EtcdOptions, OwnedDir, PrivateEtcd, PrivateRedis, Proxy, RedisOptions, ports};
use tokio::time::{Instant, sleep};

use super::error::ChaosError;
use super::evidence::Evidence;
use super::random::Random;
use super::row::{FIRST_CALM, LAST_CALM, LONGEST_CALM, Setup, TTL_FLAG, Trial};
use crate::demo::DemoError;
use crate::demo::instance::{Instance, Shared};

/// How many times an instance is started if its port was taken meanwhile.
const PORT_ATTEMPTS: usize = 5;

/// How long something may take that must come about, or the row cannot go on.
const PATIENCE: Duration = Duration::from_secs(15);

/// What all runs share.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) program: PathBuf,
    pub(super) dir: OwnedDir,
}

/// An instance, and the proxies around it.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) name: String,
    pub(super) instance: Instance,
    /// One for each member.
    pub(super) etcd_proxies: Vec<Proxy>,
    pub(super) redis_proxy: Option<Proxy>,
    pub(super) client_proxy: Option<Proxy>,
}

/// All that a run has started. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) sites: Vec<Site>,
    pub(super) redis: PrivateRedis,
    pub(super) etcd: Vec<PrivateEtcd>,
    pub(super) dir: OwnedDir,
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) evidence: Evidence,
    /// The member of etcd that a fault has taken away.
    pub(super) member_away: Option<usize>,
    round: Duration,
    may_hang: bool,
    ends_at: Instant,
    stage: Arc<Stage>,
}

impl Scene {
    /// Starts the servers and the instances, and waits until all can sell.
    pub(super) async fn open(
        stage: Arc<Stage>,
        trial: &Trial,
        random: Random,
    ) -> Result<Self, ChaosError> {
        let Trial { setup, round, .. } = *trial;
        let dir = OwnedDir::create_in(&stage.dir)
            .map_err(ChaosError::system("no temporary directory could be made"))?;
        let etcd_options = EtcdOptions {
            quota_backend_bytes: setup.etcd_quota_bytes,
            secured: setup.secured,
            ..Default::default()
        };
        let redis_options = RedisOptions {
            maxmemory_bytes: setup.redis_maxmemory_bytes,
            volatile: setup.redis_volatile,
            secured: setup.secured.is_some(),
            ..RedisOptions::default()
        };
        let (etcd, redis) = tokio::try_join!(
            PrivateEtcd::start_cluster_in(&dir, setup.etcd_members, etcd_options),
            PrivateRedis::start_in(&dir, redis_options),
        )?;
        let evidence = Evidence::default();
        let mut scene = Self {
            sites: Vec::new(),
            redis,
            etcd,
            dir,
            setup,
            random,
            evidence,
            member_away: None,
            round,
            may_hang: false,
            ends_at: Instant::now(),
            stage,
        };
        let leader = scene.leader().await?;
        scene.etcd.swap(0, leader);
        for _ in 0..setup.instances {
            let site = scene.site().await?;
            scene.sites.push(site);
        }
        Ok(scene)
    }

    async fn site(&self) -> Result<Site, ChaosError> {
        let no_proxy = ChaosError::system("a proxy has no port");
        let mut etcd_proxies = Vec::new();
        if self.setup.etcd_proxies {
            for member in &self.etcd {
                etcd_proxies.push(Proxy::to(member.port()).await.map_err(&no_proxy)?);
            }
        }
        let mut redis_proxy = if self.setup.redis_proxies {
            let proxy = Proxy::with_marker(self.redis.port(), b"stale\r\n").await;
            Some(proxy.map_err(&no_proxy)?)
        } else {
            None
        };
        let mut attempt = 1;
        loop {
            let [port] = ports::free_ports().map_err(ChaosError::system("no port is free"))?;
            let first = self.sites.first().filter(|_| self.setup.one_name);
            let name = first.map_or_else(|| port.to_string(), |first| first.name.clone());
            let instance = self.start(&name, port, &etcd_proxies, redis_proxy.as_ref())?;
            let client_proxy = if self.setup.client_proxies {
                Some(Proxy::to(port).await.map_err(&no_proxy)?)
            } else {
                None
            };
            let mut site = Site { name, instance, etcd_proxies, redis_proxy, client_proxy };
            match site.instance.until_ready().await {
                Ok(()) => return Ok(site),
                Err(DemoError::Server(error))
                    if error.is_port_taken() && attempt < PORT_ATTEMPTS =>
                {
                    attempt += 1;
                    (etcd_proxies, redis_proxy) = (site.etcd_proxies, site.redis_proxy);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn start(
        &self,
        name: &str,
        port: u16,
        etcd_proxies: &[Proxy],
        redis_proxy: Option<&Proxy>,
    ) -> Result<Instance, ChaosError> {
        let etcd: Vec<_> = if etcd_proxies.is_empty() {
            let known = if self.setup.one_endpoint { 1 } else { self.etcd.len() };
            self.etcd.iter().take(known).map(PrivateEtcd::endpoint).collect()
        } else {
            etcd_proxies.iter().map(Proxy::url).collect()
        };
        let mut servers = vec!["--etcd".to_owned(), etcd.join(",")];
        servers.extend(self.etcd[0].flags());
        servers.extend(redis_proxy.map_or_else(
            || self.redis.flags(),
            |proxy| vec!["--redis".to_owned(), format!("redis://127.0.0.1:{}", proxy.port())],
        ));
        let mut all = vec!["--lock-ttl", TTL_FLAG];
        let points = self
            .setup
            .fault_points
            .iter()
            .map(|point| format!("{point}:file={}", self.fault_file(port, point).display()));
        let points = points.collect::<Vec<_>>().join(",");
        if !points.is_empty() {
            all.extend(["--fault-at", &points]);
        }
        let starve_file = self.fault_file(port, "starve").to_string_lossy().into_owned();
        if self.setup.can_starve {
            all.extend(["--starve-file", &starve_file]);
        }
        all.extend(self.setup.flags);
        let shared = Shared {
            program: &self.stage.program,
            dir: &self.dir,
            servers: &servers,
            lock: LockMode::Etcd,
            lock_name: LOCK_NAME,
            instances: self.setup.instances,
            flags: &all,
        };
        Ok(Instance::start_as(name, port, shared)?)
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Where clients reach the instances.
    pub(super) fn urls(&self) -> Vec<String> {
        let url = |site: &Site| {
            site.client_proxy.as_ref().map_or_else(|| site.instance.url(), Proxy::url)
        };
        self.sites.iter().map(url).collect()
    }

    /// The load has begun and lasts this long. If the sale may hang, nothing is waited for beyond that.
    pub(super) fn begin(&mut self, lasts: Duration, may_hang: bool) {
        (self.ends_at, self.may_hang) = (Instant::now() + lasts, may_hang);
    }

    /// Waits for a time that chance decides, so that the next fault meets anything. False if another
    /// round would not end before the load does.
    pub(super) async fn next_round(&mut self) -> bool {
        let most = u64::try_from(LONGEST_CALM.as_millis()).unwrap_or(u64::MAX);
        let mut calm = self.random.millis(most / 5, most);
        if self.evidence.times == 0 {
            calm += FIRST_CALM;
        }
        let ends = Instant::now() + calm + self.round + LAST_CALM;
        if self.evidence.times > 0 && ends > self.ends_at {
            return false;
        }
        sleep(calm).await;
        self.evidence.times += 1;
        true
    }

    /// Stops everything in order, and removes its files.
    pub(super) async fn close(self) -> Result<(), ChaosError> {
        let Self { mut sites, redis, etcd, dir, .. } = self;
        let stops = sites.iter_mut().map(|site| site.instance.child.kill());
        futures_util::future::join_all(stops).await;
        drop((sites, redis, etcd));
        dir.remove().await.map_err(ChaosError::system("not everything is stopped"))
    }
}
