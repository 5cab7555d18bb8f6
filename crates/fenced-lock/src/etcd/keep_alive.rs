//! Renewing leases.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Error, LeaseKeepAliveStream, LeaseKeeper};

use super::endpoints::Endpoints;
use super::failure::lease_gone;
use crate::{BackendError, Lease};

struct Stream {
    /// The member that it leads to.
    member: usize,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

/// One keep-alive stream for each lease, opened again after any failure.
#[derive(Default)]
pub(super) struct KeepAlives {
    streams: Mutex<HashMap<i64, Stream>>,
}

impl KeepAlives {
    /// Renews the lease once and returns its TTL from now on.
    pub(super) async fn renew(
        &self,
        endpoints: &Endpoints,
        lease: Lease,
    ) -> Result<Duration, BackendError> {
        // short, so that there is time to ask another member before the session tries again
        let limit = if endpoints.are_several() { lease.ttl / 8 } else { lease.ttl / 4 };
        let exchange = |member, client| self.exchange(member, client, lease.id);
        match u64::try_from(endpoints.ask_within(limit, exchange).await?) {
            // to etcd, a lease that is gone is no error
            Ok(0) | Err(_) => Err(lease_gone()),
            Ok(ttl_seconds) => Ok(Duration::from_secs(ttl_seconds)),
        }
    }

    /// The lease's TTL in seconds after a renewal; 0 or less if it is gone.
    async fn exchange(&self, member: usize, mut client: Client, lease: i64) -> Result<i64, Error> {
        // taken out for the time of the exchange: if this future is dropped in the middle, the
        // stream goes with it, and its late answer is never taken for that to another request
        let taken = self.take(lease);
        // one to another member goes: that one may have been left because it does not answer
        let (mut keeper, mut answers) = match taken.filter(|stream| stream.member == member) {
            Some(stream) => (stream.keeper, stream.answers),
            None => match client.lease_keep_alive(lease).await {
                Ok(stream) => stream,
                // the client reports a lease that is gone as just another failed stream, so ask
                Err(error) => match client.lease_time_to_live(lease, None).await {
                    Ok(answer) if answer.ttl() <= 0 => return Ok(answer.ttl()),
                    _ => return Err(error),
                },
            },
        };
        keeper.keep_alive().await?;
        let answer = answers.message().await?;
        let ended = || Error::LeaseKeepAliveError("the keep-alive stream ended".into());
        let ttl_seconds = answer.ok_or_else(ended)?.ttl();
        if ttl_seconds > 0 {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.insert(lease, Stream { member, keeper, answers });
        }
        Ok(ttl_seconds)
    }

    pub(super) fn forget(&self, lease: i64) {
        drop(self.take(lease));
    }

    fn take(&self, lease: i64) -> Option<Stream> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease)
    }
}
