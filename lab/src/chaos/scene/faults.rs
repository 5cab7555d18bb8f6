//! What a fault can do to those who take part.

use std::path::PathBuf;
use std::process::ExitStatus;

use tokio::time::{sleep_until, timeout};

use super::{PATIENCE, Scene};
use crate::chaos::scenario::LAST_CALM;
use crate::cluster::Cluster;
use crate::error::LabError;

impl Scene {
    /// The file whose presence asks the instance for a fault. The fault removes it when it happens.
    pub(super) fn fault_file(&self, index: usize, fault: &str) -> PathBuf {
        self.cluster.dir.path().join(format!("{index}-{}", fault.replace([':', '='], "-")))
    }

    /// Has the instance meet this fault the next time that it can, and waits until it has.
    pub(in crate::chaos) async fn meet(
        &self,
        index: usize,
        fault: &str,
        how: &str,
    ) -> Result<(), LabError> {
        let file = self.fault_file(index, fault);
        let asked = LabError::system("a fault cannot be asked for");
        // a reader must not see half of it
        let half = file.with_extension("half");
        std::fs::write(&half, how).and_then(|()| std::fs::rename(&half, &file)).map_err(asked)?;
        self.until("the instance meets the fault", async |_| Ok((!file.exists()).then_some(())))
            .await
    }

    /// Starts all instances again shortly before the load ends: a sale that hangs cannot be judged.
    pub(in crate::chaos) async fn revive(&mut self) -> Result<(), LabError> {
        sleep_until(self.ends_at - LAST_CALM / 2).await;
        for index in 0..self.cluster.instances.len() {
            let killed = self.cluster.instances[index].child.kill().await;
            killed.map_err(LabError::system("an instance cannot be killed"))?;
            self.start_again(index).await?;
        }
        // what those before missed would keep these from showing what is left; they miss nothing
        Ok(self.cluster.redis.run("DEL doubt").await?)
    }

    /// Ends an instance with SIGKILL, and notes it.
    pub(in crate::chaos) async fn kill(&mut self, index: usize) -> Result<(), LabError> {
        let killed = self.cluster.instances[index].child.kill().await;
        killed.map_err(LabError::system("an instance cannot be killed"))?;
        self.evidence.saw("instances killed", 1);
        Ok(())
    }

    /// Starts an instance again that has ended, on its port. What the fault has done to the store may keep it
    /// from selling.
    pub(in crate::chaos) async fn start_again(&mut self, index: usize) -> Result<(), LabError> {
        let Cluster { instances, program, dir, .. } = &mut self.cluster;
        instances[index].start_again(program, dir).await
    }

    /// An instance has ended by its own doing, or ends now.
    pub(in crate::chaos) async fn has_died(
        &mut self,
        index: usize,
    ) -> Result<ExitStatus, LabError> {
        let child = &mut self.cluster.instances[index].child;
        let ended = timeout(PATIENCE, child.wait()).await;
        ended
            .map_err(|_| LabError::NotInTime {
                what: "the instance has ended",
                seconds: PATIENCE.as_secs(),
            })?
            .map_err(LabError::system("an instance cannot be waited for"))
    }

    /// SIGSTOP to an instance.
    pub(in crate::chaos) fn pause(&self, index: usize) -> Result<(), LabError> {
        let paused = self.cluster.instances[index].child.pause();
        paused.map_err(LabError::system("an instance cannot be paused"))
    }

    /// SIGCONT to an instance.
    pub(in crate::chaos) fn resume(&self, index: usize) -> Result<(), LabError> {
        let resumed = self.cluster.instances[index].child.resume();
        resumed.map_err(LabError::system("an instance cannot be resumed"))
    }
}
