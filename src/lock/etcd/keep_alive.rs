//! Renewing leases.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper};

use super::failure::{backend_error, gone, malformed};
use crate::lock::BackendError;

type Stream = (LeaseKeeper, LeaseKeepAliveStream);

/// One keep-alive stream for each lease, opened again after any failure.
#[derive(Default)]
pub(super) struct KeepAlives {
    streams: Mutex<HashMap<i64, Stream>>,
}

impl KeepAlives {
    /// Renews the lease once and returns its TTL from now on.
    pub(super) async fn renew(
        &self,
        client: &mut Client,
        lease: i64,
    ) -> Result<Duration, BackendError> {
        // taken out for the time of the exchange: if this future is dropped in the middle, the
        // stream goes with it, and its late answer is never taken for that to another request
        let (mut keeper, mut answers) = match self.take(lease) {
            Some(stream) => stream,
            None => match client.lease_keep_alive(lease).await {
                Ok(stream) => stream,
                Err(error) => return Err(self.why_refused(client, lease, error).await),
            },
        };
        keeper.keep_alive().await.map_err(backend_error)?;
        let answer = answers.message().await.map_err(backend_error)?;
        let answer = answer.ok_or_else(|| malformed("the keep-alive stream ended"))?;
        match u64::try_from(answer.ttl()) {
            Ok(0) | Err(_) => Err(gone("the lease has expired or was revoked")),
            Ok(ttl_seconds) => {
                self.streams
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(lease, (keeper, answers));
                Ok(Duration::from_secs(ttl_seconds))
            }
        }
    }

    pub(super) fn forget(&self, lease: i64) {
        drop(self.take(lease));
    }

    fn take(&self, lease: i64) -> Option<Stream> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease)
    }

    /// `etcd-client` reports a lease that is gone as just another failed stream, so ask.
    async fn why_refused(
        &self,
        client: &mut Client,
        lease: i64,
        error: etcd_client::Error,
    ) -> BackendError {
        match client.lease_time_to_live(lease, None).await {
            Ok(answer) if answer.ttl() <= 0 => gone("the lease has expired or was revoked"),
            _ => backend_error(error),
        }
    }
}
