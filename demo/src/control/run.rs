//! Carries out a run and judges it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Method;
use flash_sale::error_chain::ErrorChain;
use flash_sale::http::problem::Problem;
use flash_sale::inventory::{Item, Stock};
use flash_sale::sale::{Sale, SaleError};
use loadtest::Live;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Controls;
use super::instances::{Instance, call};
use super::lanes;
use super::record::{Fault, Run, State, Verdict};
use super::verdict::judge;
use crate::baselines::LockMode;
use crate::writer::tenures::now_ms;

/// How long the victim may take to reach the fault before the other buyers start.
const FAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// An order outlasts a fault: the pause, and the lease of a killed holder.
const LOAD_FLAGS: [&str; 3] = ["--timeout=60s", "--attempt-timeout=15s", "--retries=1000"];

/// A run whose instance has died blocks others for this long.
pub(super) const HELD_FOR: Duration = Duration::from_secs(4);

/// How often the run checks that its sale is still the current one.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The answers of a run cannot be compared with another sale.
const ANOTHER_SALE: &str = "Another sale was started meanwhile.";

/// The current run; instances of one demo share the store. It is no valid item name, and within the rights of
/// an instance.
const RUN_KEY: &str = "sale:{.run}";

const HOLD_RUN: &str = "#!lua
local by = redis.call('GET', KEYS[1])
if by and by ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1";

/// A run in progress, or the last one.
pub(super) struct Begun {
    pub(super) run: Run,
    pub(super) live: Arc<Live>,
    pub(super) began_at: Instant,
    pub(super) stop: CancellationToken,
}

impl Begun {
    /// The run with its current counts.
    pub(super) fn now(&self) -> Run {
        let mut run = self.run.clone();
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        run.sold = now(&self.live.acknowledged);
        run.sold_out = now(&self.live.sold_out);
        run.failed = now(&self.live.unsettled);
        run.answered = run.sold + run.sold_out;
        if run.state == State::Firing {
            let took = self.live.duration.get();
            if took.is_some() {
                run.state = State::Checking;
            }
            let took = took.copied().unwrap_or_else(|| self.began_at.elapsed());
            run.elapsed_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        }
        run
    }
}

impl Controls {
    /// Carries the run out unless `held` is an error. The run records its verdict or its error.
    pub(super) async fn carry_out(
        self: Arc<Self>,
        guard: LockMode,
        victim: Option<Instance>,
        held: Result<(), SaleError>,
    ) {
        let Some(run) = self.current_run() else { return };
        let judged = async {
            held.map_err(|error| error.to_string())?;
            self.try_carry_out(&run, guard, victim.as_ref()).await
        };
        let judged = tokio::select! {
            judged = judged => judged,
            () = self.until_taken_over(&run.id) => Err("another run was started meanwhile".to_owned()),
        };
        if let Some(victim) = victim {
            // it must not hit a later sale
            let nothing = json!({"fault": null});
            drop(call(&victim, Method::POST, "/demo/fault?only=here", Some(nothing)).await);
        }
        // best effort: the claim expires by itself
        drop(hold_run(&self.sale, &run.id, Duration::ZERO).await);
        self.change_run(|begun| {
            let now = begun.now();
            begun.run = match judged {
                Ok(verdict) => Run { state: State::Done, verdict: Some(verdict), ..now },
                Err(error) => Run { state: State::Failed, error: Some(error), ..now },
            };
        });
    }

    /// Renews the claim on the run until another instance has it. A store that does not answer is asked again.
    async fn until_taken_over(&self, run: &str) {
        while !matches!(hold_run(&self.sale, run, HELD_FOR).await, Ok(false)) {
            sleep(HELD_FOR / 4).await;
        }
    }

    async fn try_carry_out(
        &self,
        run: &Run,
        guard: LockMode,
        victim: Option<&Instance>,
    ) -> Result<Verdict, String> {
        let told = |problem: Problem| problem.detail().to_owned();
        self.set_guard(guard).await.map_err(told)?;
        self.set_fence(run.fence).await.map_err(told)?;
        self.instances.ask().await;
        let stale_before = self.stale_batches();
        let failed = |error: SaleError| error.to_string();
        let started = self.sale.start(&Item::DEFAULT, run.stock).await.map_err(failed)?;
        if let (Some(victim), Some(fault)) = (victim, run.fault) {
            let body = json!({"fault": fault, "ms": self.pause_ms()});
            call(victim, Method::POST, "/demo/fault?only=here", Some(body)).await.map_err(told)?;
        }

        let up = self.instances.all().into_iter().filter(|instance| instance.is_up);
        let up: Vec<_> = up.map(|instance| instance.authority).collect();
        let first = victim.and_then(|victim| up.iter().position(|one| *one == victim.authority));
        let start = CancellationToken::new();
        let head_start = first.map(|first| (first, start.clone()));
        let live = Arc::new(Live { head_start, ..Live::default() });
        let requests = format!("--requests={}", run.requests);
        let flags = LOAD_FLAGS.map(str::to_owned).into_iter().chain([requests]);
        let urls = up.iter().map(|authority| format!("http://{authority}"));
        let args = loadtest::Args::from_flags(flags.chain(urls));
        let args = args.map_err(|error| error.to_string())?;
        let stop = self.stop_of_run().ok_or("the run is gone")?;
        self.change_run(|begun| {
            begun.run.state = State::Firing;
            begun.live = Arc::clone(&live);
            begun.run.began_ms = now_ms();
            begun.began_at = Instant::now();
        });
        let judged = async {
            let load = loadtest::run_in_process(&args, &live);
            tokio::join!(load, self.let_go(victim, run.fault, start)).0
        };
        let report = tokio::select! {
            report = judged => report.map_err(|error| ErrorChain(&*error).to_string())?,
            () = self.until_another_sale(&started) => return Err(ANOTHER_SALE.to_owned()),
            () = stop.cancelled() => return Err("The run was stopped.".to_owned()),
        };
        self.instances.ask().await;
        let stale = self.stale_batches().saturating_sub(stale_before);
        let stock = self.sale.stock(&Item::DEFAULT).await.map_err(failed)?;
        if stock.sale != started.sale {
            return Err(ANOTHER_SALE.to_owned());
        }
        let verdict = judge(run, guard, &report, &stock, stale);
        let now = self.current_run().ok_or("the run is gone")?;
        Ok(Verdict {
            takeover_ms: lanes::takeover_ms(&now, &self.lanes(Some(&now)).await),
            ..verdict
        })
    }

    /// Waits until another sale has replaced `started`.
    async fn until_another_sale(&self, started: &Stock) {
        loop {
            sleep(LOOK_EVERY).await;
            let now = self.sale.stock(&Item::DEFAULT).await;
            if now.is_ok_and(|now| now.sale != started.sale) {
                return;
            }
        }
    }

    /// Starts the other buyers once the victim has reached its fault, so that another instance overtakes it.
    async fn let_go(
        &self,
        victim: Option<&Instance>,
        fault: Option<Fault>,
        start: CancellationToken,
    ) {
        let Some(victim) = victim else { return };
        let deadline = Instant::now() + FAULT_TIMEOUT;
        while Instant::now() < deadline && is_alive(victim).await {
            sleep(Duration::from_millis(50)).await;
        }
        let end = match fault {
            Some(Fault::Kill) => "dies",
            _ => "stops for some seconds",
        };
        let is_hit = !is_alive(victim).await;
        if is_hit {
            self.change_run(|begun| begun.run.hit_ms = Some(now_ms()));
        }
        let what = if is_hit { "has reached" } else { "did not get to" };
        let text =
            format!("{} {what} the point where it {end} while it holds the lock.", victim.name);
        self.instances.note("fault", text);
        start.cancel();
    }
}

async fn is_alive(instance: &Instance) -> bool {
    call(instance, Method::GET, "/healthz", None).await.is_ok()
}

/// Claims the demo for `run` for this time, or releases it if that is zero. `false` if another run has it.
pub(super) async fn hold_run(sale: &Sale, run: &str, time: Duration) -> Result<bool, SaleError> {
    let mut command = redis::cmd("EVAL");
    let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    command.arg(HOLD_RUN).arg(1).arg(RUN_KEY).arg(run).arg(time);
    let held = sale.inventory().command(&command).await;
    held.map_err(|error| SaleError::of_read(error, &Item::DEFAULT))
}
