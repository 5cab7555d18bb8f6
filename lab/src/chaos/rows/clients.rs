//! Clients that get no answer, go away, or mean no good.

use std::time::Duration;

use futures_util::FutureExt as _;
use testkit::Proxy;
use tokio::time::sleep;

use crate::chaos::flood;
use crate::chaos::row::{LoadPlan, Row, Setup, Trial};
use crate::chaos::scene::Scene;
use crate::cluster::Proxied;
use crate::error::LabError;

pub(super) fn rows() -> Vec<Row> {
    vec![answer_swallowed(), client_gone(), flooded(), feeds_opened(), requests_aborted()]
}

fn answer_swallowed() -> Row {
    let trial = Trial {
        setup: Setup { proxied: Proxied::Clients, load: LoadPlan::SELLS_OUT, ..Setup::USUAL },
        play: |scene| swallow_answers(scene).boxed_local(),
        round: Duration::from_millis(500),
        goes_on_within: Duration::from_secs(2),
        proof: "answers swallowed",
    };
    let fault = "answers are swallowed; clients ask again at another instance";
    Row::new("answer-swallowed", fault, trial).without("order-ids", &["I2"])
}

fn client_gone() -> Row {
    let setup = Setup {
        proxied: Proxied::Clients,
        load: LoadPlan { flags: &["--abandon", "0.01"], ..LoadPlan::USUAL },
        ..Setup::USUAL
    };
    let trial = Trial {
        setup,
        play: |scene| cut_clients(scene).boxed_local(),
        round: Duration::from_secs(3),
        // the fault stops nobody: what is left is a machine with much to do
        goes_on_within: Duration::from_secs(1),
        proof: "connections cut",
    };
    // a client that is told that nothing was taken may believe it
    let load = LoadPlan { flags: &["--retries", "0"], ..LoadPlan::USUAL };
    let believing = Trial { setup: Setup { load, ..setup }, ..trial };
    Row::new("client-gone", "clients go away in mid-request", trial)
        .control(believing.without("batch-ownership", &["I3"]))
}

fn flooded() -> Row {
    let trial = Trial {
        setup: Setup { flags: &["--header-timeout", "2s"], ..Setup::USUAL },
        play: |scene| flood_instances(scene).boxed_local(),
        round: Duration::from_secs(7),
        goes_on_within: Duration::from_secs(1),
        proof: "silent connections",
    };
    let fault =
        "10,000 connections that send nothing, 50 that read nothing; 1 MB headers; 1 GB bodies";
    Row { alone: true, ..Row::new("clients-flood", fault, trial).without("limits", &["limits"]) }
}

/// Clients from whom the sale must not suffer. Without the bounds, it does not go on in time.
fn feeds_opened() -> Row {
    let trial = Trial {
        setup: Setup::USUAL,
        play: |scene| open_feeds(scene).boxed_local(),
        round: Duration::from_secs(6),
        goes_on_within: Duration::from_secs(1),
        proof: "feeds opened",
    };
    let row =
        Row::new("feeds-opened", "16 clients open feeds of made-up items and close them", trial);
    Row { alone: true, ..row.without("limits", &["I5", "lease"]) }
}

fn requests_aborted() -> Row {
    let trial = Trial {
        setup: Setup::USUAL,
        play: |scene| abort_requests(scene).boxed_local(),
        round: Duration::from_secs(6),
        goes_on_within: Duration::from_secs(2),
        proof: "requests aborted",
    };
    let fault = "20,000 looks at queues of made-up items are aborted at once";
    let row = Row::new("requests-aborted", fault, trial);
    Row { alone: true, ..row.without("see-through", &["I5", "lease"]) }
}

/// Some answers at a time, of one instance or of all of them.
async fn swallow_answers(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let one = scene.random.below(scene.cluster.instances.len() + 1);
        for index in 0..scene.cluster.instances.len() {
            let answers = 1 + scene.random.next() % 50;
            if one == index || one == scene.cluster.instances.len() {
                scene.cluster.instances[index]
                    .client_proxy
                    .iter()
                    .for_each(|proxy| proxy.swallow(answers));
            }
        }
        sleep(Duration::from_millis(300)).await;
    }
    let proxies =
        scene.cluster.instances.iter().filter_map(|instance| instance.client_proxy.as_ref());
    let swallowed = proxies.map(Proxy::swallowed_answers).sum();
    scene.evidence.saw("answers swallowed", swallowed);
    Ok(())
}

/// Whatever is under way at an instance ends, for its client; now and then the store is slow, so that
/// much is under way.
async fn cut_clients(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let is_slow = scene.evidence.times.is_multiple_of(2);
        if is_slow {
            let paused = scene.cluster.redis.child().pause();
            paused.map_err(LabError::system("Redis cannot be paused"))?;
            let lasts = scene.random.millis(1200, 1600);
            sleep(lasts).await;
            scene.evidence.outage(lasts);
        }
        let index = scene.random.below(scene.cluster.instances.len());
        scene.cluster.instances[index].client_proxy.iter().for_each(Proxy::cut);
        scene.evidence.saw("connections cut", 1);
        if is_slow {
            let resumed = scene.cluster.redis.child().resume();
            resumed.map_err(LabError::system("Redis cannot be resumed"))?;
        }
    }
    Ok(())
}

/// All at once against one instance; the others' orders go to it as well.
async fn flood_instances(scene: &mut Scene) -> Result<(), LabError> {
    const SILENT: usize = 10_000;
    const DEAF: usize = 50;
    while scene.next_round().await {
        let port =
            scene.cluster.instances[scene.random.clone().below(scene.cluster.instances.len())].port;
        let (silent, deaf, headers, body) = tokio::join!(
            flood::silent(port, SILENT),
            flood::deaf(port, DEAF),
            flood::headers(port),
            flood::body(port)
        );
        scene.evidence.saw("silent connections", silent.opened);
        for sentence in silent.harm.into_iter().chain(deaf).chain(headers).chain(body) {
            scene.evidence.complain("limits", sentence);
        }
    }
    Ok(())
}

/// At one instance, again and again.
async fn open_feeds(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let port = scene.cluster.instances[scene.random.below(scene.cluster.instances.len())].port;
        let opened = flood::feeds(port, 16, Duration::from_secs(5)).await;
        scene.evidence.saw("feeds opened", opened);
    }
    Ok(())
}

/// At one instance. The lock of the sale and these looks share a connection to etcd.
async fn abort_requests(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let port = scene.cluster.instances[scene.random.below(scene.cluster.instances.len())].port;
        let aborted = flood::aborted(port, 20_000).await;
        scene.evidence.saw("requests aborted", aborted);
    }
    let lost = scene.counter("flash_sale_lost_sessions_total").await;
    if lost > 0 {
        scene.evidence.complain("lease", format!("{lost} lock sessions were lost"));
    }
    Ok(())
}
