//! Progress on stderr: a bar on a terminal, else a line a second.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::checker::u64_from;
use crate::load::Live;
use crate::plan::Plan;

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

/// Shows how many orders have ended, and of how many if that is known.
pub(crate) fn start(plan: &Plan, live: &Arc<Live>) -> Progress {
    let total = plan.duration.is_none().then_some(plan.requests);
    let live = Arc::clone(live);
    if std::io::stderr().is_terminal() {
        let template = match total {
            Some(_) => "{bar:40} {pos} of {len} orders, {elapsed}",
            None => "{pos} orders, {elapsed}",
        };
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        let bar = match total {
            Some(total) => ProgressBar::new(u64_from(total)),
            None => ProgressBar::no_length(),
        };
        let bar = bar.with_style(style);
        let moved = bar.clone();
        let task = every(BAR_INTERVAL, move || {
            moved.set_position(live.ended());
        });
        Progress { task, bar: Some(bar) }
    } else {
        let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
        let task = every(LINE_INTERVAL, move || {
            eprintln!("{}{of} orders", live.ended());
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
