//! All that the demo has started, and the order in which it stops.

use std::convert::Infallible;
use std::io;
use std::process::ExitStatus;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::child::Child;
use super::dir::OwnedDir;
use super::etcd::PrivateEtcd;
use super::instance::{self, Instance};
use super::redis::PrivateRedis;

/// What runs. Whatever is not stopped in order goes when this is dropped.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) instances: Vec<Instance>,
    pub(super) redis: Option<PrivateRedis>,
    pub(super) etcd: Option<PrivateEtcd>,
    /// Everything else lives in it, so that its end is the end of all.
    pub(super) dir: OwnedDir,
}

impl Stage {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { instances: Vec::new(), redis: None, etcd: None, dir: OwnedDir::create()? })
    }

    /// Calls `report` once for each process that ends. Never returns: even when all have ended, it is
    /// for the user to end the demo.
    pub(super) async fn watch(
        &mut self,
        report: impl Fn(&str, io::Result<ExitStatus>),
    ) -> Infallible {
        let mut ends: FuturesUnordered<_> = self
            .children()
            .map(|(name, child)| async move { (name, child.wait().await) })
            .collect();
        while let Some((name, status)) = ends.next().await {
            report(&name, status);
        }
        std::future::pending().await
    }

    /// Stops the instances, which still need the servers for that, then the servers, and removes
    /// every file.
    ///
    /// # Errors
    /// The first thing that is left.
    pub(super) async fn stop(&mut self) -> io::Result<()> {
        let instances = self.instances.iter_mut().map(|instance| instance.child.stop());
        let instances = join_all(instances).await;
        let stop_redis = async {
            match self.redis.as_mut() {
                Some(redis) => redis.child().stop().await.map(drop),
                None => Ok(()),
            }
        };
        let stop_etcd = async {
            match self.etcd.as_mut() {
                Some(etcd) => etcd.child().stop().await.map(drop),
                None => Ok(()),
            }
        };
        let (redis, etcd) = tokio::join!(stop_redis, stop_etcd);
        instances.into_iter().map(|stopped| stopped.map(drop)).chain([redis, etcd]).collect()
    }

    /// Ends everything at once.
    pub(super) async fn kill(&mut self) {
        let kills = self.children().map(|(_, child)| child.kill());
        // what this cannot end, the guardians will
        join_all(kills).await;
    }

    /// Waits until every process and every file is gone, also those of a start that was cut short.
    ///
    /// # Errors
    /// When that takes too long.
    pub(super) async fn clear(self) -> io::Result<()> {
        let Self { instances, redis, etcd, dir } = self;
        drop((instances, redis, etcd));
        dir.remove().await
    }

    fn children(&mut self) -> impl Iterator<Item = (String, &mut Child)> {
        let instances =
            self.instances.iter_mut().map(|one| (instance::name(one.port), &mut one.child));
        let redis = self.redis.as_mut().map(|redis| ("Redis".to_owned(), redis.child()));
        let etcd = self.etcd.as_mut().map(|etcd| ("etcd".to_owned(), etcd.child()));
        instances.chain(redis).chain(etcd)
    }
}
