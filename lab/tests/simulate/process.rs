//! Simulated processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use fenced_lock::process::{self, Process, Turn};
use tokio::runtime::Handle;

use crate::chance::Chance;
use crate::trace::locked;

/// How often tasks may be polled at one moment before that counts as running in circles.
const MOST_POLLS: u32 = 200_000;

/// A process: the tasks that it started, until they end. Paused, none of them is polled. Killed, all of them are dropped.
pub struct Simulated {
    pub name: String,
    state: Mutex<State>,
}

struct State {
    mode: Mode,
    chance: Chance,
    /// In how many of a thousand turns a task has to let others pass.
    yields: u64,
    next_task: u64,
    tasks: BTreeMap<u64, Task>,
    polls: u32,
    polled_at: tokio::time::Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Runs,
    Paused,
    Killed,
}

#[derive(Default)]
struct Task {
    waker: Option<Waker>,
    /// It was woken while its process was paused.
    is_due: bool,
    /// It has let others pass, and is next.
    has_yielded: bool,
}

impl Simulated {
    pub fn new(name: String, chance: Chance, yields: u64) -> Arc<Self> {
        let (next_task, tasks, polled_at) = (0, BTreeMap::new(), tokio::time::Instant::now());
        let mode = Mode::Runs;
        let state = State { mode, chance, yields, next_task, tasks, polls: 0, polled_at };
        Arc::new(Self { name, state: Mutex::new(state) })
    }

    /// Runs this as code of the process.
    pub fn run<R>(self: &Arc<Self>, work: impl FnOnce() -> R) -> R {
        let this: Arc<dyn Process> = Arc::clone(self) as _;
        process::within(&this, work)
    }

    /// Starts a task of the process.
    pub fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.run(|| drop(process::spawn_on(&Handle::current(), task)));
    }

    pub fn pause(&self) {
        let mut state = locked(&self.state);
        if state.mode == Mode::Runs {
            state.mode = Mode::Paused;
        }
    }

    pub fn resume(&self) {
        let mut state = locked(&self.state);
        if state.mode != Mode::Paused {
            return;
        }
        state.mode = Mode::Runs;
        let woken = |task: &mut Task| {
            if std::mem::take(&mut task.is_due) { task.waker.clone() } else { None }
        };
        let due: Vec<_> = state.tasks.values_mut().filter_map(woken).collect();
        drop(state);
        for waker in due {
            waker.wake();
        }
    }

    /// Ends the process with all that it has in memory.
    pub fn kill(&self) {
        let mut state = locked(&self.state);
        state.mode = Mode::Killed;
        let tasks: Vec<_> = state.tasks.values().filter_map(|task| task.waker.clone()).collect();
        drop(state);
        for waker in tasks {
            waker.wake();
        }
    }

    pub fn is_running(&self) -> bool {
        locked(&self.state).mode == Mode::Runs
    }

    pub fn is_killed(&self) -> bool {
        locked(&self.state).mode == Mode::Killed
    }

    /// The tasks that have not ended.
    pub fn tasks(&self) -> BTreeSet<u64> {
        locked(&self.state).tasks.keys().copied().collect()
    }
}

impl Process for Simulated {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn begin(&self) -> u64 {
        let mut state = locked(&self.state);
        state.next_task += 1;
        let number = state.next_task;
        state.tasks.insert(number, Task::default());
        number
    }

    fn turn(&self, number: u64, context: &mut Context<'_>) -> Turn {
        let mut state = locked(&self.state);
        let State { mode, chance, yields, tasks, polls, polled_at, .. } = &mut *state;
        let Some(task) = tasks.get_mut(&number) else { return Turn::Ends };
        let waker = context.waker();
        if !task.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            task.waker = Some(waker.clone());
        }
        match mode {
            Mode::Killed => return Turn::Ends,
            Mode::Paused => {
                task.is_due = true;
                return Turn::Waits;
            }
            Mode::Runs => {}
        }
        let now = tokio::time::Instant::now();
        if now > *polled_at {
            (*polled_at, *polls) = (now, 0);
        }
        *polls += 1;
        assert!(*polls < MOST_POLLS, "the tasks of {} run in circles", self.name);
        if !task.has_yielded && chance.per_mille(*yields) {
            task.has_yielded = true;
            waker.wake_by_ref();
            return Turn::Waits;
        }
        task.has_yielded = false;
        Turn::Runs
    }

    fn end(&self, number: u64) {
        locked(&self.state).tasks.remove(&number);
    }

    fn random(&self) -> u64 {
        locked(&self.state).chance.next()
    }
}
