//! Clients that get no answer, go away, or are hostile.

use std::time::Duration;

use futures_util::FutureExt as _;
use rand::RngExt as _;
use testkit::Proxy;
use tokio::time::sleep;

use crate::chaos::flood;
use crate::chaos::scenario::{LoadPlan, Run, Scenario, Setup};
use crate::chaos::scene::Scene;
use crate::error::LabError;
use demo::cluster::Proxied;

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
        // the fault stops no instance: this is for a busy machine
        goes_on_within: Duration::from_secs(1),
        proof: "connections cut",
    };
    // a client may believe the answer that nothing was taken
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

/// Swallows some answers, of one instance or of all.
async fn swallow_answers(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let one = scene.rng.random_range(0..=scene.cluster.instances.len());
        for index in 0..scene.cluster.instances.len() {
            let answers = scene.rng.random_range(1..=50);
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

/// Cuts the client connections of an instance; every other time while the store is slow, so that many
/// requests are in flight.
async fn cut_clients(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let is_slow = scene.evidence.times.is_multiple_of(2);
        if is_slow {
            scene.pause_redis()?;
            let lasts = scene.random_millis(1200, 1600);
            sleep(lasts).await;
            scene.evidence.outage(lasts);
        }
        let index = scene.pick();
        scene.cluster.instances[index].client_proxy.iter().for_each(Proxy::cut);
        scene.evidence.saw("connections cut", 1);
        if is_slow {
            scene.resume_redis()?;
        }
    }
    Ok(())
}

/// All floods at once against one instance, which sells meanwhile.
async fn flood_instances(scene: &mut Scene) -> Result<(), LabError> {
    const SILENT: usize = 10_000;
    const DEAF: usize = 50;
    while scene.next_round().await {
        let index = scene.pick();
        let port = scene.cluster.instances[index].port;
        let (silent, deaf, headers, body) = tokio::join!(
            flood::silent(port, SILENT),
            flood::deaf(port, DEAF),
            flood::headers(port),
            flood::body(port)
        );
        scene.evidence.saw("silent connections", silent.opened);
        for message in silent.failure.into_iter().chain(deaf).chain(headers).chain(body) {
            scene.evidence.complain("limits", message);
        }
    }
    Ok(())
}

/// Opens feeds at one instance.
async fn open_feeds(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let index = scene.pick();
        let port = scene.cluster.instances[index].port;
        let opened = flood::feeds(port, 16, Duration::from_secs(5)).await;
        scene.evidence.saw("feeds opened", opened);
    }
    Ok(())
}

/// Aborts requests at one instance, whose lock uses the same connection to etcd.
async fn abort_requests(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let index = scene.pick();
        let port = scene.cluster.instances[index].port;
        let aborted = flood::aborted(port, 20_000).await;
        scene.evidence.saw("requests aborted", aborted);
    }
    let lost = scene.counter("flash_sale_lost_sessions_total").await;
    if lost > 0 {
        scene.evidence.complain("lease", format!("{lost} lock sessions were lost"));
    }
    Ok(())
}
