//! Orders between instances: batches that an instance sends to the one that holds the lock, and their fates.
//!
//! This module knows batches and fates, and nothing of routes or of the store: the [`wire`] is what is written, a [`Link`]
//! carries it, over HTTP/2 [as shipped](HttpLink), and a [`Door`] lets it in. What becomes of an order is one of three: it is
//! *final*, *not done*, or *unknown* under the token of that tenure. [`Peers::send`] sends a frame once, and so does a link.

mod door;
mod link;
pub mod wire;

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
use crate::safeguard::PEER_YOUNG;
use crate::sale::BoxError;

pub use door::{Doorkeeper, serve};
pub use link::HttpLink;

/// How often an answer that is not there yet has a line.
const SIGN_EVERY: Duration = Duration::from_millis(500);

/// How long the holder may give no sign at all.
const SILENCE: Duration = Duration::from_secs(2);

/// How old a frame may be when it arrives, by the holder's clock. A buyer who had no answer has not asked elsewhere for a
/// refusal before that: what comes later takes nothing.
pub(crate) const FRAME_LIFE: Duration = Duration::from_secs(2);

/// How long an address rests after a failure, and after many.
const REFUSED_RESTS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
const SILENT_RESTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The most bytes of a frame, and of an answer.
const MAX_BYTES: usize = 4 << 20;

/// How many addresses are remembered.
const MAX_ADDRESSES: usize = 256;

/// What carries frames. It sends none twice.
#[async_trait::async_trait]
pub trait Link: Send + Sync + 'static {
    /// Sends a frame to the door at this address. Returns the answer, piece by piece as it comes.
    ///
    /// # Errors
    /// [`LinkError`] says whether the frame may have arrived. An error in the middle of an answer says nothing of that.
    ///
    /// # Cancel safety
    /// The frame of a dropped call may arrive. When the answer is dropped, the door learns of it if it can.
    async fn send(&self, address: &str, frame: Vec<u8>) -> Result<Pieces, LinkError>;
}

/// An answer, piece by piece.
pub type Pieces = BoxStream<'static, Result<Bytes, BoxError>>;

/// Why a frame has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It did not arrive, and will not.
    #[error("it was not sent")]
    NotSent(#[source] BoxError),
    /// It may have arrived, or may arrive later.
    #[error("it was not answered")]
    NoAnswer(#[source] BoxError),
}

/// Why a batch that was sent has no fates.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing was carried out, and nothing will be.
    #[error("the holder did not carry it out: {0:?}")]
    NotDone(NotDone),
    /// It was not sent, or may have been carried out: the link says which.
    #[error("the holder was not reached, or did not answer")]
    Link(#[source] LinkError),
}

impl SendError {
    fn no_answer(why: impl Into<BoxError>) -> Self {
        Self::Link(LinkError::NoAnswer(why.into()))
    }
}

/// This process among its peers.
pub struct Peers {
    /// A name that no other process has.
    process: Box<str>,
    /// Where others reach it.
    address: Arc<str>,
    link: Arc<dyn Link>,
    began_at: Instant,
    next_number: AtomicU64,
    known: Mutex<HashMap<Box<str>, Known>>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What is known of an address.
#[derive(Default)]
struct Known {
    /// What the clock there said, and when.
    clock: Option<(Clock, Instant)>,
    /// How often it failed since its last sign.
    failures: u32,
    rests_until: Option<Instant>,
}

impl Known {
    /// The address rests for a pause that grows. A silence costs buyers far more than a connection that is refused.
    fn rest(&mut self, is_silent: bool) {
        let (first, most) = if is_silent { SILENT_RESTS } else { REFUSED_RESTS };
        let pause = first.saturating_mul(1 << self.failures.min(16)).min(most);
        self.failures += 1;
        self.rests_until = Some(Instant::now() + pause);
    }
}

/// A batch that leaves this instance.
pub struct Outgoing<'a> {
    /// Where the holder is.
    pub address: &'a str,
    /// Its tenure.
    pub tenure: &'a Tenure,
    /// What is sold.
    pub item: &'a Item,
    /// The name of this instance.
    pub instance: &'a str,
    /// What this instance remembers of the store.
    pub watermark: Watermark,
    /// At least one.
    pub orders: Vec<Forwarded>,
    /// How long the holder's store may give no sign: at least as long as one attempt of a batch may take.
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
            next_number: AtomicU64::new(1),
            known: Mutex::default(),
        }
    }

    /// Where others reach this process.
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Until when the address rests: it could not be reached.
    pub fn rests_until(&self, address: &str) -> Option<Instant> {
        let known = self.known.lock();
        known.get(address)?.rests_until.filter(|until| *until > Instant::now())
    }

    /// Sends a batch to the holder, once, and waits for its fates for as long as the holder gives signs: until `over`, which ends
    /// soon after the tenure.
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
        let address = batch.address;
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
            self.note(address, |known| known.rest(is_silent));
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
        let frame = Frame {
            sender: self.process.clone(),
            instance: instance.into(),
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            clock: self.clock_at(address),
            watermark,
            ..Frame::new(item, tenure, orders)
        };
        let (mut heard_at, mut over) = (Instant::now(), pin!(over));
        let mut store_at = heard_at;
        let sent = tokio::select! {
            biased;
            sent = self.link.send(address, frame.write()) => sent,
            () = &mut over => return Err(SendError::no_answer("the holder lost the lock")),
            () = sleep_until(heard_at + SILENCE) => {
                return Err(SendError::no_answer("the holder gave no sign"));
            }
        };
        let mut pieces = sent.map_err(SendError::Link)?;
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
                    // the other one may have been carried out
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
        Some(Clock { of: clock.of.clone(), ms: clock.ms + millis(at.elapsed()) })
    }

    fn note(&self, address: &str, note: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock();
        if known.len() >= MAX_ADDRESSES && !known.contains_key(address) {
            known.clear();
        }
        note(known.entry(address.into()).or_default());
    }

    fn clock(&self) -> Clock {
        Clock { of: self.process.clone(), ms: millis(self.began_at.elapsed()) }
    }

    /// Whether a frame may be older than it may get. The time that the sender knows is at most as late as the true one, so a
    /// frame is never younger than it says.
    fn is_late(&self, clock: Option<&Clock>) -> bool {
        let now = self.clock();
        let is_late = |clock: &Clock| clock.of != now.of || clock.ms + millis(FRAME_LIFE) < now.ms;
        clock.is_none_or(is_late) && PEER_YOUNG.is_on()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What takes batches that come from peers: the sale of this instance.
pub trait Receiver: Send + Sync + 'static {
    /// Takes a batch, if this process holds the lock in just this tenure.
    ///
    /// # Errors
    /// Why nothing of it is carried out.
    fn receive(&self, frame: Frame) -> Result<Received, NotDone>;
}

/// A batch of a peer that is under way. When it is dropped, what was not sent to the store yet is dropped as well.
pub struct Received {
    /// Its fates.
    pub done: BoxFuture<'static, Done>,
    /// When the store answered last.
    pub store_answered_at: Box<dyn Fn() -> Instant + Send + Sync>,
}

/// Where the batches of peers come in.
#[derive(Clone)]
pub struct Door {
    /// This process.
    pub peers: Arc<Peers>,
    /// What carries them out.
    pub receiver: Arc<dyn Receiver>,
}

impl Door {
    /// The answer to a frame, line by line.
    pub fn answer(&self, frame: &[u8]) -> BoxStream<'static, Vec<u8>> {
        let peers = Arc::clone(&self.peers);
        let frame = Frame::read(frame).and_then(|frame| {
            let is_late = peers.is_late(frame.clock.as_ref());
            if is_late { Err(NotDone::TooLate) } else { self.receiver.receive(frame) }
        });
        let came_at = Instant::now();
        // `None` behind the last line
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

    use super::wire::Fate;
    use super::*;
    use crate::inventory::{Order, OrderId, Quantity, User};

    /// A holder that answers with what the test gives it.
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

    /// A link within this process, which may be late.
    struct Direct {
        door: Door,
        takes: Duration,
        /// How much of an answer comes through.
        lines: usize,
    }

    #[async_trait::async_trait]
    impl Link for Direct {
        async fn send(&self, _address: &str, frame: Vec<u8>) -> Result<Pieces, LinkError> {
            tokio::time::sleep(self.takes).await;
            let lines = self.door.answer(&frame).map(Bytes::from).map(Ok);
            Ok(lines.take(self.lines).chain(futures_util::stream::pending()).boxed())
        }
    }

    fn done() -> Done {
        let fates = vec![Fate::Final("sold-out\t0".into())];
        Done { fates, watermark: Watermark::default() }
    }

    struct World {
        sender: Peers,
        numbers: mpsc::UnboundedReceiver<u64>,
        began_at: Instant,
    }

    impl World {
        fn new(done: Vec<BoxFuture<'static, Done>>, takes: Duration, lines: usize) -> Self {
            struct Nowhere;
            #[async_trait::async_trait]
            impl Link for Nowhere {
                async fn send(&self, _: &str, _: Vec<u8>) -> Result<Pieces, LinkError> {
                    Err(LinkError::NotSent("nowhere".into()))
                }
            }
            let (sent, numbers) = mpsc::unbounded_channel();
            let began_at = Instant::now();
            let receiver =
                Holder { done: Mutex::new(done), numbers: sent, store_answered_at: began_at };
            let peers = Arc::new(Peers::new("holder:1", Arc::new(Nowhere)));
            let door = Door { peers, receiver: Arc::new(receiver) };
            let sender = Peers::new("sender:1", Arc::new(Direct { door, takes, lines }));
            Self { sender, numbers, began_at }
        }

        async fn send(&self) -> Result<Done, SendError> {
            let order = Order {
                id: OrderId::new("a").expect("an id"),
                item: Item::DEFAULT,
                quantity: Quantity::ONE,
                user: User::default(),
                action: crate::inventory::Action::Reserve,
            };
            let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 5) };
            let batch = Outgoing {
                address: "holder:1",
                tenure: &tenure,
                item: &Item::DEFAULT,
                instance: "8080",
                watermark: Watermark::default(),
                orders: vec![Forwarded::new(&order, 1, None)],
                patience: Duration::from_secs(5),
            };
            self.sender.send(batch, pending()).await
        }
    }

    /// Goal: a frame counts only while it is young by the holder's clock, which a sender learns from the first answer, however
    /// slow the sender's own clock is to notice.
    #[tokio::test(start_paused = true)]
    async fn a_frame_must_be_young() {
        let ready = || async { done() }.boxed();
        let mut world = World::new(vec![ready(), ready()], Duration::ZERO, 9);
        let first = world.send().await;
        assert!(matches!(first, Err(SendError::NotDone(NotDone::TooLate))), "{first:?}");
        assert_eq!(world.send().await.expect("it is young"), done());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(world.send().await.expect("the time that has passed counts"), done());
        assert_eq!((world.numbers.try_recv(), world.numbers.try_recv()), (Ok(2), Ok(3)));

        let mut slow = World::new(vec![ready()], FRAME_LIFE - Duration::from_millis(1), 9);
        for _ in 0..3 {
            tokio::time::advance(Duration::from_millis(9)).await;
            slow.sender.note("holder:1", |known| {
                if let Some((_, at)) = &mut known.clock {
                    // a clock that stood for a while, as that of a paused process
                    *at += Duration::from_millis(2);
                }
            });
            let sent = slow.send().await;
            assert!(matches!(sent, Err(SendError::NotDone(NotDone::TooLate))), "{sent:?}");
        }
        assert!(slow.numbers.try_recv().is_err(), "it was let in late");
    }

    /// Goal: a sender waits for as long as the holder gives signs that its store answers, and no longer. Method: a store that has
    /// not answered since the beginning, or a link that falls silent behind the first line.
    #[tokio::test(start_paused = true)]
    async fn patience_counts_from_the_last_sign() {
        let forever = || pending().boxed();
        for (lines, seconds) in [(usize::MAX, 5..=6), (1, 2..=3), (0, 2..=2)] {
            let world = World::new(vec![forever()], Duration::ZERO, lines);
            let clock = Clock { of: "?".into(), ms: 0 };
            world.sender.note("holder:1", |known| known.clock = Some((clock, Instant::now())));
            if lines > 0 {
                // it learns the clock
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

    /// Goal: what is not a frame of this version is not done, whatever else it has.
    #[tokio::test]
    async fn another_format_is_refused() {
        let (sent, _numbers) = mpsc::unbounded_channel();
        let receiver =
            Holder { done: Mutex::default(), numbers: sent, store_answered_at: Instant::now() };
        let world = World::new(Vec::new(), Duration::ZERO, 9);
        let door = Door { peers: Arc::new(world.sender), receiver: Arc::new(receiver) };
        for frame in [&b""[..], b"{}", b"{\"version\":2,\"item\":\"default\"}", b"\xff"] {
            let lines: Vec<_> = door.answer(frame).collect().await;
            let line: Line = serde_json::from_slice(&lines[0]).expect("a line");
            assert_eq!((lines.len(), line.not_done), (1, Some(NotDone::Format)));
        }
    }
}
