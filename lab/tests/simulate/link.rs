//! The links between instances: frames that are lost, late, cut or repeated on the way, and answers that are lost.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use flash_sale::peers::{Link, LinkError, Pieces, Text};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::faults::Fault;
use crate::sale_world::World;
use crate::trace::{count, note};

/// Reaches the other instances of its world, by the addresses `p0`, `p1` and so on. A restarted instance has the address of its
/// last life.
pub struct SimulatedLink(pub Weak<World>);

#[async_trait]
impl Link for SimulatedLink {
    async fn send(&self, address: &str, frame: Text<'_>) -> Result<Pieces, LinkError> {
        let nobody = || LinkError::NotSent("nobody listens there".into());
        let number: usize = address[1..].parse().expect("an address of this world");
        let world = self.0.upgrade().ok_or_else(nobody)?;
        let faults = &world.faults;
        let frame = frame();
        let (there, back) = (world.latency(), world.latency());
        sleep(there).await;
        if faults.strikes(Fault::LinkRefused) || !world.is_up(number) {
            return Err(nobody());
        }
        count("frames");
        let (answer, answered) = mpsc::unbounded_channel();
        let is_lost = faults.strikes(Fault::FrameLost);
        let is_late = faults.strikes(Fault::FrameLate);
        let is_twice = faults.strikes(Fault::FrameTwice);
        let late = faults.draw(|chance| chance.millis(0, 6000));
        let late = if is_late { late } else { Duration::ZERO };
        let again = faults.draw(|chance| chance.millis(0, 6000));
        if is_twice {
            deliver(&world, number, again, frame.clone(), None);
        }
        if is_lost {
            // nothing comes back, and nothing ends
            world.network.spawn(async move { answer.closed().await });
        } else {
            let is_answered = !faults.strikes(Fault::FatesLost);
            deliver(&world, number, late, frame, is_answered.then(|| answer.clone()));
            if !is_answered {
                world.network.spawn(async move { answer.closed().await });
            }
        }
        let pieces = unfold(answered, move |mut answered| async move {
            let line: Option<Vec<u8>> = answered.recv().await;
            sleep(back).await;
            Some((line.map(Into::into).ok_or_else(|| "the link broke".into()), answered))
        });
        Ok(pieces.boxed())
    }
}

/// Brings a frame to an instance after so long. Its answer goes nowhere if nobody waits for it.
fn deliver(
    world: &Arc<World>,
    number: usize,
    after: Duration,
    frame: Vec<u8>,
    answer: Option<mpsc::UnboundedSender<Vec<u8>>>,
) {
    let to = Arc::clone(world);
    world.network.spawn(async move {
        sleep(after).await;
        let Some((process, sale)) = to.instance(number) else { return };
        note(&process.name, || format!("a frame comes: {}", String::from_utf8_lossy(&frame)));
        process.spawn(async move {
            let Some(door) = sale.door() else { return };
            drop(sale);
            let mut lines = door.answer(&frame);
            loop {
                let gone = async {
                    match &answer {
                        Some(answer) => answer.closed().await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = gone => return,
                    line = lines.next() => match (line, &answer) {
                        (None, _) => return,
                        (Some(line), Some(answer)) => drop(answer.send(line)),
                        (Some(_), None) => {}
                    },
                }
            }
        });
    });
}
