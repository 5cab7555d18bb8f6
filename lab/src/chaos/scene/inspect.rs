//! What is going on, as the suite can see it past the clients.

use std::time::Duration;

use hyper::Method;
use testkit::LOCK_NAME;
use testkit::{PrivateEtcd, probe};
use tokio::time::{Instant, sleep};

use super::{PATIENCE, Scene};
use crate::chaos::etcd::{self, Holder};
use crate::chaos::scenario::LAST_CALM;
use crate::error::LabError;

/// How often something is asked for that must come about.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Scene {
    /// Asks until the answer is there.
    pub(in crate::chaos) async fn until<T>(
        &self,
        what: &'static str,
        mut ask: impl AsyncFnMut(&Self) -> Result<Option<T>, LabError>,
    ) -> Result<T, LabError> {
        let mut deadline = Instant::now() + PATIENCE;
        if self.may_hang {
            deadline = deadline.min(self.ends_at - LAST_CALM);
        }
        loop {
            // what cannot be asked now may be asked later: a member that has just begun to run
            let asked = ask(self).await;
            match asked {
                Ok(Some(answer)) => return Ok(answer),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Ok(None) if Instant::now() >= deadline => {
                    return Err(LabError::NotInTime { what, seconds: PATIENCE.as_secs() });
                }
                Ok(None) | Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// The member of etcd to ask: the first one that the scenario has not taken away.
    pub(in crate::chaos) fn member(&self) -> &PrivateEtcd {
        let there = usize::from(self.member_away == Some(0));
        &self.cluster.etcd[there]
    }

    /// The member of etcd that leads, as a member that is there sees it.
    pub(in crate::chaos) async fn leader(&self) -> Result<usize, LabError> {
        self.until("etcd has a leader", async |scene| {
            for (n, member) in scene.cluster.etcd.iter().enumerate() {
                if Some(n) == scene.member_away {
                    continue;
                }
                let ids = etcd::member_and_leader(member).await;
                if ids.is_some_and(|(member, leader)| member == leader) {
                    return Ok(Some(n));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Who holds the lock; waits until it is held.
    pub(in crate::chaos) async fn holder(&self) -> Result<(usize, Holder), LabError> {
        self.until("an instance holds the lock", async |scene| {
            let holder = etcd::holder(scene.member(), LOCK_NAME).await?;
            Ok(holder.and_then(|holder| Some((scene.index_of(&holder.instance)?, holder))))
        })
        .await
    }

    /// Waits until another instance holds the lock.
    pub(in crate::chaos) async fn holder_besides(&self, index: usize) -> Result<Holder, LabError> {
        self.until("another instance holds the lock", async |scene| {
            let holder = etcd::holder(scene.member(), LOCK_NAME).await?;
            let index_now = holder.as_ref().and_then(|holder| scene.index_of(&holder.instance));
            Ok(holder.filter(|_| index_now.is_some_and(|now| now != index)))
        })
        .await
    }

    /// Notes that this lease is gone, waiting for it.
    pub(in crate::chaos) async fn note_lease_gone(&mut self, lease: i64) -> Result<(), LabError> {
        self.until("the lease is gone", async |scene| {
            Ok(etcd::is_lease_gone(scene.member(), lease).await?.then_some(()))
        })
        .await?;
        self.evidence.saw("leases gone", 1);
        Ok(())
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.cluster.instances.iter().position(|instance| instance.name == name)
    }

    /// What the counter of this name says, added up over all instances that answer.
    pub(in crate::chaos) async fn counter(&self, name: &str) -> u64 {
        let mut sum = 0;
        for index in 0..self.cluster.instances.len() {
            sum += self.counter_at(index, name).await;
        }
        sum
    }

    /// What it says at one instance; 0 if that does not answer.
    pub(in crate::chaos) async fn counter_at(&self, index: usize, name: &str) -> u64 {
        let port = self.cluster.instances[index].port;
        let page = probe::http(Method::GET, port, "/metrics", "").await;
        page.map_or(0, |(_, text)| read_counter(&text, name))
    }

    /// Waits until each instance has sold something within the last `stretch`.
    pub(in crate::chaos) async fn until_all_sell(&self, stretch: Duration) -> Result<(), LabError> {
        self.until("every instance sells", async |scene| {
            let before = scene.batches().await;
            sleep(stretch).await;
            let after = scene.batches().await;
            Ok(before.iter().zip(&after).all(|(before, after)| before < after).then_some(()))
        })
        .await
    }

    /// Batches that the store has carried out, by instance.
    async fn batches(&self) -> Vec<u64> {
        let mut batches = Vec::new();
        for index in 0..self.cluster.instances.len() {
            batches.push(self.counter_at(index, "flash_sale_batches_total").await);
        }
        batches
    }

    /// Batches that the fence has refused, as the instances tell.
    pub(in crate::chaos) async fn stale_batches(&self) -> u64 {
        self.counter("flash_sale_stale_batches_total").await
    }

    /// Notes how many there are more than `before`, giving an instance time to send one.
    pub(in crate::chaos) async fn note_stale_batches(&mut self, before: u64) {
        const WITHIN: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + WITHIN;
        let more = loop {
            let more = self.stale_batches().await.saturating_sub(before);
            if more > 0 || Instant::now() > deadline {
                break more;
            }
            sleep(POLL_INTERVAL).await;
        };
        self.evidence.saw("stale batches refused", more);
    }
}

/// The samples of a counter, whatever their labels, added up.
fn read_counter(text: &str, name: &str) -> u64 {
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => labels.split_once("} ")?.1,
            None => rest.strip_prefix(' ')?,
        };
        // a counter may be written as a float
        rest.split(['.', ' ']).next()?.parse::<u64>().ok()
    });
    samples.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a counter is read with and without labels, and not for another one whose name is longer.
    #[test]
    fn reads_counters() {
        let text = "# TYPE a counter\na 3\na{x=\"1\"} 4\na{x=\"2\"} 5.0\na_total 100\n";
        assert_eq!((read_counter(text, "a"), read_counter(text, "b")), (12, 0));
    }
}
