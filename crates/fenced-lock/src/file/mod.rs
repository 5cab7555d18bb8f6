//! A directory as a lock service, for the processes of one machine: no server, no network.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use fenced_lock::{FileBackend, FileOptions, LockError, SessionKeeper, SessionOptions};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LockError> {
//!     let files = FileBackend::new(FileOptions::new("/tmp/first-lock"))?;
//!     let locks = SessionKeeper::start(Arc::new(files), SessionOptions::new(Duration::from_secs(10)));
//!     locks.with("nightly-report", async |guard| println!("mine, under token {}", guard.token())).await?;
//!     locks.close().await;
//!     Ok(())
//! }
//! ```
//!
//! **Promises**: those [of etcd](crate#what-it-promises), except that no time ends a hold: the end of its process does. A process
//! that is stopped keeps its locks, so no pause can bring a second holder. A holder learns at the next renewal that an operator
//! deleted its claim. A [standby](crate::Mutex::standby) asks for a turn as any other claim does. For Unix.
//!
//! # Why files
//!
//! The engine is `flock`, not a database. The kernel ends a process's file locks with the process, at once and whatever ended it.
//! Rows of `SQLite` would need a lease for that, and so a clock and a limit on pauses. `inotify` wakes waiters when a file
//! changes; a database must be polled. Only one number for each lock must survive a power failure: one `fdatasync` reserves a
//! thousand tokens, where `SQLite` would sync every enqueue, grant and release. Last, Linux has `flock(1)`, so a shell
//! script can take part, and `std` has the calls, so no C code is built.

mod files;
#[cfg(target_os = "linux")]
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{io, thread};

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use self::files::Files;
use super::options::limit;
use super::random::random_id;
use super::{
    Backend, BackendError, Claim, Ends, Lease, Loss, Promises, PutMode, QueueEntry, Released,
    Ticket, Token, Wake,
};

/// Where the locks are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileOptions {
    /// The directory, on a local file system. It is made when a session is opened.
    pub directory: PathBuf,
    /// The longest that the file system may take for a request. After that, the outcome is unknown.
    pub request_timeout: Duration,
}

impl FileOptions {
    /// This directory, and two seconds for a request.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), request_timeout: Duration::from_secs(2) }
    }
}

/// A directory as a lock service, for the processes of one machine, without any server. It may serve several
/// sessions.
///
/// # What ends a hold
///
/// The end of the process, of its session or of the session's runtime ends a hold; time does not. A holder that is stopped
/// (`SIGSTOP`, a debugger, a frozen container) keeps its locks, a stopped waiter its places, until it goes on or is killed. So
/// **no pause can bring a second holder**, and here even a resource that checks no tokens is safe. The others pay for
/// it: they wait where the end of a lease would have let them in. A process that forks without `exec` shares its locks with the
/// child; they end when both have ended.
///
/// No clock ends a session either. The TTL only determines when a session notices that an operator deleted it: within a third of
/// the TTL.
///
/// # The directory
///
/// | file | what it is |
/// |---|---|
/// | `NAME.lock` | locked (`flock`) by the holder; it contains the latest grant |
/// | `queues/NAME/NUMBER-LEASE-CLAIM` | one for each claim, in the order of the numbers; it contains the label |
/// | `sessions/LEASE` | locked by the process of the session; a claim does not count if its session is not locked |
/// | `cluster` | the directory's identity, which its tokens carry, and the largest token that is reserved for any lock |
///
/// In `NAME`, bytes other than `a-z 0-9 . _ -`, and a dot at the beginning, are written `%xx`; a name that is then longer than
/// 200 characters continues in a directory `BEGINNING+`. `NAME.lock` and the empty `queues/NAME` are never deleted. An operator
/// may delete a claim or a session. Deleting the whole directory ends all sessions, each at its next renewal; a new directory has
/// another identity, so a store can tell its tokens from the old ones.
///
/// The directory must be on a local file system, and all its users need the right to write to it. They may be different users,
/// given an ACL or a suitable umask.
///
/// # Shell scripts
///
/// A script and the claims exclude each other. A script stands in no queue: it gets the lock if it asks at the right moment,
/// claims wait for it, and [`Guard::is_contended`](crate::Guard::is_contended) does not see it.
///
/// ```sh
/// flock /var/lib/shop/nightly-report.lock ./report.sh
/// ```
///
/// # What it costs
///
/// The first grant of each name waits for the disk, and every thousandth. A session takes one descriptor, and so does each held
/// lock. A backend has two threads: one does all file operations, one after the other; the other waits for `inotify`. A waiter
/// takes neither. The front of each queue with waiters is also looked at four times a second; fifty times without `inotify`.
///
/// # Panics
/// Its requests panic outside of a tokio runtime with timers.
#[derive(Debug)]
pub struct FileBackend {
    options: FileOptions,
    jobs: Arc<mpsc::Sender<Job>>,
    wake: Wake,
    /// Dropping it ends the thread of the watch; dropping the last sender ends the other thread.
    _running: io::PipeWriter,
}

/// A job for the thread of the files.
type Job = Box<dyn FnOnce(&mut Files) + Send>;

impl FileBackend {
    /// A backend for this directory. Nothing is read or written before a session is opened.
    ///
    /// # Errors
    /// [`Permanent`](crate::BackendErrorKind::Permanent) if the threads cannot be started, or `request_timeout` is too short.
    pub fn new(options: FileOptions) -> Result<Self, BackendError> {
        let request_timeout = limit("a request_timeout", options.request_timeout)?;
        Self::start(FileOptions { request_timeout, ..options }).map_err(BackendError::permanent)
    }

    fn start(options: FileOptions) -> io::Result<Self> {
        let (jobs, queued) = mpsc::channel();
        let (ended, running) = io::pipe()?;
        #[cfg(target_os = "linux")]
        let watch = watch::start(jobs.clone(), ended)?;
        #[cfg(not(target_os = "linux"))]
        let watch = drop(ended);
        let wake = if watch.is_some() { Wake::Pushed } else { Wake::Polled };
        let files = Files::new(options.directory.clone(), watch);
        thread::Builder::new().name("file-lock".into()).spawn(move || work(files, &queued))?;
        Ok(Self { options, jobs: Arc::new(jobs), wake, _running: running })
    }

    /// Asks the thread of the files, which does jobs in order, and waits for the answer. If the job may be skipped, it is once
    /// its caller has stopped waiting, so that repeated requests do not make a slow disk slower.
    async fn ask<A: Send + 'static>(
        &self,
        may_be_skipped: bool,
        job: impl FnOnce(&mut Files) -> io::Result<A> + Send + 'static,
    ) -> Result<A, BackendError> {
        let (reply, answer) = oneshot::channel();
        let job = move |files: &mut Files| {
            if !(may_be_skipped && reply.is_closed()) {
                drop(reply.send(job(files).map_err(|error| files.failure(error))));
            }
        };
        // an error means that the thread has ended, which the answer shows too
        drop(self.jobs.send(Box::new(job)));
        match timeout(self.options.request_timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(BackendError::transient("the thread of the files has ended")),
            Err(_) => Err(BackendError::transient("the file system takes too long")),
        }
    }
}

/// Closes a session with the runtime on which it was opened: nobody renews or closes it any more.
struct CloseOnDrop {
    jobs: Weak<mpsc::Sender<Job>>,
    lease: i64,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(jobs) = self.jobs.upgrade() {
            let lease = self.lease;
            // an error means that the thread has ended, and its sessions with it
            drop(jobs.send(Box::new(move |files| drop(files.close(lease)))));
        }
    }
}

/// How many jobs are done before the changed queues are looked at: several changes of a queue then cost one look.
const JOBS_AT_ONCE: usize = 64;

/// Does the jobs until the backend is dropped. A panic ends all sessions of the backend, because they may be damaged.
fn work(mut files: Files, jobs: &mpsc::Receiver<Job>) {
    while catch_unwind(AssertUnwindSafe(|| work_on(&mut files, jobs))).is_err() {
        tracing::error!("a panic in the thread of the files: its sessions are lost");
        files.begin_anew();
    }
}

/// Does the jobs, and also looks at the queues from time to time, until the backend is dropped.
fn work_on(files: &mut Files, jobs: &mpsc::Receiver<Job>) {
    let mut next_look = Instant::now();
    loop {
        match jobs.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
            Ok(job) => job(files),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return files.close_all(),
        }
        jobs.try_iter().take(JOBS_AT_ONCE).for_each(|job| job(files));
        if Instant::now() >= next_look {
            next_look = Instant::now() + files.look_where_claims_wait();
        }
        files.look_where_changed();
    }
}

#[async_trait]
impl Backend for FileBackend {
    type Token = Token;

    fn promises(&self) -> Promises {
        Promises {
            wake: self.wake,
            ends: Ends::Process,
            loss: Loss::AtRenewal,
            standby: false,
            ..Promises::MOST
        }
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        let id = random_id();
        let (is_open, ended) = oneshot::channel();
        let closing = CloseOnDrop { jobs: Arc::downgrade(&self.jobs), lease: id };
        let closing = tokio::spawn(async move {
            let _closing = closing;
            // an error means that the session has ended
            drop(ended.await);
        });
        let opened = self.ask(true, move |files| files.open(id, ttl, is_open)).await;
        if opened.is_err() {
            // the session may be open although nobody knows of it
            closing.abort();
        }
        opened
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        self.ask(true, move |files| files.renew(lease.id)).await
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        // this job is never skipped: no time ends the session if its caller gives up
        self.ask(false, move |files| files.close(lease.id)).await
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Result<Option<Ticket>, BackendError> {
        let (claim, mode) = (claim.clone(), mode.clone());
        let put = move |files: &mut Files| {
            if let PutMode::After(held) = &mode
                && files.release(held)? == Released::Gone
            {
                return Ok(None);
            }
            files.put(&claim, matches!(mode, PutMode::IfEmpty))
        };
        self.ask(true, put).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let claim = claim.clone();
        self.ask(true, move |files| files.release(&claim)).await
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let name = name.to_owned();
        self.ask(true, move |files| files.queue(&name)).await
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use testkit::wait::within;

    use super::*;
    use crate::ClaimStatus;

    /// Nobody waits for the end of this session.
    fn is_open() -> oneshot::Sender<()> {
        oneshot::channel().0
    }

    fn claim(name: &str, lease: Lease) -> Claim {
        Claim::new(name, lease.id, 1)
    }

    /// Goal: a panic of the files' thread ends all holds before another process can have the locks, and then the session; the
    /// backend goes on.
    #[tokio::test]
    async fn a_panic_loses_what_is_held() -> Result<(), crate::LockError> {
        let directory = tempfile::tempdir().expect("a directory");
        let new = || FileBackend::new(FileOptions::new(directory.path())).map(std::sync::Arc::new);
        let options = crate::SessionOptions::new(Duration::from_millis(300));
        let (backend, other) = (new()?, crate::Session::open(new()?, options.clone()).await?);
        let session = crate::Session::open(backend.clone(), options.clone()).await?;
        let guard = session.mutex("a")?.lock().await?;
        drop(backend.jobs.send(Box::new(|_| panic!("as the test wants it"))));
        let next = other.mutex("a")?.lock().await?;
        assert!(guard.is_lost() && !next.is_lost());
        let reason = within("the session is lost", session.lost()).await;
        assert_eq!(reason, crate::LostReason::Revoked);
        crate::Session::open(backend, options).await.map(drop)
    }

    /// Goal: a session that is closed while the disk stalls ends once the disk answers again, although nobody waits for that.
    #[tokio::test]
    async fn a_session_ends_though_the_disk_stalled() -> Result<(), crate::LockError> {
        let directory = tempfile::tempdir().expect("a directory");
        let new = |request_timeout| {
            let options = FileOptions { request_timeout, ..FileOptions::new(directory.path()) };
            FileBackend::new(options).map(Arc::new)
        };
        let options = crate::SessionOptions::new(Duration::from_millis(300));
        let (minute, moment) = (Duration::from_mins(1), Duration::from_secs(1));
        let other = crate::Session::open(new(minute)?, options.clone()).await?;
        let backend = new(moment)?;
        let session = crate::Session::open(backend.clone(), options).await?;
        let _guard = session.mutex("a")?.lock().await?;
        let (disk_answers, stalls) = mpsc::channel::<()>();
        drop(backend.jobs.send(Box::new(move |_| stalls.recv().unwrap_or_default())));
        session.close().await.expect_err("the disk stalls");
        drop(disk_answers);
        within("the lock is free", other.mutex("a")?.lock()).await.map(drop)
    }

    /// Goal: a holder whose lock's file was replaced is told, even if its claim cannot be removed.
    #[test]
    fn a_holder_is_told_before_its_claim_goes() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut files = Files::new(directory.path().to_owned(), None);
        let lease = files.open(1, Duration::from_secs(1), is_open()).expect("a session");
        let ticket = files.put(&claim("a", lease), false).expect("it is free").expect("a grant");
        assert!(matches!(*ticket.status.borrow(), ClaimStatus::Granted(_)));
        std::fs::remove_file(directory.path().join("a.lock")).expect("the lock's file");
        let queue = directory.path().join("queues/a");
        let entry = queue.read_dir().expect("the queue").next().expect("a claim").expect("a file");
        std::fs::remove_file(entry.path()).expect("the claim");
        std::fs::create_dir(entry.path()).expect("what cannot be removed as a file");
        files.renew(1).expect("the session lives");
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone);

        let ticket = files.put(&claim("b", lease), false).expect("it is free").expect("a grant");
        drop(files);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone, "whatever gives it up");
    }

    /// Goal: a waiter that leaves makes no file, which would stay in a directory that somebody removes at that moment.
    #[test]
    fn a_waiter_that_leaves_makes_no_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut files = Files::new(directory.path().to_owned(), None);
        let lease = files.open(1, Duration::from_secs(1), is_open()).expect("a session");
        for number in [1, 2] {
            files.put(&Claim::new("a", lease.id, number), false).expect("a place in the queue");
        }
        let lock = directory.path().join("a.lock");
        std::fs::remove_file(&lock).expect("the lock's file");
        files.close(1).expect("the end of the session");
        assert!(!lock.exists());
    }

    /// Goal: the kernel's messages suffice: a waiter in another process is granted the lock by them alone when the holder
    /// releases, when its process ends, and when a script does. Method: nothing else looks at the queue.
    #[test]
    fn a_waiter_is_told() {
        is_told("a", "a.lock");
        // its path has a second part
        is_told(&"x".repeat(250), &format!("{}+/+{}.lock", "x".repeat(200), "x".repeat(50)));
    }

    fn is_told(name: &str, file: &str) {
        let second = Duration::from_secs(1);
        let directory = tempfile::tempdir().expect("a directory");
        let lock = directory.path().join(file);
        std::fs::create_dir_all(lock.parent().expect("it has one")).expect("a directory");
        let (jobs, queued) = mpsc::channel();
        let (ended, _running) = io::pipe().expect("a pipe");
        let watch = watch::start(jobs, ended).expect("a thread");
        let mut waiter = Files::new(directory.path().to_owned(), watch);
        let mine = claim(name, waiter.open(1, second, is_open()).expect("a session"));
        for way in ["a release", "an end", "a script"] {
            let mut holder = Files::new(directory.path().to_owned(), None);
            let theirs = claim(name, holder.open(2, second, is_open()).expect("another session"));
            let script = std::fs::File::create(&lock).expect("the lock's file");
            if way == "a script" {
                script.lock().expect("it is free");
            } else {
                holder.put(&theirs, false).expect("it is free");
            }
            let ticket = waiter.put(&mine, false).expect("a place in the queue");
            let ticket = ticket.expect("nobody deletes it");
            assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
            match way {
                "a release" => assert_eq!(holder.release(&theirs).ok(), Some(Released::Done)),
                "an end" => drop(holder),
                _ => drop(script),
            }
            while *ticket.status.borrow() == ClaimStatus::Waiting {
                let job = queued.recv_timeout(30 * second);
                job.unwrap_or_else(|_| panic!("nothing is told of {way}"))(&mut waiter);
                waiter.look_where_changed();
            }
            assert_eq!(waiter.release(&mine).ok(), Some(Released::Done));
        }
    }
}
