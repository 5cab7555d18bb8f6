//! How far the run is, on stderr: a bar on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::history::u64_from;

/// How often the bar moves.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// How often a line is written. A shorter run writes none.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Shows progress until it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    task: AbortHandle,
    bar: Option<ProgressBar>,
}

/// Shows how many of `total` orders are `settled`.
pub(crate) fn start(total: usize, settled: &Arc<AtomicUsize>) -> Progress {
    let settled = Arc::clone(settled);
    let length = u64_from(total);
    if std::io::stderr().is_terminal() {
        let style = ProgressStyle::with_template("{bar:40} {pos} of {len} orders, {elapsed}")
            .expect("the template is well-formed");
        let bar = ProgressBar::new(length).with_style(style);
        let moved = bar.clone();
        let task = every(BAR_INTERVAL, move || {
            moved.set_position(u64_from(settled.load(Ordering::Relaxed)));
        });
        Progress { task, bar: Some(bar) }
    } else {
        let task = every(LINE_INTERVAL, move || {
            eprintln!("{} of {total} orders", settled.load(Ordering::Relaxed));
        });
        Progress { task, bar: None }
    }
}

fn every(interval: Duration, mut show: impl FnMut() + Send + 'static) -> AbortHandle {
    let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let show_all = async move {
        loop {
            ticks.tick().await;
            show();
        }
    };
    tokio::spawn(show_all).abort_handle()
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
