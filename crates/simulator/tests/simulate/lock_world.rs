//! The lock alone: processes that lock, write under their tokens, and unlock in every way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fenced_lock::asked::AskedBackend;
use fenced_lock::{Guard, LockError, Owner, SessionKeeper, SessionOptions};
use simulator::Chance;
use tokio::time::{Instant, sleep, timeout};

use crate::Setup;
use crate::faults::{Fault, Faults, Times};
use crate::locks::{Client, LockService, REQUEST_LIMIT, Truth};
use crate::process::{Scheduler, Simulated};
use crate::trace::{
    self, Rare, count, happened, is_violated, left_over, locked, note, too_late, violation,
};

/// How long a grant may take beside the TTL.
const GRACE: Duration = Duration::from_secs(2);

/// One of so many seeds tells a story: the service refuses a process all requests for one of two names, and the process keeps the
/// lock of the other name.
pub const DENIED: u64 = 16;

/// One of so many seeds (`DENIED`) is calm: nothing goes wrong. This is its remainder.
pub const CALM: u64 = 12;

/// The parameters of a run.
#[derive(Debug)]
pub struct Shape {
    pub instances: usize,
    pub ttl: Duration,
    pub latency: u64,
    names: Vec<Arc<str>>,
    actors: u64,
    operations: u64,
    longest_hold: Duration,
    hold_for: Option<Duration>,
    pub faults_last: Duration,
}

impl Shape {
    fn new(chance: &mut Chance) -> Self {
        let ttl = *chance.pick(&[200, 500, 1000, 3000]);
        let names: &[&str] = if chance.one_in(3) { &["a", "b"] } else { &["a"] };
        Self {
            instances: *chance.pick(&[1, 2, 2, 3, 4]),
            ttl: Duration::from_millis(ttl),
            latency: *chance.pick(&[1, 1, 3, 10]),
            names: names.iter().map(|name| (*name).into()).collect(),
            actors: chance.between(1, 4),
            operations: chance.between(1, 6),
            longest_hold: Duration::from_millis(*chance.pick(&[2, 20, ttl / 4, ttl])),
            hold_for: chance
                .one_in(3)
                .then(|| Duration::from_millis(*chance.pick(&[50, ttl / 2, 2 * ttl]))),
            faults_last: chance.millis(ttl, 8 * ttl),
        }
    }
}

struct World {
    shape: Shape,
    setup: Setup,
    scheduler: Arc<Scheduler>,
    /// The process that has the tasks of the network.
    network: Arc<Simulated>,
    service: Arc<LockService>,
    faults: Arc<Faults>,
    judge: Mutex<Judge>,
    chance: Mutex<Chance>,
    actors: AtomicU64,
    began: AtomicU64,
    began_at: Instant,
}

/// The grants and writes that the judge has seen, and the waits.
#[derive(Default)]
struct Judge {
    /// The largest token that the store of this name accepted.
    fences: BTreeMap<Arc<str>, i64>,
    /// The tokens of all grants, each with the process that has it, and since when.
    granted: BTreeMap<(Arc<str>, i64), (String, Instant)>,
    /// When the lock of this name was granted last.
    progress: BTreeMap<Arc<str>, Instant>,
    waiting: BTreeMap<u64, (Arc<str>, Instant, Arc<Simulated>)>,
    next_wait: u64,
}

/// One life of a process.
struct Instance {
    number: usize,
    process: Arc<Simulated>,
    backend: Option<Arc<AskedBackend<Client>>>,
    keeper: Option<SessionKeeper>,
    stops: Arc<AtomicBool>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        let (keeper, backend) = (self.keeper.take(), self.backend.take());
        self.process.run(|| drop((keeper, backend)));
    }
}

impl World {
    fn chance(&self) -> Chance {
        locked(&self.chance).fork()
    }

    fn start(self: &Arc<Self>, number: usize) -> Instance {
        let life = self.began.fetch_add(1, Ordering::Relaxed);
        let name = format!("p{number}.{life}");
        note(&name, || "starts".into());
        let process = Simulated::new(name.clone(), self.chance(), &self.scheduler);
        let (backend, keeper) = process.run(|| {
            let backend = Client::start(&self.service, &process);
            let mut options = SessionOptions::new(self.shape.ttl).label(name);
            if let Some(hold_for) = self.shape.hold_for {
                options = options.hold_for(hold_for);
            }
            (Arc::clone(&backend), SessionKeeper::start(backend as _, options))
        });
        let stops = Arc::new(AtomicBool::new(false));
        for _ in 0..self.shape.actors {
            self.actors.fetch_add(1, Ordering::Relaxed);
            let actor = Actor {
                _ends: Ends(Arc::clone(self)),
                world: Arc::clone(self),
                process: Arc::clone(&process),
                keeper: keeper.clone(),
                chance: self.chance(),
                stops: Arc::clone(&stops),
            };
            process.spawn(actor.run());
        }
        Instance { number, process, backend: Some(backend), keeper: Some(keeper), stops }
    }

    /// Sends a write to the store. It arrives some time later.
    fn write(self: &Arc<Self>, who: &str, name: &Arc<str>, token: i64) {
        let mut on_the_way = locked(&self.chance).millis(0, self.shape.latency);
        if self.faults.strikes(Fault::WriteLate) {
            on_the_way += self.faults.draw(|chance| chance.millis(0, 3000));
        }
        let (world, who, name) = (Arc::clone(self), who.to_owned(), Arc::clone(name));
        self.network.spawn(async move {
            sleep(on_the_way).await;
            let mut judge = locked(&world.judge);
            let fence = *judge.fences.get(&name).unwrap_or(&0);
            let is_refused = token < fence && !world.setup.is_without("fence");
            if is_refused {
                happened(Rare::LateWriteRefused);
                note(&who, || {
                    format!("write under {token} to {name}: refused, the fence is {fence}")
                });
                return;
            }
            note(&who, || format!("write under {token} to {name}: accepted"));
            let whose = judge.granted.get(&(Arc::clone(&name), token)).map(|(whose, _)| whose);
            if whose != Some(&who) {
                violation(format!(
                    "{who} wrote to {name} under {token}, which it was never granted"
                ));
            }
            if token < fence {
                violation(format!(
                    "{who} wrote to {name} under {token} after a write under {fence}"
                ));
            }
            judge.fences.insert(name, token.max(fence));
        });
    }

    /// Notes and checks a guard that a call returned.
    fn granted(&self, process: &Simulated, guard: &Guard) {
        let (name, token) = (Arc::<str>::from(guard.name()), guard.token().revision());
        note(&process.name, || format!("holds {name} under {token}"));
        count("grants");
        let mut judge = locked(&self.judge);
        judge.progress.insert(Arc::clone(&name), Instant::now());
        let later = judge.granted.range((Arc::clone(&name), token)..).next();
        if let Some(((other, later), (whose, _))) = later
            && *other == name
        {
            if *later == token {
                violation(format!(
                    "{name} was granted twice under {token}: to {whose} and {}",
                    process.name
                ));
            } else if !guard.is_lost()
                && matches!(self.service.truth(&name, &guard.key()), Truth::Holds)
            {
                violation(format!("{name} was granted under {token} after {later}"));
            }
        }
        judge.granted.insert((name, token), (process.name.clone(), Instant::now()));
        drop(judge);
        self.check_belief(process, guard);
    }

    /// Checks that a process that believes that it holds the lock holds it.
    fn check_belief(&self, process: &Simulated, guard: &Guard) {
        if guard.is_lost() {
            // a hold may also have reached its limit
            if self.shape.hold_for.is_none() {
                happened(Rare::SessionLost);
            }
            return;
        }
        let who = &process.name;
        match self.service.truth(guard.name(), &guard.key()) {
            Truth::Holds => {}
            Truth::DoesNotHold => {
                violation(format!("{who} believes that it holds {}, and does not", guard.key()));
            }
            Truth::TakenAway(at) => {
                // A renewal tells of the loss. An answer that grants may come after the loss, and no renewal before it asks
                // about the claim.
                let key = (Arc::from(guard.name()), guard.token().revision());
                let granted_at = locked(&self.judge).granted.get(&key).map(|(_, at)| *at);
                let since =
                    granted_at.into_iter().chain(process.disturbed_at()).fold(at, Instant::max);
                if since.elapsed() > self.shape.ttl {
                    too_late(&format!(
                        "{who} was not told within a TTL that it lost {}",
                        guard.key()
                    ));
                }
            }
        }
    }

    /// Checks that a lost hold has a reason: a fault took it away, the service did not answer, or its process stood still.
    fn check_loss(&self, process: &Simulated, guard: &Guard) {
        let is_limited = self.shape.hold_for.is_some();
        let was_taken = || self.service.truth(guard.name(), &guard.key());
        if !guard.is_lost() || is_limited || matches!(was_taken(), Truth::TakenAway(_)) {
            return;
        }
        let [since, _] = self.faults.well_since(&process.name, self.began_at);
        let since = process.disturbed_at().map_or(since, |disturbed| since.max(disturbed));
        if since.elapsed() > self.shape.ttl * 2 + REQUEST_LIMIT {
            violation(format!("{} lost {} for no reason", process.name, guard.key()));
        }
    }

    fn waits(self: &Arc<Self>, process: &Arc<Simulated>, name: &Arc<str>) -> Waits {
        let mut judge = locked(&self.judge);
        judge.next_wait += 1;
        let number = judge.next_wait;
        let wait = (Arc::clone(name), Instant::now(), Arc::clone(process));
        judge.waiting.insert(number, wait);
        Waits(Arc::clone(self), number)
    }

    /// Checks that, after the last fault, each lock is granted to some waiter in time.
    fn check_progress(&self, healed_at: Instant) {
        let longest = self.shape.hold_for.unwrap_or_default().max(self.shape.longest_hold * 4);
        let judge = locked(&self.judge);
        for (name, since, process) in judge.waiting.values() {
            let progress = judge.progress.get(name).copied().unwrap_or(healed_at);
            let since = healed_at.max(*since).max(progress);
            if process.is_running() && since.elapsed() > self.shape.ttl + GRACE + longest {
                too_late(&format!(
                    "{} waits for {name}, and nobody was granted it for {:?}",
                    process.name,
                    since.elapsed()
                ));
            }
        }
    }
}

/// A wait for a lock, until this is dropped.
struct Waits(Arc<World>, u64);

impl Drop for Waits {
    fn drop(&mut self) {
        locked(&self.0.judge).waiting.remove(&self.1);
    }
}

/// Counts an actor as living, until this is dropped.
struct Ends(Arc<World>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.actors.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An actor, which uses locks in a process.
struct Actor {
    world: Arc<World>,
    process: Arc<Simulated>,
    keeper: SessionKeeper,
    chance: Chance,
    stops: Arc<AtomicBool>,
    _ends: Ends,
}

impl Actor {
    async fn run(mut self) {
        let mut left = self.world.shape.operations;
        while left > 0 && !self.stops.load(Ordering::Relaxed) && !is_violated() {
            left -= 1;
            let pause = self.chance.millis(0, 50);
            sleep(pause).await;
            let name = Arc::clone(self.chance.pick(&self.world.shape.names));
            let patience = self.chance.millis(0, 2 * self.world.shape.ttl.as_millis() as u64);
            match self.chance.below(8) {
                0 => {
                    let tried = self.keeper.try_lock(&name).await;
                    if let Ok(Some(guard)) = tried {
                        self.world.granted(&self.process, &guard);
                        self.hold(guard).await;
                    }
                }
                1 => self.reenter_as_owner(&name).await,
                2 => {
                    let (world, process) = (Arc::clone(&self.world), Arc::clone(&self.process));
                    let work = self.chance.millis(0, 20);
                    let done = self.keeper.with(&name, async |guard| {
                        world.granted(&process, &guard);
                        sleep(work).await;
                        world.write(
                            &process.name,
                            &Arc::from(guard.name()),
                            guard.token().revision(),
                        );
                    });
                    drop(timeout(patience, done).await);
                }
                3 => {
                    let waits = self.world.waits(&self.process, &name);
                    let locked = timeout(patience, self.keeper.lock(&name)).await;
                    drop(waits);
                    if let Ok(Ok(guard)) = locked {
                        self.world.granted(&self.process, &guard);
                        self.hold(guard).await;
                    } else {
                        count("a waiter went away");
                    }
                }
                _ => {
                    if let Some(guard) = self.lock(&name).await {
                        self.hold(guard).await;
                    }
                }
            }
        }
        // each actor takes a lock once more when no fault strikes any longer
        if !self.stops.load(Ordering::Relaxed) {
            while !self.world.faults.is_over() && !is_violated() {
                sleep(Duration::from_millis(50)).await;
            }
            let name = Arc::clone(self.chance.pick(&self.world.shape.names));
            if let Some(guard) = self.lock(&name).await {
                self.world.check_belief(&self.process, &guard);
                drop(guard.unlock().await);
            }
        }
    }

    /// Takes the lock, with as many attempts as it needs. `None` if the process stops.
    async fn lock(&mut self, name: &Arc<str>) -> Option<Guard> {
        let _waits = self.world.waits(&self.process, name);
        while !is_violated() {
            match self.keeper.lock(name).await {
                Ok(guard) => {
                    self.world.granted(&self.process, &guard);
                    return Some(guard);
                }
                Err(LockError::SessionLost { .. }) if self.stops.load(Ordering::Relaxed) => break,
                Err(error) => note(&self.process.name, || format!("cannot lock {name}: {error}")),
            }
            sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// Takes the lock twice as one owner.
    async fn reenter_as_owner(&mut self, name: &Arc<str>) {
        let Ok(Ok(session)) = timeout(self.world.shape.ttl, self.keeper.session()).await else {
            return;
        };
        let Ok(mutex) = session.mutex(name) else { return };
        let mut owner = Owner::new();
        let Ok(first) = mutex.lock_as(&mut owner).await else { return };
        self.world.granted(&self.process, &first);
        let Ok(second) = mutex.lock_as(&mut owner).await else { return };
        if second.token() == first.token() {
            count("an owner came in again");
        } else {
            // the first hold was lost
            if !first.is_lost() {
                violation(format!("an owner was granted {name} twice"));
            }
            self.world.granted(&self.process, &second);
        }
        if self.chance.one_in(2) {
            drop(first);
            self.hold(second).await;
        } else {
            drop(second.unlock().await);
            self.hold(first).await;
        }
    }

    /// Uses the lock, and gives it back in one of several ways.
    async fn hold(&mut self, mut guard: Guard) {
        let world = Arc::clone(&self.world);
        let longest =
            if world.faults.is_over() { 5 } else { world.shape.longest_hold.as_millis() as u64 };
        let name = Arc::<str>::from(guard.name());
        for _ in 0..self.chance.below(4) {
            world.check_belief(&self.process, &guard);
            if !guard.is_lost() {
                world.write(&self.process.name, &name, guard.token().revision());
            }
            let pause = self.chance.millis(0, longest);
            sleep(pause).await;
        }
        world.check_belief(&self.process, &guard);
        if !self.stops.load(Ordering::Relaxed) {
            world.check_loss(&self.process, &guard);
        }
        let was_lost = guard.is_lost();
        match self.chance.below(6) {
            0 => {
                let Ok(second) = guard.reenter() else { return };
                drop(guard);
                world.check_belief(&self.process, &second);
                guard = second;
            }
            1 => {
                let waits = world.waits(&self.process, &name);
                let (token, asked_at) = (guard.token().revision(), Instant::now());
                let patience = self.chance.millis(0, 2000);
                let requeued = if self.chance.one_in(3) {
                    timeout(patience, guard.requeue()).await.ok()
                } else {
                    Some(guard.requeue().await)
                };
                drop(waits);
                let Some(Ok(next)) = requeued else { return };
                count("a lock was handed over");
                // nobody else got it: this takes one request
                let (took, most) = (asked_at.elapsed(), 2 * world.shape.latency + 2);
                let is_to_itself = next.token().revision() == token + 1;
                if is_to_itself
                    && world.faults.allowed().is_empty()
                    && took > Duration::from_millis(most)
                {
                    too_late(&format!("a hand-over of {name} took {took:?}"));
                }
                world.granted(&self.process, &next);
                guard = next;
            }
            2 if world.shape.hold_for.is_some() => {
                // the actor forgets the guard, until the longest hold is over
                count("a guard was forgotten");
                guard.lost().await;
                return;
            }
            3 => {
                let patience = self.chance.millis(0, 20);
                drop(timeout(patience, guard.unlock()).await);
                return;
            }
            _ => {}
        }
        if self.chance.one_in(2) {
            note(&self.process.name, || format!("lets go of {}", guard.key()));
            drop(guard);
        } else if guard.unlock().await.is_ok() && was_lost {
            violation(format!("{} unlocked a lock that it had lost", self.process.name));
        }
    }
}

/// Runs one seed.
pub async fn run(
    setup: Setup,
    scheduler: Arc<Scheduler>,
    network: Arc<Simulated>,
) -> BTreeSet<Fault> {
    let mut chance = Chance::new(setup.seed);
    let is_denied = setup.seed.is_multiple_of(DENIED);
    let of_story = is_denied.then_some(&[Fault::LockRefuses][..]);
    let of_story = of_story.or((setup.seed % DENIED == CALM).then_some(&[][..]));
    let faults = Arc::new(Faults::new(chance.fork(), of_story, &setup.without_faults));
    let mut shape = Shape::new(&mut chance);
    if is_denied {
        shape.names = vec!["a".into(), "b".into()];
        (shape.actors, shape.operations, shape.hold_for) = (4, 6, None);
        (shape.longest_hold, shape.faults_last) = (shape.ttl, shape.ttl * 8);
    }
    note("seed", || format!("{} {shape:?}", setup.seed));
    note("seed", || format!("faults: {:?}", faults.allowed()));
    let service =
        LockService::new(chance.fork(), Arc::clone(&faults), shape.latency, Arc::clone(&network));
    let world = Arc::new(World {
        shape,
        setup,
        scheduler,
        network,
        service,
        faults,
        judge: Mutex::default(),
        chance: Mutex::new(chance.fork()),
        actors: AtomicU64::new(0),
        began: AtomicU64::new(0),
        began_at: Instant::now(),
    });

    let mut instances: Vec<_> =
        (0..world.shape.instances).map(|number| world.start(number)).collect();
    let ends_at = Instant::now() + world.shape.faults_last;
    while Instant::now() < ends_at && !is_violated() {
        let pause = chance.millis(0, 300);
        sleep(pause).await;
        trouble(&world, &mut instances, &mut chance).await;
    }
    note("seed", || "the last fault is over".into());
    world.faults.end();
    world.service.heal();
    for instance in &instances {
        instance.process.resume();
    }
    settle(&world, instances).await;
    world.faults.allowed().clone()
}

/// Lets a fault happen to the service or to a process.
async fn trouble(world: &Arc<World>, instances: &mut [Instance], chance: &mut Chance) {
    let times = Times::new(chance, world.shape.ttl);
    let which = chance.index(instances.len());
    let (number, process) = (instances[which].number, Arc::clone(&instances[which].process));
    let name = Arc::clone(chance.pick(&world.shape.names));
    let fault = world.faults.choose(Fault::OF_LOCK_AND_PROCESSES, chance);
    if !world.faults.may(fault) {
        return;
    }
    count(fault.name());
    match fault {
        Fault::PausedBriefly => process.pause(times.brief, &world.network),
        Fault::Paused => process.pause(times.long, &world.network),
        Fault::Killed => {
            note(&process.name, || "is killed".into());
            process.kill();
            sleep(if chance.one_in(2) { Duration::ZERO } else { times.brief }).await;
            instances[which] = world.start(number);
        }
        Fault::Stopped => {
            note(&process.name, || "is told to stop".into());
            instances[which].stops.store(true, Ordering::Relaxed);
            if let Some(keeper) = instances[which].keeper.clone() {
                process.spawn(async move { keeper.close().await });
            }
            sleep(times.brief).await;
            note(&process.name, || "ends".into());
            process.kill();
            instances[which] = world.start(number);
        }
        _ => world.service.suffer(fault, &process.name, &name, times),
    }
}

/// Checks that, after the last fault, everybody is served in time, and nothing is left.
async fn settle(world: &Arc<World>, mut instances: Vec<Instance>) {
    let (healed_at, ttl) = (Instant::now(), world.shape.ttl);
    let limit = Duration::from_mins(5);
    while world.actors.load(Ordering::Relaxed) > 0 && !is_violated() {
        world.check_progress(healed_at);
        if healed_at.elapsed() > limit {
            let actors = world.actors.load(Ordering::Relaxed);
            too_late(&format!("{actors} actors did not end"));
        }
        sleep(Duration::from_millis(100)).await;
    }
    // the claims of killed processes end with their leases, and claims that were given up are withdrawn
    sleep(3 * ttl + 2 * GRACE).await;
    let left = world.service.left();
    if !left.is_empty() {
        left_over(&format!("claims: {left:?}"));
    }
    for instance in &instances {
        let shown = format!("{:?}", instance.backend);
        if !shown.contains("claims: 0") {
            left_over(&format!("claims that {} knows: {shown}", instance.process.name));
        }
    }
    for instance in &mut instances {
        let Some(keeper) = instance.keeper.take() else { continue };
        instance.process.spawn(async move { keeper.close().await });
    }
    sleep(2 * ttl + GRACE).await;
    if world.service.leases() > 0 {
        left_over(&format!("{} leases", world.service.leases()));
    }
    for mut instance in instances {
        let backend = instance.backend.take();
        instance.process.run(|| drop(backend));
        let tasks = instance.process.tasks();
        if tasks > 0 {
            left_over(&format!("{tasks} tasks of {}", instance.process.name));
        }
    }
    trace::count("runs");
}
