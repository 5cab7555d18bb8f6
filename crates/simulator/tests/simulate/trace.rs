//! What a run tells: what happened when, which rare events it met, and what went wrong.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fenced_lock::process;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record as Fields};
use tracing::{Event, Level, Metadata, Subscriber};

macro_rules! events {
    ($($event:ident = $name:literal,)*) => {
        /// A rare event. It must happen often enough in many runs: without it, they prove nothing about it.
        #[derive(Clone, Copy, Debug)]
        pub enum Rare { $($event,)* }

        impl Rare {
            pub const ALL: &[Self] = &[$(Self::$event,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$event => $name,)* }
            }
        }
    };
}

events! {
    StaleAfterUnknown = "a stale batch after an unknown one",
    PutBackAcrossSales = "an order sent again in the next sale",
    RefusedAsOfEarlierSale = "an order refused, since it may be of the earlier sale",
    SentAgain = "an order sent again under its token",
    SentUnderThreeTokens = "an order sent under three tokens",
    LateAccepted = "a late batch that the fence let pass",
    LateRefused = "a late batch that the fence refused",
    LateWriteRefused = "a late write to what a lock guards, refused",
    OneOfTwoUnanswered = "one of two batches in flight without an answer",
    PausedOnTheWay = "paused for longer than a TTL with a batch on its way",
    PausedWithFrame = "paused for longer than a TTL with a batch of a peer or for one",
    KilledWithFrame = "killed with a batch of a peer or for one",
    KilledAsItsLinkBroke = "killed as its link to the holder broke",
    StoppedWithFrame = "told to stop with a batch of a peer or for one",
    FrameRepeated = "a batch of a peer that came twice, and was refused",
    FrameForAnother = "a batch of a peer for another tenure, refused",
    FateUnknown = "a holder that does not know the fates of a peer's orders",
    KilledOnTheWay = "killed with a batch on its way",
    StoppedOnTheWay = "told to stop with a batch on its way",
    ConfirmedAsItExpires = "a confirmation on its way when the hold ends",
    GrantLost = "a message of a grant that is lost",
    NewsOfWaiterLost = "a message that others wait that is lost",
    HeldByNobody = "a claim put by a late request",
    OpposedChanges = "a confirmation and a cancellation at once",
    NotReplicated = "a write that the replica did not confirm",
    FailedOverWithLoss = "a failover that lost unconfirmed entries",
    EntriesLost = "a store that lost entries",
    Regretted = "an order and its cancellation, one behind the other",
    RolledBack = "a loss that was detected",
    SaleChanged = "a change of the sale",
    TermsChanged = "a change of a running sale",
    ChangeMadeBefore = "a change that an earlier attempt had made",
    SessionLost = "a session lost while its process runs",
}

/// The run of this thread, which polls all tasks of the run.
#[derive(Default)]
struct Run {
    began_at: Option<Instant>,
    /// `None` if nobody wants to read them.
    lines: Option<Vec<String>>,
    counts: BTreeMap<&'static str, u64>,
    violation: Option<String>,
}

thread_local! {
    static RUN: RefCell<Run> = RefCell::default();
}

/// All that a run told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub lines: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
    pub violation: Option<String>,
}

/// Begins a run on this thread.
pub fn begin(with_lines: bool) {
    let lines = with_lines.then(Vec::new);
    RUN.set(Run { began_at: Some(Instant::now()), lines, ..Run::default() });
}

/// Ends the run.
pub fn end() -> Told {
    let run = RUN.take();
    Told { lines: run.lines.unwrap_or_default(), counts: run.counts, violation: run.violation }
}

/// Notes what happened.
pub fn note(who: &str, what: impl FnOnce() -> String) {
    let wanted = RUN.with_borrow(|run| run.lines.is_some());
    if wanted {
        line(who, &what());
    }
}

fn line(who: &str, what: &str) {
    RUN.with_borrow_mut(|run| {
        let at = run.began_at.map(|at| at.elapsed()).unwrap_or_default();
        if let Some(lines) = &mut run.lines {
            lines.push(format!("{:9.3} s  {who:9} {what}", at.as_secs_f64()));
        }
    });
}

pub fn count(what: &'static str) {
    RUN.with_borrow_mut(|run| *run.counts.entry(what).or_default() += 1);
}

/// Counts an event that must happen often enough.
pub fn happened(event: Rare) {
    count(event.name());
}

pub fn has_happened(event: Rare) -> bool {
    RUN.with_borrow(|run| run.counts.contains_key(event.name()))
}

/// Notes that something took too long.
pub fn too_late(what: &str) {
    violation(format!("too late: {what}"));
}

/// Notes that something was left.
pub fn left_over(what: &str) {
    violation(format!("left over: {what}"));
}

/// Notes that a promise was broken. The first one counts.
pub fn violation(what: String) {
    note("JUDGE", || what.clone());
    RUN.with_borrow_mut(|run| _ = run.violation.get_or_insert(what));
}

pub fn is_violated() -> bool {
    RUN.with_borrow(|run| run.violation.is_some())
}

/// Notes a panic of a task as a violation.
pub fn on_panic(info: &std::panic::PanicHookInfo<'_>) {
    let what = info.to_string();
    // the panic may come from within another function of this module
    let is_noted = RUN.try_with(|run| {
        run.try_borrow_mut().map(|mut run| _ = run.violation.get_or_insert_with(|| what.clone()))
    });
    if !matches!(is_noted, Ok(Ok(()))) {
        eprintln!("{what}");
    }
}

/// Locks a mutex, also after a panic.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes down the log events of the crates, each with its process.
pub struct Events {
    pub process: fn() -> Option<String>,
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::DEBUG
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Fields<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                let name = field.name();
                _ = if name == "message" {
                    write!(self.0, "{value:?} ")
                } else {
                    write!(self.0, "{name}={value:?} ")
                };
            }
        }
        if process::current().is_some() {
            let mut text = Text(String::from("  . "));
            event.record(&mut text);
            let who = (self.process)().unwrap_or_default();
            line(&who, text.0.trim_end());
        }
    }
}
