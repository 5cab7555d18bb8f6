//! What a fault can do to those who take part.

use std::path::PathBuf;
use std::process::ExitStatus;

use tokio::time::{sleep_until, timeout};

use super::{PATIENCE, Scene};
use crate::chaos::error::ChaosError;
use crate::chaos::row::LAST_CALM;

impl Scene {
    /// The file whose presence asks the instance for a fault. The fault removes it when it happens.
    pub(super) fn fault_file(&self, port: u16, fault: &str) -> PathBuf {
        self.dir.path().join(format!("{port}-{}", fault.replace([':', '='], "-")))
    }

    /// Has the instance meet this fault the next time that it can, and waits until it has.
    pub(in crate::chaos) async fn meet(
        &self,
        index: usize,
        fault: &str,
        how: &str,
    ) -> Result<(), ChaosError> {
        let file = self.fault_file(self.sites[index].instance.port, fault);
        let asked = ChaosError::system("a fault cannot be asked for");
        // a reader must not see half of it
        let half = file.with_extension("half");
        std::fs::write(&half, how).and_then(|()| std::fs::rename(&half, &file)).map_err(asked)?;
        self.until("the instance meets the fault", async |_| Ok((!file.exists()).then_some(())))
            .await
    }

    /// Starts all instances again shortly before the load ends: a sale that hangs cannot be judged.
    pub(in crate::chaos) async fn revive(&mut self) -> Result<(), ChaosError> {
        sleep_until(self.ends_at - LAST_CALM / 2).await;
        for index in 0..self.sites.len() {
            let killed = self.sites[index].instance.child.kill().await;
            killed.map_err(ChaosError::system("an instance cannot be killed"))?;
            self.start_again(index).await?;
        }
        // what those before missed would keep these from showing what is left; they miss nothing
        Ok(self.redis.run("DEL doubt").await?)
    }

    /// Ends an instance with SIGKILL, and notes it.
    pub(in crate::chaos) async fn kill(&mut self, index: usize) -> Result<(), ChaosError> {
        let killed = self.sites[index].instance.child.kill().await;
        killed.map_err(ChaosError::system("an instance cannot be killed"))?;
        self.evidence.saw("instances killed", 1);
        Ok(())
    }

    /// Starts an instance again that has ended, on its port. What the fault has done to the store may keep it
    /// from selling.
    pub(in crate::chaos) async fn start_again(&mut self, index: usize) -> Result<(), ChaosError> {
        let site = &self.sites[index];
        let port = site.instance.port;
        let (etcd, redis) = (site.etcd_proxies.as_slice(), site.redis_proxy.as_ref());
        let mut instance = self.start(&site.name, port, etcd, redis)?;
        instance.until_live().await?;
        self.sites[index].instance = instance;
        Ok(())
    }

    /// An instance has ended by its own doing, or ends now.
    pub(in crate::chaos) async fn has_died(
        &mut self,
        index: usize,
    ) -> Result<ExitStatus, ChaosError> {
        let child = &mut self.sites[index].instance.child;
        let ended = timeout(PATIENCE, child.wait()).await;
        ended
            .map_err(|_| ChaosError::NotInTime {
                what: "the instance has ended",
                seconds: PATIENCE.as_secs(),
            })?
            .map_err(ChaosError::system("an instance cannot be waited for"))
    }

    /// SIGSTOP to an instance.
    pub(in crate::chaos) fn pause(&self, index: usize) -> Result<(), ChaosError> {
        let paused = self.sites[index].instance.child.pause();
        paused.map_err(ChaosError::system("an instance cannot be paused"))
    }

    /// SIGCONT to an instance.
    pub(in crate::chaos) fn resume(&self, index: usize) -> Result<(), ChaosError> {
        let resumed = self.sites[index].instance.child.resume();
        resumed.map_err(ChaosError::system("an instance cannot be resumed"))
    }
}
