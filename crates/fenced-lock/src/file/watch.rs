//! The kernel's messages that a file of the directory was closed: whatever ends a lock closes its file, even the end of a
//! process.

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

/// The watch on the directories that contain claims of this process.
#[derive(Debug)]
pub(super) struct Watch(Arc<OwnedFd>);

/// Starts the thread that reads the kernel's messages until `running` ends. Returns `None` if the kernel has no watch left: the
/// backend then looks at the files more often.
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
    /// Watches the locks and the sessions from now on. Repeat it after the directory was made anew; otherwise a repetition has no
    /// effect.
    pub(super) fn add(&self, locks: &Path, sessions: &Path) {
        // flock(1) opens a lock for reading only; `Files::lives` opens sessions for reading, which must not count
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
        // report several changes of one file once
        let mut changed = HashSet::new();
        while let Ok(message) = messages.next() {
            // a message without a name tells of the watch itself, or that messages were lost
            let name = message.file_name().and_then(|name| name.to_str().ok());
            changed.insert(name.unwrap_or_default().to_owned());
        }
        let look = move |files: &mut Files| changed.iter().for_each(|name| files.closed(name));
        // an error means that the other thread has ended, and this one will too
        drop(jobs.send(Box::new(look)));
    }
}
