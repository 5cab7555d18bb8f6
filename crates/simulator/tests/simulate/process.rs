//! Simulated processes, and the order in which their tasks run.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fenced_lock::process::{self, Process, Turn};
use simulator::Chance;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::trace::{locked, note};

/// How many turns may come at one moment of the simulated time. With more than twice as many, the tasks run in circles.
const MOST_TURNS: u32 = 10_000;

/// Lets one task run at a time: the seed draws it among the tasks that are ready. Tokio's own order depends on chance that has no
/// seed (`watch` wakes its receivers in groups that are drawn, and only `tokio_unstable` can seed that).
pub struct Scheduler(Mutex<Order>);

struct Order {
    chance: Chance,
    next_task: u64,
    ready: BTreeMap<u64, Waker>,
    /// The task whose turn it is.
    running: Option<u64>,
    waker: Option<Waker>,
    /// Whether a task was polled or ended since the scheduler's latest turn: it may have woken others, which are behind it then.
    has_stirred: bool,
    /// Turns since `looked_at`.
    turns: u32,
    looked_at: Instant,
}

impl Scheduler {
    /// Starts it on this runtime.
    pub fn start(chance: Chance) -> Arc<Self> {
        let (ready, looked_at) = (BTreeMap::new(), Instant::now());
        let (running, waker, turns, next_task, has_stirred) = (None, None, 0, 0, false);
        let order =
            Order { chance, next_task, ready, running, waker, has_stirred, turns, looked_at };
        let this = Arc::new(Self(Mutex::new(order)));
        let scheduler = Arc::downgrade(&this);
        drop(tokio::spawn(poll_fn(move |context| match scheduler.upgrade() {
            Some(scheduler) => scheduler.choose(context),
            None => Poll::Ready(()),
        })));
        this
    }

    /// Chooses the next task, once all tasks that were woken so far are ready: the runtime has one queue, so the scheduler goes to
    /// its end until it finds that no task was in front of it. Tokio must not defer their wakes.
    fn choose(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut order = locked(&self.0);
        let Order { chance, ready, running, waker, has_stirred, .. } = &mut *order;
        let waker = waker.get_or_insert_with(|| context.waker().clone());
        if std::mem::take(has_stirred) {
            waker.wake_by_ref();
        } else if running.is_none() && !ready.is_empty() {
            let nth = chance.index(ready.len());
            let task = ready.keys().nth(nth).copied();
            *running = task;
            if let Some(woken) = task.and_then(|task| ready.remove(&task)) {
                woken.wake();
            }
        }
        Poll::Pending
    }

    fn is_turn(&self, task: u64, waker: &Waker) -> bool {
        let mut order = locked(&self.0);
        order.has_stirred = true;
        if order.running == Some(task) {
            order.turns += 1;
            if order.turns == MOST_TURNS {
                let now = Instant::now();
                assert!(now > order.looked_at, "the tasks run in circles");
                (order.looked_at, order.turns) = (now, 0);
            }
            return true;
        }
        order.ready.insert(task, waker.clone());
        order.wake();
        false
    }

    /// Ends the turn of this task, or forgets a task that is gone.
    fn pass_on(&self, task: u64) {
        let mut order = locked(&self.0);
        order.has_stirred = true;
        let unneeded = order.ready.remove(&task);
        if order.running == Some(task) {
            order.running = None;
        }
        order.wake();
        drop(order);
        drop(unneeded);
    }
}

impl Order {
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// A process: the tasks that it started, until they end. While it is paused, none of its tasks is polled. When it is killed, all
/// of them are dropped.
pub struct Simulated {
    pub name: String,
    scheduler: Arc<Scheduler>,
    state: Mutex<State>,
}

struct State {
    mode: Mode,
    /// When the process was last resumed, or told to end.
    disturbed_at: Option<Instant>,
    chance: Chance,
    /// The tasks, with what wakes them, and whether they were woken while the process was paused.
    tasks: BTreeMap<u64, (Option<Waker>, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Runs,
    Paused,
    Killed,
}

impl Simulated {
    pub fn new(name: String, chance: Chance, scheduler: &Arc<Scheduler>) -> Arc<Self> {
        let state = State { mode: Mode::Runs, disturbed_at: None, chance, tasks: BTreeMap::new() };
        Arc::new(Self { name, scheduler: Arc::clone(scheduler), state: Mutex::new(state) })
    }

    /// Runs this work as code of the process.
    pub fn run<R>(self: &Arc<Self>, work: impl FnOnce() -> R) -> R {
        let this: Arc<dyn Process> = Arc::clone(self) as _;
        process::within(&this, work)
    }

    /// Starts a task of the process.
    pub fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.run(|| drop(process::spawn_on(&Handle::current(), task)));
    }

    /// Pauses the process for this time. A task of the process `by` resumes it.
    pub fn pause(self: &Arc<Self>, time: Duration, by: &Arc<Self>) {
        {
            let mut state = locked(&self.state);
            if state.mode == Mode::Runs {
                state.mode = Mode::Paused;
            }
        }
        note(&self.name, || "is paused".into());
        let this = Arc::clone(self);
        by.spawn(async move {
            sleep(time).await;
            this.resume();
        });
    }

    pub fn resume(&self) {
        let mut state = locked(&self.state);
        if state.mode != Mode::Paused {
            return;
        }
        state.mode = Mode::Runs;
        state.disturbed_at = Some(Instant::now());
        let due = state.tasks.values_mut().filter_map(|(waker, is_due)| {
            if std::mem::take(is_due) { waker.clone() } else { None }
        });
        let due: Vec<_> = due.collect();
        drop(state);
        note(&self.name, || "goes on".into());
        due.into_iter().for_each(Waker::wake);
    }

    /// Notes that the process is told to end: from this moment it may take longer.
    pub fn disturb(&self) {
        locked(&self.state).disturbed_at = Some(Instant::now());
    }

    pub fn disturbed_at(&self) -> Option<Instant> {
        locked(&self.state).disturbed_at
    }

    /// Ends the process, and drops all that it has in memory.
    pub fn kill(&self) {
        let mut state = locked(&self.state);
        state.mode = Mode::Killed;
        let tasks: Vec<_> = state.tasks.values().filter_map(|(waker, _)| waker.clone()).collect();
        drop(state);
        tasks.into_iter().for_each(Waker::wake);
    }

    pub fn is_running(&self) -> bool {
        locked(&self.state).mode == Mode::Runs
    }

    /// How many of its tasks have not ended.
    pub fn tasks(&self) -> usize {
        locked(&self.state).tasks.len()
    }
}

impl Process for Simulated {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn begin(&self) -> u64 {
        let number = {
            let mut order = locked(&self.scheduler.0);
            order.next_task += 1;
            order.next_task
        };
        locked(&self.state).tasks.insert(number, (None, false));
        number
    }

    fn turn(&self, number: u64, context: &mut Context<'_>) -> Turn {
        let mut state = locked(&self.state);
        let mode = state.mode;
        let Some((waker, is_due)) = state.tasks.get_mut(&number) else { return Turn::Ends };
        waker.get_or_insert_with(|| context.waker().clone());
        if mode == Mode::Paused {
            *is_due = true;
            drop(state);
            self.scheduler.pass_on(number);
            return Turn::Waits;
        }
        drop(state);
        match self.scheduler.is_turn(number, context.waker()) {
            false => Turn::Waits,
            true if mode == Mode::Killed => Turn::Ends,
            true => Turn::Runs,
        }
    }

    fn ran(&self, number: u64) {
        self.scheduler.pass_on(number);
    }

    fn end(&self, number: u64) {
        let task = locked(&self.state).tasks.remove(&number);
        drop(task);
        self.scheduler.pass_on(number);
    }

    fn random(&self) -> u64 {
        locked(&self.state).chance.number()
    }
}
