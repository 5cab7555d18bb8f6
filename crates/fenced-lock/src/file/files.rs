//! The directory, and this process's sessions and claims in it. One thread owns it.
//!
//! Only the lock of the file `NAME.lock` decides who holds, and the token is counted up under it. The queue decides who asks for
//! that lock: only the first claim does. Damage to the queue can therefore never make two holders or two equal tokens.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

#[cfg(target_os = "linux")]
use super::watch::Watch;
use crate::random::random;
use crate::validity::FOR_EVER;
use crate::waiters::Waiters;
use crate::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, ClusterId, Lease, QueueEntry, Released,
    Ticket, Token,
};

#[cfg(not(target_os = "linux"))]
type Watch = std::convert::Infallible;

/// How often to look at the queues: with messages from the kernel, and without.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(20)];

/// How many tokens are reserved on disk at a time, so that most grants need not wait for the disk. `PostgreSQL`'s sequences do
/// the same with 32 (`SEQ_LOG_VALS`).
const RESERVED: i64 = 1000;

/// How many times to try to lock a queue. Changing a queue takes a fraction of a millisecond, but many processes may want to, or
/// one may be stopped meanwhile. After these tries the other queues get their turn, and the caller repeats the request.
const BUSY_TRIES: usize = 500;
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// How many times to open a file again that others replaced before it was locked.
const REPLACED_TRIES: usize = 10;

/// The longest part of a path: a file name has at most 255 bytes.
const LONGEST_PART: usize = 200;

const CLUSTER: &str = "cluster";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Means that a session has ended: no operation on files fails with this kind.
const SESSION_GONE: ErrorKind = ErrorKind::AddrNotAvailable;
const LOCK: &str = ".lock";
const QUEUES: &str = "queues";
const SESSIONS: &str = "sessions";

#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    cluster: Option<ClusterId>,
    /// Identifies one start of the machine; where the kernel has no such id, one start of this process.
    boot: String,
    watch: Option<Watch>,
    /// This process's claims on each name, in order. The key is the path of the lock, without its suffix. This field stands
    /// before the sessions, so that a drop tells the holders first.
    queues: HashMap<String, Vec<OwnClaim>>,
    /// The file of each session, which stays locked while it is here; and a sender that is dropped with it.
    sessions: HashMap<i64, (File, oneshot::Sender<()>)>,
    /// The queues that have changed since the last look.
    changed: HashSet<String>,
    waiters: Arc<Waiters<Token>>,
}

#[derive(Debug)]
struct OwnClaim {
    waiters: Arc<Waiters<Token>>,
    claim: Claim,
    /// The name of its file, which determines its place in the queue.
    entry: String,
    /// The lock's file, while the claim is the first. Closing it tells the others that the queue has changed.
    lock: Option<File>,
    is_granted: bool,
}

impl Drop for OwnClaim {
    /// Tells the holder before the lock is free, also if a panic drops the claim.
    fn drop(&mut self) {
        self.waiters.note(&self.claim, ClaimStatus::Gone);
    }
}

impl Files {
    pub(super) fn new(directory: PathBuf, watch: Option<Watch>) -> Self {
        Self {
            directory,
            cluster: None,
            boot: fs::read_to_string(BOOT_ID).unwrap_or_else(|_| format!("{:x}", random())),
            watch,
            sessions: HashMap::new(),
            queues: HashMap::new(),
            changed: HashSet::new(),
            waiters: Arc::default(),
        }
    }

    pub(super) fn open(
        &mut self,
        id: i64,
        ttl: Duration,
        is_open: oneshot::Sender<()>,
    ) -> io::Result<Lease> {
        let sessions = self.directory.join(SESSIONS);
        fs::create_dir_all(&sessions)?;
        let (_, cluster, _) = self.read_cluster()?;
        self.cluster = Some(cluster);
        // removes the files of dead sessions without a claim: no look at a queue finds these
        for file in fs::read_dir(sessions)? {
            let lease = file?.file_name().to_str().map(|name| i64::from_str_radix(name, 16));
            if let Some(Ok(lease)) = lease {
                self.lives(lease);
            }
        }
        let path = self.session_path(id);
        for _ in 0..REPLACED_TRIES {
            let file = File::options().write(true).create(true).truncate(false).open(&path)?;
            lock_soon(&file)?;
            // before it was locked, another process may have removed it as a dead session's
            if is_at(&path, &file)? {
                self.sessions.insert(id, (file, is_open));
                return Ok(Lease { id, ttl, cluster });
            }
        }
        Err(replaced(&path))
    }

    /// Locks the directory's file, and returns its contents: the identity, which the first caller writes, and the largest token
    /// that is reserved for any lock.
    fn read_cluster(&self) -> io::Result<(File, ClusterId, i64)> {
        let path = self.directory.join(CLUSTER);
        let mut options = File::options();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        lock_soon(&file)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let (id, reserved) = text.trim_end().split_once('\n').unwrap_or((text.trim_end(), "0"));
        if id.is_empty() {
            let id = ClusterId(random());
            write_cluster(&file, id, 0)?;
            File::open(&self.directory)?.sync_all()?;
            return Ok((file, id, 0));
        }
        let id = u64::from_str_radix(id, 16).ok().map(ClusterId);
        let (id, reserved) = id.zip(reserved.parse().ok()).ok_or_else(|| malformed(&path))?;
        Ok((file, id, reserved))
    }

    pub(super) fn renew(&mut self, lease: i64) -> io::Result<Duration> {
        self.check_session(lease)?;
        self.changed.extend(self.stems_where(|own| own.claim.lease == lease));
        // an error of one queue says nothing about the other queues or the session
        self.look_where_changed();
        Ok(FOR_EVER)
    }

    pub(super) fn close(&mut self, lease: i64) -> io::Result<()> {
        let removed = remove(&self.session_path(lease));
        // also if the file could not be removed: the session has ended, as nobody locks the file any more
        self.end(lease);
        removed.map(drop)
    }

    /// Puts the claim into its queue. Returns `None` if the claim was deleted at once, or if `if_free` and another claim is
    /// there.
    pub(super) fn put(&mut self, claim: &Claim, if_free: bool) -> io::Result<Option<Ticket>> {
        self.check_session(claim.lease)?;
        let stem = stem(&claim.name);
        let mut is_first = false;
        let is_known = |claims: &Vec<OwnClaim>| claims.iter().any(|own| own.claim == *claim);
        if !self.queues.get(&stem).is_some_and(is_known) {
            let Some(own) = self.make_entry(&stem, claim, if_free)? else { return Ok(None) };
            is_first = own.lock.is_some();
            self.queues.entry(stem.clone()).or_default().push(own);
        }
        let ticket = self.waiters.expect(claim);
        if !is_first {
            self.changed.insert(stem);
        } else if let Err(error) = self.look(&stem) {
            // the claim may still be there
            let left = |error| io::Error::new(ErrorKind::ResourceBusy, error);
            self.withdraw(&stem, claim).map_err(left)?;
            return Err(error);
        }
        let is_gone = *ticket.status.borrow() == ClaimStatus::Gone;
        Ok((!is_gone).then_some(ticket))
    }

    fn make_entry(&self, stem: &str, claim: &Claim, if_free: bool) -> io::Result<Option<OwnClaim>> {
        let lock = self.open_lock(stem)?;
        #[cfg(target_os = "linux")]
        if let Some(watch) = &self.watch {
            let lock = self.lock_path(stem);
            watch.add(lock.parent().unwrap_or(&self.directory), &self.directory.join(SESSIONS));
        }
        let directory = self.queue_path(stem);
        fs::create_dir_all(&directory)?;
        // two processes must not look for the next number at the same time
        let changing = File::open(&directory)?;
        lock_soon(&changing)?;
        let queue = self.living(stem)?;
        if if_free && !(queue.is_empty() && try_lock(&lock)?) {
            return Ok(None);
        }
        let number = queue.last().and_then(|last| number_of(last)).unwrap_or(0) + 1;
        let entry = format!("{number:019}-{:x}-{}", claim.lease, claim.number);
        let path = directory.join(&entry);
        let mut file = File::options().write(true).create_new(true).open(&path)?;
        // unlock explicitly: a child that is being started may share the descriptor for a moment
        changing.unlock()?;
        if let Err(error) = file.write_all(claim.label.as_bytes()) {
            drop(fs::remove_file(path));
            return Err(error);
        }
        // if other claims are before this one, the file is closed here, which tells them that the queue has changed
        let lock = queue.is_empty().then_some(lock);
        let waiters = Arc::clone(&self.waiters);
        Ok(Some(OwnClaim { waiters, claim: claim.clone(), entry, lock, is_granted: false }))
    }

    pub(super) fn release(&mut self, claim: &Claim) -> io::Result<Released> {
        // if the session is gone, its claims have ended
        let was_there =
            self.has_session(claim.lease)? && self.withdraw(&stem(&claim.name), claim)?;
        Ok(if was_there { Released::Done } else { Released::Gone })
    }

    /// Takes a claim of this process out of its queue. Returns whether it was there.
    fn withdraw(&mut self, stem: &str, claim: &Claim) -> io::Result<bool> {
        let directory = self.queue_path(stem);
        let Some(claims) = self.queues.get_mut(stem) else { return Ok(false) };
        let Some(place) = claims.iter().position(|own| own.claim == *claim) else {
            return Ok(false);
        };
        let was_there = remove(&directory.join(&claims[place].entry))?;
        let mut own = claims.remove(place);
        self.forget(stem, &mut own);
        self.changed.insert(stem.to_owned());
        Ok(was_there)
    }

    /// Forgets a claim whose file is gone. Tells its holder first, then gives up its lock, which tells the others.
    fn forget(&self, stem: &str, own: &mut OwnClaim) {
        self.waiters.note(&own.claim, ClaimStatus::Gone);
        // makes no file: the directory may be on its way out
        let theirs = || File::options().write(true).open(self.lock_path(stem));
        if let Ok(lock) = own.lock.take().map_or_else(theirs, Ok) {
            // unlock explicitly: a child that is being started may share the descriptor for a moment
            drop(lock.unlock());
        }
    }

    /// Drops all sessions and claims of this process. Tells the holders first, then closes the files.
    pub(super) fn begin_anew(&mut self) {
        let watch = self.watch.take();
        *self = Self::new(self.directory.clone(), watch);
    }

    /// Removes the sessions' files, so that others find their claims ended. The locks end when this is dropped.
    pub(super) fn close_all(&self) {
        for lease in self.sessions.keys() {
            // if this fails, the session still ends: its file is about to be unlocked
            drop(remove(&self.session_path(*lease)));
        }
    }

    /// Ends a session in this process. Its claims no longer count, even if their files stay. Gives up its locks even if a queue
    /// cannot be read.
    fn end(&mut self, lease: i64) {
        self.sessions.remove(&lease);
        for stem in self.stems_where(|own| own.claim.lease == lease) {
            let mut claims = self.queues.remove(&stem).unwrap_or_default();
            for mut own in claims.extract_if(.., |own| own.claim.lease == lease) {
                drop(remove(&self.queue_path(&stem).join(&own.entry)));
                self.forget(&stem, &mut own);
            }
            if !claims.is_empty() {
                self.queues.insert(stem.clone(), claims);
            }
            self.changed.insert(stem);
        }
        self.look_where_changed();
    }

    fn check_session(&mut self, lease: i64) -> io::Result<()> {
        let gone = || io::Error::new(SESSION_GONE, "the file of the session is gone");
        self.has_session(lease)?.then_some(()).ok_or_else(gone)
    }

    /// Whether the session lives. If not, ends its claims.
    fn has_session(&mut self, lease: i64) -> io::Result<bool> {
        let Some((file, _)) = self.sessions.get(&lease) else { return Ok(false) };
        let lives = is_at(&self.session_path(lease), file)?;
        if !lives {
            self.end(lease);
        }
        Ok(lives)
    }

    pub(super) fn queue(&mut self, name: &str) -> io::Result<Vec<QueueEntry>> {
        let stem = stem(name);
        let queue = self.living(&stem)?;
        let lock = fs::read_to_string(self.lock_path(&stem)).unwrap_or_default();
        let latest = Record::parse(&lock).unwrap_or_default();
        let entries = queue.iter().filter_map(|entry| {
            let (_, claim) = entry.split_once('-')?;
            let path = self.queue_path(&stem).join(entry);
            let mut shown = QueueEntry::new(lease_of(entry)?, format!("{name}/{claim}"));
            if claim == latest.holder {
                shown.token = self.cluster.map(|cluster| Token::new(cluster, latest.token));
            }
            shown.label = fs::read_to_string(&path).ok();
            shown.age = path.metadata().and_then(|data| data.modified()).ok()?.elapsed().ok();
            Some(shown)
        });
        Ok(entries.collect())
    }

    /// The claims that count, in order. Removes the files of all others.
    fn living(&self, stem: &str) -> io::Result<Vec<String>> {
        let directory = self.queue_path(stem);
        let files = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            files => files?,
        };
        let names = files.map(|file| file.map(|file| file.file_name().into_string().ok()));
        let mut queue: Vec<_> =
            names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect();
        queue.sort_unstable();
        let mut lives = HashMap::new();
        queue.retain(|entry| {
            let Some(lease) = lease_of(entry) else { return false };
            let lives = *lives.entry(lease).or_insert_with(|| self.lives(lease));
            if !lives {
                // if this fails, the claim does not count either
                drop(remove(&directory.join(entry)));
            }
            lives
        });
        Ok(queue)
    }

    /// Whether a process has locked the session's file. Removes the file of a dead session.
    fn lives(&self, lease: i64) -> bool {
        let path = self.session_path(lease);
        match File::open(&path) {
            Err(error) => error.kind() != ErrorKind::NotFound,
            // shared: several processes may look at the same time
            Ok(file) if file.try_lock_shared().is_ok() => {
                drop(remove(&path));
                false
            }
            Ok(_) => true,
        }
    }

    /// Notes where the claims of this process stand in a queue, and takes the lock for a first claim.
    fn look(&mut self, stem: &str) -> io::Result<()> {
        if !self.queues.contains_key(stem) {
            return Ok(());
        }
        let living = self.living(stem)?;
        let mut claims = self.queues.remove(stem).unwrap_or_default();
        let mut looked = Ok(());
        claims.retain_mut(|own| {
            let stands = self.look_at(stem, &living, own).unwrap_or_else(|error| {
                looked = Err(error);
                true
            });
            if !stands {
                self.forget(stem, own);
            }
            stands
        });
        if !claims.is_empty() {
            self.queues.insert(stem.to_owned(), claims);
        }
        looked
    }

    /// Notes where a claim stands. Returns whether it still exists.
    fn look_at(&self, stem: &str, living: &[String], own: &mut OwnClaim) -> io::Result<bool> {
        let Ok(place) = living.binary_search(&own.entry) else { return Ok(false) };
        if own.is_granted {
            let path = self.lock_path(stem);
            if !own.lock.as_ref().map_or(Ok(false), |lock| is_at(&path, lock))? {
                // others may hold the file that is there now
                self.waiters.note(&own.claim, ClaimStatus::Gone);
                remove(&self.queue_path(stem).join(&own.entry))?;
                return Ok(false);
            }
        } else if place > 0 {
            own.lock = None;
            return Ok(true);
        } else if let Some(token) = self.grant(stem, own)? {
            own.is_granted = true;
            self.waiters.note(&own.claim, ClaimStatus::Granted(token));
        }
        self.waiters.note_contended(&own.claim, living.len() > 1);
        Ok(true)
    }

    /// Locks the lock's file and counts the token up. Returns `None` if a script has locked the file.
    fn grant(&self, stem: &str, own: &mut OwnClaim) -> io::Result<Option<Token>> {
        let path = self.lock_path(stem);
        for _ in 0..REPLACED_TRIES {
            let lock = own.lock.take().map_or_else(|| self.open_lock(stem), Ok)?;
            if !try_lock(&lock)? {
                own.lock = Some(lock);
                return Ok(None);
            }
            if !is_at(&path, &lock)? {
                continue;
            }
            let token = self.count_up(&lock, &own.claim)?;
            own.lock = Some(lock);
            return Ok(Some(token));
        }
        Err(replaced(&path))
    }

    /// The next token. The lock's file is valid if it was written during this start of the machine, whatever process died since.
    /// After another start, or if the file was made anew, only the directory's reserved number is certain.
    fn count_up(&self, lock: &File, claim: &Claim) -> io::Result<Token> {
        let another = || malformed(&self.directory.join(CLUSTER));
        let cluster = self.cluster.ok_or_else(another)?;
        let mut bytes = [0; 256];
        let length = lock.read_at(&mut bytes, 0)?;
        let latest = str::from_utf8(&bytes[..length]).ok().and_then(Record::parse);
        let boot = self.boot.trim_end();
        let latest = latest.filter(|latest| latest.boot == boot).unwrap_or_default();
        let (mut token, mut reserved) = (latest.token + 1, latest.reserved);
        if token > reserved {
            let (file, id, in_directory) = self.read_cluster()?;
            if id != cluster {
                // the directory was made anew: this session belongs to the old one
                return Err(another());
            }
            token = token.max(in_directory + 1);
            reserved = token - 1 + RESERVED;
            write_cluster(&file, id, reserved)?;
        }
        let holder = format!("{:x}-{}", claim.lease, claim.number);
        // always of the same length, so that the new text covers all of the old one
        let text = format!("{token:<19} {reserved:<19} {boot:<36} {holder:<37}\n");
        lock.write_all_at(text.as_bytes(), 0)?;
        Ok(Token::new(cluster, token))
    }

    /// Handles the news that the file of a lock or of a session was closed.
    pub(super) fn closed(&mut self, file_name: &str) {
        match file_name.strip_suffix(LOCK) {
            Some(stem) if !stem.starts_with('+') => _ = self.changed.insert(stem.to_owned()),
            // a long name: the message has only its last part
            Some(_) => self.changed.extend(self.queues.keys().cloned()),
            // a session has ended, and with it claims that stood before others
            None => _ = self.look_where_claims_wait(),
        }
    }

    /// Marks as changed the queues in which claims of this process wait. Returns when to do so again.
    pub(super) fn look_where_claims_wait(&mut self) -> Duration {
        self.changed.extend(self.stems_where(|own| !own.is_granted));
        LOOK_EVERY[usize::from(self.watch.is_none())]
    }

    /// Looks at the queues that have changed.
    pub(super) fn look_where_changed(&mut self) {
        for stem in std::mem::take(&mut self.changed) {
            let Err(error) = self.look(&stem) else { continue };
            let error = self.failure(error);
            tracing::debug!(stem, %error, "cannot look at a queue");
            if error.kind == BackendErrorKind::Permanent {
                // no waiter in this queue gets a turn; a holder keeps its lock
                let claims = self.queues.get(&stem).into_iter().flatten();
                for own in claims.filter(|own| !own.is_granted) {
                    self.waiters.note(&own.claim, ClaimStatus::Gone);
                }
            }
        }
    }

    fn stems_where(&self, is_sought: impl Fn(&OwnClaim) -> bool) -> Vec<String> {
        let sought = self.queues.iter().filter(|(_, claims)| claims.iter().any(&is_sought));
        sought.map(|(stem, _)| stem.clone()).collect()
    }

    fn lock_path(&self, stem: &str) -> PathBuf {
        self.directory.join(format!("{stem}{LOCK}"))
    }

    fn queue_path(&self, stem: &str) -> PathBuf {
        self.directory.join(QUEUES).join(stem)
    }

    fn session_path(&self, lease: i64) -> PathBuf {
        self.directory.join(SESSIONS).join(format!("{lease:x}"))
    }

    fn open_lock(&self, stem: &str) -> io::Result<File> {
        let path = self.lock_path(stem);
        if let Some(parent) = path.parent().filter(|parent| *parent != self.directory) {
            fs::create_dir_all(parent)?;
        }
        File::options().read(true).write(true).create(true).truncate(false).open(path)
    }

    /// The meaning of a failed operation. Only `Transient` leaves open whether it had an effect: another process was faster, so a
    /// repetition may succeed at once, or a claim could not be withdrawn.
    pub(super) fn failure(&self, error: io::Error) -> BackendError {
        let kind = match error.kind() {
            SESSION_GONE => BackendErrorKind::LeaseGone,
            ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidData
            | ErrorKind::Unsupported => BackendErrorKind::Permanent,
            ErrorKind::ResourceBusy => BackendErrorKind::Transient,
            _ => BackendErrorKind::Refused,
        };
        BackendError::in_words(kind, format!("{}: {error}", self.directory.display()), error)
    }
}

/// The latest grant, in the file of a lock.
#[derive(Default)]
struct Record<'a> {
    token: i64,
    /// The largest token that may be granted without a new reservation in the directory.
    reserved: i64,
    boot: &'a str,
    holder: &'a str,
}

impl<'a> Record<'a> {
    /// A record of another start of the machine may contain anything.
    fn parse(text: &'a str) -> Option<Self> {
        let words: Vec<_> = text.lines().next()?.split_whitespace().collect();
        let [token, reserved, boot, holder] = words[..] else { return None };
        Some(Self { token: token.parse().ok()?, reserved: reserved.parse().ok()?, boot, holder })
    }
}

/// A lock's name as a path, without suffix. It is in lower case, for file systems that ignore case, and no part begins with a
/// dot, as `.` and `..` do.
fn stem(name: &str) -> String {
    let (mut stem, mut length) = (String::new(), 0);
    for byte in name.bytes() {
        let is_plain = matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-')
            || byte == b'.' && !matches!(length, 0 | LONGEST_PART);
        let more = if is_plain { 1 } else { 3 };
        if length + more > LONGEST_PART {
            stem += "+/+";
            length = 0;
        }
        length += more;
        if is_plain {
            stem.push(char::from(byte));
        } else {
            // writing to a string does not fail
            _ = write!(stem, "%{byte:02x}");
        }
    }
    stem
}

fn write_cluster(file: &File, id: ClusterId, reserved: i64) -> io::Result<()> {
    file.write_all_at(format!("{:016x}\n{reserved:<19}\n", id.0).as_bytes(), 0)?;
    file.sync_data()
}

fn number_of(entry: &str) -> Option<u64> {
    entry.split('-').next()?.parse().ok()
}

fn lease_of(entry: &str) -> Option<i64> {
    i64::from_str_radix(entry.split('-').nth(1)?, 16).ok()
}

/// Whether this very file is at the path, and not a new one.
fn is_at(path: &Path, file: &File) -> io::Result<bool> {
    let (there, ours) = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        there => (there?, file.metadata()?),
    };
    Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

/// Removes a file. Returns whether it existed.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Locks a file that others lock for a moment only.
fn lock_soon(file: &File) -> io::Result<()> {
    for _ in 0..BUSY_TRIES {
        if try_lock(file)? {
            return Ok(());
        }
        #[expect(clippy::disallowed_methods, reason = "the thread is the files' own")]
        thread::sleep(BUSY_PAUSE);
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "other processes change the queue"))
}

/// The error for a file that is replaced again and again.
fn replaced(path: &Path) -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, format!("{} is replaced all the time", path.display()))
}

fn malformed(path: &Path) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{} is malformed", path.display()))
}
