//! Callers outside of tokio, and on a runtime without timers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::yield_now;

use fenced_lock::{
    Backend, EtcdBackend, EtcdOptions, FileBackend, FileOptions, MemoryBackend, Owner,
    PostgresAdvisoryBackend, PostgresBackend, PostgresOptions, RedisBackend, RedisOptions,
    RedlockBackend, Session, SessionKeeper, SessionOptions, ZooKeeperBackend, ZooKeeperOptions,
};
use futures_util::future::select;
use tokio::runtime::Builder;

use super::lab::{Lab as _, TTL};
use super::redis::RedisLab;

/// A future, and whether it should come to its end.
type Case = (&'static str, bool, Pin<Box<dyn Future<Output = ()>>>);

fn block_on(future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    while future.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Pending {
        yield_now();
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap().to_string())
}

/// Goal: each constructor and each method works, or panics with a sentence where its documentation says so, outside of tokio and
/// on a runtime without timers.
#[test]
fn outside_of_tokio() {
    let home = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lab = home.block_on(RedisLab::shared());
    let directory = tempfile::tempdir().unwrap();
    for has_runtime in [false, true] {
        for (what, works, future) in cases(&lab, directory.path()) {
            let run = || {
                if has_runtime {
                    Builder::new_current_thread().build().unwrap().block_on(future);
                } else {
                    block_on(future);
                }
            };
            let panicked = catch_unwind(AssertUnwindSafe(run)).err().map(|panic| text_of(&*panic));
            let said = panicked.as_ref().is_some_and(|text| text.contains("Tokio 1.x"));
            assert!(said != works && panicked.is_none() == works, "{what}: {panicked:?}");
        }
    }
}

fn cases(lab: &RedisLab, directory: &std::path::Path) -> Vec<Case> {
    let (url, directory) = ("redis://127.0.0.1:1", directory.to_owned());
    let options = SessionOptions::new(TTL);
    let backend = lab.backend();
    let file = Arc::new(FileBackend::new(FileOptions::new(directory)).unwrap());
    let memory = Arc::new(MemoryBackend::new());
    let postgres = PostgresOptions::new("postgres://a@127.0.0.1:1/a");
    let name = lab.name();
    macro_rules! cases {
        ($($what:literal $works:literal [$($cloned:ident)*] $work:expr;)*) => {
            vec![$(($what, $works, {
                $(let $cloned = $cloned.clone();)*
                Box::pin(async move { let _ = $work; })
            })),*]
        };
    }
    // a session, its mutex, and a guard
    macro_rules! session {
        ($backend:ident, $options:ident) => {
            Session::open($backend, $options).await.unwrap()
        };
    }
    macro_rules! mutex {
        ($backend:ident, $options:ident, $name:ident) => {
            session!($backend, $options).mutex(&$name).unwrap()
        };
    }
    macro_rules! keeper {
        ($backend:ident, $options:ident) => {
            SessionKeeper::start($backend, $options)
        };
    }
    cases! {
        "EtcdBackend::new" true [] EtcdBackend::new(EtcdOptions::new(["http://127.0.0.1:1"])).unwrap();
        "RedisBackend::new" true [] RedisBackend::new(RedisOptions::new(url)).unwrap();
        "RedlockBackend::new" true [] RedlockBackend::new([url; 3].map(RedisOptions::new)).unwrap();
        "PostgresBackend::new" true [postgres] PostgresBackend::new(&postgres).unwrap();
        "PostgresAdvisoryBackend::new" true [postgres] PostgresAdvisoryBackend::new(&postgres).unwrap();
        "ZooKeeperBackend::new" true [] ZooKeeperBackend::new(ZooKeeperOptions::new("127.0.0.1:1")).unwrap();
        "Backend::open" true [backend] backend.open(TTL).await.unwrap();
        "Backend::queue" true [backend name] backend.queue(&name).await.unwrap();
        "FileBackend::queue" false [file name] file.queue(&name).await;
        "MemoryBackend::open" false [memory] memory.open(TTL).await;
        "MemoryBackend::queue" true [memory name] memory.queue(&name).await.unwrap();
        "Session::open, files" false [file options] session!(file, options);
        "Session::open, memory" false [memory options] session!(memory, options);
        "SessionKeeper::start, memory" false [memory options] keeper!(memory, options);
        "Session::open, close" true [backend options] session!(backend, options).close().await.unwrap();
        "Session::lost" false [backend options] session!(backend, options).lost().await;
        "Mutex::lock, Guard::requeue, Guard::unlock" true [backend options name] {
            let guard = mutex!(backend, options, name).lock().await.unwrap();
            guard.requeue().await.unwrap().unlock().await.unwrap();
        };
        "Mutex::try_lock" true [backend options name] mutex!(backend, options, name).try_lock().await.unwrap();
        "Mutex::lock_as" true [backend options name] {
            mutex!(backend, options, name).lock_as(&mut Owner::new()).await.unwrap()
        };
        "Mutex::queue, probe" true [backend options name] {
            let mutex = mutex!(backend, options, name);
            (mutex.queue().await.unwrap(), mutex.probe().await.unwrap())
        };
        "Mutex::with" false [backend options name] mutex!(backend, options, name).with(async |_| ()).await;
        "Guard::contended" true [backend options name] {
            let mutex = mutex!(backend, options, name);
            let guard = mutex.lock().await.unwrap();
            drop(select(pin!(guard.contended()), pin!(mutex.lock())).await);
            (guard.valid_until(), guard.is_lost())
        };
        "Guard::lost" false [backend options name] {
            mutex!(backend, options, name).lock().await.unwrap().lost().await;
        };
        "Guard::run" false [backend options name] {
            mutex!(backend, options, name).lock().await.unwrap().run(async {}).await
        };
        "SessionKeeper::session, close" true [backend options] {
            let keeper = keeper!(backend, options);
            keeper.session().await.unwrap();
            keeper.close().await;
        };
        "SessionKeeper::lock" false [backend options name] keeper!(backend, options).lock(&name).await;
        "SessionKeeper::try_lock" false [backend options name] keeper!(backend, options).try_lock(&name).await;
        "SessionKeeper::with" false [backend options name] {
            keeper!(backend, options).with(&name, async |_| ()).await
        };
    }
}
