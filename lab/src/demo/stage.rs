//! All that the demo has started, and the order in which it stops.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::future::join_all;
use testkit::child::Child;
use testkit::dir::OwnedDir;
use testkit::etcd::PrivateEtcd;
use testkit::redis::PrivateRedis;
use tokio::time::sleep;

use super::instance::{self, Instance};

/// How long an instance that was killed stays away: longer than its lease lives, so that one sees its
/// claim go and the next one be served.
pub(super) const RESTART_PAUSE: Duration = Duration::from_secs(6);

const SIGKILL: i32 = 9;

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

    /// Tells `report` of each process that ends, and starts an instance that was killed again after a
    /// while. Never returns: even when all have ended, it is for the user to end the demo.
    pub(super) async fn watch(&mut self, report: impl Fn(&str, End<'_>)) -> Infallible {
        let Self { instances, redis, etcd, dir } = self;
        let report = &report;
        let redis = redis.as_mut().map(|redis| ("Redis", redis.child()));
        let etcd = etcd.as_mut().map(|etcd| ("etcd", etcd.child()));
        let servers = redis.into_iter().chain(etcd).map(|(name, child)| async move {
            let status = child.wait().await;
            report(name, End::Ended(&status));
        });
        let instances = instances.iter_mut().map(|instance| keep_alive(instance, dir, report));
        tokio::join!(join_all(servers), join_all(instances));
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

/// What is told of a process.
#[derive(Clone, Copy)]
pub(super) enum End<'a> {
    /// It has ended.
    Ended(&'a io::Result<ExitStatus>),
    /// It was killed, and will be started again.
    Killed,
    /// It was started again.
    Back,
}

/// Until it ends in another way than by SIGKILL, which the page of the demo can send.
async fn keep_alive(instance: &mut Instance, dir: &OwnedDir, report: &impl Fn(&str, End<'_>)) {
    let name = instance::name(instance.port);
    loop {
        let status = instance.child.wait().await;
        let signal = status.as_ref().ok().and_then(ExitStatusExt::signal);
        if signal != Some(SIGKILL) {
            return report(&name, End::Ended(&status));
        }
        report(&name, End::Killed);
        sleep(RESTART_PAUSE).await;
        if let Err(error) = instance.start_again(dir).await {
            return report(&name, End::Ended(&Err(io::Error::other(error))));
        }
        report(&name, End::Back);
    }
}
