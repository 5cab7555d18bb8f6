//! The backend on files: how the contract has it, and what is particular to it, with processes that die and stop, and with
//! `flock(1)`.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, BackendErrorKind, FileBackend, FileOptions, LockError, LostReason, Session,
    SessionOptions, Token,
};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tempfile::TempDir;
use testkit::Run;
use testkit::wait::{eventually, within};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::lab::{
    FoundLab, HOUR, Lab, TTL, assert_refused, kind_of, queue_length, queue_of, unseen_waiter,
    waiter,
};

/// A directory.
pub(crate) struct FileLab {
    directory: PathBuf,
    /// Removes it on drop.
    _owned: Option<TempDir>,
}

impl FileLab {
    /// One of its own, which goes with it.
    pub(crate) fn new() -> Self {
        let owned = tempfile::tempdir().unwrap();
        Self { directory: owned.path().to_owned(), _owned: Some(owned) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The claims of all queues.
    pub(crate) fn claims(&self) -> Vec<PathBuf> {
        let Ok(queues) = self.directory().join("queues").read_dir() else { return Vec::new() };
        let claims = queues.flat_map(|queue| queue.unwrap().path().read_dir().unwrap());
        claims.map(|claim| claim.unwrap().path()).collect()
    }
}

impl Lab for FileLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        Arc::new(FileBackend::new(FileOptions::new(self.directory())).unwrap())
    }

    async fn revoke(&self, lease: i64) {
        std::fs::remove_file(self.directory().join(format!("sessions/{lease:x}"))).unwrap();
    }

    async fn delete(&self, key: &str) {
        let (_, claim) = key.rsplit_once('/').unwrap();
        let mut claims = self.claims().into_iter();
        let file = claims.find(|path| path.to_str().unwrap().ends_with(&format!("-{claim}")));
        std::fs::remove_file(file.unwrap()).unwrap();
    }
}

impl FoundLab for FileLab {
    fn address(&self) -> String {
        self.directory.to_str().unwrap().to_owned()
    }

    fn at(address: &str) -> Self {
        Self { directory: address.into(), _owned: None }
    }
}

/// This test binary again, as a worker of this module behind a command that runs it. `notes` are a directory for it.
fn start_by(behind: &[&str], worker: &str, lab: &FileLab, notes: &Path) -> Run {
    let variables = [("LOCK_NOTES", notes.to_str().unwrap())];
    lab.start_worker_by(behind, &format!("file::{worker}"), &variables)
}

/// The directories that this process is told, if it is a worker.
fn directories() -> Option<(FileLab, PathBuf)> {
    let locks = std::env::var("LOCK_ADDRESS").ok()?;
    Some((FileLab::at(&locks), std::env::var_os("LOCK_NOTES")?.into()))
}

/// Runs a worker to its end.
async fn succeeds(mut worker: Run) {
    assert!(worker.ended().await.success());
}

/// Whether a process may have namespaces of its own here.
fn may_unshare() -> bool {
    let mut unshare = std::process::Command::new("unshare");
    let may = unshare.args(["--user", "--map-root-user", "--mount", "true"]).status();
    let may = may.is_ok_and(|status| status.success()).then_some(());
    testkit::or_left_out(may, "unshare(1) may make no namespaces here").is_some()
}

/// Goal: a holder that is stopped for longer than any TTL keeps its lock, and goes on as the holder, so that no two processes
/// hold it. The documented cost: a waiter that is stopped when its turn comes lets nobody pass, until it is killed.
#[tokio::test]
async fn a_stopped_process_lets_nobody_pass() {
    let lab = FileLab::new();
    let mutex = lab.mutex("a").await;
    let variables = [("LOCK_DOES", "hold"), ("LOCK_NAME", "a"), ("LOCK_TTL", "2")];
    let mut first = lab.start_worker("contract::resilience::worker", &variables);
    first.line_after("held ").await;
    let mut second = lab.start_worker("contract::resilience::worker", &variables);
    queue_length(&mutex, 2).await;
    first.signal(Signal::STOP);
    second.signal(Signal::STOP);
    let waiter = waiter(&mutex, 3).await;
    sleep(TTL * 3 / 2).await;
    assert!(!waiter.is_finished(), "the first holds it");
    first.send("write").await;
    first.signal(Signal::CONT);
    first.line_after("wrote ").await;
    assert_eq!(first.line().await, "kept");
    assert!(first.ended().await.success());
    sleep(TTL).await;
    assert!(!waiter.is_finished(), "it is the second one's turn");
    second.kill().await;
    drop(within("the next is served", waiter).await.unwrap().unwrap());
}

/// Goal: whenever a process is killed, none of its claims stays in the way, and no token comes twice. Method: three workers take
/// five locks in several ways and note each token under its lock; again and again one of them is killed meanwhile.
#[tokio::test]
async fn killed_at_any_moment() {
    let lab = FileLab::new();
    let notes = tempfile::tempdir().unwrap();
    let bytes = || -> u64 {
        let files = notes.path().read_dir().unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let start = || start_by(&[], "restless_worker", &lab, notes.path());
    let mut workers: Vec<_> = (0..3).map(|_| start()).collect();
    for round in 0..40_u64 {
        let (before, place) = (bytes(), usize::try_from(round % 3).unwrap());
        eventually("work is done", async || bytes() > before).await;
        sleep(Duration::from_micros(round * 7919 % 30_000)).await;
        std::mem::replace(&mut workers[place], start()).kill().await;
    }
    for mut worker in workers {
        worker.kill().await;
    }
    let session = lab.session().await;
    for number in 0..5 {
        let mutex = session.mutex(&number.to_string()).unwrap();
        let guard = within("nothing is in the way", mutex.lock()).await.unwrap();
        let file = notes.path().join(number.to_string());
        let mut tokens: Vec<i64> = Vec::new();
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            tokens.push(line.parse().unwrap());
        }
        tokens.push(guard.token().revision());
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        guard.unlock().await.unwrap();
    }
    assert!(lab.claims().is_empty());
    let sessions = lab.directory().join("sessions").read_dir().unwrap();
    assert_eq!(sessions.count(), 1, "those of the dead are removed");
}

#[tokio::test]
#[ignore = "run by killed_at_any_moment"]
async fn restless_worker() {
    let Some((lab, notes)) = directories() else { return };
    let session = lab.session_for(HOUR).await;
    let mut tasks = JoinSet::new();
    for task in 0..10 {
        let name = (task % 5).to_string();
        let (mutex, file) = (session.mutex(&name).unwrap(), notes.join(&name));
        tasks.spawn(async move {
            loop {
                let guard = match task % 3 {
                    0 => mutex.lock().await.ok(),
                    1 => timeout(Duration::from_millis(3), mutex.lock())
                        .await
                        .ok()
                        .and_then(Result::ok),
                    _ => mutex.try_lock().await.ok().flatten(),
                };
                let Some(guard) = guard else { continue };
                let mut file = File::options().create(true).append(true).open(&file).unwrap();
                file.write_all(format!("{}\n", guard.token().revision()).as_bytes()).unwrap();
                guard.unlock().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

/// Goal: tokens grow also when the machine fails and loses what was not synced, and when a lock's file is deleted or contains
/// something else; a store still takes the directory for the same one. Method: the file is replaced by that of an earlier grant
/// before a restart of the machine, or by other text, or is deleted.
#[tokio::test]
async fn tokens_grow_though_a_locks_file_is_lost() {
    let lab = FileLab::new();
    let (mutex, other) = (lab.mutex("a").await, lab.mutex("b").await);
    let file = lab.directory().join("a.lock");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut latest = None;
    for loss in ["another start", "no file", "", "seven\n", "1 2 3\n4", "\0", "9 9 9 9 9"].repeat(2)
    {
        let mut earlier = String::new();
        for _ in 0..6 {
            let guard = mutex.lock().await.unwrap();
            assert!(latest.is_none_or(|latest| guard.token() > latest), "{latest:?}");
            latest = Some(guard.token());
            if earlier.is_empty() {
                earlier = fs::read_to_string(&file).unwrap();
            }
            guard.unlock().await.unwrap();
            other.lock().await.unwrap().unlock().await.unwrap();
        }
        let another = earlier.replace(boot.trim_end(), "another-start");
        assert_ne!(earlier, another);
        match loss {
            "another start" => fs::write(&file, another),
            "no file" => fs::remove_file(&file),
            text => fs::write(&file, text),
        }
        .unwrap();
    }
}

/// Goal: a lock uses all tokens that it has reserved before it reserves more, so it waits for the disk once in a thousand grants.
#[tokio::test]
async fn more_tokens_than_are_reserved() {
    let lab = FileLab::new();
    let mutex = lab.mutex("a").await;
    for token in 1..=2100 {
        let guard = mutex.lock().await.unwrap();
        assert_eq!(guard.token().revision(), token);
        guard.unlock().await.unwrap();
    }
}

fn flock(args: &[&str]) -> Command {
    let mut command = Command::new("flock");
    command.args(args);
    command
}

/// Goal: `flock(1)` on a lock's file waits for the holder, and the holder for `flock(1)`, also when the script is killed; and a
/// waiter is served although no script tells it.
#[tokio::test]
async fn scripts_and_claims_exclude_each_other() {
    let lab = FileLab::new();
    let mutex = lab.mutex("a").await;
    let other = lab.mutex("a").await;
    let file = lab.directory().join("a.lock");
    let file = file.to_str().unwrap();

    // the script comes first, even before the lock's file is there
    for is_killed in [false, true] {
        let mut script = flock(&[file, "sh", "-c", "echo held; read -r _"]);
        let mut script = Run::start(script.process_group(0));
        script.line_after("held").await;
        assert!(mutex.try_lock().await.unwrap().is_none(), "a try finds it taken");
        assert!(lab.claims().is_empty());
        let waiting = waiter(&mutex, 1).await;
        assert_eq!(mutex.queue().await.unwrap()[0].token, None, "it is not granted yet");
        let behind = waiter(&other, 2).await;
        assert!(!waiting.is_finished());
        if is_killed {
            // with the shell that it has started, which shares the lock
            rustix::process::kill_process_group(script.pid(), Signal::KILL).unwrap();
        } else {
            script.send("").await;
        }
        let guard = within("the first is served", waiting).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
        drop(within("the second is served", behind).await.unwrap().unwrap());
    }

    // the claim comes first
    let guard = mutex.lock().await.unwrap();
    let refused = flock(&["--nonblock", file, "true"]).status().await.unwrap();
    assert_eq!(refused.code(), Some(1));
    let mut script = flock(&[file, "true"]).spawn().unwrap();
    assert!(script.try_wait().unwrap().is_none());
    guard.unlock().await.unwrap();
    assert!(within("the script is served", script.wait()).await.unwrap().success());
}

/// Goal: a thousand names can be held at once, with one descriptor for each; when the process has no more descriptors, a claim is
/// refused for now.
#[tokio::test]
async fn a_thousand_names() {
    let notes = tempfile::tempdir().unwrap();
    // in memory, if there is such a place: a thousand first grants wait for a disk two thousand times
    let locks = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let lab = FileLab::at(locks.path().to_str().unwrap());
    succeeds(start_by(&[], "many_names_worker", &lab, notes.path())).await;
}

#[tokio::test]
#[ignore = "run by a_thousand_names"]
async fn many_names_worker() {
    let Some((lab, _)) = directories() else { return };
    let all = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1100), ..all }).unwrap();
    let session = lab.session_for(HOUR).await;
    let mutexes = (0..1000).map(|name| session.mutex(&name.to_string()).unwrap());
    let locks = mutexes.map(async |mutex| mutex.lock().await);
    let guards: Vec<_> = stream::iter(locks).buffer_unordered(50).try_collect().await.unwrap();
    assert_eq!(guards.len(), 1000);
    let rest: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(rest.len() < 100, "each lock has one");
    let one_more = session.mutex("one more").unwrap();
    assert_eq!(kind_of(one_more.lock().await), BackendErrorKind::Refused);
    drop(rest);
    one_more.lock().await.unwrap().unlock().await.unwrap();
    session.close().await.unwrap();
}

/// Goal: on a full disk, a lock that was granted before works; a new one is refused until there is room.
#[tokio::test]
async fn a_full_disk() {
    on_a_file_system("size=64k", "full_disk_worker").await;
}

#[tokio::test]
#[ignore = "run by a_full_disk"]
async fn full_disk_worker() {
    let Some((lab, _)) = directories() else { return };
    let session = lab.session_for(TTL).await;
    let (known, new) = (session.mutex("known").unwrap(), session.mutex("new").unwrap());
    known.lock().await.unwrap().unlock().await.unwrap();
    let ballast = lab.directory().join("ballast");
    assert!(fs::write(&ballast, vec![0; 100_000]).is_err(), "the disk is full");
    known.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(kind_of(new.try_lock().await), BackendErrorKind::Refused);
    assert!(queue_of(&new).await.is_empty(), "nothing is left of it");
    fs::remove_file(ballast).unwrap();
    new.lock().await.unwrap().unlock().await.unwrap();
    session.close().await.unwrap();
}

/// Goal: a read-only file system, and a directory without the right to write, are refused for good, and the error says which
/// directory it is.
#[tokio::test]
async fn a_directory_that_cannot_be_written() {
    on_a_file_system("ro", "refused_worker").await;
    if !may_unshare() {
        return;
    }
    let (lab, notes) = (FileLab::new(), tempfile::tempdir().unwrap());
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o500)).unwrap();
    // without the rights of the administrator, should this be one
    let by = ["unshare", "--user"];
    succeeds(start_by(&by, "refused_worker", &lab, notes.path())).await;
}

#[tokio::test]
#[ignore = "run by a_directory_that_cannot_be_written"]
async fn refused_worker() {
    let Some((lab, _)) = directories() else { return };
    let opened = Session::open(lab.backend(), SessionOptions::new(TTL)).await;
    assert_refused(opened, &lab.address());
}

/// Runs the worker where a file system of its own is mounted.
async fn on_a_file_system(options: &str, worker: &str) {
    if !may_unshare() {
        return;
    }
    let (lab, notes) = (FileLab::new(), tempfile::tempdir().unwrap());
    let mount = format!("mount -t tmpfs -o {options} none \"$LOCK_ADDRESS\" && exec \"$@\"");
    let by = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &mount, "sh"];
    succeeds(start_by(&by, worker, &lab, notes.path())).await;
}

/// Goal: when the directory is deleted under way, sessions are lost and their holders told; the next session works,
/// and its tokens are not taken for those of the old directory.
#[tokio::test]
async fn a_directory_that_is_deleted_under_way() {
    let lab = FileLab::new();
    let session = lab.session().await;
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    fs::remove_dir_all(lab.directory()).unwrap();
    within("the holder is told", guard.lost()).await;
    assert_eq!(within("the session is lost", session.lost()).await, LostReason::Revoked);
    let new = lab.mutex("a").await.lock().await.unwrap();
    assert_ne!(new.token().cluster(), guard.token().cluster());
    assert_eq!(new.token().partial_cmp(&guard.token()), None);
}

/// Goal: a holder whose file was replaced is told, since others may lock the new one; tokens are not mixed up.
#[tokio::test]
async fn a_lock_file_that_is_replaced() {
    let lab = FileLab::new();
    let mutex = lab.mutex("a").await;
    let guard = mutex.lock().await.unwrap();
    let (file, copy) = (lab.directory().join("a.lock"), lab.directory().join("copy"));
    fs::copy(&file, &copy).unwrap();
    fs::rename(copy, file).unwrap();
    within("the holder is told", guard.lost()).await;
    let next = mutex.lock().await.unwrap();
    assert!(next.token() > guard.token());
}

/// Goal: a session grants nothing in a directory whose identity has changed, since its tokens would be those of another one; and
/// a waiter whose turn cannot come is told so.
#[tokio::test]
async fn a_directory_that_becomes_another_one() {
    let lab = FileLab::new();
    let mutex = lab.mutex("a").await;
    let guard = mutex.lock().await.unwrap();
    let waiter = waiter(&lab.mutex("a").await, 2).await;
    fs::write(lab.directory().join("cluster"), "0000000000000007\n0\n").unwrap();
    // whose tokens are not reserved
    fs::write(lab.directory().join("a.lock"), "").unwrap();
    guard.unlock().await.unwrap();
    let ended = within("the waiter is told", waiter).await.unwrap().unwrap_err();
    assert!(matches!(ended, LockError::Lost { .. }));
    queue_length(&mutex, 0).await;
    assert_refused(mutex.lock().await, "cluster is malformed");
    assert_refused(mutex.try_lock().await, "cluster is malformed");
    assert!(queue_of(&mutex).await.is_empty());
    drop(lab.mutex("a").await.lock().await.unwrap());
}

/// Goal: a queue that cannot be read ends no session, and does not keep the holders of other names from learning that their
/// claims are gone.
#[tokio::test]
async fn a_queue_that_cannot_be_looked_at() {
    let lab = FileLab::new();
    let session = lab.session().await;
    let mut guards = Vec::new();
    for number in 0..20 {
        let name = number.to_string();
        guards.push(session.mutex(&name).unwrap().lock().await.unwrap());
        let queue = lab.directory().join("queues").join(name);
        fs::remove_dir_all(&queue).unwrap();
        if number % 2 == 0 {
            fs::write(&queue, "no directory").unwrap();
        }
    }
    for (number, guard) in guards.iter().enumerate().filter(|(number, _)| number % 2 == 1) {
        within(&format!("the holder of {number} is told"), guard.lost()).await;
    }
    assert!(!guards[0].is_lost() && !session.is_lost());
}

/// Goal: a process that is stopped while it changes a queue stands in the way of that name only, and requests still end. Method:
/// the test locks the queue's directory, as such a process would have.
#[tokio::test]
async fn a_queue_that_cannot_be_changed_now() {
    let lab = FileLab::new();
    let session = lab.session().await;
    let (mutex, other) = (session.mutex("a").unwrap(), session.mutex("b").unwrap());
    mutex.lock().await.unwrap().unlock().await.unwrap();
    let stopped = File::open(lab.directory().join("queues/a")).unwrap();
    stopped.lock().unwrap();
    assert_eq!(kind_of(mutex.try_lock().await), BackendErrorKind::Transient);
    let waiter = unseen_waiter(&mutex);
    other.lock().await.unwrap().unlock().await.unwrap();
    assert!(!waiter.is_finished());
    drop(stopped);
    drop(within("it goes on", waiter).await.unwrap().unwrap());
}

/// Goal: when an operator deletes the holder's claim, the holder is told before the next one is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_told_before_the_next_is_served() {
    let lab = FileLab::new();
    let ttl = Duration::from_millis(60);
    let (session, other) = (lab.session_for(ttl).await, lab.session_for(ttl).await);
    let (mutex, other) = (session.mutex("a").unwrap(), other.mutex("a").unwrap());
    for _ in 0..50 {
        let guard = mutex.lock().await.unwrap();
        let next = other.clone();
        let next = tokio::spawn(async move {
            let next = next.lock().await.unwrap();
            (guard.is_lost(), next)
        });
        queue_length(&mutex, 2).await;
        lab.delete(&queue_of(&mutex).await.remove(0)).await;
        let (was_told, next) = within("the next is served", next).await.unwrap();
        assert!(was_told);
        next.unlock().await.unwrap();
    }
}

/// Goal: no session stays behind, neither when nobody waits for its opening nor when its backend is dropped.
#[tokio::test]
async fn no_session_stays_behind() {
    let lab = FileLab::new();
    let count = || lab.directory().join("sessions").read_dir().map_or(0, Iterator::count);
    let backend = lab.backend();
    for _ in 0..50 {
        let opening = Session::open(Arc::clone(&backend), SessionOptions::new(TTL));
        assert!(opening.now_or_never().is_none());
    }
    // behind all that was asked for before
    backend.open(TTL).await.unwrap();
    eventually("one session", async || count() == 1).await;
    drop(backend);
    eventually("no session", async || count() == 0).await;
}
