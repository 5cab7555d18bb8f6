//! Carries out a run and judges it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Method;
use flash_sale::error_chain::ErrorChain;
use flash_sale::http::problem::{Problem, ProblemType};
use loadtest::Live;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::problem::RUN_IN_PROGRESS;
use super::record::{Command, Fault, NewRun, Run, State, Verdict};
use super::replay::replay;
use super::{Control, Instance, nobody_answers};
use crate::verdict::judge;
use crate::writer::tenures::{now_ms, unix_ms};

/// How long the victim may take to reach the fault before the other buyers start.
const FAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is looked whether a run is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// An order outlasts a fault: the pause, and the lease of a killed holder.
const LOAD_FLAGS: [&str; 3] = ["--timeout=60s", "--attempt-timeout=15s", "--retries=1000"];

/// A run in progress, or the last one.
pub(super) struct Begun {
    run: Run,
    live: Arc<Live>,
    stop: CancellationToken,
}

impl Begun {
    /// The run with its current counts.
    fn now(&self) -> Run {
        let mut run = self.run.clone();
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        run.sold = now(&self.live.acknowledged);
        run.sold_out = now(&self.live.sold_out);
        run.failed = now(&self.live.unsettled);
        run.answered = run.sold + run.sold_out;
        let Some(started) = self.live.started.get() else { return run };
        run.began_ms = unix_ms(*started);
        if run.state == State::Firing {
            let took = self.live.duration.get();
            if took.is_some() {
                run.state = State::Checking;
            }
            let took = took.copied().unwrap_or_else(|| started.elapsed().unwrap_or_default());
            run.elapsed_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        }
        run
    }
}

impl Control {
    /// Begins a run, which goes on in the background. `from` is the instance of the page that asks for it: no fault
    /// hits it, so that the page stays.
    ///
    /// # Errors
    /// The run is not possible, or another one is in progress.
    pub async fn begin(
        self: &Arc<Self>,
        wanted: NewRun,
        from: Option<&str>,
    ) -> Result<Run, Problem> {
        self.read_all().await;
        let status = self.status_at(from).filter(|_| !self.up().is_empty());
        let status = status.ok_or_else(nobody_answers)?;
        let guard = wanted.guard.unwrap_or(status.guard);
        self.check_guard(&guard)?;
        let victim = match wanted.fault {
            Some(_) if !status.locks.contains(&guard) => {
                let detail = "a fault needs a lock that the instances share: without one there is no holder to hit";
                return Err(Problem::new(ProblemType::BAD_BODY, detail));
            }
            Some(_) => Some(self.any_but(from)?),
            None => None,
        };
        let run = Run {
            id: format!("{:.0}", now_ms() * 1e3),
            stock: wanted.stock,
            requests: wanted.requests,
            guard,
            fence: wanted.fence.unwrap_or(status.fence),
            fault: wanted.fault,
            victim: victim.as_ref().map(|victim| victim.name.clone()),
            ..Run::default()
        };
        let stop = CancellationToken::new();
        {
            let slot = &mut self.known.lock().run;
            if slot.as_ref().is_some_and(|begun| !begun.run.is_over()) {
                let detail = "wait for its verdict, or stop it with DELETE /demo/run";
                return Err(Problem::new(RUN_IN_PROGRESS, detail));
            }
            *slot = Some(Begun { run: run.clone(), live: Arc::default(), stop: stop.clone() });
        }
        tokio::spawn(Arc::clone(self).carry_out(run.clone(), victim, stop));
        Ok(run)
    }

    /// Begins a run and waits for its end.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn run(self: &Arc<Self>, wanted: NewRun) -> Result<Run, Problem> {
        let mut run = self.begin(wanted, None).await?;
        while !run.is_over() {
            sleep(LOOK_EVERY).await;
            run = self.current_run().unwrap_or(run);
        }
        Ok(run)
    }

    /// The last run as it is now.
    pub fn current_run(&self) -> Option<Run> {
        self.known.lock().run.as_ref().map(Begun::now)
    }

    /// Stops the run. Returns it, if there is one.
    pub(super) fn stop_run(&self) -> Option<Run> {
        let known = self.known.lock();
        let begun = known.run.as_ref()?;
        begun.stop.cancel();
        Some(begun.now())
    }

    fn change_run(&self, change: impl FnOnce(&mut Begun)) {
        if let Some(begun) = &mut self.known.lock().run {
            change(begun);
        }
    }

    /// Carries the run out, and records its verdict or its error.
    async fn carry_out(
        self: Arc<Self>,
        run: Run,
        victim: Option<Instance>,
        stop: CancellationToken,
    ) {
        let judged = tokio::select! {
            judged = self.try_carry_out(&run, victim.as_ref()) => judged,
            () = stop.cancelled() => Err("The run was stopped.".to_owned()),
        };
        if let Some(victim) = victim {
            // it must not hit a later sale
            drop(victim.command(&Command::Fault(None, 0)).await);
        }
        let known = &mut *self.known.lock();
        let Some(begun) = &mut known.run else { return };
        begun.run = match judged {
            Ok((verdict, replay)) => {
                known.replay = replay;
                Run { state: State::Done, verdict: Some(verdict), ..begun.now() }
            }
            Err(error) => Run { state: State::Failed, error: Some(error), ..begun.now() },
        };
    }

    async fn try_carry_out(
        &self,
        run: &Run,
        victim: Option<&Instance>,
    ) -> Result<(Verdict, Value), String> {
        let in_words = |problem: Problem| problem.detail().to_owned();
        // at once: an instance that is stopped costs the time limit
        let guard = self.command_all(Command::Guard(run.guard.clone()));
        tokio::try_join!(guard, self.command_all(Command::Fence(run.fence))).map_err(in_words)?;
        let stale_before = self.stale_batches();
        let units = json!({"stock": run.stock});
        let started = self.sale(victim, Method::PUT, Some(units)).await.map_err(in_words)?;
        if let Some(victim) = victim {
            let fault = Command::Fault(run.fault, self.pause_ms());
            victim.command(&fault).await.map_err(in_words)?;
        }

        let up = self.up();
        let is_victim =
            |one: &Instance| victim.is_some_and(|victim| victim.authority == one.authority);
        let start = CancellationToken::new();
        let head_start = up.iter().position(is_victim).map(|first| (first, start.clone()));
        let live = Arc::new(Live { head_start, ..Live::default() });
        let requests = format!("--requests={}", run.requests);
        let flags = LOAD_FLAGS.map(str::to_owned).into_iter().chain([requests]);
        let urls = up.iter().map(|instance| format!("http://{}", instance.authority));
        let args = loadtest::Args::from_flags(flags.chain(urls));
        let args = args.map_err(|error| error.to_string())?;
        self.change_run(|begun| {
            begun.run.state = State::Firing;
            begun.live = Arc::clone(&live);
        });
        let load = loadtest::run_in_process(&args, &live);
        let others = self.start_the_others(victim, run.fault, start);
        let (ran, ()) = tokio::join!(load, others);
        if self.sale(victim, Method::GET, None).await.map_err(in_words)? != started {
            return Err("Another sale was started meanwhile.".to_owned());
        }
        let (report, orders) = ran.map_err(|error| ErrorChain(&*error).to_string())?;
        self.read_all().await;
        let stale = self.stale_batches().saturating_sub(stale_before);
        let now = self.current_run().unwrap_or_default();
        let shops: Vec<_> = up.into_iter().map(|instance| instance.name).collect();
        Ok((judge(run, &report, stale), replay(self, &now, &shops, &orders)))
    }

    /// Reads or starts the sale at an instance that the fault does not hit. Returns its id.
    async fn sale(
        &self,
        victim: Option<&Instance>,
        method: Method,
        body: Option<Value>,
    ) -> Result<Value, Problem> {
        let mut up = self.up().into_iter();
        let safe = up.find(|one| victim.is_none_or(|victim| victim.name != one.name));
        let safe = safe.ok_or_else(nobody_answers)?;
        let mut stock: Value = safe.ask(method, "/stock", body).await?;
        Ok(stock["sale"].take())
    }

    /// Starts the other buyers once the victim has reached its fault, so that another instance overtakes it.
    async fn start_the_others(
        &self,
        victim: Option<&Instance>,
        fault: Option<Fault>,
        start: CancellationToken,
    ) {
        let Some(victim) = victim else { return };
        let is_alive = async || victim.ask::<Value>(Method::GET, "/demo/here", None).await.is_ok();
        let deadline = Instant::now() + FAULT_TIMEOUT;
        while Instant::now() < deadline && is_alive().await {
            sleep(Duration::from_millis(50)).await;
        }
        let is_hit = !is_alive().await;
        if is_hit {
            self.change_run(|begun| begun.run.hit_ms = Some(now_ms()));
        }
        let end = if fault == Some(Fault::Kill) { "dies" } else { "stops for some seconds" };
        let what = if is_hit { "has reached" } else { "did not get to" };
        let text =
            format!("{} {what} the point where it {end} while it holds the lock.", victim.name);
        self.note("fault", &victim.name, text);
        start.cancel();
    }
}
