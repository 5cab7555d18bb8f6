//! A lease that is kept alive.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Error, LeaseKeepAliveStream, LeaseKeeper};
use flash_sale::sale::SaleError;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, unavailable};

/// A lease with a task that renews it every third of its TTL, as Go's client does, until it is ended
/// or dropped, and then revokes it.
pub(super) struct KeptLease {
    id: i64,
    ended: CancellationToken,
    revoked: CancellationToken,
}

impl KeptLease {
    pub(super) async fn grant(
        connection: &Arc<Connection>,
        ttl: Duration,
    ) -> Result<Self, SaleError> {
        // whole seconds, rounded up
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).map_err(unavailable)?;
        let asked_at = Instant::now();
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let granted = connection.ask(grant).await?;
        let (ended, revoked) = (CancellationToken::new(), CancellationToken::new());
        let life = Life {
            connection: Arc::clone(connection),
            id: granted.id(),
            ttl: Duration::from_secs(u64::try_from(granted.ttl()).map_err(unavailable)?),
            renewed_at: asked_at,
            ended: ended.clone(),
        };
        let done = revoked.clone().drop_guard();
        tokio::spawn(async move {
            life.live().await;
            drop(done);
        });
        Ok(Self { id: granted.id(), ended, revoked })
    }

    pub(super) fn id(&self) -> i64 {
        self.id
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Ends it in the background.
    pub(super) fn give_up(&self) {
        self.ended.cancel();
    }

    /// Ends it, and waits until it is revoked.
    pub(super) async fn end(&self) {
        self.ended.cancel();
        self.revoked.cancelled().await;
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

struct Life {
    connection: Arc<Connection>,
    id: i64,
    ttl: Duration,
    renewed_at: Instant,
    ended: CancellationToken,
}

impl Life {
    async fn live(mut self) {
        let ended = self.ended.clone();
        tokio::select! {
            () = ended.cancelled() => {}
            () = self.keep_alive() => ended.cancel(),
        }
        let id = self.id;
        let revoke = |mut client: Client| async move { client.lease_revoke(id).await };
        if let Err(error) = self.connection.ask(revoke).await {
            // then it ends with its TTL
            tracing::debug!(lease = id, ?error, "the lease was not revoked");
        }
    }

    /// Until the lease is gone, or must be.
    async fn keep_alive(&mut self) {
        let mut stream = None;
        while self.renewed_at.elapsed() < self.ttl {
            sleep(self.ttl / 3).await;
            let asked_at = Instant::now();
            match timeout(self.connection.request_timeout(), self.renew(&mut stream)).await {
                Ok(Ok(ttl_seconds)) if ttl_seconds > 0 => self.renewed_at = asked_at,
                Ok(Ok(_)) => return,
                // the next one opens another stream
                Ok(Err(_)) | Err(_) => stream = None,
            }
        }
    }

    /// The TTL from now on; 0 if the lease is gone.
    async fn renew(
        &self,
        stream: &mut Option<(LeaseKeeper, LeaseKeepAliveStream)>,
    ) -> Result<i64, Error> {
        let (keeper, answers) = if let Some(open) = stream {
            open
        } else {
            let mut client = self.connection.client().await?;
            stream.insert(client.lease_keep_alive(self.id).await?)
        };
        keeper.keep_alive().await?;
        let ended = || Error::LeaseKeepAliveError("the keep-alive stream ended".into());
        Ok(answers.message().await?.ok_or_else(ended)?.ttl())
    }
}
