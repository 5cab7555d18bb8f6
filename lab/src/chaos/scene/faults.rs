//! What a fault does to the processes of a run.

use std::path::PathBuf;
use std::process::ExitStatus;

use tokio::time::{sleep_until, timeout};

use super::{PATIENCE, Scene};
use crate::chaos::scenario::LAST_CALM;
use crate::error::LabError;
use demo::cluster::Cluster;

impl Scene {
    /// The file that triggers a fault at the instance, which removes it when the fault happens.
    pub(super) fn fault_file(&self, index: usize, fault: &str) -> PathBuf {
        self.cluster.dir.path().join(format!("{index}-{}", fault.replace([':', '='], "-")))
    }

    /// Triggers this fault at the instance, and waits until it happens.
    pub(in crate::chaos) async fn meet(
        &self,
        index: usize,
        fault: &str,
        how: &str,
    ) -> Result<(), LabError> {
        let file = self.fault_file(index, fault);
        let asked = LabError::system("a fault cannot be asked for");
        // the instance must not read half of it
        let half = file.with_extension("half");
        std::fs::write(&half, how).and_then(|()| std::fs::rename(&half, &file)).map_err(asked)?;
        self.until("the instance meets the fault", async |_| Ok((!file.exists()).then_some(())))
            .await
    }

    /// Restarts all instances shortly before the load ends: a sale that hangs cannot be judged.
    pub(in crate::chaos) async fn revive(&mut self) -> Result<(), LabError> {
        sleep_until(self.ends_at - LAST_CALM / 2).await;
        for index in 0..self.cluster.instances.len() {
            let killed = self.cluster.instances[index].child.kill().await;
            killed.map_err(LabError::system("an instance cannot be killed"))?;
            self.start_again(index).await?;
        }
        // else the new ones refuse what the killed ones missed
        let Some(shards) = &self.cluster.shards else {
            return Ok(self.cluster.redis.run("DEL doubt").await?);
        };
        let doubt = "doubt:{tea}";
        let (_, node) = shards.place_of(doubt).await?;
        Ok(shards.nodes[node.unwrap_or_default()].run(&format!("DEL {doubt}")).await?)
    }

    /// Kills an instance with SIGKILL.
    pub(in crate::chaos) async fn kill(&mut self, index: usize) -> Result<(), LabError> {
        let killed = self.cluster.instances[index].child.kill().await;
        killed.map_err(LabError::system("an instance cannot be killed"))?;
        self.evidence.saw("instances killed", 1);
        Ok(())
    }

    /// Restarts an instance that has ended, on its port. It need not be able to sell.
    pub(in crate::chaos) async fn start_again(&mut self, index: usize) -> Result<(), LabError> {
        let Cluster { instances, program, dir, .. } = &mut self.cluster;
        Ok(instances[index].start_again(program, dir).await?)
    }

    /// Waits until an instance has ended by itself.
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

    /// Sends SIGSTOP to an instance.
    pub(in crate::chaos) fn pause(&self, index: usize) -> Result<(), LabError> {
        let paused = self.cluster.instances[index].child.pause();
        paused.map_err(LabError::system("an instance cannot be paused"))
    }

    /// Sends SIGSTOP to Redis.
    pub(in crate::chaos) fn pause_redis(&mut self) -> Result<(), LabError> {
        self.cluster.redis.child().pause().map_err(LabError::system("Redis cannot be paused"))
    }

    /// Sends SIGCONT to Redis.
    pub(in crate::chaos) fn resume_redis(&mut self) -> Result<(), LabError> {
        self.cluster.redis.child().resume().map_err(LabError::system("Redis cannot be resumed"))
    }

    /// Sends SIGCONT to an instance.
    pub(in crate::chaos) fn resume(&self, index: usize) -> Result<(), LabError> {
        let resumed = self.cluster.instances[index].child.resume();
        resumed.map_err(LabError::system("an instance cannot be resumed"))
    }
}
