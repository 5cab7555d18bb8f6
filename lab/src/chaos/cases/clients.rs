//! Clients that get no answer, go away, or are hostile.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt as _;
use testkit::Proxy;
use tokio::time::sleep;

use crate::chaos::case::Case;
use crate::chaos::clients;
use crate::chaos::scene::Scene;
use testkit::cluster::Proxied;

pub(super) fn cases() -> Vec<Case> {
    let fault = "answers are swallowed; clients ask again at another instance";
    let swallowed = Case {
        proxied: Proxied::Clients,
        round: Duration::from_millis(500),
        ..Case::new("answer-swallowed", fault, &swallow_answers).proven_by("answers swallowed")
    };

    let gone = Case {
        proxied: Proxied::Clients,
        load_flags: &["--abandon", "0.01"],
        round: Duration::from_secs(3),
        // the fault stops no instance: this time is for a busy machine
        goes_on_within: Duration::from_secs(1),
        ..Case::new("client-gone", "clients go away in mid-request", &cut_clients)
    };
    // clients that believe every answer, also one that says that nothing was taken
    let believing = Case { load_flags: &["--retries", "0"], ..gone };

    let fault =
        "10,000 connections that send nothing, 50 that read nothing; endless headers; 1 GB bodies";
    let flooded = Case {
        flags: &["--header-timeout", "2s"],
        round: Duration::from_secs(7),
        goes_on_within: Duration::from_secs(1),
        alone: true,
        ..Case::new("clients-flood", fault, &flood).proven_by("silent connections")
    };

    let fault = "16 clients open feeds of made-up items and close them";
    let feeds = Case {
        round: Duration::from_secs(6),
        goes_on_within: Duration::from_secs(1),
        alone: true,
        ..Case::new("feeds-opened", fault, &open_feeds).proven_by("feeds opened")
    };

    let fault = "200 clients ask for the stock and for an order without a pause";
    let looks = Case {
        round: Duration::from_secs(6),
        goes_on_within: Duration::from_secs(1),
        alone: true,
        ..Case::new("looks-flood", fault, &look).proven_by("looks")
    };

    let fault = "20,000 looks at queues of made-up items are aborted at once";
    let aborted = Case {
        round: Duration::from_secs(6),
        alone: true,
        ..Case::new("requests-aborted", fault, &abort_requests).proven_by("requests aborted")
    };

    vec![
        swallowed,
        swallowed.without_holds().without_safeguard("order-ids", &["I2"]),
        gone,
        believing.without_holds().without_safeguard("batch-ownership", &["I3"]),
        flooded,
        flooded.without_safeguard("limits", &["limits"]),
        // no controls: without the safeguards the sale becomes slower but does not stop
        feeds,
        looks,
        aborted,
    ]
}

/// Swallows some answers, of one instance or of all.
async fn swallow_answers(scene: &mut Scene) -> Result<()> {
    let all = scene.cluster.instances.len();
    let one = scene.random.random_range(0..=all);
    for (index, instance) in scene.cluster.instances.iter().enumerate() {
        let answers = scene.random.random_range(1..=50);
        if one == index || one == all {
            instance.client_proxy.iter().for_each(|proxy| proxy.lose_answers(answers));
        }
    }
    sleep(Duration::from_millis(300)).await;
    Ok(())
}

/// Cuts the client connections of an instance. Before every other cut the store is slow, so that many requests are in flight.
async fn cut_clients(scene: &mut Scene) -> Result<()> {
    let is_slow = scene.turn(2) == 1;
    if is_slow {
        scene.cluster.redis.child().pause()?;
        let lasts = scene.random_millis(1200, 1600);
        sleep(lasts).await;
        scene.evidence.outage(lasts);
    }
    let index = scene.pick();
    scene.cluster.instances[index].client_proxy.iter().for_each(Proxy::cut);
    if is_slow {
        scene.cluster.redis.child().resume()?;
    }
    Ok(())
}

/// All floods at once against one instance, which goes on selling.
async fn flood(scene: &mut Scene) -> Result<()> {
    const SILENT: usize = 10_000;
    const DEAF: usize = 50;
    let index = scene.pick();
    let port = scene.cluster.instances[index].port;
    let ((opened, silent), deaf, headers, body) = tokio::join!(
        clients::silent(port, SILENT),
        clients::without_reading(port, DEAF),
        clients::endless(port, clients::HEAD),
        clients::endless(port, clients::BODY)
    );
    scene.evidence.add("silent connections", opened);
    for message in [silent, deaf, headers, body].into_iter().flatten() {
        scene.evidence.broken("limits", message);
    }
    Ok(())
}

async fn open_feeds(scene: &mut Scene) -> Result<()> {
    let index = scene.pick();
    let port = scene.cluster.instances[index].port;
    let opened = clients::feeds(port, 16, Duration::from_secs(5)).await;
    scene.evidence.add("feeds opened", opened);
    Ok(())
}

async fn look(scene: &mut Scene) -> Result<()> {
    let index = scene.pick();
    let port = scene.cluster.instances[index].port;
    let answers = clients::looks(port, 200, Duration::from_secs(5)).await;
    scene.evidence.add("looks", answers);
    Ok(())
}

/// Aborts requests at one instance, whose lock uses the same connection to etcd.
async fn abort_requests(scene: &mut Scene) -> Result<()> {
    let index = scene.pick();
    let port = scene.cluster.instances[index].port;
    let aborted = clients::aborted(port, 20_000).await;
    scene.evidence.add("requests aborted", aborted);
    scene.expect_sessions("lease").await;
    Ok(())
}
