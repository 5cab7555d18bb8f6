//! The sale on top of the lock: instances that sell, buyers that order, pay, leave and repeat, and the load test's judge.

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fenced_lock::{SessionKeeper, SessionOptions, Token};
use flash_sale::inventory::{
    Accepted, Action, Entry, Event, Inventory, InventoryOptions, Item, LedgerPosition, NewSale,
    Order, OrderId, Outcome, Quantity, Replaces, Replicas, Started, Stock, Terms, User,
};
use flash_sale::peers::Peers;
use flash_sale::sale::{Sale, SaleError, SaleOptions};
use loadtest::Limits;
use serde_json::{Value, json};
use simulator::{Chance, Refusal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::Setup;
use crate::faults::{Fault, Faults, Times};
use crate::link::{FRAME_LIFE, SimulatedLink};
use crate::locks::{Client, LockService, Truth};
use crate::process::{Scheduler, Simulated};
use crate::shop::{self, BEGIN, SNAPSHOTS, Shop};
use crate::trace::{
    Rare, count, happened, has_happened, is_violated, left_over, locked, note, too_late, violation,
};

/// How long a decision may take beside the TTL.
const GRACE: Duration = Duration::from_secs(2);

const RUN: &str = "r";

/// More entries than the store can lose.
const LONGEST_LEDGER: u64 = 100;

/// The second sale.
const NEXT: &str = "next";

/// The parameters of a run.
#[derive(Debug)]
pub struct Shape {
    instances: usize,
    ttl: Duration,
    latency: u64,
    units: u64,
    quantity: u32,
    buyers: u64,
    orders: u64,
    batch_size: usize,
    queue_length: usize,
    wait_timeout: Duration,
    response_timeout: Duration,
    users: Option<usize>,
    terms: Terms,
    /// Whether a write waits for a replica.
    is_replicated: bool,
    pause: u64,
    /// When the next sale is started, if one is.
    next_sale_in: Option<Duration>,
    faults_last: Duration,
    /// Which instances have peers.
    peers: Vec<bool>,
    /// Whether buyers pay. If they do not, all units come back.
    pays: bool,
    /// The longest pause between two faults, in milliseconds, and how many of the instances have faults.
    calm: u64,
    victims: usize,
}

impl Shape {
    fn new(chance: &mut Chance) -> Self {
        let ttl = *chance.pick(&[300, 1000, 3000]);
        let users = chance.one_in(3).then(|| *chance.pick(&[1, 2, 5]));
        let terms = Terms {
            hold_seconds: chance.one_in(2).then(|| *chance.pick(&[1, 1, 2, 5])),
            per_user: users.filter(|_| chance.one_in(2)).map(|_| *chance.pick(&[1, 2, 3])),
            ..Terms::default()
        };
        let instances = *chance.pick(&[1, 2, 2, 3, 4]);
        Self {
            instances,
            pays: true,
            calm: 300,
            victims: instances,
            ttl: Duration::from_millis(ttl),
            latency: *chance.pick(&[1, 1, 3, 10]),
            units: *chance.pick(&[0, 1, 2, 3, 5, 5, 20, 50]),
            quantity: *chance.pick(&[1, 1, 1, 2]),
            buyers: chance.between(1, 6),
            orders: chance.between(1, 8),
            batch_size: *chance.pick(&[1, 2, 3, 100]),
            queue_length: *chance.pick(&[1, 2, 100, 100]),
            wait_timeout: Duration::from_millis(*chance.pick(&[500, 2000, 5000])),
            response_timeout: Duration::from_millis(*chance.pick(&[200, 500])),
            users,
            terms,
            is_replicated: chance.one_in(4),
            pause: *chance.pick(&[0, 20, 200]),
            next_sale_in: chance.one_in(4).then(|| chance.millis(0, 3 * ttl)),
            faults_last: if chance.one_in(4) {
                chance.millis(6000, 12_000)
            } else {
                chance.millis(ttl, 6 * ttl)
            },
            peers: {
                let share = *chance.pick(&[0, 1000, 1000, 700]);
                (0..4).map(|_| chance.per_mille(share)).collect()
            },
        }
    }

    /// How soon an instance decides an order, unless something keeps the instance from it. Before this instance, each other one
    /// may try in vain to reach the store.
    fn decides_within(&self) -> Duration {
        let others = u32::try_from(self.instances - 1).unwrap_or(u32::MAX);
        self.ttl + GRACE + self.response_timeout * 2 + self.response_timeout * 4 * others
    }

    /// How soon an instance stops. A batch that has begun ends, and the session may repeat its requests.
    fn stops_within(&self) -> Duration {
        self.ttl * 3 + self.response_timeout * 6 + Duration::from_secs(1)
    }

    /// How long the service may still carry out an order after its buyer gave it up, in microseconds. `None` if calls of the
    /// store may take long, or processes may stand still.
    fn over_in(&self, faults: &BTreeSet<Fault>) -> Option<u64> {
        let holds_up = |fault: &Fault| {
            fault.is_of_store() || matches!(fault, Fault::Paused | Fault::PausedBriefly)
        };
        let limit = FRAME_LIFE + self.wait_timeout + self.response_timeout;
        (!faults.iter().any(holds_up)).then_some(limit.as_micros() as u64)
    }

    /// How long an order may take at an instance that runs.
    fn longest(&self) -> Duration {
        self.wait_timeout * 2 + self.response_timeout * 6 + Duration::from_secs(1)
    }
}

/// Stories: every fourth seed tells one. A story has faults of its own, and the shape in which these faults do harm.
pub const STORIES: &[Story] = &[
    // one instance does not reach the store, for longer than an order may wait
    (&[Fault::StoreCutOff], |shape| {
        shape.be_patient(2, 300);
        (shape.buyers, shape.orders, shape.units, shape.pause) = (6, 8, 50, 1000);
        (shape.victims, shape.faults_last) = (1, Duration::from_secs(8));
    }),
    // the store refuses to write
    (&[Fault::StoreFull], |shape| {
        shape.be_patient(2, 300);
        (shape.buyers, shape.orders, shape.units, shape.batch_size) = (6, 8, 50, 100);
        shape.faults_last = Duration::from_secs(12);
    }),
    // an attempt arrives after its order was answered and units have come back
    (&[Fault::StoreRequestLate], |shape| {
        shape.be_patient(1, 3000);
        (shape.buyers, shape.orders, shape.units) = (6, 8, shape.units.clamp(1, 3));
        (shape.terms.hold_seconds, shape.terms.per_user) = (Some(1), None);
        shape.next_sale_in = None;
    }),
    // the same, with an attempt under a second token
    (&[Fault::StoreRequestLate, Fault::OtherProgram], |shape| {
        shape.be_patient(1, 1000);
        (shape.calm, shape.faults_last) = (2000, Duration::from_secs(8));
        (shape.buyers, shape.orders, shape.units) = (6, 8, shape.units.clamp(1, 3));
        (shape.terms.hold_seconds, shape.terms.per_user) = (Some(1), None);
        shape.next_sale_in = None;
    }),
    // orders with an unknown outcome wait until the next sale begins
    (&[Fault::StoreAnswerLost], |shape| {
        shape.be_patient(3, 1000);
        (shape.buyers, shape.orders, shape.units) = (6, 6, 50);
        shape.next_sale_in = Some(shape.next_sale_in.unwrap_or(shape.ttl));
    }),
    // orders with an unknown outcome wait, and the store refuses to write
    (&[Fault::StoreAnswerLost, Fault::StoreFull], |shape| {
        shape.be_patient(3, 1000);
        (shape.buyers, shape.units) = (6, 50);
    }),
    // an order gets two changes, and the first one is not answered
    (&[Fault::StoreRequestLost], |shape| {
        shape.be_patient(1, 1000);
        (shape.batch_size, shape.units, shape.orders) = (1, 50, 8);
        (shape.terms.hold_seconds, shape.next_sale_in) = (Some(5), None);
    }),
    // an instance stops, and the store does not answer
    (&[Fault::Stopped, Fault::StoreSilent, Fault::StoreCutOff], |shape| {
        shape.be_patient(2, 300);
        (shape.buyers, shape.orders) = (6, 8);
    }),
    // a holder stands still
    (&[Fault::Paused, Fault::StoreRequestLate], |shape| {
        shape.be_patient(2, 300);
        (shape.buyers, shape.orders, shape.units) = (6, 8, 50);
    }),
    // orders wait for the lock, and some of them were sent before
    (&[Fault::StoreCutOff], |shape| {
        shape.be_patient(2, 300);
        (shape.buyers, shape.orders, shape.units, shape.batch_size) = (6, 8, 50, 1);
        (shape.terms.hold_seconds, shape.wait_timeout) = (Some(5), Duration::from_secs(2));
        shape.faults_last = Duration::from_secs(12);
    }),
    // the store is silent for longer than an order may wait
    (&[Fault::StoreSilent], |shape| {
        shape.be_patient(1, 3000);
        shape.wait_timeout = Duration::from_millis(500);
        (shape.buyers, shape.orders, shape.units) = (6, 8, 50);
        shape.faults_last = Duration::from_secs(12);
    }),
    // a batch for the holder comes again, after its orders were answered and units have come back
    (&[Fault::FrameTwice], |shape| shape.be_linked(2, true)),
    // the link breaks, and a batch for the holder comes late, after its sender has died
    (&[Fault::FrameLate, Fault::LinkCut, Fault::Killed], |shape| {
        shape.be_linked(2, true);
        (shape.victims, shape.calm, shape.pause) = (1, 2000, 200);
        (shape.ttl, shape.wait_timeout) = (Duration::from_secs(3), Duration::from_millis(500));
        shape.faults_last = Duration::from_secs(12);
    }),
    // a batch for the holder is not answered, and comes again after units have come back
    (&[Fault::FrameLost, Fault::FatesLost, Fault::LinkRefused], |shape| shape.be_linked(2, true)),
    // the link breaks, or instances end, and the next sale begins
    (&[Fault::FatesLost, Fault::LinkCut, Fault::Killed, Fault::Stopped], |shape| {
        shape.be_linked(4, false);
        shape.next_sale_in = Some(shape.next_sale_in.unwrap_or(shape.ttl));
    }),
    // the holder's store is slow
    (&[Fault::StoreSlow], |shape| shape.be_linked(3, false)),
];

/// The story of one run in eight: a replica that is behind takes over.
const FAILOVER: Story = (&[Fault::ReplicaBehind, Fault::StoreFailedOver], |shape| {
    shape.be_patient(2, 1000);
    (shape.buyers, shape.orders, shape.units, shape.pause) = (6, 8, 50, 200);
    shape.is_replicated = true;
});

pub type Story = (&'static [Fault], fn(&mut Shape));

impl Shape {
    /// Gives the run this many instances, at which orders may wait for long, in queues with room.
    fn be_patient(&mut self, instances: usize, ttl: u64) {
        (self.instances, self.victims, self.queue_length) = (instances, instances, 100);
        (self.ttl, self.response_timeout) =
            (Duration::from_millis(ttl), Duration::from_millis(200));
        self.wait_timeout = Duration::from_secs(5);
    }

    /// Gives the run this many instances, which send their orders to the holder. A scarce sale has few units, which come back
    /// soon.
    fn be_linked(&mut self, instances: usize, is_scarce: bool) {
        self.be_patient(instances, 1000);
        self.peers.fill(true);
        (self.buyers, self.orders, self.units) = (6, 8, 50);
        (self.next_sale_in, self.faults_last) = (None, Duration::from_secs(8));
        if is_scarce {
            (self.terms.hold_seconds, self.terms.per_user) = (Some(1), None);
            (self.units, self.pays) = (2, false);
        }
    }
}

pub struct World {
    shape: Shape,
    scheduler: Arc<Scheduler>,
    pub network: Arc<Simulated>,
    locks: Arc<LockService>,
    shop: Arc<Shop>,
    pub faults: Arc<Faults>,
    began_at: Instant,
    state: Mutex<State>,
    lives: AtomicU64,
    buyers: AtomicU64,
    /// For each process: its batches on the way, of a peer or for one; and the calls for orders that it has not answered. Each
    /// has a number of its own.
    busy: Mutex<BTreeMap<(String, Busy), BTreeSet<u64>>>,
    works: AtomicU64,
}

/// The work that a process can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Busy {
    Frame,
    Call,
}

/// One piece of work of a process, until this is dropped.
pub struct IsBusy(Arc<World>, (String, Busy), u64);

impl Drop for IsBusy {
    fn drop(&mut self) {
        if let Some(works) = locked(&self.0.busy).get_mut(&self.1) {
            works.remove(&self.2);
        }
    }
}

struct State {
    chance: Chance,
    /// The instances by number; `None` while an instance is down.
    instances: Vec<Option<Running>>,
    /// The attempts, as the load test records them.
    record: Vec<Value>,
    attempts: Vec<Attempt>,
    next_order: u64,
    /// The changes about which the operator was told: the place of the entry, or `None` for a change that was refused.
    changes: BTreeMap<String, Option<u64>>,
    /// For each instance: since when it has decided none of the orders that it got, and when it last decided one.
    decisions: Vec<(Option<Instant>, Option<Instant>)>,
}

/// An attempt, for the judge: each entry of the ledger must belong to an attempt that may have been done.
struct Attempt {
    order: String,
    action: Action,
    /// The number of the instance that it was sent to.
    to: usize,
    sent: u64,
    may_be_done: bool,
    /// When it ended with an unknown outcome, if it did. Soon after that, nothing is done for it.
    given_up: Option<u64>,
    /// If it was accepted, and is no repetition: the place of its entry, and the instance that wrote the entry.
    told: Option<(u64, String)>,
}

/// One life of an instance.
struct Running {
    process: Arc<Simulated>,
    keeper: Option<SessionKeeper>,
    sale: Option<Sale>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let (sale, keeper) = (self.sale.take(), self.keeper.take());
        if sale.as_ref().is_some_and(|sale| sale.lost_sessions() > 0) {
            happened(Rare::SessionLost);
        }
        self.process.run(|| drop((sale, keeper)));
    }
}

/// Why an instance gave no answer.
#[derive(Clone, Copy)]
enum NoAnswer {
    /// Nobody listens at its address.
    Refused,
    /// The connection broke.
    Broken,
    /// The buyer went away.
    Left,
}

impl NoAnswer {
    fn recorded(self) -> Value {
        let (outcome, why) = match self {
            Self::Refused => ("failed", "connection refused"),
            Self::Broken => ("unknown", "connection closed"),
            Self::Left => ("unknown", "client went away"),
        };
        json!({ "outcome": outcome, "why": why, "final": false })
    }
}

impl World {
    fn chance(&self) -> Chance {
        locked(&self.state).chance.fork()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began_at.elapsed().as_micros()).unwrap_or_default()
    }

    fn start(self: &Arc<Self>, number: usize) {
        let life = self.lives.fetch_add(1, Ordering::Relaxed);
        let name = format!("p{number}.{life}");
        note(&name, || "starts".into());
        let process = Simulated::new(name.clone(), self.chance(), &self.scheduler);
        self.faults.delays(Some(&name), Instant::now());
        let (keeper, sale) = process.run(|| {
            let backend = Client::start(&self.locks, &process);
            let options = SessionOptions::new(self.shape.ttl).label(name.clone());
            let keeper = SessionKeeper::start(backend as _, options);
            let times = InventoryOptions {
                connect_timeout: self.shape.response_timeout,
                response_timeout: self.shape.response_timeout,
            };
            let inventory = Inventory::over(self.shop.streams(&process), times);
            let mut inventory = inventory.expect("the address is valid");
            if self.shape.is_replicated {
                let timeout = Duration::from_millis(50);
                inventory = inventory.with_replicas(Replicas { count: 1, timeout });
            }
            let options = SaleOptions {
                lock_name: "stock".into(),
                instance: name,
                queue_length: self.shape.queue_length,
                batch_size: self.shape.batch_size,
                tenure: Duration::from_millis(100),
                wait_timeout: self.shape.wait_timeout,
                etcd: None,
                peers: self.shape.peers[number].then(|| {
                    let (world, from) = (Arc::downgrade(self), process.name.clone());
                    let link = SimulatedLink { world, number, from };
                    Arc::new(Peers::new(&format!("p{number}"), Arc::new(link)))
                }),
            };
            (keeper.clone(), Sale::guarded(inventory, keeper, options))
        });
        let running = Running { process, keeper: Some(keeper), sale: Some(sale) };
        locked(&self.state).instances[number] = Some(running);
    }

    /// Ends an instance with all that it has in memory, and starts it again after so long.
    async fn end(self: &Arc<Self>, number: usize, process: &Arc<Simulated>, after: Duration) {
        note(&process.name, || "ends".into());
        process.kill();
        let is_it = |running: &mut Running| running.process.name == process.name;
        let gone = locked(&self.state).instances[number].take_if(is_it);
        let Some(gone) = gone else { return };
        drop(gone);
        sleep(after).await;
        self.start(number);
    }

    /// Ends the sender of a frame while the frame is on its way.
    pub fn end_sender(self: &Arc<Self>, number: usize, after: Duration) {
        let Some((process, sale)) = self.instance(number) else { return };
        process.run(|| drop(sale));
        process.disturb();
        self.faults.delays(None, Instant::now());
        count(Fault::Killed.name());
        happened(Rare::KilledAsItsLinkBroke);
        note("fault", || format!("{} ({}), as its link broke", Fault::Killed.name(), process.name));
        let world = Arc::clone(self);
        self.network.spawn(async move { world.end(number, &process, after).await });
    }

    /// How long a message takes from one instance to another.
    pub fn latency(&self) -> Duration {
        locked(&self.state).chance.millis(0, self.shape.latency)
    }

    /// Whether an instance listens.
    pub fn is_up(&self, number: usize) -> bool {
        locked(&self.state).instances[number].is_some()
    }

    pub fn instance(&self, number: usize) -> Option<(Arc<Simulated>, Sale)> {
        let state = locked(&self.state);
        let running = state.instances[number].as_ref()?;
        Some((Arc::clone(&running.process), running.sale.clone()?))
    }

    /// Judges a sender that no longer waits for the answer to its frame. The sender must wait while the lock is held and nothing
    /// but a slow store delays the answer.
    pub fn judge_of_patience(self: &Arc<Self>, frame: &[u8]) -> impl FnOnce() + Send + use<> {
        let is_slow = |fault: &Fault| *fault == Fault::StoreSlow;
        let frame: Value = serde_json::from_slice(frame).unwrap_or_default();
        let key = frame["tenure"]["key"].as_str().unwrap_or_default().to_owned();
        let (world, judges) = (Arc::downgrade(self), self.faults.allowed().iter().all(is_slow));
        move || {
            let Some(world) = world.upgrade().filter(|_| judges) else { return };
            if world.locks.truth("stock", &key) == Truth::Holds {
                violation(format!("a peer gave {key} up, whose store is slow"));
            }
        }
    }

    /// Notes that this process has a batch of a peer, or for one, until the returned value is dropped.
    pub fn has_frame(self: &Arc<Self>, who: &str) -> IsBusy {
        self.is_busy(who, Busy::Frame)
    }

    fn is_busy(self: &Arc<Self>, who: &str, with: Busy) -> IsBusy {
        let (what, number) = ((who.to_owned(), with), self.works.fetch_add(1, Ordering::Relaxed));
        locked(&self.busy).entry(what.clone()).or_default().insert(number);
        IsBusy(Arc::clone(self), what, number)
    }

    /// The numbers of the work that a process has.
    fn works_of(&self, who: &str, with: Busy) -> BTreeSet<u64> {
        locked(&self.busy).get(&(who.to_owned(), with)).cloned().unwrap_or_default()
    }

    /// Sends a call to an instance. If the caller leaves, the call is dropped, as the handler of a client that leaves.
    async fn call<R: Send + 'static, F>(
        self: &Arc<Self>,
        to: usize,
        patience: Duration,
        call: impl FnOnce(Sale) -> F,
    ) -> Result<R, NoAnswer>
    where
        F: Future<Output = R> + Send + 'static,
    {
        let there = locked(&self.state).chance.millis(0, self.shape.latency);
        sleep(there).await;
        let Some((process, sale)) = self.instance(to) else { return Err(NoAnswer::Refused) };
        let (mut answer, answered) = oneshot::channel();
        let (work, is_busy) = (call(sale), self.is_busy(&process.name, Busy::Call));
        process.spawn(async move {
            let _is_busy = is_busy;
            tokio::select! {
                biased;
                () = answer.closed() => {}
                done = work => drop(answer.send(done)),
            }
        });
        match timeout(patience, answered).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(NoAnswer::Broken),
            Err(_) => Err(NoAnswer::Left),
        }
    }
}

/// The promised times.
impl World {
    /// Notes that an instance decided an order, if it did so. The order may be anybody's.
    fn note_decision(&self, number: usize, said: &Result<Outcome, SaleError>) {
        let is_decided = match said {
            Ok(_) => true,
            Err(error) => error.word() == "sale-replaced",
        };
        if is_decided {
            locked(&self.state).decisions[number] = (None, Some(Instant::now()));
        }
    }

    /// Checks the times of an answer for which the buyer waited.
    fn check_times(
        &self,
        number: usize,
        process: &Simulated,
        sent_at: Instant,
        said: Option<&Result<Outcome, SaleError>>,
    ) {
        let (now, longest) = (Instant::now(), self.shape.longest());
        let disturbed = process.disturbed_at().unwrap_or(sent_at);
        let (took, name) = (sent_at.elapsed(), &process.name);
        let since = {
            let (undecided_since, decided_at) = &mut locked(&self.state).decisions[number];
            let since = undecided_since.unwrap_or(sent_at).max(decided_at.unwrap_or(sent_at));
            undecided_since.get_or_insert(sent_at);
            since
        };
        if let Some(said) = said {
            self.note_decision(number, said);
        }
        if !process.is_running() {
            return;
        }
        if took > longest && disturbed <= sent_at {
            too_late(&format!("an order waited for {took:?} at {name}, {longest:?} are allowed"));
        }
        let within = self.shape.decides_within();
        let [answers, decides] = self.faults.well_since(name, sent_at.min(since));
        if disturbed.max(sent_at).max(answers) + within < now {
            too_late(&format!("an order had no answer at {name} for more than {within:?}"));
        }
        if disturbed.max(since).max(decides) + within < now {
            too_late(&format!("{name} decided no order for more than {within:?}"));
        }
    }
}

/// The status and the type of a problem, whether it is final, and whether it says that nothing was done.
fn problem(said: &Result<Outcome, SaleError>) -> (u16, &'static str, bool, bool) {
    match said {
        Ok(Outcome::SoldOut { .. }) => (409, "sold-out", true, true),
        Ok(Outcome::AllHeld { .. }) => (409, "all-held", false, true),
        Ok(Outcome::Paused) => (409, "paused", false, true),
        Ok(Outcome::LimitReached { .. }) => (409, "limit-reached", true, true),
        Ok(Outcome::Final) => (409, "order-final", true, true),
        Ok(Outcome::NotConfirmed) => (409, "not-confirmed", true, true),
        Ok(Outcome::Conflict) => (422, "order-conflict", true, true),
        Ok(Outcome::Unknown) => (404, "unknown-order", true, true),
        Ok(Outcome::Over { event: Event::Cancelled, .. }) => (410, "cancelled", true, true),
        Ok(Outcome::Over { event: Event::Returned, .. }) => (410, "returned", true, true),
        Ok(Outcome::Over { .. }) => (410, "expired", true, true),
        Ok(_) => (500, "internal", true, false),
        Err(SaleError::OutcomeUnknown { .. }) => (503, "outcome-unknown", false, false),
        // the earlier sale may have accepted it
        Err(error) if error.word() == "sale-replaced" => (409, "sale-replaced", false, false),
        Err(error) => (503, error.word(), false, true),
    }
}

/// The event that a change asks for, as the record names it.
fn event_of(change: Action) -> &'static str {
    match change {
        Action::Confirm => "confirmed",
        Action::Cancel => "cancelled",
        Action::Return => "returned",
        _ => "reserved",
    }
}

fn accepted(said: &Result<Outcome, SaleError>) -> Option<(&Accepted, bool)> {
    match said {
        Ok(Outcome::Reserved(entry)) => Some((entry, false)),
        Ok(Outcome::Repeated(entry)) => Some((entry, true)),
        Ok(Outcome::Changed { change, is_repeated }) => Some((change, *is_repeated)),
        _ => None,
    }
}

fn order(id: &str, user: &str, quantity: u32, action: Action) -> Order {
    Order {
        id: OrderId::new(id).expect("a valid id"),
        item: Item::DEFAULT,
        quantity: Quantity::new(quantity).expect("a valid quantity"),
        user: User::new(user).expect("a valid user"),
        action,
    }
}

/// A buyer, who makes one order after the other.
struct Buyer {
    world: Arc<World>,
    chance: Chance,
    name: String,
    /// When the hold of its order ends.
    hold_ends: Option<u64>,
}

impl Buyer {
    async fn run(mut self) {
        for _ in 0..self.world.shape.orders {
            if is_violated() {
                break;
            }
            let pause = self.chance.millis(0, self.world.shape.pause);
            sleep(pause).await;
            self.order().await;
        }
        self.world.buyers.fetch_sub(1, Ordering::Relaxed);
    }

    fn user(&self, number: u64) -> String {
        let users = self.world.shape.users.and_then(|users| number.checked_rem(users as u64));
        users.map(|user| format!("{RUN}-u{user}")).unwrap_or_default()
    }

    /// Orders until there is a decision; then pays, gives back or asks again.
    async fn order(&mut self) {
        if self.world.shape.terms.hold_seconds.is_some() && self.chance.one_in(8) {
            return self.regret().await;
        }
        let number = {
            let mut state = locked(&self.world.state);
            state.next_order += 1;
            state.next_order - 1
        };
        let is_abandoned = self.chance.one_in(20);
        let Some(first) = self.decide(number, None, is_abandoned).await else { return };
        let Some((entry, _)) = accepted(&first) else { return };
        let entry = entry.clone();
        // in the next sale, the same id is another order
        let is_one_sale = self.world.shape.next_sale_in.is_none();
        if self.chance.one_in(6) && is_one_sale {
            self.send_another_payload(number).await;
        }
        if self.chance.one_in(4) {
            let again = self.decide(number, Some(Action::Reserve), false).await;
            if is_one_sale
                && again.is_some_and(|again| {
                    accepted(&again).is_some_and(|(again, _)| again.position != entry.position)
                })
            {
                violation(format!("{RUN}-{number} was accepted twice"));
            }
        }
        let Some(hold) = self.world.shape.terms.hold_seconds else { return };
        let hold = u64::from(hold) * 1000;
        let hold_ends = entry.hold_until.map_or(0, |until| until.micros() - BEGIN);
        self.hold_ends = Some(hold_ends);
        let latency = self.world.shape.latency;
        let pause = match self.chance.below(6) {
            0 => self.chance.between(hold * 8 / 10, hold * 12 / 10),
            // so that the change arrives about when the hold ends
            1 => (hold_ends.saturating_sub(self.world.now()) / 1000 + self.chance.below(3))
                .saturating_sub(self.chance.below(2 * latency + 2)),
            _ => 0,
        };
        match self.chance.below(6) {
            0..3 => {
                sleep(Duration::from_millis(pause)).await;
                let pays = !self.chance.one_in(3) && self.world.shape.pays;
                let action = if pays { Action::Confirm } else { Action::Cancel };
                let said = self.decide(number, Some(action), false).await;
                let is_confirmed = said.is_some_and(|said| {
                    accepted(&said).is_some_and(|(entry, _)| entry.event == Event::Confirmed)
                });
                if is_confirmed && self.chance.one_in(4) {
                    self.decide(number, Some(Action::Return), false).await;
                }
                if self.chance.one_in(4) && self.world.shape.pays {
                    let other =
                        if self.chance.one_in(2) { Action::Cancel } else { Action::Confirm };
                    if other != action {
                        self.decide(number, Some(other), false).await;
                    }
                }
            }
            3 if self.world.shape.pays => self.oppose(number).await,
            _ => {}
        }
    }

    /// Sends the same id with another quantity, which must be refused.
    async fn send_another_payload(&mut self, number: u64) {
        let to = self.chance.index(self.world.shape.instances);
        let order = self.make(number, Action::Reserve, self.world.shape.quantity + 1);
        let patience = self.world.shape.longest() * 2;
        let said =
            self.world.call(to, patience, |sale| async move { sale.reduce(order).await }).await;
        if let Ok(said) = &said {
            self.world.note_decision(to, said);
        }
        if let Ok(Ok(Outcome::Reserved(_) | Outcome::Repeated(_))) = said {
            violation(format!("{RUN}-{number} was accepted with another quantity"));
        } else if let Ok(Ok(Outcome::Conflict)) = said {
            count("ids that came again with another payload");
        }
    }

    fn make(&self, number: u64, action: Action, quantity: u32) -> Order {
        order(&format!("{RUN}-{number}"), &self.user(number), quantity, action)
    }

    /// Asks until there is a definite answer. `None` if the buyer gives up.
    async fn decide(
        &mut self,
        number: u64,
        change: Option<Action>,
        is_abandoned: bool,
    ) -> Option<Result<Outcome, SaleError>> {
        let world = Arc::clone(&self.world);
        let mut to = self.chance.index(world.shape.instances);
        let started_at = Instant::now();
        // a buyer who is told to come back later does so less and less often
        let mut longest_pause = 200;
        loop {
            let (sent, sent_at) = (world.now(), Instant::now());
            let leaves = is_abandoned || self.chance.one_in(10);
            let patience = world.shape.longest() * 3;
            let patience = if leaves { self.chance.millis(0, 100) } else { patience };
            let order = self.make(number, change.unwrap_or_default(), world.shape.quantity);
            let process =
                locked(&world.state).instances[to].as_ref().map(|it| Arc::clone(&it.process));
            let said =
                world.call(to, patience, |sale| async move { sale.reduce(order).await }).await;
            let is_final = self.record(number, change, to, (sent, world.now()), &said);
            let is_waited_for = !matches!(said, Err(NoAnswer::Refused | NoAnswer::Broken));
            if let Some(process) = process.filter(|_| is_waited_for && !leaves) {
                world.check_times(to, &process, sent_at, said.as_ref().ok());
            } else if let Ok(said) = &said {
                world.note_decision(to, said);
            }
            if is_final {
                return said.ok();
            }
            let has_gone = is_abandoned && matches!(said, Err(NoAnswer::Left));
            if has_gone || is_violated() || started_at.elapsed() > Duration::from_mins(5) {
                return None;
            }
            count("attempts that were made again");
            if self.chance.one_in(2) {
                to = self.chance.index(world.shape.instances);
            }
            let pause = self.chance.millis(1, longest_pause);
            sleep(pause).await;
            if matches!(said, Ok(Ok(Outcome::AllHeld { .. } | Outcome::Paused))) {
                longest_pause = (longest_pause * 2).min(5000);
            }
        }
    }

    /// Makes two calls at an instance, the second one after this pause. The instance must carry them out in this order.
    async fn one_behind_the_other(
        &self,
        to: usize,
        [first, second]: [Order; 2],
        pause: Duration,
    ) -> [Result<Result<Outcome, SaleError>, NoAnswer>; 2] {
        let both = |sale: Sale| async move {
            let second = async {
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                sale.reduce(second).await
            };
            let (first, second) = futures_util::future::join(sale.reduce(first), second).await;
            [first, second]
        };
        match self.world.call(to, self.world.shape.longest() * 3, both).await {
            Ok(both) => {
                for said in &both {
                    self.world.note_decision(to, said);
                }
                both.map(Ok)
            }
            Err(why) => [Err(why), Err(why)],
        }
    }

    /// Orders, and cancels the order before it is answered. The record lacks it: the judge of the load test does not know such
    /// buyers.
    async fn regret(&mut self) {
        happened(Rare::Regretted);
        let (world, id) = (&self.world, format!("undone-{:x}", self.chance.number()));
        let to = self.chance.index(world.shape.instances);
        let orders = [Action::Reserve, Action::Cancel];
        let orders = orders.map(|action| order(&id, &id, world.shape.quantity, action));
        // the order has then read the stock
        let pause = Duration::from_millis(20 * world.shape.latency + self.chance.below(100));
        let said = self.one_behind_the_other(to, orders, pause).await;
        let [Ok(Ok(Outcome::Reserved(_))), Ok(Ok(Outcome::Unknown))] = said else { return };
        // if calls of the store may take long, the order may still read the stock
        let reads_soon = world.shape.over_in(world.faults.allowed()).is_some();
        if reads_soon && world.shape.next_sale_in.is_none() {
            violation(format!("the cancellation of {id} overtook it"));
        }
    }

    /// Confirms an order and cancels it at once.
    async fn oppose(&mut self, number: u64) {
        happened(Rare::OpposedChanges);
        let world = Arc::clone(&self.world);
        let to = self.chance.index(world.shape.instances);
        let (sent, quantity) = (world.now(), world.shape.quantity);
        let changes = [Action::Confirm, Action::Cancel];
        let orders = changes.map(|action| self.make(number, action, quantity));
        let said = self.one_behind_the_other(to, orders, Duration::ZERO).await;
        let times = (sent, world.now());
        // the record has one change after the other
        for (change, said) in changes.into_iter().zip(&said) {
            if !self.record(number, Some(change), to, times, said) {
                self.decide(number, Some(change), false).await;
            }
        }
        let [confirmed, cancelled] = said;
        let is_cancelled = |change: &Accepted| change.event == Event::Cancelled;
        if matches!(confirmed, Ok(Ok(Outcome::Over { event: Event::Cancelled, .. })))
            && matches!(&cancelled, Ok(Ok(Outcome::Changed { change, is_repeated: false })) if is_cancelled(change))
        {
            violation(format!("the cancellation of {RUN}-{number} overtook a confirmation"));
        }
    }

    /// Adds an attempt to the record. Returns whether its outcome is final.
    fn record(
        &self,
        number: u64,
        change: Option<Action>,
        to: usize,
        (sent, ended): (u64, u64),
        said: &Result<Result<Outcome, SaleError>, NoAnswer>,
    ) -> bool {
        let world = &self.world;
        let mut outcome = match said {
            Err(why) => why.recorded(),
            Ok(said) => {
                if let Some((entry, replayed)) = accepted(said) {
                    json!({
                        "outcome": "ok", "status": 200, "remaining": entry.remaining,
                        "instance": entry.instance, "token": entry.token.map(Token::revision),
                        "position": entry.position, "replayed": replayed,
                    })
                } else {
                    let (status, why, is_final, is_certain) = problem(said);
                    let outcome = if is_certain { "failed" } else { "unknown" };
                    json!({ "outcome": outcome, "status": status, "why": why, "final": is_final })
                }
            }
        };
        let id = format!("{RUN}-{number}");
        note(&self.name, || format!("{id} {change:?} at {to}: {outcome}"));
        let may_be_done = match said {
            Err(NoAnswer::Refused) => false,
            Err(_) => true,
            // an order that was over before its first answer
            Ok(Ok(Outcome::Over { .. })) if change.unwrap_or_default() == Action::Reserve => true,
            Ok(said) => accepted(said).is_some() || !problem(said).3,
        };
        let is_given_up = match said {
            Err(why) => !matches!(why, NoAnswer::Refused),
            Ok(said) => matches!(said, Err(SaleError::OutcomeUnknown { .. })),
        };
        let given_up = is_given_up.then_some(ended);
        let told = said.as_ref().ok().and_then(accepted).filter(|(_, replayed)| !replayed);
        let told = told.map(|(entry, _)| (entry.position, entry.instance.clone()));
        let action = change.unwrap_or_default();
        if action == Action::Confirm && self.hold_ends.is_some_and(|at| sent <= at && at <= ended) {
            happened(Rare::ConfirmedAsItExpires);
        }
        let fields = outcome.as_object_mut().expect("an object");
        fields.insert("order".into(), id.clone().into());
        if let Some(change) = change {
            fields.insert("change".into(), event_of(change).into());
        }
        fields.insert("quantity".into(), world.shape.quantity.into());
        fields.insert("to".into(), to.into());
        fields.insert("sent".into(), sent.into());
        fields.insert("ended".into(), ended.into());
        let mut state = locked(&world.state);
        let attempt = Attempt { order: id, action, to, sent, may_be_done, given_up, told };
        state.attempts.push(attempt);
        state.record.push(json!({ "attempt": outcome }));
        matches!(said, Ok(said) if accepted(said).is_some() || problem(said).2)
    }
}

/// Runs one seed.
pub async fn run(
    setup: Setup,
    scheduler: Arc<Scheduler>,
    network: Arc<Simulated>,
) -> BTreeSet<Fault> {
    let mut chance = Chance::new(setup.seed);
    let story = setup.seed.is_multiple_of(2).then_some(setup.seed / 4);
    let story = story.and_then(|number| STORIES.get(number as usize % STORIES.len()));
    let story = story.or((setup.seed % 8 == 1).then_some(&FAILOVER));
    let of_story = story.map(|(faults, _)| *faults);
    let faults = Arc::new(Faults::new(chance.fork(), of_story, &setup.without_faults));
    let mut shape = Shape::new(&mut chance);
    if let Some((_, tell)) = story {
        tell(&mut shape);
    }
    note("seed", || format!("{} {shape:?}", setup.seed));
    note("seed", || format!("faults: {:?}", faults.allowed()));
    let locks =
        LockService::new(chance.fork(), Arc::clone(&faults), shape.latency, Arc::clone(&network));
    let shop = Shop::open(
        chance.fork(),
        Arc::clone(&faults),
        Arc::clone(&network),
        shape.latency,
        shape.response_timeout,
        setup.without.clone(),
    );
    let state = State {
        chance: chance.fork(),
        instances: (0..shape.instances).map(|_| None).collect(),
        record: Vec::new(),
        attempts: Vec::new(),
        next_order: 0,
        changes: BTreeMap::new(),
        decisions: vec![(None, None); shape.instances],
    };
    let world = Arc::new(World {
        shape,
        scheduler,
        network,
        locks,
        shop,
        faults,
        began_at: Instant::now(),
        state: Mutex::new(state),
        lives: AtomicU64::new(0),
        buyers: AtomicU64::new(0),
        busy: Mutex::default(),
        works: AtomicU64::new(0),
    });
    for number in 0..world.shape.instances {
        world.start(number);
    }
    if let Some(first) = start_sale(&world, 0, "s", Replaces::WithoutOrders).await {
        let before = first.stock;
        if let Some(after) = world.shape.next_sale_in {
            world.buyers.fetch_add(1, Ordering::Relaxed);
            world.network.spawn(start_next(Arc::clone(&world), after, world.chance()));
        } else if let Some(chance) = changes::chance(setup.seed) {
            world.buyers.fetch_add(1, Ordering::Relaxed);
            world.network.spawn(changes::operate(Arc::clone(&world), chance));
        }
        for number in 0..world.shape.buyers {
            world.buyers.fetch_add(1, Ordering::Relaxed);
            let (name, chance) = (format!("buyer {number}"), world.chance());
            let buyer = Buyer { world: Arc::clone(&world), chance, name, hold_ends: None };
            world.network.spawn(buyer.run());
        }
        let ends_at = Instant::now() + world.shape.faults_last;
        while Instant::now() < ends_at && !is_violated() {
            let pause = chance.millis(0, world.shape.calm);
            sleep(pause).await;
            trouble(&world, &mut chance).await;
        }
        settle(&world, &before, &mut chance).await;
    } else if !is_violated() {
        // no other sale was there, and each attempt had the same terms
        violation("the first sale was refused".into());
    }
    world.faults.allowed().clone()
}

/// Starts a sale at this instance, with as many attempts as it needs. `None` if the sale is refused, for example as replaced.
async fn start_sale(
    world: &Arc<World>,
    to: usize,
    id: &str,
    replaces: Replaces,
) -> Option<Started> {
    let id = id.parse().expect("a valid id");
    let Shape { units, terms, .. } = &world.shape;
    let terms = terms.clone();
    let sale = NewSale { id, is_named: true, terms, replaces, ..NewSale::from(*units) };
    let began_at = Instant::now();
    loop {
        let (new, patience) = (sale.clone(), Duration::from_mins(1));
        let start = async |it: Sale| it.start(&Item::DEFAULT, new).await;
        match world.call(to, patience, |it| async move { start(it).await }).await {
            Ok(Ok(started)) => return Some(started),
            Ok(Err(error)) => {
                note("operator", || format!("cannot start {}: {error}", sale.id.as_str()));
                if matches!(
                    error.word(),
                    "sale-replaced" | "sale-conflict" | "sale-running" | "sale-exists"
                ) {
                    return None;
                }
            }
            Err(_) => {}
        }
        if is_violated() || began_at.elapsed() > Duration::from_mins(5) {
            too_late("the sale could not be started");
            return None;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Starts the next sale while orders are on their way, and later repeats the starts of both sales.
async fn start_next(world: Arc<World>, after: Duration, mut chance: Chance) {
    sleep(after).await;
    let to = chance.index(world.shape.instances);
    let replaces = || Replaces::AnyOf(vec!["s".parse().expect("a valid id")]);
    note("operator", || format!("starts the next sale at {to}"));
    let first = start_sale(&world, to, NEXT, replaces()).await;
    if first.is_none() && !is_violated() {
        violation("the next sale was refused".into());
    }
    let pause = chance.millis(0, 500);
    sleep(pause).await;
    let to = chance.index(world.shape.instances);
    if let Some(again) = start_sale(&world, to, NEXT, replaces()).await
        && !again.is_repeated
    {
        violation("the next sale began twice".into());
    }
    if let Some(started) = start_sale(&world, to, "s", Replaces::WithoutOrders).await {
        violation(format!("a sale that was replaced began again: {started:?}"));
    }
    happened(Rare::SaleChanged);
    world.buyers.fetch_sub(1, Ordering::Relaxed);
}

/// Lets a fault happen to a service or to an instance.
async fn trouble(world: &Arc<World>, chance: &mut Chance) {
    let number = chance.index(world.shape.victims);
    let times = Times::new(chance, world.shape.ttl);
    let all = [Fault::OF_LOCK_AND_PROCESSES, Fault::OF_STORE].concat();
    let fault = world.faults.choose(&all, chance);
    let (refusal, refuses) = *chance.pick(&[
        (Refusal::DiskFull, "store without disk"),
        (Refusal::OutOfMemory, "store without memory"),
        (Refusal::Loading, "store loading"),
        (Refusal::ReadOnly, "store read-only"),
    ]);
    let Some((process, sale)) = world.instance(number) else { return };
    let has_effect = fault != Fault::StoreFailedOver || world.shape.is_replicated;
    if !world.faults.may(fault) || !has_effect {
        return process.run(|| drop(sale));
    }
    count(fault.name());
    note("fault", || format!("{} ({})", fault.name(), process.name));
    let lock: Arc<str> = "stock".into();
    let now = Instant::now();
    // now and then for longer than an order may wait
    let while_away = if chance.one_in(3) { chance.millis(4000, 10_000) } else { times.either };
    let is_of_all = !matches!(fault, Fault::StoreCutOff | Fault::StoreFull | Fault::ScriptsFlushed);
    if is_of_all && !matches!(fault, Fault::LockCutOff | Fault::LockRefuses) {
        world.faults.delays(None, now);
    }
    match fault {
        Fault::StoreSilent => {
            world.faults.delays(None, now + while_away);
            world.shop.be_silent(while_away);
        }
        Fault::StoreCutOff => {
            world.faults.delays(Some(&process.name), now + while_away);
            world.shop.cut_off(&process.name, while_away);
        }
        Fault::StoreCut => world.shop.cut(),
        Fault::StoreRestarted => world.shop.restart(0),
        Fault::StoreFailedOver => world.shop.fail_over(),
        Fault::ScriptsFlushed => Shop::flush_scripts(),
        Fault::ReplicaBehind => {
            world.faults.delays(None, now + times.either);
            Shop::be_behind(times.either);
        }
        Fault::StoreFull => {
            world.faults.refuses(now + while_away);
            if (world.shape.batch_size as u64) < 2 * world.shape.buyers {
                // each refused batch answers few of the orders that wait
                world.faults.delays(None, now + while_away);
            }
            count(refuses);
            Shop::refuse(refusal, while_away);
        }
        Fault::PausedBriefly => process.pause(times.brief, &world.network),
        Fault::Paused => {
            if world.shop.has_flight(&process.name) {
                happened(Rare::PausedOnTheWay);
            }
            if !world.works_of(&process.name, Busy::Frame).is_empty() {
                happened(Rare::PausedWithFrame);
            }
            process.pause(times.long, &world.network);
        }
        Fault::Killed | Fault::Stopped => {
            process.disturb();
            let is_stop = fault == Fault::Stopped;
            if world.shop.has_flight(&process.name) {
                happened(if is_stop { Rare::StoppedOnTheWay } else { Rare::KilledOnTheWay });
            }
            if !world.works_of(&process.name, Busy::Frame).is_empty() {
                happened(if is_stop { Rare::StoppedWithFrame } else { Rare::KilledWithFrame });
            }
            if is_stop {
                stop(world, &process, &sale, chance.one_in(2).then_some(times.brief)).await;
            }
            process.run(|| drop(sale));
            world.end(number, &process, times.either).await;
            return;
        }
        _ => world.locks.suffer(fault, &process.name, &lock, times),
    }
    process.run(|| drop(sale));
}

/// Tells an instance to stop. Without `killed_after`, the instance must end in time, and must have answered everybody.
async fn stop(
    world: &Arc<World>,
    process: &Arc<Simulated>,
    sale: &Sale,
    killed_after: Option<Duration>,
) {
    let (ends, mut ended) = oneshot::channel::<()>();
    let sale = sale.clone();
    process.spawn(async move {
        sale.finish();
        sale.close().await;
        drop((sale, ends));
    });
    let within = world.shape.stops_within();
    let limit = killed_after.unwrap_or(within * 2 + world.shape.ttl * 3);
    drop(timeout(limit, &mut ended).await);
    if killed_after.is_some() || !process.is_running() {
        return;
    }
    if process.disturbed_at().is_some_and(|since| since.elapsed() > within) {
        too_late(&format!("{} did not stop within {within:?}", process.name));
    }
    // a call that reads the stock or starts a sale ends with its attempt, which waits up to five times: for the connection, the
    // login, the role, and the script by its digest and by its source
    sleep(world.shape.response_timeout * 5).await;
    // further buyers come all the time, and are refused
    let mut calls = world.works_of(&process.name, Busy::Call);
    // a buyer who regrets an order pauses within a call
    let longest_pause = 20 * world.shape.latency + 100;
    for waited in 0..50 + longest_pause {
        if waited >= 50 && calls.is_empty() {
            break;
        }
        sleep(Duration::from_millis(1)).await;
        calls = &calls & &world.works_of(&process.name, Busy::Call);
    }
    if !calls.is_empty() && process.is_running() {
        left_over(&format!("{} calls that {} has not answered", calls.len(), process.name));
    }
}

/// Checks that, after the last fault, all orders are decided in time, the books are right, and nothing is left.
async fn settle(world: &Arc<World>, before: &Stock, chance: &mut Chance) {
    note("seed", || "the last fault is over".into());
    world.faults.end();
    world.locks.heal();
    world.shop.heal();
    let processes = {
        let state = locked(&world.state);
        state.instances.iter().flatten().map(|it| Arc::clone(&it.process)).collect::<Vec<_>>()
    };
    for process in processes {
        process.resume();
    }
    while !(0..world.shape.instances).all(|number| world.is_up(number)) {
        sleep(Duration::from_millis(10)).await;
    }
    // each instance decides a new order in time
    let healed_at = Instant::now();
    let mut within = world.shape.ttl + GRACE + world.shape.response_timeout * 2;
    if world.shape.peers.contains(&true) {
        // a sender notices a lost frame after this time
        within += Duration::from_secs(3);
    }
    let decided = Arc::new(AtomicU64::new(0));
    for number in 0..world.shape.instances {
        let (world, decided) = (Arc::clone(world), Arc::clone(&decided));
        let network = Arc::clone(&world.network);
        network.spawn(async move {
            loop {
                let id = format!("probe-{number}");
                let order = order(&id, &id, 1, Action::Reserve);
                let said = world
                    .call(number, within, |sale| async move { sale.reduce(order).await })
                    .await;
                let is_decided = matches!(&said, Ok(Ok(_)));
                if let Ok(said) = said {
                    world.note_decision(number, &said);
                    let shown = said.map(|_| ()).map_err(|error| error.to_string());
                    note("probe", || format!("at {number}: {shown:?}"));
                }
                if is_decided {
                    break;
                }
                sleep(Duration::from_millis(50)).await;
                if is_violated() {
                    return;
                }
                if healed_at.elapsed() > within {
                    too_late(&format!(
                        "instance {number} decided no order within {within:?} after the last fault"
                    ));
                    return;
                }
            }
            decided.fetch_add(1, Ordering::Relaxed);
        });
    }
    while (world.buyers.load(Ordering::Relaxed) > 0
        || decided.load(Ordering::Relaxed) < world.shape.instances as u64)
        && !is_violated()
    {
        if healed_at.elapsed() > Duration::from_mins(10) {
            too_late("the buyers did not end");
        }
        sleep(Duration::from_millis(100)).await;
    }
    if is_violated() {
        return;
    }
    // a change may have set the longest hold
    let hold = world.shape.terms.hold_seconds.map_or(0, |_| changes::LONGEST_HOLD);
    let hold = Duration::from_secs(hold.into());
    sleep(hold + Duration::from_secs(3)).await;
    if world.shape.next_sale_in.is_some() {
        judge_both(world).await;
    } else {
        judge(world, before).await;
    }
    if chance.one_in(3) && world.shape.next_sale_in.is_none() {
        lose_writes(world, chance).await;
    }
    rest(world).await;
    count("sales");
}

fn state_of(stock: &Stock) -> Value {
    json!({
        "stock": stock.stock, "lucky": stock.lucky, "initial": stock.initial, "orders": stock.orders,
        "entries": stock.entries, "held": stock.held, "sale": stock.sale,
        "units": { "held": stock.units.held, "confirmed": stock.units.confirmed },
        "hold_seconds": stock.terms.hold_seconds, "per_user": stock.terms.per_user, "paused": stock.paused,
    })
}

/// Judges the record of the run, as the load test does.
async fn judge(world: &Arc<World>, before: &Stock) {
    let patience = world.shape.longest() * 2;
    let mut lines = Vec::new();
    let first = LedgerPosition::default();
    let page = world.call(0, patience, |sale| async move {
        sale.reads().ledger(&Item::DEFAULT, first, 1000).await
    });
    let Ok(Ok(page)) = page.await else { return violation("the ledger cannot be read".into()) };
    changes::check(world, &page.entries);
    for entry in &page.entries {
        let Entry::Order(entry) = entry else {
            lines.push(json!({ "order": entry }));
            continue;
        };
        check_attempts(world, entry);
        lines.push(json!({ "order": {
            "position": entry.position, "event": entry.event, "order": entry.order, "user": entry.user,
            "quantity": entry.quantity.get(), "remaining": entry.remaining, "instance": entry.instance,
            "holder": entry.holder, "token": entry.token.map(Token::revision),
        }}));
    }
    let entries = lines.len();
    for number in 0..world.shape.instances {
        let stock = world
            .call(number, patience, |sale| async move { sale.reads().stock(&Item::DEFAULT).await })
            .await;
        let Ok(Ok(stock)) = stock else {
            return violation(format!("{number} does not tell the stock"));
        };
        lines.push(json!({ "state": { "instance": number, "state": state_of(&stock) } }));
    }
    let (attempts, orders) = {
        let state = locked(&world.state);
        (state.record.clone(), state.next_order)
    };
    let instances: Vec<_> = (0..world.shape.instances).map(|number| format!("p{number}")).collect();
    let run = json!({ "run": {
        "format": 4, "version": "", "run": RUN, "started": "", "most_requests": orders, "bound_seconds": null,
        "connections": 1, "rate": null, "abandon": 0.0, "seed": 0, "quantity": world.shape.quantity, "alone": false,
        "tokens": true, "without_ledger": false, "users": world.shape.users, "pay": 0.0, "pay_late": 0.0,
        "cancel": 0.0, "again": 0.0, "urls": instances, "item": null, "before": state_of(before),
    }});
    let end = json!({ "end": { "attempts": attempts.len(), "ledger": entries, "orders": orders, "interrupted": false } });
    let all = [run].into_iter().chain(attempts).chain(lines).chain([end]);
    let text = all.map(|line| line.to_string()).collect::<Vec<_>>().join("\n");
    let limits = Limits { longest_pause: Duration::from_hours(1), longest_order: None };
    match loadtest::judge(text.as_bytes(), limits) {
        Ok(report) => {
            // a failover may lose entries that a read has seen, after which buyers were refused
            let has_lost = has_happened(Rare::FailedOverWithLoss);
            for finding in report.findings {
                if has_lost && matches!(&*finding.kind, "sold_out_too_early" | "not_all_held") {
                    continue;
                }
                violation(format!("{}: {}", finding, finding.example));
            }
        }
        Err(error) => violation(format!("no record: {error:#}")),
    }
}

/// Judges two sales, one after the other: each ledger must add up, and no attempt may take units twice.
async fn judge_both(world: &Arc<World>) {
    let patience = world.shape.longest() * 2;
    let (mut all, mut token) = (Vec::new(), 0);
    for id in ["s", NEXT] {
        let from = LedgerPosition { sale: id.parse().ok(), ..LedgerPosition::default() };
        let read = async |sale: Sale| sale.reads().ledger(&Item::DEFAULT, from, 1000).await;
        let page = world.call(0, patience, |sale| async move { read(sale).await }).await;
        let Ok(Ok(page)) = page else {
            return violation(format!("the ledger of {id} cannot be read"));
        };
        let (mut left, mut reserved) = (world.shape.units, BTreeSet::new());
        for (entry, position) in page.entries.into_iter().filter_map(Entry::order).zip(1..) {
            let units = u64::from(entry.quantity.get());
            match entry.event {
                Event::Reserved => left = left.wrapping_sub(units),
                Event::Confirmed => {}
                Event::Cancelled | Event::Expired | Event::Returned => left += units,
            }
            if (entry.position, entry.remaining) != (position, left) || left > world.shape.units {
                violation(format!(
                    "{id}: entry {position} does not add up, {left} are left: {entry:?}"
                ));
            }
            let its_token = entry.token.map_or(0, Token::revision);
            if its_token < token {
                violation(format!(
                    "{id}: entry {position} was written under {its_token} after {token}"
                ));
            }
            token = its_token;
            if entry.event == Event::Reserved && !reserved.insert(entry.order.as_str().to_owned()) {
                violation(format!("{id}: {:?} was accepted twice", entry.order));
            }
            check_attempts(world, &entry);
            all.push(entry);
        }
    }
    let state = locked(&world.state);
    let orders: BTreeSet<_> = all.iter().map(|entry| entry.order.as_str()).collect();
    for order in orders.into_iter().filter(|order| order.starts_with(RUN)) {
        let is_it =
            |entry: &&Accepted| entry.event == Event::Reserved && entry.order.as_str() == order;
        let times = all.iter().filter(is_it).count();
        let tries = state.attempts.iter().filter(|attempt| {
            attempt.order == order && attempt.action == Action::Reserve && attempt.may_be_done
        });
        if times > tries.count() {
            violation(format!("{order} was accepted {times} times, more often than it was tried"));
        }
        count(if times > 1 { "orders of both sales" } else { "orders of one of two sales" });
    }
    for attempt in &state.attempts {
        let Some((position, instance)) = &attempt.told else { continue };
        let is_it = |entry: &Accepted| {
            (entry.position, &entry.instance, entry.order.as_str())
                == (*position, instance, &*attempt.order)
        };
        if !all.iter().any(is_it) {
            violation(format!(
                "{} was accepted at {position} by {instance}, and is not there",
                attempt.order
            ));
        }
    }
}

/// Checks that an entry belongs to an attempt at its instance that may have been done.
fn check_attempts(world: &World, entry: &Accepted) {
    let action = match entry.event {
        Event::Reserved => Action::Reserve,
        Event::Confirmed => Action::Confirm,
        Event::Cancelled => Action::Cancel,
        Event::Returned => Action::Return,
        Event::Expired => return,
    };
    let state = locked(&world.state);
    let is_own = |attempt: &&Attempt| attempt.order == entry.order.as_str();
    let written_at = entry.time.micros() - BEGIN;
    let over_in = world.shape.over_in(world.faults.allowed());
    let is_over = |given_up: u64| over_in.is_some_and(|time| given_up + time < written_at);
    let can_be = |attempt: &Attempt| {
        attempt.action == action
            && entry.instance.starts_with(&format!("p{}.", attempt.to))
            && attempt.sent <= written_at
            && attempt.may_be_done
            && !attempt.given_up.is_some_and(is_over)
    };
    let mut own = state.attempts.iter().filter(is_own).peekable();
    if own.peek().is_some() && !own.any(can_be) {
        let (order, at, position) = (&entry.order, &entry.instance, entry.position);
        violation(format!(
            "entry {position}, {order:?} {:?} by {at}, is of no attempt that may have been done there",
            entry.event
        ));
    }
}

/// Lets the store lose its last writes. An instance that was told of them must notice, and after that nobody may sell.
async fn lose_writes(world: &Arc<World>, chance: &mut Chance) {
    let loses = chance.between(1, SNAPSHOTS as u64) as usize;
    let last = {
        let state = locked(&world.state);
        state.attempts.iter().filter_map(|attempt| attempt.told.clone()).max()
    };
    let number = last.as_ref().and_then(|(_, at)| {
        let state = locked(&world.state);
        let mut lives = state.instances.iter();
        lives.position(|it| it.as_ref().is_some_and(|it| it.process.name == *at))
    });
    let Some((number, (position, _))) = number.zip(last) else { return };
    let others = (0..world.shape.instances).filter(|other| *other != number);
    let others: Vec<_> = others.collect();
    // in half of the runs, the other instances are new and remember nothing
    let are_new = chance.one_in(2);
    for other in others.iter().filter(|_| are_new) {
        let gone = locked(&world.state).instances[*other].take();
        if let Some(gone) = gone {
            gone.process.kill();
        }
        world.start(*other);
    }
    sleep(world.shape.ttl * 2).await;
    world.shop.restart(loses);
    if shop::entries() as u64 >= position {
        return;
    }
    happened(Rare::EntriesLost);
    note("fault", || format!("the store loses its last {loses} writes"));
    let patience = world.shape.longest() * 2;
    // an instance that does not know the loss may sell, and so replace what was lost, or more
    let first = others.first().filter(|_| are_new && chance.one_in(2));
    for (at, before) in first.into_iter().flat_map(|at| (0..LONGEST_LEDGER).map(move |n| (at, n))) {
        let id = format!("ignorant-{before}");
        let order = order(&id, &id, 1, Action::Reserve);
        let said = world.call(*at, patience, |sale| async move { sale.reduce(order).await }).await;
        if !matches!(said, Ok(Ok(Outcome::Reserved(_)))) || shop::entries() as u64 > position {
            break;
        }
        if shop::entries() as u64 == position {
            count("a store that lost entries, and got as many from who knew nothing of that");
        }
    }
    let asked = [&number].into_iter().chain(&others).chain([&number]);
    // whether an instance that remembers the entries has reached the store
    let mut is_known = false;
    for (at, try_again) in asked.zip(0..) {
        let id = format!("lost-{try_again}");
        // no read answers a cancellation before it comes to the holder
        let action = if chance.one_in(2) { Action::Cancel } else { Action::Reserve };
        let order = order(&id, &id, 1, action);
        let asked_at = Instant::now();
        let said = world.call(*at, patience, |sale| async move { sale.reduce(order).await }).await;
        if asked_at.elapsed() > world.shape.decides_within() {
            too_late("a loss was told");
        }
        match said {
            Ok(Err(error)) if error.word() == "store-rolled-back" => is_known = true,
            Ok(Ok(Outcome::Reserved(_) | Outcome::Unknown)) if is_known || *at == number => {
                violation(format!(
                    "p{at} answered {action:?} as if the store had not lost entry {position}"
                ));
            }
            // a read says that the item is sold out, or the answer is another refusal
            _ => {}
        }
    }
}

/// Stops all instances, and checks that nothing is left.
async fn rest(world: &Arc<World>) {
    let running: Vec<_> =
        locked(&world.state).instances.iter_mut().filter_map(Option::take).collect();
    for running in &running {
        if let Some(sale) = &running.sale {
            // an instance ends holds by orders of its own, which wait as others do
            let until = Instant::now() + world.shape.longest();
            while sale.guard().waiting() > 0 && Instant::now() < until {
                sleep(Duration::from_millis(10)).await;
            }
            if sale.guard().waiting() > 0 {
                left_over(&format!("orders in the queues of {}", running.process.name));
            }
            let sale = sale.clone();
            running.process.spawn(async move { sale.close().await });
        }
    }
    sleep(2 * world.shape.ttl + world.shape.wait_timeout + GRACE).await;
    let left = world.locks.left();
    if !left.is_empty() {
        left_over(&format!("claims: {left:?}"));
    }
    let processes: Vec<_> = running.iter().map(|it| Arc::clone(&it.process)).collect();
    drop(running);
    world.shop.cut();
    sleep(Duration::from_secs(6)).await;
    for process in processes {
        if process.tasks() > 0 {
            left_over(&format!("{} tasks of {}", process.tasks(), process.name));
        }
    }
}
