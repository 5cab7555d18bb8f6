//! Carries out a run and judges it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Method;
use flash_sale::error_chain::ErrorChain;
use flash_sale::http::problem::{Problem, ProblemType};
use loadtest::Live;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::problem::{NEEDS_INSTANCES, RUN_IN_PROGRESS};
use super::record::{Command, NewRun, Run, State, Verdict};
use super::replay::replay;
use super::{ASK_EVERY, Control, Instance, nobody_answers};
use crate::instance::Guard;
use crate::instance::rig::{now_ms, unix_ms};
use crate::verdict::judge;

/// How long the victim may take to reach the fault. No other instance may sell before that: otherwise the run would show nothing.
const FAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// An order must outlast a fault: the pause, or the lease of a killed holder.
const LOAD_FLAGS: [&str; 3] = ["--timeout=60s", "--attempt-timeout=15s", "--retries=1000"];

/// A run in progress, or the last one.
pub(super) struct Begun {
    run: Run,
    /// Its head start ends when the victim has reached its fault.
    live: Arc<Live>,
}

impl Begun {
    /// The run with its current counts.
    fn now(&self) -> Run {
        let Self { run, live } = self;
        let mut run = run.clone();
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        run.sold = now(&live.acknowledged);
        run.sold_out = now(&live.sold_out);
        run.failed = now(&live.unsettled);
        run.answered = run.sold + run.sold_out;
        if let Some(started) = live.started.get().filter(|_| !run.is_over()) {
            run.began_ms = unix_ms(*started);
            let took = live.duration.get();
            run.state = if took.is_some() { State::Checking } else { State::Firing };
            let took = took.copied().unwrap_or_else(|| started.elapsed().unwrap_or_default());
            run.elapsed_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        }
        run
    }
}

impl Control {
    /// Begins a run. Returns the task that carries it out.
    ///
    /// # Errors
    /// The run is not possible, or another one is in progress.
    pub(super) async fn begin(self: &Arc<Self>, wanted: NewRun) -> Result<JoinHandle<()>, Problem> {
        self.read_all().await;
        let (shops, status) = (self.up(), self.status());
        let last = &mut self.known.lock().run;
        // check this first: the sleeping victim of a run is not up, which would give a misleading error
        if last.as_ref().is_some_and(|begun| !begun.run.is_over()) {
            let detail = "another sale takes place: wait for its end, or stop it";
            return Err(Problem::new(RUN_IN_PROGRESS, detail));
        }
        let status = status.filter(|_| !shops.is_empty()).ok_or_else(nobody_answers)?;
        let guard = wanted.guard.unwrap_or(status.guard);
        if wanted.fault.is_some() && guard != Guard::Lock {
            let detail = "a fault needs a lock that the instances share: without one there is no holder to hit";
            return Err(Problem::new(ProblemType::BAD_BODY, detail));
        }
        if wanted.fault.is_some() && shops.len() < 2 {
            let detail = "a fault needs a second running instance, to take over the lock";
            return Err(Problem::new(NEEDS_INSTANCES, detail));
        }
        // a fault hits the last one, since the page shows the events of the first
        let victim = wanted.fault.map(|_| shops.len() - 1);
        let run = Run {
            id: format!("{:.0}", now_ms() * 1e3),
            stock: wanted.stock,
            requests: wanted.requests,
            guard,
            fence: wanted.fence.unwrap_or(status.fence),
            fault: wanted.fault,
            sleep_seconds: wanted.sleep_seconds,
            victim: victim.map(|victim| shops[victim].name.clone()),
            shops: shops.iter().map(|shop| shop.name.clone()).collect(),
            ..Run::default()
        };
        // the victim's buyers come first
        let head_start = victim.map(|victim| (victim, CancellationToken::new()));
        let live = Arc::new(Live { head_start, ..Live::default() });
        *last = Some(Begun { run: run.clone(), live: Arc::clone(&live) });
        Ok(tokio::spawn(Arc::clone(self).carry_out(run, shops, live)))
    }

    /// Begins a run and waits for its end.
    ///
    /// # Errors
    /// The run is not possible, or another one is in progress.
    pub async fn run(self: &Arc<Self>, wanted: NewRun) -> Result<Run, Problem> {
        self.begin(wanted).await?.await.expect("it does not panic");
        Ok(self.current_run().expect("it has begun"))
    }

    /// The last run with its current counts.
    pub fn current_run(&self) -> Option<Run> {
        self.known.lock().run.as_ref().map(Begun::now)
    }

    /// Stops the run. Returns it, if there is one.
    pub(super) fn stop_run(&self) -> Option<Run> {
        let known = self.known.lock();
        let begun = known.run.as_ref()?;
        begun.live.stop.cancel();
        Some(begun.now())
    }

    /// Notes that `instance` has reached its fault, if it is the victim of the run.
    pub(super) fn note_hit(&self, instance: &str) {
        let mut known = self.known.lock();
        let begun = known.run.as_mut().filter(|it| it.run.victim.as_deref() == Some(instance));
        if let Some(Begun { run, live }) = begun.filter(|begun| !begun.run.is_over()) {
            run.hit_ms = Some(now_ms());
            // the other buyers come, so that another instance overtakes it
            live.head_start.iter().for_each(|(_, others)| others.cancel());
        }
    }

    /// Carries the run out at these instances, and records its verdict or its error.
    async fn carry_out(self: Arc<Self>, run: Run, shops: Vec<Instance>, live: Arc<Live>) {
        let victim = live.head_start.as_ref().map(|(victim, _)| &shops[*victim]);
        let judged = tokio::select! {
            judged = self.try_carry_out(&run, &shops, victim, &live) => judged,
            () = live.stop.cancelled() => Err("The run was stopped.".to_owned()),
        };
        if let Some(victim) = victim {
            // the fault must not hit a later sale
            drop(victim.command(&Command::Fault(None)).await);
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
        shops: &[Instance],
        victim: Option<&Instance>,
        live: &Arc<Live>,
    ) -> Result<(Verdict, Value), String> {
        let in_words = |problem: Problem| problem.detail().to_owned();
        // both at once, since an instance that is stopped costs the time limit
        let guard = self.command_all(Command::Guard(run.guard));
        tokio::try_join!(guard, self.command_all(Command::Fence(run.fence))).map_err(in_words)?;
        let stale_before = self.stale_batches();
        let units = json!({"stock": run.stock});
        let started = self.sale(victim, Method::PUT, Some(units)).await.map_err(in_words)?;
        if let Some(begun) = &mut self.known.lock().run {
            begun.run.sale = started;
        }
        if let Some(victim) = victim {
            let fault = run.fault.map(|fault| (fault, run.sleep_seconds));
            victim.command(&Command::Fault(fault)).await.map_err(in_words)?;
        }
        let requests = format!("--requests={}", run.requests);
        let sums = run.guard.flaw().is_some().then_some("--without-ledger");
        // without the fence, the demo's writer marks no repeated answer
        let again = (!run.fence).then_some("--again=0");
        let flags = LOAD_FLAGS.into_iter().chain(sums).chain(again).chain([requests.as_str()]);
        let urls = shops.iter().map(|shop| format!("http://{}", shop.authority));
        let args = loadtest::Args::from_flags(flags.map(str::to_owned).chain(urls));
        let args = args.map_err(|error| error.to_string())?;
        let load = async { Ok(loadtest::run_in_process(&args, live).await) };
        let (ran, ()) = tokio::try_join!(load, self.until_hit(victim, live))?;
        if self.sale(victim, Method::GET, None).await.map_err(in_words)? != started {
            return Err("Another sale was started meanwhile.".to_owned());
        }
        let (report, orders) = ran.map_err(|error| ErrorChain(&*error).to_string())?;
        self.read_all().await;
        let stale = self.stale_batches().saturating_sub(stale_before);
        let now = self.current_run().unwrap_or_default();
        Ok((judge(&now, &report, stale), replay(&now, &self.instances(), &orders)))
    }

    /// Reads or starts the sale at an instance that the fault does not hit. Returns the sale's id.
    async fn sale(
        &self,
        victim: Option<&Instance>,
        method: Method,
        body: Option<Value>,
    ) -> Result<Option<u64>, Problem> {
        // a busy instance may have missed a question for its status, but can do this
        let mut all = self.up_first().into_iter();
        let safe = all.find(|one| victim.is_none_or(|victim| victim.name != one.name));
        let safe = safe.ok_or_else(nobody_answers)?;
        let stock: Value = safe.ask(method, "/stock", body).await?;
        Ok(stock["sale"].as_u64())
    }

    /// Waits until the victim has reached its fault.
    ///
    /// # Errors
    /// The victim does not reach its fault: a buyer got an answer before, or nobody did in time.
    async fn until_hit(&self, victim: Option<&Instance>, live: &Live) -> Result<(), String> {
        let Some((victim, (_, hit))) = victim.zip(live.head_start.as_ref()) else {
            return Ok(());
        };
        let is_answered = async {
            while live.ended() == 0 {
                sleep(ASK_EVERY).await;
            }
        };
        let missed = timeout(FAULT_TIMEOUT, is_answered);
        let is_hit = hit.run_until_cancelled(missed).await.is_none();
        let what = if is_hit { "has reached" } else { "did not get to" };
        let text = format!("{} {what} its fault while it held the lock.", victim.name);
        self.known.lock().note(&text);
        is_hit.then_some(()).ok_or(text)
    }
}
