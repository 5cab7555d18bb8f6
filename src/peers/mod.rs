//! Orders between instances: batches that an instance sends to the one that holds the lock, and their fates.
//!
//! This module knows batches and fates, and neither routes nor the store. The [`wire`] is the format. A [`Link`] carries frames,
//! over HTTP/2 in the [service](HttpLink), and a [`Door`] lets them in. An order's fate is *final*, *not done*, or *unknown*
//! under the token of that tenure. [`Peers::send`] and the link send a frame once.

mod door;
mod link;
mod tls;
pub mod wire;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, unfold};
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use self::wire::{Clock, Done, Forwarded, Frame, Line, NotDone, Tenure, Watermark};
use crate::inventory::Item;
use crate::process::random_id;
use crate::safeguard::{PEER_ONCE, PEER_YOUNG};
use crate::sale::BoxError;
use crate::secret::SecretSource;
use crate::throttle::Throttle;

pub use door::{Doorkeeper, serve};
pub use link::HttpLink;
pub use tls::PeerTls;

/// How often the holder writes a line while a batch is under way.
const SIGN_EVERY: Duration = Duration::from_millis(500);

/// After this silence of the holder, a sender gives up.
const SILENCE: Duration = Duration::from_secs(2);

/// How old a frame may be when it arrives, by the holder's clock. A buyer without an answer waits at least this long, and may
/// then be refused elsewhere, so a later frame must take nothing.
pub(crate) const FRAME_LIFE: Duration = Duration::from_secs(2);

/// For how long after an answer a sender may derive the holder's time from it. In so short a time, two clocks drift apart by
/// milliseconds.
const CLOCK_LIFE: Duration = Duration::from_secs(10);

/// How long an address rests: the first time, and at most.
const REFUSED_RESTS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
const SILENT_RESTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The most bytes of a frame, and of an answer. The largest batch has fewer.
const MAX_BYTES: usize = 1 << 20;

/// How many batches may be on their way from one process to another: two for each item.
const MAX_STREAMS: usize = 256;

/// How many peers may send orders at the same time, and how many senders are remembered.
pub(crate) const MAX_PEERS: usize = 256;

/// How many numbers of frames are remembered for each process. Frames with numbers below these are refused.
const NUMBERS: usize = 1024;

/// The token and the certificates that instances show each other.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The token, the same at all instances.
    pub token: Option<SecretSource>,
    /// Certificates.
    pub tls: Option<PeerTls>,
}

/// Carries frames, each at most once.
#[async_trait::async_trait]
pub trait Link: Send + Sync + 'static {
    /// Sends a frame to the door at this address. Makes the text of the frame when it can be written at once, since the text
    /// contains a time. Returns the answer, piece by piece as it arrives.
    ///
    /// # Errors
    /// [`LinkError`] says whether the frame may have arrived. If an answer breaks off, the frame may have arrived.
    ///
    /// # Cancel safety
    /// If the call is dropped after the text was made, the frame may arrive. If the answer is dropped, the door is told if
    /// possible.
    async fn send(&self, address: &str, frame: Text<'_>) -> Result<Pieces, LinkError>;
}

/// Makes the text of a frame.
pub type Text<'a> = Box<dyn FnOnce() -> Vec<u8> + Send + 'a>;

/// An answer, piece by piece.
pub type Pieces = BoxStream<'static, Result<Bytes, BoxError>>;

/// The reason for which a frame got no answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The frame did not arrive, and never will.
    #[error("it was not sent")]
    NotSent(#[source] BoxError),
    /// The frame may have arrived, or may still arrive.
    #[error("it was not answered")]
    NoAnswer(#[source] BoxError),
}

/// The reason for which a sent batch has no fates.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The holder carried out nothing, and never will.
    #[error("the holder did not carry it out: {0:?}")]
    NotDone(NotDone),
    /// The batch was not sent, or may have been carried out. The link says which.
    #[error("the holder was not reached, or did not answer")]
    Link(#[source] LinkError),
}

impl SendError {
    fn no_answer(why: impl Into<BoxError>) -> Self {
        Self::Link(LinkError::NoAnswer(why.into()))
    }
}

/// This process, as one of the peers.
pub struct Peers {
    /// A name that no other process has.
    process: Box<str>,
    /// The address at which other processes reach this one.
    address: Arc<str>,
    link: Arc<dyn Link>,
    began_at: Instant,
    sent: Mutex<Numbers>,
    known: Mutex<HashMap<Box<str>, Known>>,
    senders: Mutex<HashMap<Box<str>, Sender>>,
    /// Limits the log lines about addresses out of reach.
    pub(crate) unreached: Throttle,
}

/// The numbers of the frames that this process sends.
#[derive(Default)]
struct Numbers {
    latest: u64,
    /// The numbers of the frames that wait for their answers.
    open: BTreeSet<u64>,
}

/// The number of a frame that waits for its answer, until it is dropped.
struct Open<'a>(&'a Peers, u64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.sent.lock().open.remove(&self.1);
    }
}

/// A process that has sent frames.
struct Sender {
    /// Frames with smaller numbers are refused.
    lowest: u64,
    /// The numbers of the frames that have arrived.
    numbers: BTreeSet<u64>,
    last_at: Instant,
}

impl Sender {
    /// Whether this frame certainly arrives for the first time, and its sender still waits for the answer.
    fn is_new(&mut self, frame: &Frame) -> bool {
        self.last_at = Instant::now();
        self.lowest = self.lowest.max(frame.lowest);
        self.numbers = self.numbers.split_off(&self.lowest);
        let is_new = frame.number >= self.lowest && self.numbers.insert(frame.number);
        if self.numbers.len() > NUMBERS
            && let Some(first) = self.numbers.pop_first()
        {
            self.lowest = first.saturating_add(1);
        }
        is_new || !PEER_ONCE.is_on()
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The state of an address.
#[derive(Default)]
struct Known {
    /// The holder's clock in its last answer, and when that answer arrived.
    clock: Option<(Clock, Instant)>,
    /// Failures since the last sign of life. All batches sent before a rest began count as one failure.
    failures: u32,
    rests_until: Option<Instant>,
}

impl Known {
    /// Lets the address rest, for a pause that grows, unless it gave a sign of life after the batch was sent. A silent address
    /// costs buyers far more time than one that refuses connections, so it rests longer.
    fn rest(&mut self, is_silent: bool, sent_at: Instant) {
        let gave_a_sign = self.clock.as_ref().is_some_and(|(_, at)| *at > sent_at);
        if gave_a_sign || self.rests_until.is_some_and(|until| sent_at < until) {
            return;
        }
        let (first, most) = if is_silent { SILENT_RESTS } else { REFUSED_RESTS };
        let pause = first.saturating_mul(1 << self.failures.min(16)).min(most);
        self.failures += 1;
        self.rests_until = Some(Instant::now() + pause);
    }
}

/// A batch that leaves this instance.
pub struct Outgoing<'a> {
    /// The address of the holder.
    pub address: &'a str,
    /// The holder's tenure.
    pub tenure: &'a Tenure,
    /// The item of the orders.
    pub item: &'a Item,
    /// The name of this instance.
    pub instance: &'a str,
    /// The watermark of this instance.
    pub watermark: Watermark,
    /// At least one.
    pub orders: Vec<Forwarded>,
    /// How long the holder's store may stay silent: at least as long as one attempt of a batch may take.
    pub patience: Duration,
}

impl Peers {
    /// A process that others reach at `address`, and which reaches others by `link`.
    pub fn new(address: &str, link: Arc<dyn Link>) -> Self {
        Self {
            process: random_id().to_string().into(),
            address: address.into(),
            link,
            began_at: Instant::now(),
            sent: Mutex::default(),
            known: Mutex::default(),
            senders: Mutex::default(),
            unreached: Throttle::new(Duration::from_mins(1)),
        }
    }

    /// The address at which others reach this process.
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Until when the address rests after a failure.
    pub fn rests_until(&self, address: &str) -> Option<Instant> {
        let known = self.known.lock();
        known.get(address)?.rests_until.filter(|until| *until > Instant::now())
    }

    /// Sends a batch to the holder, once, and waits for its fates while the holder gives signs of life, at most until `over`,
    /// soon after the end of the tenure.
    ///
    /// # Errors
    /// [`SendError`].
    ///
    /// # Cancel safety
    /// The batch of a dropped call may be carried out.
    pub async fn send(
        &self,
        batch: Outgoing<'_>,
        over: impl Future<Output = ()>,
    ) -> Result<Done, SendError> {
        let (address, sent_at) = (batch.address, Instant::now());
        let mut is_over = false;
        let over = async {
            over.await;
            is_over = true;
        };
        let sent = self.exchange(batch, over).await;
        if let Err(SendError::Link(error)) = &sent
            && !is_over
        {
            let is_silent = matches!(error, LinkError::NoAnswer(_));
            self.note(address, |known| known.rest(is_silent, sent_at));
        }
        sent
    }

    async fn exchange(
        &self,
        batch: Outgoing<'_>,
        over: impl Future<Output = ()>,
    ) -> Result<Done, SendError> {
        let Outgoing { address, tenure, item, instance, watermark, orders, patience } = batch;
        let wanted = orders.len();
        // set when the link takes the frame
        let written: Mutex<Option<(Instant, Open<'_>)>> = Mutex::default();
        let frame = || {
            let (number, lowest) = self.next_number();
            *written.lock() = Some((Instant::now(), Open(self, number)));
            let frame = Frame {
                sender: self.process.clone(),
                instance: instance.into(),
                number,
                lowest,
                clock: self.clock_at(address),
                watermark,
                ..Frame::new(item, tenure, orders)
            };
            frame.write()
        };
        let written_at = || written.lock().as_ref().map(|(at, _)| *at);
        let silence = async {
            let mut since = Instant::now();
            loop {
                sleep_until(since + SILENCE).await;
                match written_at() {
                    Some(at) if at > since => since = at,
                    _ => return,
                }
            }
        };
        let mut over = pin!(over);
        let sent = tokio::select! {
            biased;
            sent = self.link.send(address, Box::new(frame)) => sent.map_err(SendError::Link),
            () = &mut over => Err(SendError::no_answer("the holder lost the lock")),
            () = silence => Err(SendError::no_answer("the holder gave no sign")),
        };
        let mut pieces = sent.map_err(|error| match error {
            SendError::Link(LinkError::NoAnswer(error)) if written_at().is_none() => {
                SendError::Link(LinkError::NotSent(error))
            }
            error => error,
        })?;
        let mut heard_at = written_at().unwrap_or_else(Instant::now);
        let mut store_at = heard_at;
        let mut text = Vec::new();
        loop {
            let end = text.iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line: Result<Line, _> = serde_json::from_slice(&text[..end]);
                text.drain(..=end);
                let line = line.map_err(SendError::no_answer)?;
                let now = Instant::now();
                heard_at = now;
                let ago = Duration::from_millis(line.store_ms);
                store_at = now.checked_sub(ago).map_or(store_at, |at| at.max(store_at));
                self.note(address, |known| {
                    *known = Known { clock: Some((line.clock, now)), ..Known::default() };
                });
                match (line.not_done, line.done) {
                    // the first copy of the frame may have been carried out
                    (Some(NotDone::Repeated), _) => {
                        return Err(SendError::no_answer("a frame of this number came before"));
                    }
                    (Some(reason), _) => return Err(SendError::NotDone(reason)),
                    (_, Some(done)) if done.fates.len() == wanted => return Ok(done),
                    (_, Some(_)) => return Err(SendError::no_answer("fates of other orders")),
                    _ => continue,
                }
            }
            let piece = tokio::select! {
                biased;
                piece = pieces.next() => piece,
                () = &mut over => return Err(SendError::no_answer("the holder lost the lock")),
                () = sleep_until((heard_at + SILENCE).min(store_at + patience)) => {
                    return Err(SendError::no_answer("neither holder nor store gave a sign"));
                }
            };
            let piece = piece.unwrap_or_else(|| Err("the answer ended early".into()));
            text.extend_from_slice(&piece.map_err(SendError::no_answer)?);
            if text.len() > MAX_BYTES {
                return Err(SendError::no_answer("the answer is too long"));
            }
        }
    }

    fn clock_at(&self, address: &str) -> Option<Clock> {
        let known = self.known.lock();
        let (clock, at) = known.get(address)?.clock.as_ref()?;
        let ms = clock.ms.saturating_add(millis(at.elapsed()));
        (at.elapsed() <= CLOCK_LIFE).then(|| Clock { of: clock.of.clone(), ms })
    }

    /// The number of the next frame, and the lowest number that waits for its answer.
    fn next_number(&self) -> (u64, u64) {
        let Numbers { latest, open } = &mut *self.sent.lock();
        *latest += 1;
        open.insert(*latest);
        (*latest, open.first().copied().unwrap_or(*latest))
    }

    /// Records that a frame has arrived. Refuses a number that has arrived before, or that its sender no longer waits for.
    fn accept(&self, frame: &Frame) -> Result<(), NotDone> {
        let mut senders = self.senders.lock();
        if senders.len() >= MAX_PEERS && !senders.contains_key(&frame.sender) {
            // forget silent senders: copies of their frames would be too late
            senders.retain(|_, sender| sender.last_at.elapsed() <= 2 * FRAME_LIFE);
            if senders.len() >= MAX_PEERS {
                return Err(NotDone::TooMany);
            }
        }
        let (numbers, last_at) = (BTreeSet::new(), Instant::now());
        let sender = Sender { lowest: 0, numbers, last_at };
        let sender = senders.entry(frame.sender.clone()).or_insert(sender);
        if sender.is_new(frame) { Ok(()) } else { Err(NotDone::Repeated) }
    }

    fn note(&self, address: &str, note: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock();
        if known.len() >= MAX_PEERS && !known.contains_key(address) {
            known.clear();
        }
        note(known.entry(address.into()).or_default());
    }

    fn clock(&self) -> Clock {
        Clock { of: self.process.clone(), ms: millis(self.began_at.elapsed()) }
    }

    /// Whether a frame may be older than [`FRAME_LIFE`]. Its sender took this process' clock from an answer, and has counted on
    /// since that answer arrived. The frame is at most as old as it says, unless this process' clock stood still. If it did, then
    /// after at most [`CLOCK_LIFE`] the sender's frames are ahead of this clock, or name no time: both count as late.
    fn is_late(&self, clock: Option<&Clock>) -> bool {
        let now = self.clock();
        let from = now.ms.saturating_sub(millis(FRAME_LIFE));
        let is_young = |clock: &Clock| clock.of == now.of && (from..=now.ms).contains(&clock.ms);
        !clock.is_some_and(is_young) && PEER_YOUNG.is_on()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Takes batches of peers: the sale of this instance.
pub trait Receiver: Send + Sync + 'static {
    /// Takes a batch, if this process holds the lock in exactly this tenure.
    ///
    /// # Errors
    /// The reason for which the instance carries out nothing of the batch.
    fn receive(&self, frame: Frame) -> Result<Received, NotDone>;
}

/// A batch of a peer that is under way. Dropping it drops the orders that were not sent to the store yet.
pub struct Received {
    /// Its fates.
    pub done: BoxFuture<'static, Done>,
    /// When the store answered last.
    pub store_answered_at: Box<dyn Fn() -> Instant + Send + Sync>,
}

/// The entrance for batches of peers.
#[derive(Clone)]
pub struct Door {
    /// This process.
    pub peers: Arc<Peers>,
    /// Carries the batches out.
    pub receiver: Arc<dyn Receiver>,
}

impl Door {
    /// The answer to a frame, line by line.
    pub fn answer(&self, frame: &[u8]) -> BoxStream<'static, Vec<u8>> {
        let peers = Arc::clone(&self.peers);
        let frame = Frame::read(frame).and_then(|frame| {
            peers.accept(&frame)?;
            let is_late = peers.is_late(frame.clock.as_ref());
            if is_late { Err(NotDone::TooLate) } else { self.receiver.receive(frame) }
        });
        let came_at = Instant::now();
        // `None` after the last line
        let lines = unfold(Some(frame), move |under_way| {
            let peers = Arc::clone(&peers);
            async move {
                let (mut store_ms, mut not_done, mut done, mut next) = (0, None, None, None);
                match under_way? {
                    Err(reason) => not_done = Some(reason),
                    Ok(mut received) => {
                        done = timeout(SIGN_EVERY, &mut received.done).await.ok();
                        if done.is_none() {
                            let since = (received.store_answered_at)().max(came_at);
                            store_ms = millis(since.elapsed());
                            next = Some(Ok(received));
                        }
                    }
                }
                let line = Line { clock: peers.clock(), store_ms, not_done, done };
                Some((line.write(), next))
            }
        });
        lines.boxed()
    }
}

#[cfg(test)]
mod tests {
    use fenced_lock::{ClusterId, Token};
    use futures_util::FutureExt as _;
    use futures_util::future::pending;
    use tokio::sync::mpsc;

    use super::wire::{Fate, any_order};
    use super::*;
    use crate::inventory::{Action, Inventory, Order, OrderId, Quantity, User, token_record};

    struct Holder {
        done: Mutex<Vec<BoxFuture<'static, Done>>>,
        numbers: mpsc::UnboundedSender<u64>,
        store_answered_at: Instant,
    }

    impl Receiver for Holder {
        fn receive(&self, frame: Frame) -> Result<Received, NotDone> {
            self.numbers.send(frame.number).expect("the test goes on");
            let at = self.store_answered_at;
            let done = self.done.lock().pop().ok_or(NotDone::NotTheHolder)?;
            Ok(Received { done, store_answered_at: Box::new(move || at) })
        }
    }

    /// A link within this process, which may delay frames.
    struct Direct {
        door: Door,
        takes: Duration,
        /// How many lines of an answer pass.
        lines: usize,
        /// Whether each frame arrives twice, and the sender gets the second answer.
        repeats: bool,
    }

    #[async_trait::async_trait]
    impl Link for Direct {
        async fn send(&self, _address: &str, frame: Text<'_>) -> Result<Pieces, LinkError> {
            let frame = frame();
            tokio::time::sleep(self.takes).await;
            let first = self.door.answer(&frame);
            let lines = if self.repeats { self.door.answer(&frame) } else { first };
            let lines = lines.map(Bytes::from).map(Ok);
            Ok(lines.take(self.lines).chain(futures_util::stream::pending()).boxed())
        }
    }

    fn done() -> Done {
        let fates = vec![Fate::Final("sold-out\t0".into())];
        Done { fates, watermark: Watermark::default() }
    }

    struct Nowhere;

    #[async_trait::async_trait]
    impl Link for Nowhere {
        async fn send(&self, _: &str, _: Text<'_>) -> Result<Pieces, LinkError> {
            Err(LinkError::NotSent("nowhere".into()))
        }
    }

    struct World {
        sender: Peers,
        holder: Arc<Peers>,
        numbers: mpsc::UnboundedReceiver<u64>,
        began_at: Instant,
    }

    impl World {
        fn new(done: Vec<BoxFuture<'static, Done>>, takes: Duration, lines: usize) -> Self {
            Self::repeating(done, takes, lines, false)
        }

        fn repeating(
            done: Vec<BoxFuture<'static, Done>>,
            takes: Duration,
            lines: usize,
            repeats: bool,
        ) -> Self {
            let (sent, numbers) = mpsc::unbounded_channel();
            let began_at = Instant::now();
            let receiver =
                Holder { done: Mutex::new(done), numbers: sent, store_answered_at: began_at };
            let peers = Arc::new(Peers::new("holder:1", Arc::new(Nowhere)));
            let door = Door { peers: Arc::clone(&peers), receiver: Arc::new(receiver) };
            let link = Direct { door, takes, lines, repeats };
            let sender = Peers::new("sender:1", Arc::new(link));
            Self { sender, holder: peers, numbers, began_at }
        }

        async fn send(&self) -> Result<Done, SendError> {
            let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 5) };
            let batch = Outgoing {
                address: "holder:1",
                tenure: &tenure,
                item: &Item::DEFAULT,
                instance: "8080",
                watermark: Watermark::default(),
                orders: vec![any_order()],
                patience: Duration::from_secs(5),
            };
            self.sender.send(batch, pending()).await
        }
    }

    /// Goal: a frame counts only while it is young by the holder's clock. A sender learns that clock from the first answer, even
    /// if the sender's own clock lags.
    #[tokio::test(start_paused = true)]
    async fn a_frame_must_be_young() {
        let ready = || async { done() }.boxed();
        let mut world = World::new(vec![ready(), ready()], Duration::ZERO, 9);
        let first = world.send().await;
        assert!(matches!(first, Err(SendError::NotDone(NotDone::TooLate))), "{first:?}");
        assert_eq!(world.send().await.expect("it is young"), done());
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(world.send().await.expect("the time that has passed counts"), done());
        assert_eq!((world.numbers.try_recv(), world.numbers.try_recv()), (Ok(2), Ok(3)));

        // the sender's copy of the clock is too old, or is ahead because the holder's clock stood still
        for (passes, ahead) in [(11, 0), (0, 1), (0, u64::MAX)] {
            let world = World::new(vec![ready(), ready()], Duration::ZERO, 9);
            assert!(world.send().await.is_err());
            assert!(world.send().await.is_ok());
            tokio::time::advance(Duration::from_secs(passes)).await;
            world.sender.note("holder:1", |known| {
                let (clock, _) = known.clock.as_mut().expect("an answer came");
                clock.ms = clock.ms.saturating_add(ahead);
            });
            let first = world.send().await;
            let case = format!("{passes} s, {ahead} ms ahead: {first:?}");
            assert!(matches!(first, Err(SendError::NotDone(NotDone::TooLate))), "{case}");
            assert!(world.send().await.is_ok(), "the answer set it right");
        }

        let mut slow =
            World::new(vec![ready()], FRAME_LIFE.saturating_sub(Duration::from_millis(1)), 9);
        for _ in 0..3 {
            tokio::time::advance(Duration::from_millis(9)).await;
            slow.sender.note("holder:1", |known| {
                if let Some((_, at)) = &mut known.clock {
                    // the sender's clock stood still for a while, as in a paused process
                    *at += Duration::from_millis(2);
                }
            });
            let sent = slow.send().await;
            assert!(matches!(sent, Err(SendError::NotDone(NotDone::TooLate))), "{sent:?}");
        }
        assert!(slow.numbers.try_recv().is_err(), "it was let in late");
    }

    /// Goal: when a frame arrives twice, the answer to the second copy does not tell the fate of the first.
    #[tokio::test(start_paused = true)]
    async fn an_answer_to_a_copy_tells_nothing() {
        let world = World::repeating(vec![async { done() }.boxed()], Duration::ZERO, 9, true);
        for _ in 0..2 {
            let sent = world.send().await;
            assert!(matches!(sent, Err(SendError::Link(LinkError::NoAnswer(_)))), "{sent:?}");
        }
    }

    /// Goal: the largest batch fits into what a door takes, and its answer into what a sender takes.
    #[test]
    fn the_largest_batch_fits() {
        // JSON needs two bytes for each letter
        let (name, long) = ("i".repeat(64), "\"".repeat(128));
        let token = Token::new(ClusterId(u64::MAX), i64::MAX);
        let order = Order {
            id: OrderId::new(&long).expect("an id"),
            item: name.parse().expect("an item"),
            quantity: Quantity::new(Quantity::MAX).expect("a quantity"),
            user: User::new(&long).expect("a user"),
            action: Action::Confirm,
        };
        let (number, key) = (u64::MAX, order.key());
        let entry = format!("{number}\t1000000\t{number}\t{}\t", token_record(token));
        let entry = format!("{entry}{name}#ffffffff@{name}\t{number}\t{key}");
        let of: Box<str> = random_id().to_string().into();
        let clock = Clock { of: of.clone(), ms: number };
        let watermark = [entry.clone(), entry.clone(), key, entry.clone()];
        let orders = vec![Forwarded::new(&order, u32::MAX, Some(token)); Inventory::MAX_BATCH];
        let tenure = Tenure { key: long.clone().into(), token };
        let fate = Fate::Final(format!("over\t{number}\t\nconfirmed\t{entry}"));
        let done = Done { fates: vec![fate; orders.len()], watermark: watermark.clone() };
        let frame = Frame::new(&order.item, &tenure, orders);
        let (number, lowest, clock, instance) = (number, number, Some(clock), name.into());
        let frame = Frame {
            sender: of,
            number,
            lowest,
            clock: clock.clone(),
            instance,
            watermark,
            ..frame
        };
        let done = Some(done);
        let line =
            Line { clock: clock.expect("it was set"), store_ms: number, not_done: None, done };
        for text in [frame.write(), line.write()] {
            assert!(text.len() > MAX_BYTES / 2, "the bound is not far away: {}", text.len());
            assert!(text.len() <= MAX_BYTES, "{}", text.len());
        }
    }

    /// Goal: a sender waits exactly as long as the holder says that its store answers. Method: a store that has never answered,
    /// or a link that falls silent after the first line.
    #[tokio::test(start_paused = true)]
    async fn patience_counts_from_the_last_sign() {
        let forever = || pending().boxed();
        for (lines, seconds) in [(usize::MAX, 5..=6), (1, 2..=3), (0, 2..=2)] {
            let world = World::new(vec![forever()], Duration::ZERO, lines);
            let clock = Clock { of: "?".into(), ms: 0 };
            world.sender.note("holder:1", |known| known.clock = Some((clock, Instant::now())));
            if lines > 0 {
                // the sender learns the clock
                assert!(matches!(world.send().await, Err(SendError::NotDone(NotDone::TooLate))));
            }
            let asked_at = Instant::now();
            let sent = world.send().await;
            let is_silent = matches!(sent, Err(SendError::Link(LinkError::NoAnswer(_))));
            assert!(is_silent, "{lines}: {sent:?}");
            let waited = asked_at.elapsed().as_secs();
            assert!(seconds.contains(&waited), "{lines} lines: {waited} s");
            assert!(world.began_at <= asked_at);
        }
    }

    /// Goal: a holder takes each frame once, whatever it answered, and takes no frame for which the sender has stopped waiting.
    #[tokio::test(start_paused = true)]
    async fn a_frame_is_taken_once() {
        const LATEST: u64 = 10 + NUMBERS as u64;
        let ready = || async { done() }.boxed();
        let (sent, _numbers) = mpsc::unbounded_channel();
        let done = (0..NUMBERS + 5).map(|_| ready()).collect();
        let receiver =
            Holder { done: Mutex::new(done), numbers: sent, store_answered_at: Instant::now() };
        let peers = Arc::new(Peers::new("holder:1", Arc::new(Nowhere)));
        let door = Door { peers, receiver: Arc::new(receiver) };
        let answer = async |sender: &str, number, lowest, is_late| {
            let mut clock = door.peers.clock();
            clock.ms += u64::from(is_late);
            let (sender, clock) = (sender.into(), Some(clock));
            let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 5) };
            let frame = Frame::new(&Item::DEFAULT, &tenure, vec![any_order()]);
            let frame = Frame { sender, number, lowest, clock, ..frame };
            let lines: Vec<_> = door.answer(&frame.write()).collect().await;
            serde_json::from_slice::<Line>(&lines[0]).expect("a line").not_done
        };
        let again = Some(NotDone::Repeated);
        for (number, lowest, answered) in [
            (8, 7, None),
            (8, 7, again),
            (7, 7, None),
            (9, 8, None),
            (7, 7, again),
            (12, 12, None),
            (10, 10, again),
        ] {
            assert_eq!(answer("a", number, lowest, false).await, answered, "{number}");
        }
        // a frame that is too late uses up its number, even for a copy that would be in time
        assert_eq!(answer("b", 1, 0, true).await, Some(NotDone::TooLate));
        tokio::time::advance(Duration::from_millis(5)).await;
        assert_eq!(answer("b", 1, 0, false).await, again);
        // more numbers than are remembered for a process
        for number in 10..=LATEST {
            assert_eq!(answer("c", number, 0, false).await, None);
        }
        for number in [1, 10, 10, 11, LATEST, 11, LATEST - 1] {
            assert_eq!(answer("c", number, 0, false).await, again, "{number}");
        }
        for sender in 3..MAX_PEERS {
            assert_eq!(answer(&sender.to_string(), 1, 0, false).await, Some(NotDone::NotTheHolder));
        }
        assert_eq!(answer("more", 1, 0, false).await, Some(NotDone::TooMany));
        tokio::time::advance(3 * FRAME_LIFE).await;
        let of_one_that_it_forgot = answer("more", 1, 0, false).await;
        assert_eq!(of_one_that_it_forgot, Some(NotDone::NotTheHolder), "a copy would be too late");
    }

    /// Goal: one incident makes an address rest once, however many batches it fails. A holder with a silent store does not rest:
    /// the holder gives signs of life.
    #[tokio::test(start_paused = true)]
    async fn one_incident_rests_an_address_once() {
        for (lines, rests) in [(usize::MAX, None), (0, Some(SILENT_RESTS.0))] {
            let pending = (0..30).map(|_| pending().boxed()).collect();
            let world = World::new(pending, Duration::ZERO, lines);
            for times in [1, 2] {
                tokio::time::advance(Duration::from_secs(1)).await;
                world.sender.note("holder:1", |known| {
                    known.clock = Some((world.holder.clock(), Instant::now()));
                });
                let sends = (0..10).map(async |number| {
                    tokio::time::sleep(Duration::from_millis(9 * number)).await;
                    world.send().await
                });
                let sent = futures_util::future::join_all(sends).await;
                assert!(sent.iter().all(Result::is_err), "{sent:?}");
                let until = world.sender.rests_until("holder:1");
                let rest = until.map(|until| until - Instant::now() + 9 * Duration::from_millis(9));
                assert_eq!(rest, rests.map(|rests| times * rests), "{lines} lines");
                tokio::time::advance(Duration::from_millis(200)).await;
            }
        }
    }

    /// Goal: a frame of another version is not done, whatever it contains.
    #[tokio::test]
    async fn another_format_is_refused() {
        let (sent, _numbers) = mpsc::unbounded_channel();
        let receiver =
            Holder { done: Mutex::default(), numbers: sent, store_answered_at: Instant::now() };
        let world = World::new(Vec::new(), Duration::ZERO, 9);
        let door = Door { peers: Arc::new(world.sender), receiver: Arc::new(receiver) };
        let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 5) };
        // it differs from a good frame in its version alone
        let frame = Frame::new(&Item::DEFAULT, &tenure, vec![any_order()]);
        let other = Frame { version: 0, ..frame }.write();
        for frame in [&b""[..], b"{}", b"{\"version\":0,\"item\":\"default\"}", b"\xff", &other] {
            let lines: Vec<_> = door.answer(frame).collect().await;
            let line: Line = serde_json::from_slice(&lines[0]).expect("a line");
            assert_eq!((lines.len(), line.not_done), (1, Some(NotDone::Format)));
        }
    }
}
