//! Warnings about settings of the store that can lose orders.

use testkit::{PrivateRedis, RedisOptions};

use super::{Raw, connect};

/// Goal: durable settings cause no warning, each other setting causes one, and so does a server that hides its settings.
#[tokio::test]
async fn what_can_lose_orders_is_told() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let mut raw = Raw::connect(&redis.url()).await;
    let inventory = connect(&redis.url()).await;
    assert_told(&inventory.durability().await.unwrap(), &[]);

    raw.run::<()>("CONFIG SET appendfsync everysec").await;
    raw.run::<()>("CONFIG SET maxmemory-policy allkeys-lru").await;
    // without a limit of memory, nothing is evicted
    assert_told(&inventory.durability().await.unwrap(), &["appendfsync always"]);
    raw.run::<()>("CONFIG SET maxmemory 1gb").await;
    let warnings = inventory.durability().await.unwrap();
    assert_told(&warnings, &["appendfsync always", "maxmemory-policy noeviction"]);
    raw.run::<()>("CONFIG SET appendonly no").await;
    raw.run::<()>("CONFIG SET maxmemory-policy volatile-lru").await;
    assert_told(&inventory.durability().await.unwrap(), &["no append-only file"]);

    raw.run::<()>("CONFIG SET appendonly yes").await;
    raw.run::<()>("ACL SETUSER default -config").await;
    let warnings = inventory.durability().await.unwrap();
    // INFO has the other settings
    assert_told(&warnings, &["does not show `appendfsync always`"]);
    raw.run::<()>("ACL SETUSER default -info").await;
    let warnings = inventory.durability().await.unwrap();
    assert_told(&warnings, &["not show `appendonly yes`", "not show `maxmemory-policy"]);
}

/// Checks that there are these warnings and no others.
#[track_caller]
pub(super) fn assert_told(warnings: &[String], words: &[&str]) {
    let are_told = warnings.iter().zip(words).all(|(warning, words)| warning.contains(words));
    assert!(are_told && warnings.len() == words.len(), "{words:?} are not {warnings:#?}");
}
