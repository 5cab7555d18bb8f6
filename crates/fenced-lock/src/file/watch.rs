//! The kernel's word that a file of the directory was closed: what ends a lock is seen as that, also when it was a
//! process that ended.

use std::collections::HashSet;
use std::io::{self, PipeReader};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use super::Job;
use super::files::Files;

/// The watch on the directories in which claims of this process are.
#[derive(Debug)]
pub(super) struct Watch(Arc<OwnedFd>);

/// Starts the thread that reads the kernel's messages until `running` ends. `None` if the kernel gives no more
/// watches: the files are then looked at often instead.
pub(super) fn start(jobs: mpsc::Sender<Job>, running: PipeReader) -> io::Result<Option<Watch>> {
    let Ok(inotify) = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) else {
        return Ok(None);
    };
    let inotify = Arc::new(inotify);
    let watch = Watch(Arc::clone(&inotify));
    let thread = thread::Builder::new().name("file-lock-watch".into());
    thread.spawn(move || read(&inotify, &running, &jobs))?;
    Ok(Some(watch))
}

impl Watch {
    /// Watches the locks and the sessions from now on. To do so again changes nothing, unless the directory was made
    /// anew.
    pub(super) fn add(&self, locks: &Path, sessions: &Path) {
        // flock(1) opens for reading only; sessions are opened so to see whether they live
        let any_close = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        for (directory, closes) in [(locks, any_close), (sessions, WatchFlags::CLOSE_WRITE)] {
            if let Err(error) = inotify::add_watch(&*self.0, directory, closes) {
                tracing::debug!(?directory, %error, "not watched: it is looked at from time to time");
            }
        }
    }
}

fn read(inotify: &OwnedFd, running: &PipeReader, jobs: &mpsc::Sender<Job>) {
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut messages = Reader::new(inotify, &mut buffer);
    loop {
        let mut ready =
            [PollFd::new(inotify, PollFlags::IN), PollFd::new(running, PollFlags::empty())];
        let polled = poll(&mut ready, None);
        if !ready[1].revents().is_empty() {
            return;
        }
        if polled.is_err() {
            continue;
        }
        // many changes of one file are one
        let mut changed = HashSet::new();
        while let Ok(message) = messages.next() {
            // a message without a name tells of the watch itself, or that messages were lost
            let name = message.file_name().and_then(|name| name.to_str().ok());
            changed.insert(name.unwrap_or_default().to_owned());
        }
        let look = move |files: &mut Files| changed.iter().for_each(|name| files.closed(name));
        // an error means that the other thread has ended, and so will this one
        drop(jobs.send(Box::new(look)));
    }
}
