//! Private servers, and the instances that take their turns on them.

use std::path::PathBuf;

use futures_util::future::join_all;
use testkit::LOCK_NAME;
use testkit::{EtcdOptions, OwnedDir, PrivateEtcd, PrivateRedis, RedisOptions, ports};

use super::contender::Contender;
use super::error::BenchError;
use crate::demo::DemoError;
use crate::demo::instance::{Instance, Shared};

/// With hundreds of waiting orders, the slow contenders need more than the default to answer all.
const WAIT_TIMEOUT: &str = "5m";

/// How many times an instance is started if its port was taken meanwhile.
const PORT_ATTEMPTS: usize = 5;

/// etcd and Redis, the same ones for everybody.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) etcd: PrivateEtcd,
    pub(super) redis: PrivateRedis,
    pub(super) dir: OwnedDir,
    pub(super) program: PathBuf,
}

/// The running instances of a contender. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Team {
    pub(super) contender: Contender,
    pub(super) instances: Vec<Instance>,
}

impl Arena {
    pub(super) async fn open() -> Result<Self, BenchError> {
        let program = std::env::current_exe()
            .map_err(BenchError::system("the path of this program is not known"))?;
        let dir = OwnedDir::create()
            .map_err(BenchError::system("no temporary directory could be made"))?;
        let (etcd, redis) = tokio::try_join!(
            PrivateEtcd::start_in(&dir, EtcdOptions::default()),
            PrivateRedis::start_in(&dir, RedisOptions::default()),
        )?;
        Ok(Self { etcd, redis, dir, program })
    }

    /// Starts `count` instances and waits until they can sell.
    pub(super) async fn team(
        &self,
        contender: Contender,
        count: usize,
    ) -> Result<Team, BenchError> {
        let mut team = Team { contender, instances: Vec::new() };
        for _ in 0..count {
            team.instances.push(self.instance(contender, count).await?);
        }
        Ok(team)
    }

    async fn instance(
        &self,
        contender: Contender,
        instances: usize,
    ) -> Result<Instance, BenchError> {
        let servers = ["--etcd", &self.etcd.endpoint(), "--redis", &self.redis.url()];
        let servers = servers.map(str::to_owned);
        let mut flags = vec!["--wait-timeout", WAIT_TIMEOUT, "--queue-length", "20000"];
        flags.extend(contender.flags());
        let shared = Shared {
            program: &self.program,
            dir: &self.dir,
            servers: &servers,
            lock: contender.lock(),
            lock_name: LOCK_NAME,
            instances,
            flags: &flags,
        };
        let mut attempt = 1;
        loop {
            let [port] = ports::free_ports().map_err(BenchError::system("no port is free"))?;
            let mut instance = Instance::start(port, shared)?;
            match instance.until_ready().await {
                Ok(()) => return Ok(instance),
                Err(DemoError::Server(error))
                    if error.is_port_taken() && attempt < PORT_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Stops the servers and removes every file.
    pub(super) async fn close(self) -> Result<(), BenchError> {
        let Self { etcd, redis, dir, .. } = self;
        let stopped = tokio::join!(etcd.stop(), redis.stop());
        stopped
            .0
            .and(stopped.1)
            .and(dir.remove().await)
            .map_err(BenchError::system("not everything is stopped"))
    }
}

impl Team {
    pub(super) fn urls(&self, count: usize) -> Vec<String> {
        self.instances.iter().take(count).map(Instance::url).collect()
    }

    /// Stops the instances, which give up their claims.
    pub(super) async fn leave(mut self) -> Result<(), BenchError> {
        let stops = self.instances.iter_mut().map(|instance| instance.child.stop());
        let stopped: Result<Vec<_>, _> = join_all(stops).await.into_iter().collect();
        stopped.map(drop).map_err(BenchError::system("an instance does not stop"))
    }
}
