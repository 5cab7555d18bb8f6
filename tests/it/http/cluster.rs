//! Goal: an instance over a Redis Cluster sells named items, refuses the default one with a sentence, and is
//! ready while some shard can sell. Method: a private cluster; one primary is killed.

use serde_json::json;
use testkit::shared::shared_endpoint;
use testkit::wait::eventually;
use testkit::{PrivateRedisCluster, RedisClusterOptions};

use crate::inventory::cluster::item_of_each;
use crate::shop::{Shop, ShopOptions};

#[tokio::test]
async fn an_instance_over_a_cluster_sells_named_items() {
    let mut cluster = PrivateRedisCluster::start(RedisClusterOptions::default()).await.unwrap();
    let shop = Shop::at(shared_endpoint().await, cluster.url(), ShopOptions::default());
    shop.until_ready().await;

    for line in [
        "POST /stock/reduce",
        "GET /stock/reduce?item=default",
        "GET /stock",
        "GET /orders",
        "GET /orders/a",
        "GET /events",
    ] {
        let problem = shop.ask(line).await.problem(400, "item-required");
        assert!(problem["detail"].as_str().unwrap().contains("?item="), "{line}: {problem}");
    }
    shop.put("default", r#"{"stock":3}"#).await.problem(400, "item-required");

    let [first, other, _] = item_of_each(&cluster).await.map(|item| item.to_string());
    let stock = async |item: &str| shop.call(&format!("GET /stock?item={item}")).await;
    let order = async |item: &str| shop.call(&format!("POST /stock/reduce?item={item}")).await;
    for item in [&first, &other] {
        shop.put(item, r#"{"stock":5}"#).await.json(200);
        assert_eq!(order(item).await.json(200)["remaining"], json!(4));
        assert_eq!(stock(item).await.json(200)["lucky"], json!(1));
    }
    shop.until_ready().await;

    cluster.nodes[0].kill().await.unwrap();
    stock(&first).await.problem(503, "store-unavailable");
    assert_eq!(order(&other).await.json(200)["remaining"], json!(3));
    shop.until_ready().await;
    cluster.nodes[0].restart().await.unwrap();
    eventually("the shard sells again", async || order(&first).await.status == 200).await;
    assert_eq!(stock(&first).await.json(200)["balanced"], json!(true));
}
