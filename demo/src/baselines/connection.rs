//! A connection to etcd, and the requests of all baselines.

use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, KeyValue, ResponseHeader, SortOrder, SortTarget};
use fenced_lock::{ClusterId, EtcdOptions, QueueEntry, Token};
use flash_sale::sale::SaleError;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// One client of the whole cluster: one connection to each member.
pub(super) struct Connection {
    options: EtcdOptions,
    /// Opened on first use: with a user, that takes a round trip.
    client: OnceCell<Client>,
}

impl Connection {
    pub(super) fn new(options: EtcdOptions) -> Self {
        Self { options, client: OnceCell::new() }
    }

    pub(super) async fn client(&self) -> Result<Client, Error> {
        self.client.get_or_try_init(async || self.options.connect().await).await.cloned()
    }

    /// How long a request may take.
    pub(super) fn request_timeout(&self) -> Duration {
        self.options.request_timeout
    }

    /// Asks once, at most for the request timeout.
    pub(super) async fn ask<T, F: Future<Output = Result<T, Error>>>(
        &self,
        request: impl FnOnce(Client) -> F,
    ) -> Result<T, SaleError> {
        // on the heap: it is large, and an order waits through several
        let answer = Box::pin(async { request(self.client().await?).await });
        match timeout(self.options.request_timeout, answer).await {
            Ok(answer) => answer.map_err(unavailable),
            Err(elapsed) => Err(unavailable(elapsed)),
        }
    }

    /// The claims on the lock `name`, the holder first.
    pub(super) async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        let prefix = prefix(name);
        let options =
            GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let list = {
            let prefix = prefix.clone();
            move |mut client: Client| async move { client.get(prefix, Some(options)).await }
        };
        let found = self.ask(list).await?;
        let is_claim = |kv: &&KeyValue| !kv.key()[prefix.len()..].contains(&b'/');
        let claim = |kv: &KeyValue| {
            let token = token(found.header(), kv.create_revision())?;
            let key = String::from_utf8_lossy(kv.key()).into_owned();
            Ok(QueueEntry { token: Some(token), key, lease: kv.lease(), label: None, age: None })
        };
        found.kvs().iter().filter(is_claim).map(claim).collect()
    }
}

/// The prefix of all keys of a lock.
pub(super) fn prefix(name: &str) -> String {
    format!("{name}/")
}

pub(super) fn token(header: Option<&ResponseHeader>, revision: i64) -> Result<Token, SaleError> {
    let header = header.ok_or_else(|| unavailable("an answer without a header"))?;
    Ok(Token::new(ClusterId(header.cluster_id()), revision))
}

pub(super) fn unavailable(
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SaleError {
    SaleError::LockUnavailable { source: source.into() }
}
