//! The controls of the page: `/demo`, plugged into the service as its [`Extension`].
//!
//! An instance forwards each change to the others by the same call with `?only=here`. What it shows of their
//! sales comes through etcd and Redis.

mod handlers;
mod instances;
mod lanes;
mod panels;
mod problem;
mod record;
mod run;
mod same_site;
mod verdict;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use clap::ValueEnum as _;
use flash_sale::http::Extension;
use flash_sale::http::problem::{Problem, ProblemType};
use flash_sale::inventory::Item;
use flash_sale::sale::Sale;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::instances::{Instance, Instances, call};
use self::problem::{NEEDS_INSTANCES, RUN_IN_PROGRESS};
use self::record::{Fault, Run, State, Status};
use self::run::{Begun, hold_run};
use crate::baselines::{LockMode, Switch};

/// The largest run.
const MAX_REQUESTS: u64 = 500_000;
const MAX_STOCK: u64 = 1_000_000_000;

/// Added to two TTLs for a pause: the time that etcd and the next holder take to notice the expiry.
const BEYOND: Duration = Duration::from_secs(2);

/// The controls at one instance.
pub(crate) struct Controls {
    sale: Sale,
    switch: Arc<Switch>,
    instances: Instances,
    restarts: bool,
    /// The first instance of a demo with another lock.
    beside: Option<Instance>,
    run: Mutex<Option<Begun>>,
}

impl Extension for Controls {
    fn routes(self: Arc<Self>) -> Router {
        handlers::routes(self)
    }

    /// Any client may start a sale, except pages of other sites.
    fn check_start(&self, head: &Parts) -> Result<(), Problem> {
        self.check_site(head)
    }

    fn refresh(self: Arc<Self>) {
        if self.instances.is_due() {
            tokio::spawn(async move { self.instances.ask().await });
        }
    }

    fn view(&self) -> Value {
        let Status { guard, guards, fence, .. } = self.status();
        json!({
            "guard": guard,
            "guards": guards,
            "fence": fence,
            "lock_ttl_ms": self.ttl().map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            "pause_ms": self.pause_ms(),
            "max_requests": MAX_REQUESTS,
            "max_stock": MAX_STOCK,
            "instances": self.instances.views(),
            "restarts": self.restarts,
            "run": self.newest_run(),
            "locks": self.switch.modes().into_iter().filter(|mode| mode.is_shared()).map(LockMode::name)
                .collect::<Vec<_>>(),
            "fence_kind": self.switch.lock().map(|(_, fence)| fence.name()),
            "beside": self.beside.is_some(),
            "panels": panels::MODULE,
        })
    }

    fn instances(&self) -> Vec<Arc<str>> {
        self.instances.all().into_iter().map(|instance| instance.name).collect()
    }

    fn take_notes(&self) -> Vec<(&'static str, String)> {
        self.instances.take_notes()
    }
}

impl Controls {
    /// For the instance on `port`, with the others at `addresses`. `restarts`: a killed instance is started
    /// again. `beside`: an instance of a demo with another lock.
    pub(crate) fn new(
        sale: Sale,
        switch: Arc<Switch>,
        port: u16,
        addresses: &[Uri],
        restarts: bool,
        beside: Option<&Uri>,
    ) -> Self {
        let instances = Instances::new(sale.instance(), port, addresses);
        let beside = beside.and_then(instances::instance);
        Self { sale, switch, instances, restarts, beside, run: Mutex::default() }
    }

    /// Refuses requests of other sites' pages; see [`same_site::check`].
    fn check_site(&self, head: &Parts) -> Result<(), Problem> {
        same_site::check(&head.method, &head.headers, |host| self.instances.has(host))
    }

    fn status(&self) -> Status {
        Status {
            instance: Arc::clone(self.instances.own()),
            guard: self.switch.mode().name().to_owned(),
            guards: self.switch.modes().into_iter().map(|mode| mode.name().to_owned()).collect(),
            fence: self.switch.is_fenced(),
            stale_batches: self.sale.metrics().stale_batches.get(),
            lost_sessions: self.sale.lost_sessions(),
            run: self.current_run(),
        }
    }

    fn ttl(&self) -> Option<Duration> {
        self.sale.lease().map(|(_, ttl)| ttl)
    }

    /// A pause that certainly outlasts the lease: whole seconds, in milliseconds.
    fn pause_ms(&self) -> u64 {
        let pause = self.ttl().unwrap_or_default() * 2 + BEYOND;
        pause.as_secs() * 1000
    }

    /// Batches refused by the fence, at all instances.
    fn stale_batches(&self) -> u64 {
        let others = self.instances.all().into_iter().filter_map(|instance| instance.status);
        let others: u64 = others.map(|status| status.stale_batches).sum();
        others + self.sale.metrics().stale_batches.get()
    }

    fn newest_run(&self) -> Option<Run> {
        let others = self.instances.all().into_iter().filter_map(|instance| instance.status?.run);
        others.chain(self.current_run()).max_by_key(|run| run.at_ms)
    }

    fn current_run(&self) -> Option<Run> {
        self.run().as_ref().map(Begun::now)
    }

    fn stop_of_run(&self) -> Option<CancellationToken> {
        self.run().as_ref().map(|begun| begun.stop.clone())
    }

    fn change_run(&self, change: impl FnOnce(&mut Begun)) {
        if let Some(begun) = self.run().as_mut() {
            change(begun);
        }
    }

    fn run(&self) -> MutexGuard<'_, Option<Begun>> {
        // the record is whole even after a panic
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the guard of new orders at all running instances.
    async fn set_guard(&self, mode: LockMode) -> Result<(), Problem> {
        if !self.switch.choose(mode) {
            let detail = "this demo was started without that guard";
            return Err(Problem::new(ProblemType::BAD_BODY, detail));
        }
        self.tell_others("/demo/guard?only=here", &json!({"guard": mode.name()})).await
    }

    /// Switches the fence at all running instances.
    async fn set_fence(&self, on: bool) -> Result<(), Problem> {
        self.switch.set_fence(on);
        self.tell_others("/demo/fence?only=here", &json!({"on": on})).await
    }

    /// Calls all other running instances.
    async fn tell_others(&self, path: &str, body: &Value) -> Result<(), Problem> {
        self.instances.ask().await;
        let others = self.instances.all().into_iter().filter(|i| i.is_up && !i.is_here);
        let calls = others.map(|instance| async move {
            call(&instance, Method::PUT, path, Some(body.clone())).await
        });
        join_all(calls).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Begins a run, which goes on in the background.
    async fn begin(self: &Arc<Self>, wanted: handlers::NewRun) -> Result<Run, Problem> {
        let guard = wanted.guard.unwrap_or_else(|| self.switch.mode());
        self.instances.ask().await;
        let victim = match wanted.fault {
            Some(_) if !guard.is_shared() => {
                let detail = "a fault needs a lock that the instances share: without one there is no holder to hit";
                return Err(Problem::new(ProblemType::BAD_BODY, detail));
            }
            Some(_) => {
                let mut others = self.instances.all().into_iter().filter(|i| i.is_up && !i.is_here);
                Some(others.next().ok_or_else(needs_instances)?)
            }
            None => None,
        };
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let at_ms = u64::try_from(at_ms).unwrap_or(u64::MAX);
        let by = Arc::clone(self.instances.own());
        let run = Run {
            id: format!("{at_ms}-{by}"),
            at_ms,
            by,
            state: State::Preparing,
            began_ms: 0.0,
            hit_ms: None,
            stock: wanted.stock,
            requests: wanted.requests,
            guard: guard.name().to_owned(),
            fence: wanted.fence.unwrap_or_else(|| self.switch.is_fenced()),
            fault: wanted.fault,
            victim: victim.as_ref().map(|victim| Arc::clone(&victim.name)),
            answered: 0,
            sold: 0,
            sold_out: 0,
            failed: 0,
            elapsed_ms: 0,
            verdict: None,
            error: None,
        };
        // the store decides which instance may run; without it no sale can start either
        let held = hold_run(&self.sale, &run.id, run::HELD_FOR).await;
        {
            let mut slot = self.run();
            let is_busy = slot.as_ref().is_some_and(|begun| !begun.run.is_over());
            if is_busy || matches!(held, Ok(false)) {
                let detail =
                    "wait for its verdict, or stop it with DELETE /demo/run where it was started";
                return Err(Problem::new(RUN_IN_PROGRESS, detail));
            }
            let (live, began_at) = (Arc::default(), Instant::now());
            let stop = CancellationToken::new();
            *slot = Some(Begun { run: run.clone(), live, began_at, stop });
        }
        tokio::spawn(Arc::clone(self).carry_out(guard, victim, held.map(drop)));
        Ok(run)
    }

    /// The instance to hit if the caller names none: the holder, or any other if this one holds the lock.
    async fn victim(&self) -> Result<Instance, Problem> {
        self.instances.ask().await;
        let claims = self.sale.queue(&Item::DEFAULT).await.unwrap_or_default();
        let holder = claims.into_iter().next().and_then(|claim| claim.label);
        let others: Vec<_> =
            self.instances.all().into_iter().filter(|i| i.is_up && !i.is_here).collect();
        let named = others.iter().find(|other| Some(&*other.name) == holder.as_deref());
        named.or(others.first()).cloned().ok_or_else(needs_instances)
    }
}

fn needs_instances() -> Problem {
    let detail = "a fault needs a second running instance, to take over the lock";
    Problem::new(NEEDS_INSTANCES, detail)
}

fn mode(name: &str) -> Option<LockMode> {
    LockMode::from_str(name, false).ok()
}

/// Arms a fault at this instance, or disarms it.
fn ask_for(fault: Option<Fault>, pause: Duration) {
    use crate::fault::{self, Action, Point};
    fault::ask_for(fault.map(|fault| {
        let action = match fault {
            Fault::Pause => Action::StopFor(pause),
            Fault::Kill => Action::Kill,
        };
        (Point::BeforeWrite, action)
    }));
}
