//! The state of the model and its steps.

use std::collections::BTreeSet;
use std::mem::take;

use Action::*;
use Instance::{A, B};
use stateright::{Model, Property};

use super::{Fence, Sale, properties};

pub(crate) const ORDERS: usize = 3;
pub(crate) const STOCK: usize = 2;
/// The number of an order asks for the order; [`ORDERS`] more asks to confirm it, twice as many more to cancel it. The ledger has
/// the same numbers; three times as many more means that the hold expired.
pub(crate) const ASKS: usize = 3 * ORDERS;
pub(crate) const EXPIRED: usize = 3;
pub(crate) const BATCHES: [Batch; 9] =
    [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 0], &[1, 2], &[2, 0], &[2, 1]];

/// The buyer of order 1 takes it, and never pays.
pub(crate) const BATCHES_WITH_HOLDS: [Batch; 4] = [&[0], &[1], &[3], &[6]];

pub(crate) type Order = usize;
pub(crate) type Ask = usize;
pub(crate) type Token = usize;
pub(crate) type Batch = &'static [Ask];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Instance {
    A,
    B,
}

/// One step of an instance, except `Expire` (by etcd), `ReduceLate` and `OpenLate` (by the network).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Enqueue(Instance),
    Grant(Instance),
    /// Opens a tenure at the store, which counts the fence up. Only the store's own fence has this step.
    Open(Instance),
    OpenLate,
    /// Takes a batch and sends it. Redis sees it in `Reduce`, or in `Look` and `Take`.
    Run(Instance, Batch),
    Reduce(Instance, Batch, Reply),
    ReduceLate(Token, Batch),
    Look(Instance),
    Take(Instance, Reply),
    HandOver(Instance),
    Release(Instance),
    Expire(Token),
    /// The hold of an order is over, by Redis' clock.
    Due(Order),
    Lost(Instance),
    Crash(Instance),
}

/// Whether an answer of Redis reaches the instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reply {
    Arrives,
    Lost,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    // etcd: the latest revision, and the claims whose lease lives, the holder first
    pub(crate) revision: Token,
    pub(crate) queue: Vec<Token>,
    // the belief of each instance
    pub(crate) claims: [Option<Claim>; 2],
    // copies of batches for which nobody waits any more, and which may still arrive
    pub(crate) sent: BTreeSet<(Token, Batch)>,
    // a request to open a tenure for whose answer nobody waits: one is enough, since it fences any holder
    pub(crate) opened_late: bool,
    // Redis
    pub(crate) stock: usize,
    pub(crate) fence: Token,
    pub(crate) ledger: Vec<(Ask, Token)>,
    pub(crate) due: [bool; ORDERS],
    // the buyers: how many have asked, and their first answers
    pub(crate) asked: usize,
    pub(crate) answers: [Option<Answer>; ASKS],
    // the special event of the latest step, if there was one
    pub(crate) event: Option<Event>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) token: Token,
    /// The number on its writes: the lock's token, or the number of its tenure at the store.
    pub(crate) number: Option<Token>,
    pub(crate) is_granted: bool,
    /// The lease has expired, and the instance does not know it.
    pub(crate) has_expired: bool,
    /// The batches without an answer yet, sorted: which of two went first makes no difference.
    pub(crate) flights: Vec<Flight>,
    /// An order waits for a larger token, so nothing more is sent.
    pub(crate) is_ending: bool,
    /// In two steps: the stock that was read.
    pub(crate) seen: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Flight {
    pub(crate) batch: Batch,
    /// An attempt under the claim's token got no answer, and may still be carried out.
    pub(crate) is_unknown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// The entry of the ledger with the order, or with its end.
    Entry {
        position: usize,
    },
    SoldOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Event {
    StaleRefused,
    AnsweredAgain,
    Contradicted,
    ToldTooEarly,
}

/// Redis refuses a token below the fence.
struct Stale;

/// The units that were taken and did not come back.
pub(crate) fn units_taken(state: &State) -> usize {
    let comes_back = |entry: usize| entry >= 2 * ORDERS;
    let back = state.ledger.iter().filter(|(entry, _)| comes_back(*entry)).count();
    state.ledger.iter().filter(|(entry, _)| *entry < ORDERS).count().saturating_sub(back)
}

/// Redis.
impl Sale {
    /// The units of the sale.
    pub(crate) fn units(self) -> usize {
        if self.holds.is_some() { 1 } else { STOCK }
    }

    /// The most claims. With holds, or with two batches on their way, there is more to try under each claim. In two steps nothing
    /// is on its way without its sender, so an instance that holds again has left nothing behind.
    fn claims(self) -> Token {
        if self.in_flight == 2 || !self.script { 2 } else { 3 }
    }

    fn batches(self) -> &'static [Batch] {
        if self.holds.is_some() { &BATCHES_WITH_HOLDS } else { &BATCHES }
    }

    fn pass_fence(self, state: &mut State, number: Token) -> Result<(), Stale> {
        if self.fence != Fence::None {
            if number < state.fence {
                return Err(Stale);
            }
            state.fence = number;
        }
        Ok(())
    }

    fn reduce(
        self,
        state: &mut State,
        number: Token,
        batch: Batch,
        seen: Option<usize>,
    ) -> Result<Vec<Option<Answer>>, Stale> {
        self.pass_fence(state, number)?;
        let position = |state: &State, entries: &[Ask]| {
            state.ledger.iter().position(|(entry, _)| entries.contains(entry))
        };
        let ends = |order: Order| [order + ORDERS, order + 2 * ORDERS, order + EXPIRED * ORDERS];
        for order in 0..ORDERS {
            if state.due[order] && position(state, &ends(order)).is_none() {
                state.stock += 1;
                state.ledger.push((order + EXPIRED * ORDERS, number));
            }
        }
        let mut stock = seen.unwrap_or(state.stock);
        let answer = |&ask: &Ask| {
            let (order, is_new) = (ask % ORDERS, ask < ORDERS);
            let once = is_new || self.holds.is_some_and(|holds| holds.once);
            let known = position(state, &[order]).filter(|_| self.order_ids);
            let end = position(state, &ends(order)).filter(|_| once);
            match (known, end) {
                (_, Some(position)) if !is_new || state.ledger[position].0 / ORDERS != 1 => {
                    return Some(Answer::Entry { position });
                }
                (Some(position), _) if is_new => return Some(Answer::Entry { position }),
                (Some(_), _) => stock += usize::from(ask >= 2 * ORDERS),
                // with holds no answer is kept: a retry is a new attempt
                (None, _) if is_new && stock == 0 => {
                    return self.holds.is_none().then_some(Answer::SoldOut);
                }
                (None, _) if is_new => stock -= 1,
                (None, _) => return None,
            }
            state.stock = stock;
            state.ledger.push((ask, number));
            Some(Answer::Entry { position: state.ledger.len() - 1 })
        };
        Ok(batch.iter().map(answer).collect())
    }

    /// Whether a copy that arrives late would change anything. In two steps there are no copies: a pause before the second step
    /// stands for a late write.
    fn can_matter(self, state: &State, number: Token, batch: Batch) -> bool {
        if !self.script {
            return false;
        }
        if let Some(holds) = self.holds {
            let is_over = |ask: Ask| {
                let decided = |entry: usize| {
                    entry % ORDERS == ask % ORDERS && (entry >= ORDERS || ask < ORDERS)
                };
                state.ledger.iter().any(|(entry, _)| decided(*entry))
            };
            return number >= state.fence && !(holds.once && batch.iter().all(|ask| is_over(*ask)));
        }
        let mut after = state.clone();
        drop(self.reduce(&mut after, number, batch, None));
        after != *state
    }

    fn receive(
        self,
        state: &mut State,
        instance: Instance,
        batch: Batch,
        answers: Result<Vec<Option<Answer>>, Stale>,
    ) -> Option<()> {
        let Ok(answers) = answers else {
            state.event = Some(Event::StaleRefused);
            return state.release(instance);
        };
        let claim = state.claims[instance as usize].as_mut()?;
        let number = claim.number?;
        let at = claim.flights.iter().position(|flight| flight.batch == batch)?;
        let is_unknown = claim.flights.remove(at).is_unknown;
        if self.holds.is_none() || is_unknown {
            state.sent.insert((number, batch));
        }
        let flights = claim.flights.clone();
        for (&ask, answer) in batch.iter().zip(answers) {
            let Some(answer) = answer else {
                // nothing was done, and an attempt may still do it: the order is sent again under a larger token
                if is_unknown && self.holds.is_some_and(|holds| holds.larger_token) {
                    state.claims[instance as usize].as_mut()?.is_ending = true;
                    continue;
                }
                let sent = state.sent.iter().filter(|(of, _)| *of == number);
                let mut sent = sent.map(|(_, batch)| *batch).chain(flights.iter().map(|f| f.batch));
                if sent
                    .any(|sent| shares_order(sent, &[ask]) && self.can_matter(state, number, sent))
                {
                    state.event = Some(Event::ToldTooEarly);
                }
                continue;
            };
            if let Some(earlier) = state.answers[ask].replace(answer) {
                // an order that is asked for again may be over, by its cancellation or its end
                let is_over = |answer: Answer| matches!(answer, Answer::Entry { position } if state.ledger[position].0 >= 2 * ORDERS);
                let is_same =
                    earlier == answer || ask < ORDERS && !is_over(earlier) && is_over(answer);
                let event = if is_same { Event::AnsweredAgain } else { Event::Contradicted };
                // keep the worse event
                state.event = state.event.max(Some(event));
            }
        }
        Some(())
    }

    /// Redis carries out a batch, and its answer arrives or is lost.
    fn arrive(
        self,
        state: &mut State,
        instance: Instance,
        batch: Batch,
        reply: Reply,
    ) -> Option<()> {
        let claim = state.claims[instance as usize].as_mut()?;
        let (number, seen) = (claim.number?, claim.seen.take());
        let answers = self.reduce(state, number, batch, seen);
        if reply == Reply::Arrives {
            return self.receive(state, instance, batch, answers);
        }
        if self.holds.is_some() {
            let flights = &mut state.claims[instance as usize].as_mut()?.flights;
            flights.iter_mut().filter(|f| f.batch == batch).for_each(|f| f.is_unknown = true);
        }
        Some(())
    }

    /// Whether the instance may send this batch beside those of the claim.
    fn can_send(self, state: &State, claim: &Claim, batch: Batch) -> bool {
        let is_apart = || claim.flights.iter().all(|flight| !shares_order(flight.batch, batch));
        state.ask(batch).is_some() && (self.holds.is_some_and(|holds| !holds.apart) || is_apart())
    }
}

fn shares_order(one: Batch, other: &[Ask]) -> bool {
    one.iter().any(|ask| other.iter().any(|other| ask % ORDERS == other % ORDERS))
}

/// The instances, etcd and the buyers.
impl State {
    /// How many orders have been asked for, with this batch. Orders have numbers in the order in which they are first asked for:
    /// `None` if this batch skips one.
    fn ask(&self, batch: Batch) -> Option<usize> {
        batch
            .iter()
            .map(|ask| ask % ORDERS)
            .try_fold(self.asked, |asked, order| (order <= asked).then_some(asked.max(order + 1)))
    }

    fn enqueue(&mut self, instance: Instance, lock_excludes: bool) {
        self.revision += 1;
        if lock_excludes {
            self.queue.push(self.revision);
        }
        let claim = Claim { token: self.revision, is_granted: !lock_excludes, ..Claim::default() };
        self.claims[instance as usize] = Some(claim);
    }

    /// Ends the hold in which the instance believes. Its batches wait again, and copies may be under way.
    fn put_back(&mut self, instance: Instance) -> Option<Token> {
        let claim = self.claims[instance as usize].take()?;
        let copy = |flight: Flight| Some((claim.number?, flight.batch));
        self.sent.extend(claim.flights.into_iter().filter_map(copy));
        Some(claim.token)
    }

    /// By revision, not by name: a later claim stays.
    fn release(&mut self, instance: Instance) -> Option<()> {
        let token = self.put_back(instance)?;
        self.queue.retain(|claim| *claim != token);
        Some(())
    }
}

impl Model for Sale {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { stock: self.units(), ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.queue.iter().map(|token| Expire(*token)));
        actions.extend(state.sent.iter().map(|(number, batch)| ReduceLate(*number, batch)));
        let may_open = self.fence == Fence::Store && !state.opened_late;
        actions.extend(may_open.then_some(OpenLate));
        let may_enqueue = state.revision < self.claims();
        let held = state.ledger.iter().map(|(entry, _)| *entry).filter(|entry| *entry < ORDERS);
        let held = held.filter(|order| self.holds.is_some() && !state.due[*order]);
        actions.extend(held.map(Due));
        for (instance, claim) in [A, B].into_iter().zip(&state.claims) {
            let Some(claim) = claim else {
                if may_enqueue && (instance == A || state.claims[0].is_some()) {
                    actions.push(Enqueue(instance));
                }
                continue;
            };
            actions.extend([Lost(instance), Crash(instance)]);
            let replies = [Reply::Arrives, Reply::Lost].into_iter();
            let is_idle = claim.flights.is_empty();
            if is_idle {
                actions.push(Release(instance));
            }
            if !claim.is_granted {
                let is_first = state.queue.first() == Some(&claim.token);
                actions.extend(is_first.then_some(Grant(instance)));
            } else if claim.number.is_none() {
                actions.push(Open(instance));
            } else {
                if !claim.is_ending && claim.flights.len() < self.in_flight {
                    let batches = self.batches().iter();
                    let batches = batches.filter(|batch| self.can_send(state, claim, batch));
                    actions.extend(batches.map(|batch| Run(instance, batch)));
                }
                let may = is_idle && may_enqueue && state.queue.contains(&claim.token);
                actions.extend(may.then_some(HandOver(instance)));
                for flight in &claim.flights {
                    let reduce = |reply| Reduce(instance, flight.batch, reply);
                    match claim.seen {
                        _ if self.script => actions.extend(replies.clone().map(reduce)),
                        None => actions.push(Look(instance)),
                        Some(_) => {
                            actions.extend(replies.clone().map(|reply| Take(instance, reply)));
                        }
                    }
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = State { event: None, ..last.clone() };
        match action {
            Enqueue(instance) => state.enqueue(instance, self.lock_excludes),
            Grant(instance) => {
                let claim = state.claims[instance as usize].as_mut()?;
                claim.is_granted = true;
                claim.number = (self.fence != Fence::Store).then_some(claim.token);
            }
            Open(instance) => {
                state.fence += 1;
                state.claims[instance as usize].as_mut()?.number = Some(state.fence);
            }
            OpenLate => {
                state.fence += 1;
                state.opened_late = true;
            }
            Run(instance, batch) => {
                let claim = state.claims[instance as usize].as_mut()?;
                claim.flights.push(Flight { batch, is_unknown: false });
                state.asked = last.ask(batch)?;
            }
            Look(instance) => {
                let Claim { number, flights, .. } = last.claims[instance as usize].as_ref()?;
                match self.pass_fence(&mut state, (*number)?) {
                    Ok(()) => state.claims[instance as usize].as_mut()?.seen = Some(last.stock),
                    Err(refused) => {
                        self.receive(&mut state, instance, flights[0].batch, Err(refused))?;
                    }
                }
            }
            Reduce(instance, batch, reply) => self.arrive(&mut state, instance, batch, reply)?,
            Take(instance, reply) => {
                let batch = last.claims[instance as usize].as_ref()?.flights[0].batch;
                self.arrive(&mut state, instance, batch, reply)?;
            }
            ReduceLate(number, batch) => drop(self.reduce(&mut state, number, batch, None)),
            HandOver(instance) => {
                state.release(instance)?;
                state.enqueue(instance, self.lock_excludes);
            }
            Release(instance) => state.release(instance)?,
            Expire(token) => {
                state.queue.retain(|claim| *claim != token);
                let claims = state.claims.iter_mut().flatten();
                claims.filter(|claim| claim.token == token).for_each(|c| c.has_expired = true);
            }
            Due(order) => state.due[order] = true,
            Lost(instance) | Crash(instance) => drop(state.put_back(instance)),
        }
        let mut sent = take(&mut state.sent);
        sent.retain(|(number, batch)| self.can_matter(&state, *number, batch));
        let mut claims = take(&mut state.claims);
        for claim in claims.iter_mut().flatten() {
            let number = claim.number.unwrap_or_default();
            for flight in &mut claim.flights {
                flight.is_unknown &= self.can_matter(&state, number, flight.batch);
            }
            claim.flights.sort_unstable();
        }
        Some(State { claims, sent, ..state })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
