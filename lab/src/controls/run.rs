//! A run from its beginning to its verdict.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::Method;
use flash_sale::http::problem::Problem;
use flash_sale::inventory::{Item, Stock};
use flash_sale::sale::{Sale, SaleError};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Controls;
use super::fire::{Count, Salvo, fire};
use super::instances::{Instance, call};
use super::record::{Fault, Run, State, Verdict};
use super::verdict::{count_lost, judge};
use crate::baselines::LockMode;

/// How long the victim's first order may take to reach the fault before the others are let go.
const FAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a stopped or restarted instance may take to answer again, before its numbers are left out.
const RETURN_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a run is kept from others without a word of its instance, which may have died.
pub(super) const HELD_FOR: Duration = Duration::from_secs(4);

/// How often it is looked whether the sale is still the one that the run has started.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is said of a run then: what its buyers were told cannot be compared with the other sale.
const ANOTHER_SALE: &str = "Another sale was started meanwhile.";

/// Which run goes on: instances of one demo share their store. No item is called so, and the rights that an
/// instance needs for the keys of items are enough for it.
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

/// A run that was begun.
pub(super) struct Begun {
    pub(super) run: Run,
    pub(super) count: Arc<Count>,
    pub(super) began_at: Instant,
    pub(super) stop: CancellationToken,
}

impl Begun {
    /// As it is now.
    pub(super) fn now(&self) -> Run {
        let mut run = self.run.clone();
        run.sold = self.count.sold.load(Ordering::Relaxed);
        run.sold_out = self.count.sold_out.load(Ordering::Relaxed);
        run.failed = self.count.failed.load(Ordering::Relaxed);
        run.answered = run.sold + run.sold_out;
        if !run.is_over() && run.state != State::Preparing && run.state != State::Checking {
            run.elapsed_ms = u64::try_from(self.began_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        run
    }
}

impl Controls {
    /// Carries the run out, unless it was not `held`; what goes wrong is told in it.
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
            // what was not reached must not hit a later sale
            let nothing = json!({"fault": null});
            drop(call(&victim, Method::POST, "/demo/fault?only=here", Some(nothing)).await);
        }
        // it ends by itself otherwise
        drop(hold_run(&self.sale, &run.id, Duration::ZERO).await);
        self.change_run(|begun| {
            let now = begun.now();
            begun.run = match judged {
                Ok(verdict) => Run { state: State::Done, verdict: Some(verdict), ..now },
                Err(error) => Run { state: State::Failed, error: Some(error), ..now },
            };
        });
    }

    /// Keeps the run, until the store says that it is another's; one that does not answer is asked again.
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

        let (release, held_back) = watch::channel(victim.is_some());
        let stop = self.stop_of_run().ok_or("the run is gone")?;
        let up = self.instances.all().into_iter().filter(|instance| instance.is_up);
        let salvo = Salvo {
            id: format!("run-{}", run.id),
            requests: run.requests,
            authorities: up.map(|instance| instance.authority).collect(),
            first: victim.map(|victim| Arc::clone(&victim.authority)),
            held_back,
        };
        let id = salvo.id.clone();
        let count = self.count_of_run().ok_or("the run is gone")?;
        self.change_run(|begun| {
            begun.run.state = State::Firing;
            begun.began_at = Instant::now();
        });
        let fired =
            async { tokio::join!(fire(salvo, count), self.let_go(victim, run.fault, release)).0 };
        let sold = tokio::select! {
            sold = fired => sold,
            () = self.until_another_sale(&started) => return Err(ANOTHER_SALE.to_owned()),
            () = stop.cancelled() => return Err("The run was stopped.".to_owned()),
        };
        let now = self.current_run().ok_or("the run is gone")?;
        self.change_run(|begun| {
            begun.run.elapsed_ms = now.elapsed_ms;
            begun.run.state = State::Checking;
        });
        if let (Some(victim), Some(Fault::Pause)) = (victim, run.fault) {
            self.until_back(victim).await;
        }
        self.instances.ask().await;
        let stale = self.stale_batches().saturating_sub(stale_before);
        let lost = match guard {
            LockMode::Etcd | LockMode::EtcdRecipe | LockMode::Unguarded => {
                count_lost(&self.sale, &id, &sold).await.map_err(failed)?
            }
            // no ledger is kept
            LockMode::Local | LockMode::None | LockMode::EtcdRpc => 0,
        };
        let stock = self.sale.stock(&Item::DEFAULT).await.map_err(failed)?;
        if stock.sale != started.sale {
            return Err(ANOTHER_SALE.to_owned());
        }
        Ok(judge(&now, &stock, lost, stale))
    }

    /// Until there is another sale than the one that was `started`.
    async fn until_another_sale(&self, started: &Stock) {
        loop {
            sleep(LOOK_EVERY).await;
            let now = self.sale.stock(&Item::DEFAULT).await;
            if now.is_ok_and(|now| now.sale != started.sale) {
                return;
            }
        }
    }

    /// Lets the other orders go once the victim has reached its fault: so that an instance is there to
    /// overtake it.
    async fn let_go(
        &self,
        victim: Option<&Instance>,
        fault: Option<Fault>,
        release: watch::Sender<bool>,
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
        let what = if is_alive(victim).await { "did not get to" } else { "has reached" };
        let text = format!("{} {what} the point where it {end}, holding the lock.", victim.name);
        self.instances.note("fault", text);
        release.send_replace(false);
    }

    async fn until_back(&self, victim: &Instance) {
        let deadline = Instant::now() + RETURN_TIMEOUT;
        while Instant::now() < deadline && !is_alive(victim).await {
            sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn is_alive(instance: &Instance) -> bool {
    call(instance, Method::GET, "/healthz", None).await.is_ok()
}

/// Makes the run of the demo that of `run` for `time` from now on, or gives it back if that is zero.
/// `false` if it is another's.
pub(super) async fn hold_run(sale: &Sale, run: &str, time: Duration) -> Result<bool, SaleError> {
    let mut command = redis::cmd("EVAL");
    let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    command.arg(HOLD_RUN).arg(1).arg(RUN_KEY).arg(run).arg(time);
    let held = sale.inventory().command(&command).await;
    held.map_err(|error| SaleError::of_read(error, &Item::DEFAULT))
}
