//! The simulated lock service: leases and queues in memory, in simulated time. It answers as the lock service on Redis does: the
//! next request for a queue removes the claims whose leases have ended, and a message tells the holder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use fenced_lock::asked::{Answer, Answered, Asked, AskedBackend, Waiters};
use fenced_lock::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, ClusterId, HolderWatch, Lease, Loss,
    ObservedClaim, Order, Promises, PutMode, QueueEntry, Released, Token, TokenLife, Wake,
    async_trait,
};
use simulator::Chance;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::faults::{Fault, Faults, Times};
use crate::process::Simulated;
use crate::trace::{Rare, count, happened, locked, note};

const CLUSTER: ClusterId = ClusterId(7);

/// How soon a waiter asks again at the earliest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The limit of a request.
pub const REQUEST_LIMIT: Duration = Duration::from_millis(500);

pub struct LockService {
    state: Mutex<State>,
    faults: Arc<Faults>,
    /// The longest time on the way, in milliseconds.
    latency: u64,
    /// The process that has the tasks of the network.
    network: Arc<Simulated>,
}

struct State {
    chance: Chance,
    ticket: i64,
    leases: BTreeMap<i64, LeaseState>,
    /// The claims of each name by their tickets.
    queues: BTreeMap<Arc<str>, BTreeMap<i64, Claim>>,
    /// The tickets of the claims that stood by, and have asked for a turn since.
    asking: BTreeSet<i64>,
    /// Who watches the holder of each name, and the names with a new holder that the watchers have not been shown.
    watchers: BTreeMap<Arc<str>, Vec<Weak<Client>>>,
    new_heads: BTreeSet<Arc<str>>,
    /// Counts the looks at a holder.
    looks: u64,
    /// The claims and leases that a fault took away, and when.
    taken: BTreeMap<String, Instant>,
    taken_leases: BTreeMap<i64, Instant>,
    silent_until: Instant,
    /// Until when these processes do not reach the service.
    cut_off: BTreeMap<String, Instant>,
    /// Until when these processes may not ask for this name.
    refused: BTreeMap<(String, Arc<str>), Instant>,
    outbox: Vec<Message>,
}

struct LeaseState {
    ends_at: Instant,
    ttl: Duration,
    /// Who gets the messages about its claims. A lease of another program has nobody.
    client: Weak<Client>,
}

/// A message to a holder.
#[derive(Clone)]
struct Message {
    to: Weak<Client>,
    claim: Claim,
    ticket: i64,
    is_contended: bool,
}

/// How a claim stands at the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    Holds,
    /// It does not hold: a fault took it away at this time.
    TakenAway(Instant),
    DoesNotHold,
}

impl State {
    fn lives(&self, claim: &Claim) -> bool {
        self.leases.get(&claim.lease).is_some_and(|lease| lease.ends_at > Instant::now())
    }

    fn head(&self, name: &str) -> Option<(i64, &Claim)> {
        self.queues.get(name)?.first_key_value().map(|(ticket, claim)| (*ticket, claim))
    }

    fn length(&self, name: &str) -> usize {
        self.queues.get(name).map_or(0, BTreeMap::len)
    }

    fn stands_by(&self, ticket: i64, claim: &Claim) -> bool {
        claim.standby.is_some() && !self.asking.contains(&ticket)
    }

    /// Whether a claim behind the holder asks for a turn.
    fn is_contended(&self, name: &str) -> bool {
        let behind = self.queues.get(name).into_iter().flatten().skip(1);
        behind.into_iter().any(|(ticket, claim)| !self.stands_by(*ticket, claim))
    }

    fn ticket_of(&self, claim: &Claim) -> Option<i64> {
        let mut queue = self.queues.get(&claim.name)?.iter();
        queue.find(|(_, other)| *other == claim).map(|(ticket, _)| *ticket)
    }

    fn remove(&mut self, claim: &Claim) -> bool {
        let ticket = self.ticket_of(claim);
        let queue = self.queues.get_mut(&claim.name);
        let removed = queue.zip(ticket).and_then(|(queue, ticket)| queue.remove(&ticket));
        removed.is_some()
    }

    /// Carries out a request for a queue. First it removes the claims whose leases have ended, and last it tells a new holder.
    fn on_queue<A>(
        &mut self,
        name: &Arc<str>,
        by: Option<&Claim>,
        tells_anyway: impl FnOnce(usize, usize) -> bool,
        work: impl FnOnce(&mut Self) -> A,
    ) -> A {
        let head_before = self.head(name).map(|it| it.0);
        let (length_before, was_contended) = (self.length(name), self.is_contended(name));
        let mut queue = self.queues.remove(name).unwrap_or_default();
        queue.retain(|_, claim| self.lives(claim));
        self.queues.insert(Arc::clone(name), queue);
        let answer = work(self);
        let (length, is_contended) = (self.length(name), self.is_contended(name));
        let head = self.head(name).map(|(ticket, claim)| (ticket, claim.clone()));
        if head.as_ref().map(|it| it.0) != head_before {
            self.new_heads.insert(Arc::clone(name));
        }
        if let Some((ticket, claim)) = head
            && Some(&claim) != by
        {
            let is_news = Some(ticket) != head_before || is_contended != was_contended;
            if (is_news || tells_anyway(length_before, length))
                && let Some(lease) = self.leases.get(&claim.lease)
            {
                let to = Weak::clone(&lease.client);
                self.outbox.push(Message { to, claim, ticket, is_contended });
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        answer
    }

    fn observed(&self, (ticket, claim): (i64, &Claim)) -> ObservedClaim {
        let mut observed = ObservedClaim::of(claim, Token::new(CLUSTER, ticket));
        observed.is_standby = self.stands_by(ticket, claim);
        observed
    }

    /// How a claim stands, and whether other claims ask for a turn.
    fn standing(&self, claim: &Claim) -> (Answer<Token>, bool) {
        let answer = |status, ask_again_in| Answer { status, ask_again_in };
        let Some(ticket) = self.ticket_of(claim) else {
            return (answer(ClaimStatus::Gone, SHORTEST_PAUSE), false);
        };
        match self.head(&claim.name) {
            Some((_, head)) if head != claim => {
                let ends_at = self.leases.get(&head.lease).map(|lease| lease.ends_at);
                let ends_in = ends_at.map(|at| at - Instant::now()).unwrap_or_default();
                (answer(ClaimStatus::Waiting, SHORTEST_PAUSE.max(ends_in)), true)
            }
            _ => {
                let status = ClaimStatus::Granted(Token::new(CLUSTER, ticket));
                (answer(status, SHORTEST_PAUSE), self.is_contended(&claim.name))
            }
        }
    }

    fn check_lease(&self, claim: &Claim) -> Answered<()> {
        if self.lives(claim) { Ok(()) } else { Err(BackendError::lease_gone()) }
    }

    fn end_lease(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let names: Vec<_> = self.queues.keys().cloned().collect();
        for name in names {
            self.on_queue(&name, None, never, |_| ());
        }
    }
}

/// For requests that send the holder no message if nothing is new.
fn never(_before: usize, _after: usize) -> bool {
    false
}

/// The fate of a request.
struct Way {
    there: Duration,
    back: Duration,
    arrives: bool,
    is_late: bool,
    is_answered: bool,
    /// Whether the caller learns of the loss at once, as when a connection breaks.
    is_cut: bool,
    has_room: bool,
}

impl LockService {
    pub fn new(
        chance: Chance,
        faults: Arc<Faults>,
        latency: u64,
        network: Arc<Simulated>,
    ) -> Arc<Self> {
        let state = State {
            chance,
            ticket: 0,
            leases: BTreeMap::new(),
            queues: BTreeMap::new(),
            asking: BTreeSet::new(),
            watchers: BTreeMap::new(),
            new_heads: BTreeSet::new(),
            looks: 0,
            taken: BTreeMap::new(),
            taken_leases: BTreeMap::new(),
            silent_until: Instant::now(),
            cut_off: BTreeMap::new(),
            refused: BTreeMap::new(),
            outbox: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state), faults, latency, network })
    }

    fn way(&self, process: &str, limit: Duration) -> Way {
        let mut state = locked(&self.state);
        let (most, faults, now) = (self.latency, &self.faults, Instant::now());
        let (mut there, mut back) = (state.chance.millis(0, most), state.chance.millis(0, most));
        let slow = state.chance.below(750);
        if faults.strikes(Fault::LockSlow) {
            (there, back) = (there + limit.mul_f64(slow as f64 / 2000.0), back + limit / 3);
        }
        let is_late = faults.strikes(Fault::LockRequestLate);
        let late = limit + state.chance.millis(0, 3000);
        if is_late {
            there += late;
        }
        let is_away = now < state.silent_until
            || state.cut_off.get(process).is_some_and(|until| now < *until);
        let is_lost = faults.strikes(Fault::LockRequestLost);
        let is_unanswered = faults.strikes(Fault::LockAnswerLost);
        let has_room = !faults.strikes(Fault::LockNoRoom);
        let is_cut = state.chance.one_in(2) && !is_away;
        let is_answered = !is_unanswered && !is_late;
        if !is_answered || is_lost || is_away || !has_room || there + back > limit / 2 {
            faults.delays(Some(process), now + limit);
        }
        Way { there, back, arrives: !is_lost && !is_away, is_late, is_answered, is_cut, has_room }
    }

    /// Sends the messages that are due, each with a fate of its own, and shows new holders to their watchers.
    fn deliver(&self) {
        let mut state = locked(&self.state);
        for name in std::mem::take(&mut state.new_heads) {
            for watcher in state.watchers.get(&name).cloned().unwrap_or_default() {
                self.show_holder(&mut state, &name, watcher);
            }
        }
        for message in std::mem::take(&mut state.outbox) {
            let is_lost = self.faults.strikes(Fault::MessageLost);
            let times = 1 + u32::from(self.faults.strikes(Fault::MessageTwice));
            let is_late = self.faults.strikes(Fault::MessageLate);
            if is_lost || is_late {
                self.faults.delays(None, Instant::now());
            }
            if is_lost && let Some(client) = message.to.upgrade() {
                match client.waiters.status(&message.claim) {
                    ClaimStatus::Waiting => happened(Rare::GrantLost),
                    ClaimStatus::Granted(_) if message.is_contended => {
                        happened(Rare::NewsOfWaiterLost);
                    }
                    _ => {}
                }
            }
            for _ in 0..if is_lost { 0 } else { times } {
                let most = if is_late { 2000 } else { self.latency };
                let on_the_way = state.chance.millis(0, most);
                let message = message.clone();
                self.network.spawn(async move {
                    sleep(on_the_way).await;
                    if let Some(client) = message.to.upgrade() {
                        // the process gets it once it runs
                        let (process, client) =
                            (Arc::clone(&client.process), Weak::clone(&message.to));
                        process.spawn(async move {
                            if let Some(client) = client.upgrade() {
                                client.on_message(
                                    &message.claim,
                                    message.ticket,
                                    message.is_contended,
                                );
                            }
                        });
                    }
                });
            }
        }
    }

    /// Shows a client the holder of the moment at which the news arrives. As with a watch, the news may be late, but it comes.
    fn show_holder(&self, state: &mut State, name: &Arc<str>, watcher: Weak<Client>) {
        let is_late = self.faults.strikes(Fault::MessageLate);
        let on_the_way = state.chance.millis(0, if is_late { 2000 } else { self.latency });
        let name = Arc::clone(name);
        self.network.spawn(async move {
            sleep(on_the_way).await;
            // this task does not keep the client of a killed process
            let ways = watcher.upgrade();
            let ways = ways.map(|it| (Arc::clone(&it.process), Arc::clone(&it.service)));
            let Some((process, service)) = ways else { return };
            let (look, head) = service.look(&process.name, &name).await;
            // the process gets it once it runs
            process.spawn(async move {
                if let Some(client) = watcher.upgrade() {
                    client.shown(&name, look, head.as_ref());
                }
            });
        });
    }

    /// Reads the holder as soon as this process reaches the service. Returns also the number of this look.
    async fn look(&self, process: &str, name: &str) -> (u64, Option<ObservedClaim>) {
        loop {
            let until = {
                let mut state = locked(&self.state);
                let cut_off = state.cut_off.get(process).copied();
                let until = cut_off.map_or(state.silent_until, |at| at.max(state.silent_until));
                if until <= Instant::now() {
                    state.looks += 1;
                    return (state.looks, state.head(name).map(|it| state.observed(it)));
                }
                until
            };
            sleep_until(until).await;
        }
    }

    /// How the claim with this key stands.
    pub fn truth(&self, name: &str, key: &str) -> Truth {
        let mut state = locked(&self.state);
        let mut living =
            state.queues.get(name).into_iter().flatten().filter(|it| state.lives(it.1));
        let lease = key.rsplit_once('/').and_then(|(_, id)| id.split_once('-'));
        let lease = lease.and_then(|(lease, _)| i64::from_str_radix(lease, 16).ok());
        if living.next().is_some_and(|(_, claim)| claim.key() == key) {
            // a claim that was deleted was put again
            state.taken.remove(key);
            Truth::Holds
        } else if let Some(at) = state.taken.get(key) {
            Truth::TakenAway(*at)
        } else if let Some(at) = lease.and_then(|lease| state.taken_leases.get(&lease)) {
            Truth::TakenAway(*at)
        } else {
            Truth::DoesNotHold
        }
    }

    /// The keys of the claims that live.
    pub fn left(&self) -> Vec<String> {
        let state = locked(&self.state);
        let claims = state.queues.values().flat_map(BTreeMap::values);
        claims.filter(|claim| state.lives(claim)).map(Claim::key).collect()
    }

    pub fn leases(&self) -> usize {
        let state = locked(&self.state);
        state.leases.values().filter(|lease| lease.ends_at > Instant::now()).count()
    }

    // Faults that strike by themselves, not a request.

    /// Lets this fault happen to the service, or to this process's way to it.
    pub fn suffer(&self, fault: Fault, process: &str, name: &Arc<str>, times: Times) {
        let now = Instant::now();
        match fault {
            Fault::LockSilent => self.faults.delays(None, now + times.either),
            Fault::LockCutOff => self.faults.delays(Some(process), now + times.either),
            Fault::LockRefuses => self.faults.refuses(now + times.long * 2),
            Fault::OtherProgram => self.faults.delays(None, now + times.brief),
            _ => self.faults.delays(None, now),
        }
        match fault {
            Fault::LockSilent => self.be_silent(times.either),
            Fault::LockCutOff => self.cut_off(process, times.either),
            Fault::LockRefuses => self.refuse(process, name, times.long * 2),
            Fault::LeaseEnded => self.end_some_lease(),
            Fault::LeasesExtended => self.extend_leases(),
            Fault::ClaimDeleted => self.delete_some_claim(),
            Fault::OtherProgram => self.put_foreign_claim(name, times.brief),
            _ => {}
        }
    }

    fn be_silent(&self, limit: Duration) {
        locked(&self.state).silent_until = Instant::now() + limit;
    }

    fn cut_off(&self, process: &str, limit: Duration) {
        locked(&self.state).cut_off.insert(process.to_owned(), Instant::now() + limit);
    }

    fn refuse(&self, process: &str, name: &str, limit: Duration) {
        let until = Instant::now() + limit;
        locked(&self.state).refused.insert((process.to_owned(), name.into()), until);
    }

    /// Ends all faults of the service, and of everybody's way to it.
    pub fn heal(&self) {
        let mut state = locked(&self.state);
        state.silent_until = Instant::now();
        state.cut_off.clear();
        state.refused.clear();
    }

    fn end_some_lease(&self) {
        let mut state = locked(&self.state);
        let leases: Vec<_> = state.leases.keys().copied().collect();
        if !leases.is_empty() {
            let lease = *state.chance.pick(&leases);
            note("locks", || format!("lease {lease:x} ends before its time"));
            state.taken_leases.insert(lease, Instant::now());
            state.end_lease(lease);
        }
        drop(state);
        self.deliver();
    }

    fn extend_leases(&self) {
        for lease in locked(&self.state).leases.values_mut() {
            if lease.ends_at > Instant::now() {
                lease.ends_at = Instant::now() + lease.ttl;
            }
        }
    }

    fn delete_some_claim(&self) {
        let mut state = locked(&self.state);
        let claims: Vec<_> = state.queues.values().flat_map(BTreeMap::values).cloned().collect();
        if !claims.is_empty() {
            let claim = state.chance.pick(&claims).clone();
            note("locks", || format!("an operator deletes {claim}"));
            state.taken.insert(claim.key(), Instant::now());
            state.on_queue(&claim.name, None, never, |state| state.remove(&claim));
        }
        drop(state);
        self.deliver();
    }

    /// Puts a claim of another program, which then dies: its claim ends with its lease.
    fn put_foreign_claim(&self, name: &Arc<str>, ttl: Duration) {
        let mut state = locked(&self.state);
        let lease = (state.chance.number() >> 1).cast_signed();
        let ends_at = Instant::now() + ttl;
        state.leases.insert(lease, LeaseState { ends_at, ttl, client: Weak::new() });
        let claim = Claim::new(Arc::clone(name), lease, 1);
        note("locks", || format!("another program queues: {claim}"));
        state.on_queue(name, Some(&claim), never, |state| {
            state.ticket += 1;
            let ticket = state.ticket;
            state.queues.entry(Arc::clone(name)).or_default().insert(ticket, claim.clone());
        });
        drop(state);
        self.deliver();
    }
}

/// The way of a process to the service.
pub struct Client {
    service: Arc<LockService>,
    process: Arc<Simulated>,
    waiters: Waiters<Token>,
    /// The holders that are watched, each with the number of the latest look.
    holders: Mutex<BTreeMap<Arc<str>, (u64, HolderWatch)>>,
    this: Weak<Self>,
}

impl Client {
    /// The lock, as this process uses it.
    pub fn start(service: &Arc<LockService>, process: &Arc<Simulated>) -> Arc<AskedBackend<Self>> {
        let backend = AskedBackend::start("locks", |_, this| Self {
            service: Arc::clone(service),
            process: Arc::clone(process),
            waiters: Waiters::default(),
            holders: Mutex::default(),
            this: Weak::clone(this),
        });
        Arc::new(backend.expect("it starts no thread"))
    }

    async fn call<A: Send + 'static>(
        &self,
        what: &'static str,
        claim: Option<&Claim>,
        limit: Duration,
        work: impl FnOnce(&mut State) -> Answered<A> + Send + 'static,
    ) -> Answered<A> {
        let who = self.process.name.clone();
        let way = self.service.way(&who, limit);
        let (answer, answered) = oneshot::channel();
        let service = Arc::clone(&self.service);
        let shown = claim.map(Claim::key).unwrap_or_default();
        let refused = claim.map(|claim| (who.clone(), Arc::clone(&claim.name)));
        // a task of the network: a request that was sent does not end with its sender
        self.service.network.spawn(async move {
            sleep(way.there).await;
            let is_forgotten = way.is_late && service.faults.is_over();
            if !way.arrives || is_forgotten {
                note(&who, || format!("{what} {shown}: does not reach the lock service"));
                if !way.is_cut {
                    sleep(limit).await;
                }
                return drop(answer);
            }
            let outcome = {
                let mut state = locked(&service.state);
                let is_refused = refused
                    .and_then(|it| state.refused.get(&it))
                    .is_some_and(|until| Instant::now() < *until);
                if is_refused {
                    count("a request was refused for its name");
                    Err(BackendError::permanent("no permission for this name"))
                } else if way.has_room {
                    work(&mut state)
                } else {
                    Err(BackendError::new(BackendErrorKind::Refused, "no room"))
                }
            };
            service.deliver();
            let said = match &outcome {
                Ok(_) => "done",
                Err(error) if error.kind == BackendErrorKind::LeaseGone => "the lease is gone",
                Err(_) => "refused",
            };
            let late = if way.is_late { ", late" } else { "" };
            let lost = if way.is_answered { "" } else { ", the answer is lost" };
            note(&who, || format!("{what} {shown}: {said}{late}{lost}"));
            sleep(way.back).await;
            if way.is_answered {
                drop(answer.send(outcome));
            } else if !way.is_cut {
                sleep(limit).await;
            }
        });
        match timeout(limit, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(BackendError::transient("the connection broke")),
            Err(_) => Err(BackendError::transient("no answer in time")),
        }
    }

    /// Notes whether others wait, when the claim has just been granted.
    fn take_up(
        &self,
        claim: &Claim,
        (answer, is_contended): (Answer<Token>, bool),
    ) -> Answer<Token> {
        if answer.status != ClaimStatus::Waiting
            && self.waiters.status(claim) == ClaimStatus::Waiting
        {
            self.waiters.note_contended(claim, is_contended);
        }
        answer
    }

    fn shown(&self, name: &str, look: u64, head: Option<&ObservedClaim>) {
        if let Some((latest, holder)) = locked(&self.holders).get_mut(name)
            && look > *latest
        {
            *latest = look;
            holder.note(head);
        }
    }

    fn on_message(self: &Arc<Self>, claim: &Claim, ticket: i64, is_contended: bool) {
        if let Some(known) = self.waiters.find(claim.lease, claim.number) {
            let waited = self.waiters.status(&known) == ClaimStatus::Waiting;
            self.waiters.note_message(&known, Token::new(CLUSTER, ticket), is_contended);
            if waited && self.waiters.status(&known) != ClaimStatus::Waiting {
                count("a message granted the lock");
            }
        } else {
            // a late request put the claim: nobody here waits for it
            happened(Rare::HeldByNobody);
            let (this, claim) = (Arc::clone(self), claim.clone());
            self.process.spawn(async move { drop(this.release(&claim).await) });
        }
    }
}

#[async_trait]
impl Asked for Client {
    type Token = Token;

    const PROMISES: Promises = {
        let mut promises = Promises::LEAST;
        promises.order = Order::Fifo;
        promises.wake = Wake::Pushed;
        promises.token = TokenLife::Durable;
        promises.loss = Loss::AtRenewal;
        promises.standby = true;
        promises
    };

    fn waiters(&self) -> &Waiters<Token> {
        &self.waiters
    }

    async fn open(&self, id: i64, ttl: Duration) -> Answered<ClusterId> {
        let (client, sent_at) = (Weak::clone(&self.this), Instant::now());
        let opened = self.call("open", None, REQUEST_LIMIT, move |state| {
            let ends_at = Instant::now() + ttl;
            state.leases.insert(id, LeaseState { ends_at, ttl, client });
            Ok(CLUSTER)
        });
        let opened = opened.await;
        // the process counts its lease from the request: little may be left of it when the answer comes
        if sent_at.elapsed() > ttl / 2 {
            self.service.faults.delays(Some(&self.process.name), Instant::now());
        }
        opened
    }

    async fn renew(&self, lease: Lease, held: &[Claim]) -> Answered<Vec<bool>> {
        let asked = held.to_vec();
        let limit = REQUEST_LIMIT.min(lease.ttl / 8);
        let renew = move |state: &mut State| {
            let now = Instant::now();
            let known = state.leases.get_mut(&lease.id).filter(|known| known.ends_at > now);
            let known = known.ok_or_else(BackendError::lease_gone)?;
            known.ends_at = now + known.ttl;
            let holds = |claim: &Claim| match state.head(&claim.name) {
                Some((_, head)) if head == claim => {
                    1 + usize::from(state.is_contended(&claim.name))
                }
                _ => 0,
            };
            Ok(asked.iter().map(holds).collect::<Vec<_>>())
        };
        let standings = self.call("renew", None, limit, renew).await?;
        for (claim, _) in held.iter().zip(&standings).filter(|(_, standing)| **standing == 2) {
            self.waiters.note_contended(claim, true);
        }
        Ok(standings.iter().map(|standing| *standing > 0).collect())
    }

    async fn close(&self, lease: Lease, _: Vec<Claim>) -> Answered<()> {
        self.call("close", None, REQUEST_LIMIT, move |state| {
            state.end_lease(lease.id);
            Ok(())
        })
        .await
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Token>>> {
        let (put, mode) = (claim.clone(), mode.clone());
        let what = match mode {
            PutMode::AtEnd => "put",
            PutMode::IfEmpty => "try",
            PutMode::After(_) => "hand over to",
        };
        let standing = self.call(what, Some(claim), REQUEST_LIMIT, move |state| {
            let name = Arc::clone(&put.name);
            state.on_queue(
                &name,
                Some(&put),
                |_, length| length == 1,
                |state| {
                    state.check_lease(&put)?;
                    if state.ticket_of(&put).is_none() {
                        match &mode {
                            PutMode::IfEmpty if state.length(&put.name) > 0 => return Ok(None),
                            PutMode::After(held) if !state.remove(held) => return Ok(None),
                            _ => {}
                        }
                        state.ticket += 1;
                        let ticket = state.ticket;
                        state
                            .queues
                            .entry(Arc::clone(&put.name))
                            .or_default()
                            .insert(ticket, put.clone());
                    }
                    Ok(Some(state.standing(&put)))
                },
            )
        });
        Ok(standing.await?.map(|standing| self.take_up(claim, standing)))
    }

    async fn ask(&self, claim: &Claim) -> Answered<Answer<Token>> {
        let asked = claim.clone();
        let standing = self.call("ask about", Some(claim), REQUEST_LIMIT, move |state| {
            let name = Arc::clone(&asked.name);
            state.on_queue(
                &name,
                Some(&asked),
                |_, _| true,
                |state| {
                    state.check_lease(&asked)?;
                    Ok(state.standing(&asked))
                },
            )
        });
        Ok(self.take_up(claim, standing.await?))
    }

    async fn release(&self, claim: &Claim) -> Answered<Released> {
        let gone = claim.clone();
        self.call("release", Some(claim), REQUEST_LIMIT, move |state| {
            let name = Arc::clone(&gone.name);
            // the holder is told that a waiter has given up, as by one that asks
            Ok(state.on_queue(
                &name,
                Some(&gone),
                |before, after| after < before,
                |state| {
                    let was_alive = state.lives(&gone);
                    let removed = state.remove(&gone);
                    if removed && was_alive { Released::Done } else { Released::Gone }
                },
            ))
        })
        .await
    }

    async fn queue(&self, name: &str, most: usize) -> Answered<Vec<QueueEntry>> {
        let name: Arc<str> = name.into();
        self.call("list", None, REQUEST_LIMIT, move |state| {
            Ok(state.on_queue(&name, None, never, |state| {
                let claims = state.queues.get(&name).into_iter().flatten().take(most);
                let entry = |(ticket, claim): (&i64, &Claim)| {
                    let mut entry = QueueEntry::new(claim.lease, claim.key());
                    entry.note = claim.standby.as_deref().map(str::to_owned);
                    entry.is_standby = state.stands_by(*ticket, claim);
                    entry
                };
                claims.map(entry).collect()
            }))
        })
        .await
    }

    async fn ask_for_turn(&self, claim: &Claim) -> Answered<()> {
        let asks = claim.clone();
        self.call("ask for a turn of", Some(claim), REQUEST_LIMIT, move |state| {
            let name = Arc::clone(&asks.name);
            state.on_queue(&name, Some(&asks), never, |state| {
                state.check_lease(&asks)?;
                let ticket = state.ticket_of(&asks);
                state.asking.extend(ticket);
                Ok(())
            })
        })
        .await
    }

    fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        let mut holders = locked(&self.holders);
        let (_, holder) = holders.entry(name.into()).or_default();
        let (is_new, name) = (!holder.is_watched(), name.into());
        if is_new {
            let (service, this) = (&self.service, Weak::clone(&self.this));
            let mut state = locked(&service.state);
            let watchers = state.watchers.entry(Arc::clone(&name)).or_default();
            watchers.retain(|watcher| watcher.strong_count() > 0 && !watcher.ptr_eq(&this));
            watchers.push(Weak::clone(&this));
            service.show_holder(&mut state, &name, this);
        }
        Some(holder.watch())
    }
}
