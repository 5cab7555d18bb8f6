use super::*;
use crate::ClusterId;

/// Whether a claim asks for a turn.
impl About for bool {
    fn asks(&self) -> bool {
        *self
    }

    fn renew(&mut self, newer: Self) {
        *self = newer;
    }
}

/// The key of an own claim.
const OWN: &[u8] = b"1-1";

fn put(key: &str, change: i64) -> Event<bool> {
    Event { key: key.as_bytes().into(), change, put: Some((change, true)) }
}

fn delete(key: &str, change: i64) -> Event<bool> {
    Event { put: None, ..put(key, change) }
}

fn load(queue: &mut WatchedQueue<bool>, list: &[(&str, i64)], as_of: i64, latest: i64) -> bool {
    queue.load(list.iter().map(|(key, at)| put(key, *at)).collect(), as_of, latest)
}

const fn made(change: i64) -> Made {
    Made { place: change, change, token: Token::new(ClusterId(1), change) }
}

const GRANTED: ClaimStatus = ClaimStatus::Granted(made(7).token);

/// A queue with a foreign holder at 5 and an own claim at 7, known as of 7.
fn waiting() -> (WatchedQueue<bool>, Ticket) {
    let mut queue = WatchedQueue::default();
    let ticket = queue.expect(OWN);
    assert!(load(&mut queue, &[("9-1", 5)], 6, 0));
    queue.made(OWN, made(7));
    queue.apply(vec![put("1-1", 7)]);
    (queue, ticket)
}

#[track_caller]
fn assert_status(ticket: &Ticket, status: ClaimStatus) {
    assert_eq!(*ticket.status.borrow(), status);
}

/// Goal: a waiter whose own key went first never believes that it was granted (etcd#11456), not even by an answer that comes
/// later.
#[test]
fn gone_before_granted() {
    let (mut queue, ticket) = waiting();
    queue.apply(vec![delete("1-1", 8), delete("9-1", 8)]);
    assert_status(&ticket, ClaimStatus::Gone);
    queue.made(OWN, made(7));
    queue.granted(OWN);
    assert_status(&ticket, ClaimStatus::Gone);
}

/// Goal: if a service is put back to an earlier state in which our lease lives, the grants since then end.
#[test]
fn changes_that_go_back_take_grants_back() {
    let (mut queue, ticket) = waiting();
    queue.apply(vec![delete("9-1", 8)]);
    assert_status(&ticket, GRANTED);
    let latest = queue.latest_change();
    queue.interrupted();
    assert!(load(&mut queue, &[("2-1", 3)], 4, latest));
    assert_status(&ticket, ClaimStatus::Gone);
}

/// Goal: while events may be missing, nothing is concluded from earlier knowledge: after the gap there may be another service,
/// whose changes begin anew.
#[test]
fn a_break_hides_what_was_known() {
    let (mut queue, _ticket) = waiting();
    queue.interrupted();
    let later = queue.expect(b"1-2");
    queue.made(b"1-2", made(6));
    assert_status(&later, ClaimStatus::Waiting);
}

/// Goal: claims that another client made in one change, at one place, are told apart.
#[test]
fn claims_of_one_place_are_told_apart() {
    let (mut queue, ticket) = waiting();
    assert!(load(&mut queue, &[("9-1", 5), ("9-2", 5), ("1-1", 7)], 7, 7));
    queue.apply(vec![delete("9-1", 8)]);
    assert_status(&ticket, ClaimStatus::Waiting);
    queue.apply(vec![delete("9-2", 9)]);
    assert_status(&ticket, GRANTED);

    let (mut queue, ticket) = waiting();
    assert!(load(&mut queue, &[("9-1", 5), ("9-2", 5), ("1-1", 7)], 7, 7));
    queue.apply(vec![delete("9-1", 8), delete("9-2", 8)]);
    assert_status(&ticket, GRANTED);
}

/// What the events of a claim said, one after the other.
impl About for Vec<i64> {
    fn asks(&self) -> bool {
        true
    }

    fn renew(&mut self, newer: Self) {
        self.extend(newer);
    }
}

/// Goal: a claim that is put again at its place stays the same one; at another place it is a new one.
#[test]
fn a_claim_is_known_by_its_place() {
    let mut queue = WatchedQueue::default();
    assert!(queue.load(Vec::new(), 0, 0));
    for (change, place, told) in [(5, 5, vec![5]), (6, 5, vec![5, 6]), (7, 7, vec![7])] {
        let put = Some((place, vec![change]));
        queue.apply(vec![Event { key: OWN.into(), change, put }]);
        assert_eq!(queue.get(OWN), Some(&told));
    }
    assert_eq!([OWN, b"9-1"].map(|key| queue.contains(key)), [true, false]);
    assert!(queue.keys().map(|key| &**key).eq([OWN]));
}

/// Goal: a service may say who is the first: that claim is granted.
#[test]
fn the_service_may_say_who_is_first() {
    let (queue, ticket) = waiting();
    queue.granted(OWN);
    assert_status(&ticket, GRANTED);
}

/// Goal: a map gives back memory that it has no more use for, and keeps some room.
#[test]
fn a_map_shrinks() {
    let mut map: HashMap<_, _> = (0..1000).map(|number| (number, number)).collect();
    for (left, shrinks) in [(900, false), (100, true)] {
        map.retain(|number, _| *number < left);
        let before = map.capacity();
        shrink(&mut map);
        assert_eq!(map.capacity() < before, shrinks);
    }
    assert!(map.capacity() >= 200);
}

/// Goal: events that wait for a list do not pile up. A list that is older than dropped events is not enough.
#[test]
fn early_events_are_bounded() {
    let mut queue = WatchedQueue::default();
    for change in 1..=100_000 {
        // three at a time, which do not divide the bound
        queue.apply([put("9-1", change), put("9-2", change), put("9-3", change)].into());
        assert!(queue.early.as_ref().is_some_and(|early| early.len() <= MAX_EARLY));
    }
    assert!(!load(&mut queue, &[], 50_000, 0));
    assert!(!queue.is_current());
    assert!(load(&mut queue, &[], 99_999, 0));
    assert_eq!(queue.claims.len(), 3, "the last events are on top of the list");
}

/// Goal: a waiter does not wait for ever in a queue that its process may no longer read. A waiter that an earlier watch still
/// serves waits on, and so does one that queued later.
#[test]
fn a_denied_waiter_is_told() {
    let (mut queue, ticket) = waiting();
    queue.denied(7);
    assert_status(&ticket, ClaimStatus::Waiting);
    queue.interrupted();
    queue.denied(6);
    assert_status(&ticket, ClaimStatus::Waiting);
    queue.denied(7);
    assert_status(&ticket, ClaimStatus::Gone);
}

/// A service, and the messages from it that are under way to the queue.
struct Model {
    random: u64,
    /// Whether its events have no numbers, and are counted when they come.
    counts: bool,
    queue: WatchedQueue<bool>,
    /// Every change so far. Its number is its place here, from 1 on.
    log: Vec<Event<bool>>,
    /// The claims of this process, and the answers to them that are under way.
    own: Vec<(Key, Ticket)>,
    answers: Vec<(Key, Made)>,
    /// How many changes the watch has shown. `None`: it broke.
    shown: Option<usize>,
    /// The latest change when a list was asked for, and the change as of which the list was read.
    asked: Option<i64>,
    read: Option<usize>,
}

impl Model {
    /// A number below `end`: splitmix64.
    fn random(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % end as u64).expect("it is below a usize")
    }

    /// The claims after this many changes.
    fn state(&self, changes: usize) -> Vec<Event<bool>> {
        let mut state: Vec<Event<bool>> = Vec::new();
        for event in &self.log[..changes] {
            let known = state.iter_mut().find(|claim| claim.key == event.key);
            match (event.put, known) {
                (Some(_), Some(known)) => known.put = event.put,
                (Some(_), None) => state.push(event.clone()),
                (None, _) => state.retain(|claim| claim.key != event.key),
            }
        }
        state
    }

    /// Puts a claim at the end, or deletes it.
    fn change(&mut self, key: &Key, is_put: bool) -> Made {
        let place = i64::try_from(self.log.len() + 1).expect("small");
        let asks = self.random(2) == 0;
        self.log(key, is_put.then_some((place, asks)));
        made(place)
    }

    fn log(&mut self, key: &Key, put: Option<(i64, bool)>) {
        let change = i64::try_from(self.log.len() + 1).expect("small");
        self.log.push(Event { key: Arc::clone(key), change, put });
    }

    fn step(&mut self) {
        let all = self.log.len();
        match self.random(13) {
            0 => {
                let key = format!("9-{all}").as_bytes().into();
                self.change(&key, true);
            }
            1 => {
                let key: Key = format!("1-{all}").as_bytes().into();
                self.own.push((Arc::clone(&key), self.queue.expect(&key)));
                let made = self.change(&key, true);
                self.answers.push((key, made));
            }
            2 | 3 => {
                let state = self.state(all);
                if !state.is_empty() {
                    // often the holder
                    let which = if self.random(2) == 0 { 0 } else { self.random(state.len()) };
                    self.change(&state[which].key, false);
                }
            }
            4 | 5 if !self.answers.is_empty() => {
                let which = self.random(self.answers.len());
                let (key, made) = self.answers.swap_remove(which);
                self.answer(&key, made);
            }
            // events that are counted wait while a list is awaited
            6 | 7 if !self.counts || self.queue.is_current() => {
                if let Some(shown) = self.shown {
                    let to = shown + self.random(all - shown + 1);
                    self.show(shown, to);
                    self.shown = Some(to);
                }
            }
            // an old event once more
            8 if !self.counts => {
                if let Some(shown @ 1..) = self.shown {
                    let old = self.random(shown);
                    self.show(old, old + 1);
                }
            }
            9 if self.random(4) == 0 => {
                self.queue.interrupted();
                (self.shown, self.asked, self.read) = (None, None, None);
            }
            10 => match (self.shown, self.asked, self.read) {
                (None, ..) => self.shown = Some(all),
                (_, None, _) => self.asked = Some(self.queue.latest_change()),
                (_, Some(_), None) => self.read = Some(all),
                (_, Some(latest), Some(read)) => {
                    self.list(read, latest);
                    (self.asked, self.read) = (None, None);
                }
            },
            // a claim begins to ask for a turn, or stands by again
            11 => {
                let state = self.state(all);
                if !state.is_empty() {
                    let Event { key, put, .. } = &state[self.random(state.len())];
                    self.log(key, put.map(|(place, asks)| (place, !asks)));
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, key: &Key, made: Made) {
        let change = if self.counts { self.queue.latest_change() + 1 } else { made.change };
        self.queue.made(key, Made { change, ..made });
    }

    fn list(&mut self, read: usize, latest: i64) {
        let as_of = if self.counts { latest } else { i64::try_from(read).expect("small") };
        assert!(self.queue.load(self.state(read), as_of, latest));
    }

    /// Shows changes one by one, as a watch does.
    fn show(&mut self, from: usize, to: usize) {
        for event in &self.log[from..to] {
            let mut event = event.clone();
            if self.counts {
                event.change = self.queue.latest_change() + 1;
            }
            let (key, is_put) = (Arc::clone(&event.key), event.put.is_some());
            self.queue.apply(vec![event]);
            if self.counts && !is_put {
                self.queue.forget(&key);
            }
        }
    }

    /// Checks that each report to a claim of this process is true, and with `all` that no report is missing.
    fn check(&self, all: bool) {
        let state = self.state(self.log.len());
        for (key, ticket) in &self.own {
            let place = state.iter().position(|claim| claim.key == *key);
            match *ticket.status.borrow() {
                ClaimStatus::Granted(_) if place.is_none() => assert!(!all, "it is gone"),
                ClaimStatus::Granted(_) => assert_eq!(place, Some(0), "another one holds"),
                ClaimStatus::Gone => assert_eq!(place, None, "it is there"),
                ClaimStatus::Waiting => assert!(!all || place.is_some_and(|place| place > 0)),
            }
            if all && place == Some(0) {
                let asks = |claim: &Event<bool>| claim.put.is_some_and(|(_, asks)| asks);
                assert_eq!(*ticket.contended.borrow(), state[1..].iter().any(asks));
            }
        }
    }
}

/// Goal: no claim is told that it is granted while another one holds, or that it is gone while it is there. When all news have
/// come, each claim knows where it stands, and the holder knows whether another claim asks for a turn.
/// Method: a service that changes at random, with claims that begin to ask or stand by again. Answers, events and lists come late
/// and in any order between them; events come twice; a watch breaks, and does not show the changes meanwhile. Half of the
/// services number their changes. The events of the others are counted, and do not come twice.
#[test]
fn whatever_comes_late_or_twice_nobody_is_told_wrong_or_forgotten() {
    for seed in 0..4000 {
        let mut model = Model {
            random: seed,
            counts: seed % 2 == 1,
            queue: WatchedQueue::default(),
            log: Vec::new(),
            own: Vec::new(),
            answers: Vec::new(),
            shown: None,
            asked: None,
            read: None,
        };
        for _ in 0..150 {
            model.step();
            model.check(false);
        }
        for (key, made) in std::mem::take(&mut model.answers) {
            model.answer(&key, made);
        }
        let all = model.log.len();
        if !model.queue.is_current() {
            model.list(all, model.queue.latest_change());
        }
        if let Some(shown) = model.shown {
            model.show(shown, all);
        }
        // the answers to some claims came after all events about these claims
        if model.counts {
            model.list(all, model.queue.latest_change());
        }
        model.check(true);
    }
}
