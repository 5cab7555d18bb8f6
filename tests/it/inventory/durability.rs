//! Warnings about settings of the store that can lose orders.

use flash_sale::inventory::Warning;
use testkit::{PrivateRedis, RedisOptions};

use super::{Raw, connect};

/// Goal: durable settings cause no warning, each other setting causes one, and so does a server that hides
/// its settings.
#[tokio::test]
async fn what_can_lose_orders_is_told() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let mut raw = Raw::connect(&redis.url()).await;
    let inventory = connect(&redis.url()).await;
    assert_eq!(inventory.durability().await.unwrap(), []);

    raw.run::<()>("CONFIG SET appendfsync everysec").await;
    raw.run::<()>("CONFIG SET maxmemory-policy allkeys-lru").await;
    let warnings = inventory.durability().await.unwrap();
    assert_eq!(warnings, [Warning::LateSync("everysec".to_owned())], "no limit, no eviction");
    raw.run::<()>("CONFIG SET maxmemory 1gb").await;
    let warnings = inventory.durability().await.unwrap();
    assert_eq!(warnings[1..], [Warning::Eviction("allkeys-lru".to_owned())]);
    raw.run::<()>("CONFIG SET appendonly no").await;
    raw.run::<()>("CONFIG SET maxmemory-policy volatile-lru").await;
    assert_eq!(inventory.durability().await.unwrap(), [Warning::NoAppendOnlyFile]);

    raw.run::<()>("CONFIG SET appendonly yes").await;
    raw.run::<()>("ACL SETUSER default -config").await;
    let warnings = inventory.durability().await.unwrap();
    assert_eq!(warnings, [Warning::NotChecked("appendfsync")], "INFO told the rest");
    raw.run::<()>("ACL SETUSER default -info").await;
    let warnings = inventory.durability().await.unwrap();
    let unknown = [Warning::NotChecked("appendonly"), Warning::NotChecked("maxmemory-policy")];
    assert_eq!(warnings, unknown);
    assert!(warnings[0].to_string().contains("appendonly"), "{}", warnings[0]);
}
