//! The state of the model and its steps.

use std::collections::BTreeSet;
use std::mem::take;

use Action::*;
use Instance::{A, B};
use stateright::{Model, Property};

use super::{Fence, Sale, properties};

pub(crate) const ORDERS: usize = 3;
pub(crate) const STOCK: usize = 2;
pub(crate) const CLAIMS: Token = 3;
pub(crate) const BATCHES: [Batch; 9] =
    [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 0], &[1, 2], &[2, 0], &[2, 1]];

pub(crate) type Order = usize;
pub(crate) type Token = usize;
pub(crate) type Batch = &'static [Order];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Instance {
    A,
    B,
}

/// One step of an instance, but for `Expire` (etcd's), `ReduceLate` and `OpenLate` (the network's).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Enqueue(Instance),
    Grant(Instance),
    /// Opens a tenure at the store, which counts the fence up: the store's fence alone.
    Open(Instance),
    OpenLate,
    /// Takes a batch and sends it. Redis sees it in `Reduce`, or in `Look` and `Take`.
    Run(Instance, Batch),
    Reduce(Instance, Reply),
    ReduceLate(Token, Batch),
    Look(Instance),
    Take(Instance, Reply),
    HandOver(Instance),
    Release(Instance),
    Expire(Token),
    Lost(Instance),
    Crash(Instance),
}

/// Whether an answer from Redis reaches the instance.
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
    // what each instance believes
    pub(crate) claims: [Option<Claim>; 2],
    // copies of batches that nobody waits for any more, and that may still arrive
    pub(crate) sent: BTreeSet<(Token, Batch)>,
    // a request to open a tenure whose answer nobody waits for: one is enough, it fences whoever holds
    pub(crate) opened_late: bool,
    // Redis
    pub(crate) stock: usize,
    pub(crate) fence: Token,
    pub(crate) ledger: Vec<(Order, Token)>,
    // the buyers: how many have asked, and what they were told first
    pub(crate) asked: usize,
    pub(crate) answers: [Option<Answer>; ORDERS],
    // what was special about the latest step
    pub(crate) event: Option<Event>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) token: Token,
    /// What its writes carry: the lock's token, or the number of its tenure at the store.
    pub(crate) number: Option<Token>,
    pub(crate) is_granted: bool,
    /// The instance does not know it.
    pub(crate) has_expired: bool,
    /// What was sent and not answered yet.
    pub(crate) batch: Batch,
    /// In two steps: the stock that was read.
    pub(crate) seen: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Reserved { position: usize },
    SoldOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Event {
    StaleRefused,
    AnsweredAgain,
    Contradicted,
}

/// What Redis says to a token below the fence.
struct Stale;

/// Redis.
impl Sale {
    fn pass_fence(self, state: &mut State, number: Token) -> Result<(), Stale> {
        if self.fence != Fence::None {
            if number < state.fence {
                return Err(Stale);
            }
            state.fence = number;
        }
        Ok(())
    }

    fn reduce(self, state: &mut State, claim: &Claim) -> Result<Vec<Answer>, Stale> {
        let number = claim.number.expect("only who holds the lock sends a batch");
        self.pass_fence(state, number)?;
        let mut stock = claim.seen.unwrap_or(state.stock);
        let answer = |order: &Order| {
            let known = state.ledger.iter().position(|(known, _)| known == order);
            match known.filter(|_| self.order_ids) {
                Some(position) => Answer::Reserved { position },
                None if stock == 0 => Answer::SoldOut,
                None => {
                    stock -= 1;
                    state.stock = stock;
                    state.ledger.push((*order, number));
                    Answer::Reserved { position: state.ledger.len() - 1 }
                }
            }
        };
        Ok(claim.batch.iter().map(answer).collect())
    }

    /// Whether a copy that arrives late would change anything. In two steps there are no copies: a
    /// pause before the second step stands for a write that is late.
    fn can_matter(self, state: &State, number: Token, batch: Batch) -> bool {
        if !self.script || batch.is_empty() {
            return false;
        }
        let mut after = state.clone();
        drop(self.reduce(&mut after, &late(number, batch)));
        after != *state
    }
}

/// The claim of a batch that nobody waits for any more.
fn late(number: Token, batch: Batch) -> Claim {
    Claim { number: Some(number), batch, ..Claim::default() }
}

/// The instances, etcd and the buyers.
impl State {
    /// How many orders have been asked for with this batch. They are numbered in the order in which
    /// they were asked for first: `None` if this batch leaves one out.
    fn ask(&self, batch: Batch) -> Option<usize> {
        batch
            .iter()
            .try_fold(self.asked, |asked, order| (*order <= asked).then_some(asked.max(order + 1)))
    }

    fn enqueue(&mut self, instance: Instance, lock_excludes: bool) {
        self.revision += 1;
        if lock_excludes {
            self.queue.push(self.revision);
        }
        let claim = Claim { token: self.revision, is_granted: !lock_excludes, ..Claim::default() };
        self.claims[instance as usize] = Some(claim);
    }

    /// Ends what the instance believes to hold. Its batch waits again, and a copy may be under way.
    fn put_back(&mut self, instance: Instance) -> Option<Token> {
        let claim = self.claims[instance as usize].take()?;
        self.sent.extend(claim.number.map(|number| (number, claim.batch)));
        Some(claim.token)
    }

    /// By revision, not by name: who was queued since stays.
    fn release(&mut self, instance: Instance) -> Option<()> {
        let token = self.put_back(instance)?;
        self.queue.retain(|claim| *claim != token);
        Some(())
    }

    fn receive(&mut self, instance: Instance, answers: Result<Vec<Answer>, Stale>) -> Option<()> {
        let Ok(answers) = answers else {
            self.event = Some(Event::StaleRefused);
            return self.release(instance);
        };
        let claim = self.claims[instance as usize].as_mut()?;
        let batch = take(&mut claim.batch);
        self.sent.extend(claim.number.map(|number| (number, batch)));
        for (&order, answer) in batch.iter().zip(answers) {
            if let Some(earlier) = self.answers[order].replace(answer) {
                let is_same = earlier == answer;
                let event = if is_same { Event::AnsweredAgain } else { Event::Contradicted };
                // the worse one is kept
                self.event = self.event.max(Some(event));
            }
        }
        Some(())
    }
}

impl Model for Sale {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { stock: STOCK, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.queue.iter().map(|token| Expire(*token)));
        actions.extend(state.sent.iter().map(|(number, batch)| ReduceLate(*number, batch)));
        let may_open = self.fence == Fence::Store && !state.opened_late;
        actions.extend(may_open.then_some(OpenLate));
        let may_enqueue = state.revision < CLAIMS;
        for (instance, claim) in [A, B].into_iter().zip(&state.claims) {
            let Some(claim) = claim else {
                if may_enqueue && (instance == A || state.claims[0].is_some()) {
                    actions.push(Enqueue(instance));
                }
                continue;
            };
            actions.extend([Lost(instance), Crash(instance)]);
            let replies = [Reply::Arrives, Reply::Lost].into_iter();
            let is_idle = claim.batch.is_empty();
            if is_idle {
                actions.push(Release(instance));
            }
            if !claim.is_granted {
                let is_first = state.queue.first() == Some(&claim.token);
                actions.extend(is_first.then_some(Grant(instance)));
            } else if claim.number.is_none() {
                actions.push(Open(instance));
            } else if is_idle {
                let batches = BATCHES.into_iter().filter(|batch| state.ask(batch).is_some());
                actions.extend(batches.map(|batch| Run(instance, batch)));
                let may = may_enqueue && state.queue.contains(&claim.token);
                actions.extend(may.then_some(HandOver(instance)));
            } else if self.script {
                actions.extend(replies.map(|reply| Reduce(instance, reply)));
            } else if claim.seen.is_none() {
                actions.push(Look(instance));
            } else {
                actions.extend(replies.map(|reply| Take(instance, reply)));
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
                state.claims[instance as usize].as_mut()?.batch = batch;
                state.asked = last.ask(batch)?;
            }
            Look(instance) => {
                let claim = state.claims[instance as usize].clone()?;
                match self.pass_fence(&mut state, claim.number?) {
                    Ok(()) => state.claims[instance as usize].as_mut()?.seen = Some(last.stock),
                    Err(refused) => state.receive(instance, Err(refused))?,
                }
            }
            Reduce(instance, reply) | Take(instance, reply) => {
                let claim = state.claims[instance as usize].clone()?;
                let answers = self.reduce(&mut state, &claim);
                state.claims[instance as usize].as_mut()?.seen = None;
                if reply == Reply::Arrives {
                    state.receive(instance, answers)?;
                }
            }
            ReduceLate(number, batch) => drop(self.reduce(&mut state, &late(number, batch))),
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
            Lost(instance) | Crash(instance) => drop(state.put_back(instance)),
        }
        let mut sent = take(&mut state.sent);
        sent.retain(|(number, batch)| self.can_matter(&state, *number, batch));
        Some(State { sent, ..state })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
