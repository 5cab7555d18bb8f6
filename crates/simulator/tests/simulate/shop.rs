//! The simulated store at work: one server, the requests on the way to it, and its faults.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use flash_sale::inventory::Streams;
use simulator::{Chance, Data, Engine, Refusal, Reply, Store, StoreEnd, Text, connection};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::faults::{Fault, Faults};
use crate::process::Simulated;
use crate::trace::{Rare, count, happened, locked, note};

/// When the simulated time begins, in microseconds since 1970.
pub const BEGIN: u64 = 1_700_000_000_000_000;

/// How many earlier states of the data are kept, for a store that loses its last entries.
pub const SNAPSHOTS: usize = 8;

/// The safeguards of the script that can be taken out: for each, its text in the script, and the text that replaces it.
pub const SAFEGUARDS: [(&str, &str, &str); 6] = [
    ("fence", "if below(revision, highest) then return refused('STALE', fence) end", ""),
    ("order-ids", "local record = known[i] or accepted[key]", "local record"),
    ("payload", "if quantity ~= word or first_user ~= user then return 'conflict' end", ""),
    ("roll-back", "wrong = lost()\nif wrong then return wrong end", ""),
    ("change-fence", "if raised then push", "if raised and operation ~= 'change' then push"),
    ("earlier-sale", "if is_of_an_earlier_sale(ARGV[5 * i + 8]) then", "if false then"),
];

thread_local! {
    /// Lua is slow to start: the runs of a thread share one engine.
    static ENGINE: Rc<Engine> = Rc::new(Engine::default());
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// The server of the run of this thread.
struct Server {
    store: Store,
    began_at: Instant,
    /// The safeguard that is taken out of the scripts.
    without: Option<String>,
    /// The data before each of the latest writes that added entries.
    before: VecDeque<Data>,
    refuses_until: Instant,
    /// The data of the replica, and until when it confirms no write.
    replica: Data,
    behind_until: Instant,
    /// For each order and the request that brought it: the tokens under which it was sent, and the sale that ran then.
    sent: BTreeMap<[Text; 2], (BTreeSet<Text>, Text)>,
}

pub struct Shop {
    faults: Arc<Faults>,
    network: Arc<Simulated>,
    latency: u64,
    /// How long the service waits for an answer.
    response_timeout: Duration,
    state: Mutex<State>,
}

struct State {
    chance: Chance,
    silent_until: Instant,
    cut_off: BTreeMap<String, Instant>,
    ends: Vec<Weak<Mutex<StoreEnd>>>,
    /// How many scripts of each process are on their way.
    flights: BTreeMap<String, usize>,
}

fn on_server<R>(work: impl FnOnce(&mut Server) -> R) -> R {
    SERVER.with_borrow_mut(|server| work(server.as_mut().expect("a run has a server")))
}

/// How many entries the ledger has.
pub fn entries() -> usize {
    on_server(|server| entries_in(&server.store.data))
}

fn entries_in(data: &Data) -> usize {
    data.get::<Vec<Text>>(b"ledger").map_or(0, Vec::len)
}

/// Runs a request, and counts its rare events.
fn call(request: &[Text], is_late: bool) -> Reply {
    on_server(|server| {
        let now = BEGIN + u64::try_from(server.began_at.elapsed().as_micros()).unwrap_or_default();
        server.recover();
        if !is_script(request) {
            let reply = server.store.call(now, request);
            if request.first().is_some_and(|name| name == b"WAIT") && reply == Reply::Int(0) {
                happened(Rare::NotReplicated);
            }
            return reply;
        }
        let before = server.store.data.clone();
        let changed = server.without.as_deref().and_then(|without| change(request, without));
        let reply = server.store.call(now, changed.as_deref().unwrap_or(request));
        if entries_in(&before) < entries_in(&server.store.data) {
            server.before.push_back(before);
            if server.before.len() > SNAPSHOTS {
                server.before.pop_front();
            }
        }
        server.recover();
        server.count_events(request, &reply, is_late);
        reply
    })
}

impl Server {
    /// Ends a refusal whose time is over. A replica that is not behind gets all data.
    fn recover(&mut self) {
        let now = Instant::now();
        self.store.refusal = self.store.refusal.filter(|_| now < self.refuses_until);
        let is_behind = now < self.behind_until;
        self.store.replicas = i64::from(!is_behind);
        if !is_behind {
            self.replica = self.store.data.clone();
        }
    }

    fn count_events(&mut self, request: &[Text], reply: &Reply, is_late: bool) {
        let code = if let Reply::Error(text) = reply { &text[..] } else { b"" };
        if code.starts_with(b"ROLLEDBACK") {
            happened(Rare::RolledBack);
        }
        // the arguments follow the command, the digest, the number of keys, and the keys
        let keys = request.get(2).and_then(|count| str::from_utf8(count).ok()?.parse().ok());
        let args = keys.and_then(|keys: usize| request.get(3 + keys..)).unwrap_or_default();
        let [_, _, _, _, operation, token, _, _, orders @ ..] = args else { return };
        if operation != b"reduce" {
            return;
        }
        let is_stale = code.starts_with(b"STALE");
        if is_late {
            if is_stale {
                happened(Rare::LateRefused);
            } else if code.is_empty() {
                happened(Rare::LateAccepted);
            }
        }
        let orders: Vec<_> = orders.chunks_exact(5).collect();
        if is_stale && orders.iter().any(|order| !order[4].is_empty()) {
            happened(Rare::StaleAfterUnknown);
        }
        let sale = self.store.data.get::<Text>(b"sale").cloned().unwrap_or_default();
        for order in orders {
            let sent = self.sent.entry([order[0].clone(), order[3].clone()]);
            let (tokens, before) = sent.or_insert_with(|| (BTreeSet::new(), sale.clone()));
            if *before != sale {
                happened(Rare::PutBackAcrossSales);
                before.clone_from(&sale);
            }
            if !tokens.insert(token.clone()) {
                happened(Rare::SentAgain);
            } else if tokens.len() == 3 {
                happened(Rare::SentUnderThreeTokens);
            }
        }
        let Reply::List(parts) = reply else { return };
        let Some(Reply::List(answers)) = parts.last() else { return };
        let of_earlier = answers.iter().filter(|it| **it == Reply::Text(b"sale-replaced".into()));
        of_earlier.for_each(|_| happened(Rare::RefusedAsOfEarlierSale));
    }
}

/// The request without this safeguard in the text of its script; `None` if it is no safeguard of the script.
fn change(request: &[Text], without: &str) -> Option<Vec<Text>> {
    let (_, there, instead) = SAFEGUARDS.iter().find(|(name, ..)| *name == without)?;
    let mut request = request.to_vec();
    let script = request.get_mut(1)?;
    let text = String::from_utf8_lossy(script).replace(there, instead);
    *script = text.into_bytes();
    Some(request)
}

fn is_script(request: &[Text]) -> bool {
    request.first().is_some_and(|name| name.starts_with(b"EVAL"))
}

/// The arguments of a script, for a timeline.
fn shown(request: &[Text]) -> String {
    let words = request.iter().enumerate().skip(16).filter(|(_, word)| word.len() < 40);
    let words: Vec<_> = words.map(|(_, word)| String::from_utf8_lossy(word)).collect();
    words.join(" ").chars().take(160).collect()
}

fn answer(reply: &Reply) -> String {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).replace("\r\n", " ");
    text.chars().take(200).collect()
}

impl Shop {
    pub fn open(
        chance: Chance,
        faults: Arc<Faults>,
        network: Arc<Simulated>,
        latency: u64,
        response_timeout: Duration,
        without: Option<String>,
    ) -> Arc<Self> {
        let store = ENGINE.with(Store::new);
        let (before, replica, sent) = Default::default();
        let began_at = Instant::now();
        let (refuses_until, behind_until) = (began_at, began_at);
        let server =
            Server { store, began_at, without, before, refuses_until, replica, behind_until, sent };
        SERVER.set(Some(server));
        let silent_until = Instant::now();
        let (cut_off, ends, flights) = Default::default();
        let state = State { chance, silent_until, cut_off, ends, flights };
        Arc::new(Self { faults, network, latency, response_timeout, state: Mutex::new(state) })
    }

    /// How a process connects to the store.
    pub fn streams(self: &Arc<Self>, process: &Arc<Simulated>) -> Streams {
        let (this, who) = (Arc::clone(self), process.name.clone());
        Arc::new(move || {
            if this.faults.strikes(Fault::StoreRefusesConnection) {
                this.faults.delays(Some(&who), Instant::now());
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (client, end) = connection();
            let end = Arc::new(Mutex::new(end));
            let mut state = locked(&this.state);
            state.ends.retain(|end| end.strong_count() > 0);
            state.ends.push(Arc::downgrade(&end));
            drop(state);
            let is_dead = this.faults.strikes(Fault::StoreNeverOpens);
            if is_dead {
                this.faults.delays(Some(&who), Instant::now() + this.response_timeout * 2);
            }
            let serve = Arc::clone(&this).serve(end, who.clone(), is_dead);
            this.network.spawn(serve);
            Ok(Box::pin(client))
        })
    }

    /// Whether a script of this process is on its way.
    pub fn has_flight(&self, who: &str) -> bool {
        locked(&self.state).flights.get(who).is_some_and(|scripts| *scripts > 0)
    }

    /// Serves a connection: takes the requests in their order, and answers in this order.
    async fn serve(self: Arc<Self>, end: Arc<Mutex<StoreEnd>>, who: String, is_dead: bool) {
        let (answers, to_send) = mpsc::unbounded_channel();
        self.network.spawn(deliver(Arc::clone(&end), to_send));
        while let Some(request) = poll_fn(|context| locked(&end).poll_request(context)).await {
            if is_dead {
                sleep(self.response_timeout * 3).await;
                break;
            }
            let is_write = is_script(&request);
            let (mut there, mut back) = {
                let mut state = locked(&self.state);
                (state.chance.millis(0, self.latency), state.chance.millis(1, self.latency))
            };
            let late = self.response_timeout + self.faults.draw(|chance| chance.millis(0, 3000));
            let (slow, is_soon) = self.faults.draw(|chance| (chance.below(400), chance.one_in(2)));
            if self.faults.strikes(Fault::StoreSlow) {
                there += self.response_timeout.mul_f64(slow as f64 / 1000.0);
                back += self.response_timeout.mul_f64(slow as f64 / 1000.0);
            }
            if is_write {
                *locked(&self.state).flights.entry(who.clone()).or_default() += 1;
            }
            let is_lost_before = is_write && self.faults.strikes(Fault::StoreRequestLost);
            let is_lost_after = is_write && self.faults.strikes(Fault::StoreAnswerLost);
            let is_late = is_write && self.faults.strikes(Fault::StoreRequestLate);
            if is_late {
                there += late;
            }
            let is_unanswered = is_lost_before || is_lost_after || is_late;
            if is_unanswered && locked(&end).has_more() {
                happened(Rare::OneOfTwoUnanswered);
            }
            if is_unanswered || there + back > self.response_timeout / 4 {
                self.faults.delays(Some(&who), Instant::now() + self.response_timeout);
            }
            let _lands = is_write.then(|| Lands(&self, &who));
            sleep(there).await;
            let silent_until = {
                let state = locked(&self.state);
                let cut_off = state.cut_off.get(&who).copied();
                cut_off.map_or(state.silent_until, |until| until.max(state.silent_until))
            };
            if silent_until > Instant::now() {
                sleep_until(silent_until).await;
            }
            if is_lost_before || is_late && self.faults.is_over() {
                note(&who, || format!("store: does not get {}", shown(&request)));
                break;
            }
            let reply = call(&request, is_late);
            if is_write {
                count(if is_late { "writes that arrived late" } else { "writes" });
                let late = if is_late { ", late" } else { "" };
                let lost = if is_lost_after { ", the answer is lost" } else { "" };
                note(&who, || {
                    format!("store: {}{late}{lost} -> {}", shown(&request), answer(&reply))
                });
            }
            if is_lost_after {
                if !is_soon {
                    sleep(self.response_timeout).await;
                }
                break;
            }
            drop(answers.send((Instant::now() + back, reply)));
        }
        drop(answers);
        locked(&end).cut();
    }

    pub fn be_silent(&self, limit: Duration) {
        let mut state = locked(&self.state);
        state.silent_until = state.silent_until.max(Instant::now() + limit);
    }

    pub fn cut_off(&self, who: &str, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = locked(&self.state);
        let known = state.cut_off.entry(who.to_owned()).or_insert(until);
        *known = until.max(*known);
    }

    pub fn cut(&self) {
        let ends: Vec<_> = locked(&self.state).ends.iter().filter_map(Weak::upgrade).collect();
        for end in ends {
            locked(&end).cut();
        }
    }

    /// Lets the replica confirm nothing for this time.
    pub fn be_behind(limit: Duration) {
        on_server(|server| server.behind_until = server.behind_until.max(Instant::now() + limit));
    }

    /// Lets the replica take over, with the data that it has. A new replica follows it.
    pub fn fail_over(&self) {
        self.cut();
        let before = entries();
        on_server(|server| {
            server.store.restart(server.replica.clone());
            server.behind_until = Instant::now();
        });
        if entries() < before {
            happened(Rare::FailedOverWithLoss);
        }
    }

    /// Lets the store refuse to write for this time.
    pub fn refuse(refusal: Refusal, limit: Duration) {
        on_server(|server| {
            server.store.refusal = Some(refusal);
            server.refuses_until = server.refuses_until.max(Instant::now() + limit);
        });
    }

    pub fn flush_scripts() {
        on_server(|server| server.store.flush_scripts());
    }

    /// Restarts the store, with all its data or without the latest writes.
    pub fn restart(&self, loses: usize) {
        self.cut();
        on_server(|server| {
            let place = server.before.len().checked_sub(loses);
            let older = place.and_then(|place| server.before.get(place)).filter(|_| loses > 0);
            let data = older.cloned().unwrap_or_else(|| server.store.data.clone());
            server.store.restart(data);
        });
    }

    pub fn heal(&self) {
        let mut state = locked(&self.state);
        state.silent_until = Instant::now();
        state.cut_off.clear();
        drop(state);
        let now = Instant::now();
        on_server(|server| (server.refuses_until, server.behind_until) = (now, now));
    }
}

/// A script that is on its way, until this is dropped.
struct Lands<'a>(&'a Shop, &'a str);

impl Drop for Lands<'_> {
    fn drop(&mut self) {
        if let Some(scripts) = locked(&self.0.state).flights.get_mut(self.1) {
            *scripts -= 1;
        }
    }
}

async fn deliver(
    end: Arc<Mutex<StoreEnd>>,
    mut answers: mpsc::UnboundedReceiver<(Instant, Reply)>,
) {
    while let Some((at, reply)) = answers.recv().await {
        sleep_until(at).await;
        locked(&end).answer(&reply);
    }
}
