//! Goal: the inventory finds its primary through sentinels and follows it after a failover. Data that a failover loses was not
//! acknowledged, or its loss is noticed. Method: a Redis, replicas and three sentinels of the test's own.

use std::net::TcpListener;

use flash_sale::inventory::{Inventory, InventoryError, Replicas};
use testkit::redis::follow;
use testkit::wait::{eventually, within};
use testkit::{OwnedDir, PrivateRedis, RedisOptions, Sentinels};

use super::replicas::{HASTY, PATIENT, assert_not_replicated, sell};
use super::{ITEM, connect, token};
use crate::support::store;

/// Servers that answer, however busy the machine is.
async fn open(url: &str) -> Result<Inventory, InventoryError> {
    store::open(url, store::PATIENT).await
}

async fn watched(replicas: usize) -> (PrivateRedis, Sentinels) {
    let dir = OwnedDir::create().unwrap();
    let primary = PrivateRedis::start_in(&dir, RedisOptions::default()).await.unwrap();
    let sentinels = Sentinels::start_in(&dir, &primary, replicas).await.unwrap();
    (primary, sentinels)
}

fn is_silent(error: &InventoryError) -> bool {
    source(error).contains("no sentinel names the primary")
}

fn source(error: &InventoryError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

/// Goal: one living sentinel suffices. Without any, a new connection is refused for that reason until one is back. A server that
/// is no primary is not used, even if a sentinel names it.
#[tokio::test]
async fn one_sentinel_suffices() {
    let (primary, mut watch) = watched(1).await;
    let inventory = open(&watch.url()).await.unwrap();
    inventory.start(&ITEM, Some(token(1)), 10).await.unwrap();
    assert!(inventory.address().starts_with("sale at 127.0.0.1:"), "{}", inventory.address());
    for index in 0..2 {
        watch.sentinels[index].kill().await.unwrap();
    }
    open(&watch.url()).await.unwrap();
    watch.sentinels[2].kill().await.unwrap();
    eventually("nobody is asked in vain", async || {
        primary.run::<u64>("CLIENT KILL TYPE normal SKIPME yes").await.unwrap();
        sell(&inventory, "a").await.is_err_and(|error| is_silent(&error) && error.nothing_written())
    })
    .await;
    let error = open(&watch.url()).await.unwrap_err();
    assert!(is_silent(&error), "{}", source(&error));
    assert!(error.nothing_written() && error.is_retryable() && !error.is_wrong_server());
    watch.sentinels[1].restart().await.unwrap();
    eventually("it sells on", async || sell(&inventory, "a").await.is_ok()).await;

    // one sentinel alone promotes no replica
    primary.run::<()>("REPLICAOF 127.0.0.1 1").await.unwrap();
    let error = open(&watch.url()).await.unwrap_err();
    assert!(source(&error).contains("is a replica"), "{}", source(&error));
    assert!(error.nothing_written() && error.is_retryable());
    primary.run::<()>("REPLICAOF NO ONE").await.unwrap();
    open(&watch.url()).await.unwrap();
}

/// From now on this sentinel names `other`. The other sentinels keep their view: to them this news is as old as their own.
async fn redirect_to(sentinel: &PrivateRedis, other: &PrivateRedis) {
    sentinel.run::<()>("SENTINEL REMOVE sale").await.unwrap();
    let monitor = format!("SENTINEL MONITOR sale 127.0.0.1 {} 2", other.port());
    sentinel.run::<()>(&monitor).await.unwrap();
}

/// How many connections a server has accepted, including the one that asks for this.
async fn accepted_by(server: &PrivateRedis) -> usize {
    let info = server.run::<String>("INFO stats").await.unwrap();
    let total = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    total.unwrap().parse().unwrap()
}

/// Waits until clients other than this function have connected to the sentinel `times` times.
async fn until_asked(sentinel: &PrivateRedis, times: usize) {
    let (before, mut own) = (accepted_by(sentinel).await, 0);
    eventually("the sentinel is asked", async || {
        own += 1;
        accepted_by(sentinel).await >= before + own + times
    })
    .await;
}

/// Goal: one sentinel that is cut off and names another primary misleads no instance, neither when it connects nor later. When
/// most sentinels name the other primary, an instance goes there, although the former one still answers; a new connection goes
/// there at once, without an error. If equally many sentinels name each, the instance stays.
#[tokio::test]
async fn the_primary_is_the_one_that_most_sentinels_name() {
    let (primary, mut watch) = watched(0).await;
    let other = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    for (server, stock) in [(&primary, 1), (&other, 2)] {
        connect(&server.url()).await.start(&ITEM, None, stock).await.unwrap();
    }
    redirect_to(&watch.sentinels[0], &other).await;
    let stock = async |inventory: &Inventory| inventory.stock(&ITEM).await.unwrap().stock;
    let inventory = open(&watch.url()).await.unwrap();
    assert_eq!(stock(&inventory).await, 1);
    until_asked(&watch.sentinels[0], 3).await;
    assert_eq!(stock(&inventory).await, 1, "after checks");

    watch.sentinels[2].kill().await.unwrap();
    until_asked(&watch.sentinels[0], 3).await;
    assert_eq!(stock(&inventory).await, 1, "one sentinel names either");
    redirect_to(&watch.sentinels[1], &other).await;
    let is_left = async || inventory.stock(&ITEM).await.is_ok_and(|found| found.stock == 2);
    eventually("it is left", is_left).await;

    for sentinel in &watch.sentinels[..2] {
        redirect_to(sentinel, &primary).await;
    }
    let is_back = async || {
        other.run::<u64>("CLIENT KILL TYPE normal SKIPME yes").await.unwrap();
        let found = inventory.stock(&ITEM).await;
        let error = found.as_ref().err().map(source).unwrap_or_default();
        assert!(!error.contains("another primary"), "{error}");
        found.is_ok_and(|found| found.stock == 1)
    };
    eventually("it goes back", is_back).await;
}

/// Goal: if one sentinel does not know the name yet and the others are silent, the start goes on: a silent one may know the name.
/// A sentinel that hangs counts as silent.
#[tokio::test]
async fn silence_is_no_refusal() {
    let (_primary, mut watch) = watched(0).await;
    watch.sentinels[0].run::<()>("SENTINEL REMOVE sale").await.unwrap();
    open(&watch.url()).await.unwrap();
    for index in [1, 2] {
        watch.sentinels[index].kill().await.unwrap();
    }
    let error = open(&watch.url()).await.unwrap_err();
    assert!(!error.is_wrong_server() && error.is_retryable(), "{}", source(&error));
    assert!(is_silent(&error) && source(&error).contains("know no primary"), "{}", source(&error));
    for index in [1, 2] {
        watch.sentinels[index].restart().await.unwrap();
        watch.sentinels[index].run::<()>("SENTINEL REMOVE sale").await.unwrap();
    }
    let error = open(&watch.url()).await.unwrap_err();
    assert!(error.is_wrong_server(), "{}", source(&error));
    // it takes connections, and never reads
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis-sentinel://{}#sale", hung.local_addr().unwrap());
    let error = within("it hangs", store::open(&url, store::HASTY)).await.unwrap_err();
    assert!(is_silent(&error), "{}", source(&error));
}

/// Goal: a wrong name of the primary and a wrong password are errors that no retry mends, and that say what is wrong. A sentinel
/// gets the password only if it asks for one. Neither an error nor `Debug` shows a password.
#[tokio::test]
async fn wrong_names_and_passwords_are_told() {
    let (primary, watch) = watched(0).await;
    let error = open(&watch.url().replace("#sale", "#other")).await.unwrap_err();
    assert!(error.is_wrong_server(), "{}", source(&error));
    assert!(source(&error).contains("know no primary") && source(&error).contains("other"));

    let as_user = async |user: &str| open(&watch.url().replace("://", &format!("://{user}"))).await;
    primary.run::<()>("ACL SETUSER shop on >hunter2 ~* +@all").await.unwrap();
    for locks_sentinels in [false, true] {
        if locks_sentinels {
            for sentinel in &watch.sentinels {
                sentinel.run::<()>("ACL SETUSER shop on >hunter2 +@all").await.unwrap();
                sentinel.run::<()>("ACL SETUSER default resetpass >other").await.unwrap();
            }
            let error = as_user("").await.unwrap_err();
            assert!(error.is_wrong_server() && source(&error).contains("NOAUTH"), "{error:?}");
        }
        let error = as_user("shop:hunter3@").await.unwrap_err();
        assert!(error.is_wrong_server() && source(&error).contains("WRONGPASS"), "{error:?}");
        let inventory = as_user("shop:hunter2@").await.unwrap();
        let shown = format!("{error} {error:?} {} {inventory:?}", source(&error));
        assert!(!shown.contains("hunter"), "{shown}");
    }
}

/// Goal: the primary dies, and the sentinels promote a replica that lacks the latest order. If that order was acknowledged, the
/// item is stopped. If the inventory waits for replicas, the order was not acknowledged, and the sale goes on at once.
#[tokio::test]
async fn what_a_failover_loses_was_not_acknowledged_or_is_noticed() {
    for waits in [true, false] {
        let (mut primary, mut watch) = watched(2).await;
        let inventory = connect(&watch.url()).await;
        let waiting = |replicas: Replicas| {
            let count = if waits { replicas.count } else { 0 };
            inventory.clone().with_replicas(Replicas { count, ..replicas })
        };
        waiting(PATIENT).start(&ITEM, Some(token(1)), 10).await.unwrap();
        assert_eq!(sell(&waiting(PATIENT), "a").await.unwrap(), 1);
        watch.hold_writes_back(&primary).await.unwrap();
        let last = sell(&waiting(HASTY), "b").await;
        primary.kill().await.unwrap();
        let former = watch.until_failed_over(&mut primary).await.unwrap();
        if waits {
            assert_not_replicated(last);
            let waiting = waiting(PATIENT);
            eventually("it goes on", async || sell(&waiting, "c").await.is_ok_and(|at| at == 2))
                .await;
            continue;
        }
        assert_eq!(last.unwrap(), 2);
        let is_stopped = async || {
            let error = sell(&inventory, "c").await.unwrap_err();
            matches!(error, InventoryError::RolledBack { .. })
        };
        eventually("it is noticed", is_stopped).await;
        // the former primary comes back with the order, and follows the new one: the order is lost
        former.restart().await.unwrap();
        follow(former, &primary, primary.port()).await.unwrap();
        assert!(is_stopped().await);
    }
}
