//! Goal: the recipe of Go's etcd client, with which the service's lock is compared, leaves nothing behind.

use etcd_client::{Client, GetOptions, LeaseStatus};
use rustix::process::Signal;
use serde_json::json;
use testkit::shared::{fresh_database, fresh_lock_name};
use testkit::wait::eventually;
use testkit::{EtcdOptions, PrivateEtcd};

use super::program::Program;

/// Goal: an order that gives up at its time, a buyer who goes away and a program that ends take nothing and leave nothing.
#[tokio::test]
async fn who_goes_leaves_nothing() {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let (endpoint, redis, name) = (etcd.endpoint(), fresh_database().await, fresh_lock_name());
    let start = async |wait| {
        let flags = ["--lock", "etcd-recipe", "--wait-timeout", wait, "--shutdown-grace", "1s"];
        Program::start(&endpoint, &redis, &name, &flags).await
    };
    let (mut hasty, mut patient) = (start("1s").await, start("1m").await);
    hasty.sell(5).await;
    let someone = format!("{name}/someone");
    client.kv_client().put(&*someone, "", None).await.unwrap();
    let keys = async |expected| {
        eventually(&format!("{expected} claims"), async || {
            let options = GetOptions::new().with_all_keys().with_count_only();
            client.kv_client().get("", Some(options)).await.unwrap().count() == expected
        })
        .await;
    };
    hasty.order("late").await.assert_problem(503, "wait-too-long");
    keys(1).await;
    let buyer = patient.send_order("gone").await;
    keys(2).await;
    drop(buyer);
    keys(1).await;
    let _buyer = patient.send_order("patient").await;
    keys(2).await;
    patient.signal(Signal::TERM);
    patient.exit().await;
    keys(1).await;
    assert_eq!(hasty.json("/stock").await["stock"], json!(5));
    client.kv_client().delete(someone, None).await.unwrap();
    assert_eq!(hasty.order("late").await.status, 200);
    hasty.signal(Signal::TERM);
    hasty.exit().await;
    keys(0).await;
    let leases = client.lease_client().leases().await.unwrap();
    assert!(leases.leases().iter().map(LeaseStatus::id).next().is_none(), "{leases:?}");
}
