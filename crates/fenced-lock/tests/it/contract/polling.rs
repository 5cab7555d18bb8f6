//! Futures that are polled once and kept, and runtimes that end.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, Claim, ClusterId, GrantToken, Lease, Owner, PutMode, Session, SessionKeeper,
    SessionOptions,
};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use testkit::wait::{eventually, within};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::lab::{FoundLab, HOUR, LONG, Lab, TTL, opened, waiter};

/// A future that somebody created.
type Kept = Pin<Box<dyn Future<Output = ()>>>;

/// More than may be under way at once on any connection.
const MANY: u64 = 70;

/// A new future of each request of a backend. A claim that may be left is in the queue of another name.
fn requests<T: GrantToken>(
    backend: &Arc<dyn Backend<Token = T>>,
    lease: Lease,
    name: &str,
    number: u64,
) -> [(&'static str, Kept); 9] {
    let claim = |name: String| Claim::new(name, lease.id, number);
    let other = |which: &str| claim(format!("{name}-{which}"));
    let (put, tried, held, next) = (other("other"), other("try"), other("held"), other("held"));
    let released = claim(name.to_owned());
    let closed = Lease { id: i64::MAX, ttl: TTL, cluster: ClusterId(0) };
    let (queue, probe) = (name.to_owned(), name.to_owned());
    macro_rules! kept {
        ($call:ident, $($argument:expr),*) => {{
            let backend = Arc::clone(backend);
            let future = async move { drop(backend.$call($($argument),*).await) };
            (stringify!($call), Box::pin(future) as Kept)
        }};
    }
    [
        kept!(open, TTL),
        kept!(renew, lease),
        kept!(close, closed),
        kept!(put, &put, &PutMode::AtEnd),
        kept!(put, &tried, &PutMode::IfEmpty),
        kept!(put, &next, &PutMode::After(held)),
        kept!(release, &released),
        kept!(queue, &queue),
        kept!(probe, &probe),
    ]
}

/// Locks and unlocks for two TTLs, after which the session still lives. A lease ends a TTL after its last renewal, so even
/// one that was renewed twice before its renewals were held up would have ended.
pub(crate) async fn others_go_on<T: GrantToken>(what: &str, session: &Session<T>, name: &str) {
    let (mutex, until) = (session.mutex(name).unwrap(), Instant::now() + 2 * TTL);
    while Instant::now() < until {
        let guard = within(what, mutex.lock()).await.unwrap();
        within(what, guard.unlock()).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    assert!(!session.is_lost(), "{what}");
}

/// Goal: a request that somebody polls once, keeps and forgets holds nothing that others need, as in futures-rs#2387 and
/// grammers#282. Method: each request of the backend, on a backend that has no connection yet, which the request then makes,
/// and many on one that has.
pub(crate) async fn a_request_that_nobody_polls_delays_nobody<T: GrantToken>(
    lab: &impl Lab<Token = T>,
) {
    let requests = async |which: usize| {
        let (backend, name) = (lab.backend(), lab.name());
        let no_lease = Lease { id: i64::MAX - 1, ttl: TTL, cluster: ClusterId(0) };
        let (what, mut first) =
            requests(&backend, no_lease, &name, 0).into_iter().nth(which).unwrap();
        let mut all = vec![((&mut first).now_or_never(), first)];
        let opening = opened(Arc::clone(&backend), SessionOptions::new(TTL));
        let session = within(what, opening).await;
        // each that is opened has a connection of its own in some services
        for number in 0..if what == "open" { 3 } else { MANY } {
            let all_requests = requests(&backend, session.lease(), &name, number + 1_000_000);
            let (_, mut kept) = all_requests.into_iter().nth(which).unwrap();
            all.push(((&mut kept).now_or_never(), kept));
        }
        others_go_on(what, &session, &name).await;
    };
    join_all((0..9).map(requests)).await;
}

/// Goal: the same for the futures of the handles. Method: each one waits for a lock of its own.
pub(crate) async fn a_handle_that_nobody_polls_delays_nobody<T: GrantToken>(
    lab: &impl Lab<Token = T>,
) {
    let (backend, name) = (lab.backend(), lab.name());
    let options = SessionOptions::new(TTL);
    let keeper = SessionKeeper::start(Arc::clone(&backend), options.clone());
    let [session, closed] = [keeper.session().await.unwrap(), lab.session().await];
    let own = |which: &str| session.mutex(&format!("{name}-{which}")).unwrap();
    let held = async |which: &str| own(which).lock().await.unwrap();
    let guards = [held("unlock").await, held("requeue").await, held("contended").await];
    let [unlocked, requeued, contended] = guards;
    let (lost, run) = (contended.reenter().unwrap(), contended.reenter().unwrap());
    let stopping = SessionKeeper::start(backend.clone(), options.clone());
    macro_rules! kept {
        ($($what:literal: [$($owned:ident),*] $call:expr;)*) => {
            vec![$(($what, {
                $(let $owned = $owned.clone();)*
                Box::pin(async move { let _ = $call.await; }) as Kept
            }),)*]
        };
    }
    let mutex = session.mutex(&name).unwrap();
    let owns = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|number| own(&number.to_string()));
    let kept_mutex = keeper.mutex(owns[10].name()).unwrap();
    let mut futures = kept! {
        "Session::open": [backend, options] Session::open(backend, options);
        "Session::lost": [session] session.lost();
        "Session::close": [closed] closed.close();
        "Mutex::lock": [owns] owns[0].lock();
        "Mutex::lock_as": [owns] async { owns[1].lock_as(&mut Owner::new()).await };
        "Mutex::try_lock": [owns] owns[2].try_lock();
        "Mutex::try_lock_as": [owns] async { owns[3].try_lock_as(&mut Owner::new()).await };
        "Mutex::with": [owns] owns[4].with(async |_| ());
        "Mutex::queue": [mutex] mutex.queue();
        "Mutex::probe": [mutex] mutex.probe();
        "SessionKeeper::lock": [keeper, owns] keeper.lock(owns[5].name());
        "SessionKeeper::lock_as": [keeper, owns] async {
            keeper.lock_as(owns[8].name(), &mut Owner::new()).await
        };
        "SessionKeeper::mutex": [kept_mutex] kept_mutex.lock();
        "SessionKeeper::try_lock": [keeper, owns] keeper.try_lock(owns[6].name());
        "SessionKeeper::try_lock_as": [keeper, owns] async {
            keeper.try_lock_as(owns[9].name(), &mut Owner::new()).await
        };
        "SessionKeeper::with": [keeper, owns] keeper.with(owns[7].name(), async |_| ());
        "SessionKeeper::session": [keeper] keeper.session();
        "SessionKeeper::close": [stopping] stopping.close();
        "Guard::unlock": [] unlocked.unlock();
        "Guard::requeue": [] requeued.requeue();
        "Guard::lost": [] lost.lost();
        "Guard::run": [] run.run(std::future::pending::<()>());
        "Guard::contended": [] contended.contended();
    };
    let polled: Vec<_> =
        futures.iter_mut().map(|(what, kept)| (*what, kept.now_or_never())).collect();
    others_go_on(&format!("{polled:?}"), &session, &name).await;
}

/// Goal: a read over a broken connection that nobody polls any more keeps no other request from making a new connection.
pub(crate) async fn a_look_at_a_broken_connection_delays_nobody<T: GrantToken>(
    lab: &impl FoundLab<Token = T>,
) {
    let (proxy, proxied) = lab.behind_proxy().await;
    let (backend, name) = (proxied.backend(), lab.name());
    let session = Session::open(Arc::clone(&backend), SessionOptions::new(LONG)).await.unwrap();
    proxy.refuse();
    eventually("it is noticed", async || backend.queue(&name).await.is_err()).await;
    let (one, other) = (Arc::clone(&backend), Arc::clone(&backend));
    let mut looks = [one.queue(&name), one.queue(&name)];
    let mut probes = [other.probe(&name), other.probe(&name)];
    proxy.accept();
    for look in &mut looks {
        drop(look.now_or_never());
    }
    for probe in &mut probes {
        drop(probe.now_or_never());
    }
    others_go_on("a look", &session, &name).await;
}

/// Goal: a backend outlives the runtime that first asked it, and a session with a thread of its own outlives the runtime that
/// opened it: grants come at once. Method: leases that outlive the test, so that no timer helps.
pub(crate) async fn the_runtime_of_the_first_caller_may_end<T: GrantToken>(
    lab: &impl Lab<Token = T>,
) {
    let (backend, name) = (lab.backend(), lab.name());
    let (asked, is_asked) = oneshot::channel();
    let (end, is_over) = oneshot::channel::<()>();
    let first = tokio::task::spawn_blocking({
        let (backend, name) = (Arc::clone(&backend), name.clone());
        move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                backend.queue(&name).await.ok();
                asked.send(()).unwrap();
                is_over.await.unwrap();
            });
        }
    });
    is_asked.await.unwrap();
    let session = Session::open(backend, SessionOptions::new(HOUR)).await.unwrap();
    let other = lab.session_for(HOUR).await.mutex(&name).unwrap();
    let held = other.lock().await.unwrap();
    let waiter = waiter(&session.mutex(&name).unwrap(), 2).await;
    end.send(()).unwrap();
    first.await.unwrap();
    held.unlock().await.unwrap();
    within("the waiter is granted", waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

/// Goal: a runtime whose only thread is busy for two TTLs, with looks under way, delays nobody and loses no lease. Method:
/// that runtime makes the first requests of the backend, and opens the session.
pub(crate) async fn looks_of_a_busy_runtime_delay_nobody<T: GrantToken>(lab: &impl Lab<Token = T>) {
    let (backend, name) = (lab.backend(), lab.name());
    let (asked, is_asked) = oneshot::channel();
    let (end, is_over) = std::sync::mpsc::channel::<()>();
    let busy = tokio::task::spawn_blocking({
        let (backend, name) = (Arc::clone(&backend), name.clone());
        move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let looks = || (backend.queue(&name), backend.probe(&name));
                let (mut queue, mut probe) = looks();
                drop(((&mut queue).now_or_never(), (&mut probe).now_or_never()));
                let session = opened(Arc::clone(&backend), SessionOptions::new(TTL)).await;
                let (mut later_queue, mut later_probe) = looks();
                drop(((&mut later_queue).now_or_never(), (&mut later_probe).now_or_never()));
                asked.send(session.clone()).unwrap();
                // this blocks the thread, and an error means that the test has failed
                is_over.recv().ok();
                drop((queue, probe, later_queue, later_probe));
                assert!(!session.is_lost());
            });
        }
    });
    let session = is_asked.await.unwrap();
    others_go_on("looks of a busy runtime", &session, &name).await;
    end.send(()).unwrap();
    busy.await.unwrap();
}
