//! Watching on a terminal.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use hyper::Method;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use testkit::wait::{eventually, within};
use tokio::process::Child;

use super::{Shop, pid, program};

/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A pseudo-terminal with the program on it, and all that the program has written there.
struct Terminal {
    child: Child,
    /// Our end, and that of the program.
    ours: OwnedFd,
    theirs: OwnedFd,
    written: Arc<Mutex<String>>,
    before: Termios,
}

impl Terminal {
    fn start(kind: &str, (columns, rows): (u16, u16), url: &str) -> Self {
        let (ours, theirs) = ends();
        tcsetwinsize(&ours, size(columns, rows)).unwrap();
        let before = tcgetattr(&theirs).unwrap();
        let child = start(kind, &theirs, url);
        let written = Arc::new(Mutex::new(String::new()));
        let (copy, mut reader) = (Arc::clone(&written), File::from(ours.try_clone().unwrap()));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // an error is the end: no process has the other end open
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                // all that is written is ASCII
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { child, ours, theirs, written, before }
    }

    /// With line ends as they are usual: the terminal puts a return before each line feed.
    fn written(&self) -> String {
        self.written.lock().unwrap().replace("\r\r\n", "\r\n")
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(&self.child), signal).unwrap();
    }

    /// The rows of the last picture that was drawn to its end.
    fn picture(&self) -> Vec<String> {
        let written = self.written();
        let Some((drawn, _)) = written.rsplit_once("\x1b[J") else { return Vec::new() };
        let picture = drawn.rsplit_once("\x1b[H").map_or("", |(_, picture)| picture);
        // each row erases what was longer there before
        let rows = picture.strip_suffix("\x1b[K").expect("each row ends so").split("\x1b[K\r\n");
        rows.map(str::to_owned).collect()
    }

    async fn until_it_shows(&self, words: &str) -> Vec<String> {
        let mut picture = Vec::new();
        let is_shown = async || {
            picture = self.picture();
            picture.iter().any(|row| row.contains(words))
        };
        eventually(&format!("{words:?} is shown"), is_shown).await;
        picture
    }
}

/// Our end of a new pseudo-terminal, and that of the program.
fn ends() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    // no program that is started meanwhile keeps the terminal from going away
    #[cfg(target_os = "linux")]
    let flags = flags | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    (ours, theirs)
}

fn start(kind: &str, theirs: &OwnedFd, url: &str) -> Child {
    let end = || theirs.try_clone().unwrap();
    let mut command = program("watch");
    // a job of its own, as a shell starts it
    command.process_group(0);
    command.arg(url).env("TERM", kind).stdin(end()).stdout(end()).stderr(end());
    command.spawn().unwrap()
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}

fn assert_fits(picture: &[String], columns: usize, rows: usize) {
    assert!(picture.len() <= rows, "{picture:#?}");
    // a full row would take the cursor to the next one
    assert!(picture.iter().all(|row| row.len() < columns), "{picture:#?}");
    assert!(picture.iter().all(|row| !row.contains('\x1b')), "{picture:#?}");
}

/// Goal: the sale is drawn in place, also when the terminal becomes another size, and the terminal is left
/// as it was, with what was seen last.
#[tokio::test]
async fn a_terminal_is_drawn_on_in_place() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    let mut terminal = Terminal::start("xterm", (80, 24), &shop.url());
    let picture = terminal.until_it_shows("stock    5 + lucky 0 = initial 5").await;
    assert_fits(&picture, 80, 24);
    assert!(terminal.written().starts_with(ENTER), "{:?}", terminal.written());
    terminal.until_it_shows("lock     free").await;

    tcsetwinsize(&terminal.ours, size(30, 7)).unwrap();
    terminal.signal(Signal::WINCH);
    let is_narrow = async || terminal.picture().iter().all(|row| row.len() < 30);
    eventually("it is as narrow as the terminal", is_narrow).await;
    assert_fits(&terminal.picture(), 30, 7);

    tcsetwinsize(&terminal.ours, size(80, 24)).unwrap();
    shop.ask(Method::POST, "/stock/reduce", "").await;
    terminal.until_it_shows("stock    4 + lucky 1 = initial 5").await;
    terminal.signal(Signal::INT);
    assert_eq!(within("it ends", terminal.child.wait()).await.unwrap().code(), Some(0));
    eventually("the end is read", async || terminal.written().ends_with("\r\n")).await;
    let written = terminal.written();
    let (drawn, last) = written.split_once(LEAVE).expect("it gives the terminal back");
    assert_eq!(drawn.matches(ENTER).count(), 1);
    assert!(last.contains("\nstock    4 + lucky 1 = initial 5\r\n"), "{last:?}");
    assert!(!last.contains('\x1b'), "{last:?}");
    let after = tcgetattr(&terminal.theirs).unwrap();
    assert_eq!(format!("{after:?}"), format!("{:?}", terminal.before));
}

/// Goal: a terminal shows how old its numbers are while the instance is away, and new ones when it is back.
/// Method: an instance that is killed and started again; and SIGTERM gives the terminal back as Ctrl-C does.
#[tokio::test]
async fn a_terminal_says_that_its_numbers_are_old() {
    let mut shop = Shop::selling(r#"{"stock":5}"#).await;
    let mut terminal = Terminal::start("xterm", (80, 24), &shop.url());
    terminal.until_it_shows("stock    5 + lucky 0").await;
    shop.kill().await;
    terminal.until_it_shows("LOST").await;
    let picture = terminal.until_it_shows("s old").await;
    assert!(picture.iter().any(|row| row.starts_with("stock    5 + lucky 0")), "{picture:#?}");
    shop.start().await;
    shop.ask(Method::POST, "/stock/reduce", "").await;
    let picture = terminal.until_it_shows("stock    4 + lucky 1").await;
    assert!(!picture.iter().any(|row| row.contains("LOST")), "{picture:#?}");
    terminal.signal(Signal::TERM);
    assert_eq!(within("it ends", terminal.child.wait()).await.unwrap().code(), Some(0));
    eventually("the end is read", async || terminal.written().contains(LEAVE)).await;
}

/// Goal: a terminal that goes away is a normal end, whether the signal tells of it first or a picture that
/// cannot be drawn; and Ctrl-\ gives the terminal back.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_terminal_goes_away() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    for signal in [None, Some(Signal::HUP)] {
        let (ours, theirs) = ends();
        let mut child = start("xterm", &theirs, &shop.url());
        let reading = tokio::task::spawn_blocking(move || {
            let (mut file, mut written) = (File::from(ours), String::new());
            let mut bytes = [0; 4096];
            while !written.contains("lucky 0") {
                let length = file.read(&mut bytes).unwrap();
                written.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        within("it is shown", reading).await.unwrap();
        if let Some(signal) = signal {
            kill_process(pid(&child), signal).unwrap();
        }
        assert_eq!(within("it ends", child.wait()).await.unwrap().code(), Some(0), "{signal:?}");
    }

    let mut terminal = Terminal::start("xterm", (80, 24), &shop.url());
    terminal.until_it_shows("stock    5 + lucky 0").await;
    terminal.signal(Signal::QUIT);
    assert_eq!(within("it ends", terminal.child.wait()).await.unwrap().code(), Some(0));
    eventually("the end is read", async || terminal.written().contains(LEAVE)).await;
}

/// Goal: Ctrl-Z gives the terminal back and stops the program, which draws anew when it is continued.
#[tokio::test]
async fn a_terminal_is_given_back_while_the_program_is_stopped() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    let terminal = Terminal::start("xterm", (80, 24), &shop.url());
    terminal.until_it_shows("stock    5 + lucky 0").await;
    terminal.signal(Signal::TSTP);
    let is_stopped = async || {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(pid(&terminal.child)), options).unwrap().is_some()
    };
    eventually("it is stopped", is_stopped).await;
    eventually("the end is read", async || terminal.written().ends_with(LEAVE)).await;
    terminal.signal(Signal::CONT);
    let is_back = async || terminal.written().matches(ENTER).count() == 2;
    eventually("it draws again", is_back).await;
}

/// Goal: a terminal that takes no commands gets none, but lines.
#[tokio::test]
async fn a_dumb_terminal_gets_lines() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    let terminal = Terminal::start("dumb", (80, 24), &shop.url());
    let is_told = async || terminal.written().contains(" stock 5 + lucky 0 = initial 5;");
    eventually("it is told", is_told).await;
    assert!(!terminal.written().contains('\x1b'), "{:?}", terminal.written());
}
