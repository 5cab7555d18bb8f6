//! Starts tasks and draws random numbers: a simulator replaces both.
//!
//! In a normal build, tasks start on a runtime, and random numbers are the system's. Built with `--cfg fenced_lock_chaos`, a
//! simulator can run several [processes](Process) in one runtime with paused time. A process is then a mark on each of its tasks,
//! and a task marks the tasks that it starts. All processes share one runtime, since tokio does not say when a runtime's next
//! timer ends: several runtimes would have to advance in fixed steps, while a single one jumps from event to event by itself.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

#[cfg(fenced_lock_chaos)]
pub use simulated::{Process, Turn, current, within};

/// Starts a task on this runtime. The task belongs to the process of its caller.
pub fn spawn_on<F>(runtime: &Handle, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    #[cfg(fenced_lock_chaos)]
    if let Some(process) = current() {
        return runtime.spawn(simulated::Task::new(process, task));
    }
    runtime.spawn(task)
}

/// A number from the system's random source, which no other process draws. The standard library seeds its random state once in a
/// thread, so a forked child would draw the numbers of its parent.
///
/// # Panics
/// If the system has no random source; the standard library panics there too.
pub fn random() -> u64 {
    #[cfg(fenced_lock_chaos)]
    if let Some(process) = current() {
        return process.random();
    }
    getrandom::u64().expect("the system has a random source")
}

#[cfg(fenced_lock_chaos)]
mod simulated {
    use std::cell::RefCell;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    /// A process of a simulator.
    pub trait Process: Send + Sync {
        /// Its name, for a trace.
        fn name(&self) -> String;

        /// Notes a new task, and returns its number.
        fn begin(&self) -> u64;

        /// Whether a task that was woken may run now.
        fn turn(&self, task: u64, context: &mut Context<'_>) -> Turn;

        /// Notes that a task has run, and waits again.
        fn ran(&self, task: u64);

        /// Forgets a task that has ended or was dropped.
        fn end(&self, task: u64);

        /// The process's next random number.
        fn random(&self) -> u64;
    }

    /// Whether a task that was woken runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Turn {
        /// It runs.
        Runs,
        /// It is left alone until the process wakes it.
        Waits,
        /// It is dropped: its process was killed.
        Ends,
    }

    thread_local! {
        static CURRENT: RefCell<Option<Arc<dyn Process>>> = const { RefCell::new(None) };
    }

    /// The process whose code runs at present.
    pub fn current() -> Option<Arc<dyn Process>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs `work` as code of a process: the tasks that it starts and the numbers that it draws are that process's.
    pub fn within<R>(process: &Arc<dyn Process>, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<Arc<dyn Process>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(Arc::clone(process))));
        work()
    }

    pub(super) struct Task<F> {
        process: Arc<dyn Process>,
        number: u64,
        /// `None` after it was dropped.
        inner: Option<Pin<Box<F>>>,
    }

    impl<F> Task<F> {
        pub(super) fn new(process: Arc<dyn Process>, task: F) -> Self {
            let number = process.begin();
            Self { process, number, inner: Some(Box::pin(task)) }
        }

        /// Drops the task as code of its process, since the drop may start another task.
        fn end(&mut self) {
            if let Some(inner) = self.inner.take() {
                within(&self.process, || drop(inner));
                self.process.end(self.number);
            }
        }
    }

    impl<F: Future> Future for Task<F> {
        type Output = F::Output;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
            let this = self.get_mut();
            match this.process.turn(this.number, context) {
                Turn::Waits => return Poll::Pending,
                Turn::Ends => {
                    this.end();
                    return Poll::Pending;
                }
                Turn::Runs => {}
            }
            // the runtime may poll a task that was dropped here
            let Some(inner) = &mut this.inner else { return Poll::Pending };
            let polled = within(&this.process, || inner.as_mut().poll(context));
            if polled.is_ready() {
                this.end();
                // if nobody waits for the output, the runtime drops it next, as code of the process
                CURRENT.set(Some(Arc::clone(&this.process)));
            } else {
                this.process.ran(this.number);
            }
            polled
        }
    }

    impl<F> Drop for Task<F> {
        fn drop(&mut self) {
            self.end();
        }
    }
}
