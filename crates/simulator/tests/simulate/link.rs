//! The links between instances: frames that are lost, late, cut or repeated on the way, and answers that are lost.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use flash_sale::peers::{Link, LinkError, Pieces, Text};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::faults::Fault;
use crate::sale_world::World;
use crate::trace::{Rare, count, happened, note, violation};

/// How old a frame may get.
pub const FRAME_LIFE: Duration = Duration::from_secs(2);

/// Reaches the other instances of its world, by the addresses `p0`, `p1` and so on. A restarted instance has the address of its
/// last life.
pub struct SimulatedLink {
    pub world: Weak<World>,
    /// The instance and the process whose link it is.
    pub number: usize,
    pub from: String,
}

#[async_trait]
impl Link for SimulatedLink {
    async fn send(&self, address: &str, frame: Text<'_>) -> Result<Pieces, LinkError> {
        let nobody = || LinkError::NotSent("nobody listens there".into());
        let number: usize = address[1..].parse().expect("an address of this world");
        let world = self.world.upgrade().ok_or_else(nobody)?;
        let faults = &world.faults;
        let frame = frame();
        let (there, back) = (world.latency(), world.latency());
        let on_its_way = world.has_frame(&self.from);
        sleep(there).await;
        if faults.strikes(Fault::LinkRefused) || !world.is_up(number) {
            return Err(nobody());
        }
        count("frames");
        let (answer, answered) = mpsc::unbounded_channel();
        let is_lost = faults.strikes(Fault::FrameLost);
        let is_late = faults.strikes(Fault::FrameLate);
        let is_twice = faults.strikes(Fault::FrameTwice);
        let is_cut = faults.strikes(Fault::LinkCut);
        // half of the late frames come while they may still be taken
        let late = || {
            faults.draw(|chance| {
                let most = if chance.one_in(2) { FRAME_LIFE } else { 3 * FRAME_LIFE };
                chance.millis(0, most.as_millis() as u64)
            })
        };
        let (again, late) = (late(), late());
        // the link may break because its sender dies
        let dies = faults.draw(|chance| chance.one_in(2).then(|| chance.millis(100, 5000)));
        if is_twice {
            deliver(&world, number, again, frame.clone(), None);
        }
        if is_cut {
            deliver(&world, number, late, frame, None);
            if let Some(after) = dies.filter(|_| faults.may(Fault::Killed)) {
                world.end_sender(self.number, after);
            }
            return Err(LinkError::NoAnswer("the link broke".into()));
        }
        let late = if is_late { late } else { Duration::ZERO };
        if is_lost {
            // the sender gets no answer, and the link stays open
            world.network.spawn(async move { answer.closed().await });
        } else {
            let is_answered = !faults.strikes(Fault::FatesLost);
            deliver(&world, number, late, frame, is_answered.then(|| answer.clone()));
            if !is_answered {
                world.network.spawn(async move { answer.closed().await });
            }
        }
        let pieces = unfold((answered, on_its_way), move |(mut answered, on_its_way)| async move {
            let line: Option<Vec<u8>> = answered.recv().await;
            sleep(back).await;
            let line = line.map(Into::into).ok_or_else(|| "the link broke".into());
            Some((line, (answered, on_its_way)))
        });
        Ok(pieces.boxed())
    }
}

/// Brings a frame to an instance after this time. Without `answer`, nobody gets its answer.
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
        let (here, is_late) = (to.has_frame(&process.name), after > FRAME_LIFE);
        let is_given_up = to.judge_of_patience(&frame);
        drop(to);
        process.spawn(async move {
            let _here = here;
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
                let line = tokio::select! {
                    biased;
                    () = gone => return is_given_up(),
                    line = lines.next() => line,
                };
                let Some(line) = line else { return };
                count_refusal(&line, is_late);
                if let Some(answer) = &answer {
                    drop(answer.send(line));
                }
            }
        });
    });
}

/// Counts the frames that a door refuses, and the orders whose fates it does not know.
fn count_refusal(line: &[u8], is_late: bool) {
    let line: Value = serde_json::from_slice(line).unwrap_or_default();
    match line["not_done"].as_str() {
        Some("repeated") => happened(Rare::FrameRepeated),
        Some("not-the-holder") => happened(Rare::FrameForAnother),
        Some("too-late") if is_late => {
            count("a batch of a peer that came too late, and was refused");
        }
        None if is_late => violation("a batch of a peer was taken that came too late".into()),
        _ => {}
    }
    let fates = line["done"]["fates"].as_array();
    if fates.is_some_and(|fates| fates.iter().any(|fate| fate == "unknown")) {
        happened(Rare::FateUnknown);
    }
}
