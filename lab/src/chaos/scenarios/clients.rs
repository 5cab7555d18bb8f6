//! Clients that get no answer, go away, or mean no good.

use std::time::Duration;

use futures_util::FutureExt as _;
use testkit::Proxy;
use tokio::time::sleep;

use crate::chaos::flood;
use crate::chaos::scenario::{LoadPlan, Run, Scenario, Setup};
use crate::chaos::scene::Scene;
use crate::cluster::Proxied;
use crate::error::LabError;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![answer_swallowed(), client_gone(), flooded(), feeds_opened(), requests_aborted()]
}

fn answer_swallowed() -> Scenario {
    let run = Run {
        setup: Setup { proxied: Proxied::Clients, load: LoadPlan::SELLS_OUT, ..Setup::USUAL },
        inject: |scene| swallow_answers(scene).boxed_local(),
        round: Duration::from_millis(500),
        goes_on_within: Duration::from_secs(2),
        proof: "answers swallowed",
    };
    let fault = "answers are swallowed; clients ask again at another instance";
    Scenario::new("answer-swallowed", fault, run).without("order-ids", &["I2"])
}

fn client_gone() -> Scenario {
    let setup = Setup {
        proxied: Proxied::Clients,
        load: LoadPlan { flags: &["--abandon", "0.01"], ..LoadPlan::USUAL },
        ..Setup::USUAL
    };
    let run = Run {
        setup,
        inject: |scene| cut_clients(scene).boxed_local(),
        round: Duration::from_secs(3),
        // the fault stops nobody: what is left is a machine with much to do
        goes_on_within: Duration::from_secs(1),
        proof: "connections cut",
    };
    // a client that is told that nothing was taken may believe it
    let load = LoadPlan { flags: &["--retries", "0"], ..LoadPlan::USUAL };
    let believing = Run { setup: Setup { load, ..setup }, ..run };
    Scenario::new("client-gone", "clients go away in mid-request", run)
        .control(believing.without("batch-ownership", &["I3"]))
}

fn flooded() -> Scenario {
    let run = Run {
        setup: Setup { flags: &["--header-timeout", "2s"], ..Setup::USUAL },
        inject: |scene| flood_instances(scene).boxed_local(),
        round: Duration::from_secs(7),
        goes_on_within: Duration::from_secs(1),
        proof: "silent connections",
    };
    let fault =
        "10,000 connections that send nothing, 50 that read nothing; 1 MB headers; 1 GB bodies";
    Scenario {
        alone: true,
        ..Scenario::new("clients-flood", fault, run).without("limits", &["limits"])
    }
}

/// Clients from whom the sale must not suffer. Without the bounds, it does not go on in time.
fn feeds_opened() -> Scenario {
    let run = Run {
        setup: Setup::USUAL,
        inject: |scene| open_feeds(scene).boxed_local(),
        round: Duration::from_secs(6),
        goes_on_within: Duration::from_secs(1),
        proof: "feeds opened",
    };
    let scenario =
        Scenario::new("feeds-opened", "16 clients open feeds of made-up items and close them", run);
    Scenario { alone: true, ..scenario.without("limits", &["I5", "lease"]) }
}

fn requests_aborted() -> Scenario {
    let run = Run {
        setup: Setup::USUAL,
        inject: |scene| abort_requests(scene).boxed_local(),
        round: Duration::from_secs(6),
        goes_on_within: Duration::from_secs(2),
        proof: "requests aborted",
    };
    let fault = "20,000 looks at queues of made-up items are aborted at once";
    let scenario = Scenario::new("requests-aborted", fault, run);
    Scenario { alone: true, ..scenario.without("see-through", &["I5", "lease"]) }
}

/// Some answers at a time, of one instance or of all of them.
async fn swallow_answers(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let one = scene.rng.below(scene.cluster.instances.len() + 1);
        for index in 0..scene.cluster.instances.len() {
            let answers = 1 + scene.rng.next() % 50;
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
            let lasts = scene.rng.millis(1200, 1600);
            sleep(lasts).await;
            scene.evidence.outage(lasts);
        }
        let index = scene.rng.below(scene.cluster.instances.len());
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
            scene.cluster.instances[scene.rng.clone().below(scene.cluster.instances.len())].port;
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
        let port = scene.cluster.instances[scene.rng.below(scene.cluster.instances.len())].port;
        let opened = flood::feeds(port, 16, Duration::from_secs(5)).await;
        scene.evidence.saw("feeds opened", opened);
    }
    Ok(())
}

/// At one instance. The lock of the sale and these looks share a connection to etcd.
async fn abort_requests(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let port = scene.cluster.instances[scene.rng.below(scene.cluster.instances.len())].port;
        let aborted = flood::aborted(port, 20_000).await;
        scene.evidence.saw("requests aborted", aborted);
    }
    let lost = scene.counter("flash_sale_lost_sessions_total").await;
    if lost > 0 {
        scene.evidence.complain("lease", format!("{lost} lock sessions were lost"));
    }
    Ok(())
}
