//! Redis for the contract.

use std::sync::Arc;

use fenced_lock::{Backend, RedisBackend, RedisOptions, Token};
use testkit::PrivateRedis;
use testkit::shared::{Raw, fresh_database};

use super::lab::Lab;

pub(crate) struct RedisLab {
    url: String,
}

impl RedisLab {
    /// A database of its own in a Redis that the tests of this process share.
    pub(crate) async fn shared() -> Self {
        Self::at(fresh_database().await)
    }

    pub(crate) fn of(redis: &PrivateRedis) -> Self {
        Self::at(redis.url())
    }

    pub(crate) fn at(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }

    pub(crate) fn backend_of_its_own(&self) -> Arc<RedisBackend> {
        Arc::new(RedisBackend::new(RedisOptions::new(&self.url)).unwrap())
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A connection past the library, to look and meddle.
    pub(crate) async fn raw(&self) -> Raw {
        Raw::connect(&self.url).await
    }
}

impl Lab for RedisLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        self.backend_of_its_own()
    }

    async fn revoke(&self, lease: i64) {
        let key = format!("{{fenced-lock}}:session:{lease:x}");
        assert!(self.raw().await.run_with::<bool>("DEL", &key).await);
    }

    async fn delete(&self, key: &str) {
        let (name, claim) = key.rsplit_once('/').unwrap();
        let zrem = format!("ZREM {{fenced-lock}}:queue:{name}");
        assert!(self.raw().await.run_with::<bool>(&zrem, claim).await);
    }
}
