//! A TCP proxy that can hold, delay and lose what it forwards, and cut connections.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{io, thread};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// How much is forwarded at once.
const CHUNK_BYTES: usize = 16 << 10;

/// The most chunks of one direction that are delayed at once.
const MAX_CHUNKS: usize = 1024;

/// How long to leave the listener alone when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a chunk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// A proxy on a port of its own. Dropping it ends the proxy and all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    counts: Arc<Counts>,
    listening: AbortHandle,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Where new connections go.
    port: u16,
    /// A connection ends when the number changes.
    cuts: u32,
    /// By direction: while it is set, connections are accepted, and nothing is forwarded.
    holds: [bool; 2],
    /// Connections are closed as soon as they are accepted.
    refuses: bool,
    /// How long each chunk is delayed.
    delay: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    /// Whether a chunk came while its direction was held.
    holds: AtomicBool,
    /// Chunks that were held up and went on later.
    late: AtomicU64,
    /// Chunks that pass before others are lost, how many are to be lost then, and how many were.
    to_pass: [AtomicU64; 2],
    to_lose: [AtomicU64; 2],
    lost: AtomicU64,
    /// Answers that had the marker.
    marked: AtomicU64,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}

impl Proxy {
    /// Forwards connections to `port` on this machine. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// When the system gives it no port.
    pub async fn to(port: u16) -> io::Result<Self> {
        Self::with_marker(port, b"").await
    }

    /// As [`to`](Self::to); also counts the answers that contain `marker`, if one chunk contains all of it.
    ///
    /// # Errors
    /// When the system gives it no port.
    pub async fn with_marker(port: u16, marker: &'static [u8]) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(State { port, ..State::default() });
        let states = state.subscribe();
        let counts = Arc::new(Counts::default());
        let line = Line { marker, counts: Arc::clone(&counts) };
        let listening = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let State { port, cuts, refuses, .. } = *states.borrow();
                if !refuses {
                    line.counts.connections.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(line.clone().forward(client, port, cuts, states.clone()));
                }
            }
        });
        Ok(Self { address, state, counts, listening: listening.abort_handle() })
    }

    /// Its address for HTTP.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Whether the proxy holds a chunk since the last [`hold`](Self::hold).
    pub fn has_held_data(&self) -> bool {
        self.counts.holds.load(Ordering::Relaxed)
    }

    /// How many chunks were held up and went on later.
    pub fn late_chunks(&self) -> u64 {
        self.counts.late.load(Ordering::Relaxed)
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// How many answers were lost.
    pub fn lost_answers(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// How many answers contained the marker, also after their client had gone.
    pub fn marked_answers(&self) -> u64 {
        self.counts.marked.load(Ordering::Relaxed)
    }

    /// Ends all connections that are open.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Forwards new connections to another port from now on. Open connections stay.
    pub fn redirect_to(&self, port: u16) {
        self.state.send_modify(|state| state.port = port);
    }

    /// From now on holds all chunks of both directions. Connections stay open.
    pub fn freeze(&self) {
        self.hold(Direction::ToServer);
        self.hold(Direction::ToClient);
    }

    /// From now on holds all chunks of this direction. Connections stay open.
    pub fn hold(&self, direction: Direction) {
        self.counts.holds.store(false, Ordering::Relaxed);
        self.state.send_modify(|state| state.holds[direction as usize] = true);
    }

    /// Forwards all chunks that were held, also those of a client that has gone meanwhile.
    pub fn release(&self) {
        self.state.send_modify(|state| state.holds = [false; 2]);
    }

    /// From now on delays each chunk, in both directions, as a long line does: a later chunk does not wait for an
    /// earlier one.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Ends all connections, and each new one at once, until [`accept`](Self::accept).
    pub fn refuse(&self) {
        self.state.send_modify(|state| {
            state.refuses = true;
            state.cuts += 1;
        });
    }

    /// Ends [`refuse`](Self::refuse).
    pub fn accept(&self) {
        self.state.send_modify(|state| state.refuses = false);
    }

    /// Forwards `chunks` more chunks of this direction. The next chunk is lost, and its connection ends.
    pub fn lose_after(&self, direction: Direction, chunks: u64) {
        for to_lose in &self.counts.to_lose {
            to_lose.store(0, Ordering::Relaxed);
        }
        self.counts.to_pass[direction as usize].store(chunks, Ordering::Relaxed);
        self.counts.to_lose[direction as usize].store(1, Ordering::Relaxed);
    }

    /// Whether the chunk of [`lose_after`](Self::lose_after) has been lost.
    pub fn has_lost(&self) -> bool {
        self.counts.to_lose.iter().all(|to_lose| to_lose.load(Ordering::Relaxed) == 0)
    }

    /// Loses the next `answers` answers: the server gets the request, and the client's connection ends in place of
    /// the answer.
    pub fn lose_answers(&self, answers: u64) {
        self.counts.to_lose[Direction::ToClient as usize].store(answers, Ordering::Relaxed);
    }
}

/// What the connections have in common.
#[derive(Clone, Debug)]
struct Line {
    marker: &'static [u8],
    counts: Arc<Counts>,
}

impl Line {
    /// Forwards in both directions until both sides have ended, or until the number of cuts is no longer `cuts`.
    async fn forward(
        self,
        client: TcpStream,
        port: u16,
        cuts: u32,
        states: watch::Receiver<State>,
    ) -> io::Result<()> {
        let mut cut = states.clone();
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        // without the proxy, no small chunk would wait for more here
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = tokio::io::split(client);
        let (from_server, to_server) = tokio::io::split(server);
        let there = self.pump(Direction::ToServer, from_client, to_server, states.clone());
        let back = self.pump(Direction::ToClient, from_server, to_client, states);
        tokio::select! {
            ended = async { tokio::try_join!(there, back) } => ended.map(drop),
            // an error: the proxy is gone
            _ = cut.wait_for(|state| state.cuts != cuts) => Ok(()),
        }
    }

    async fn pump(
        &self,
        direction: Direction,
        mut from: ReadHalf<TcpStream>,
        mut to: WriteHalf<TcpStream>,
        mut states: watch::Receiver<State>,
    ) -> io::Result<()> {
        let Self { marker, counts, .. } = self;
        let mut buffer = vec![0; CHUNK_BYTES];
        // the delayed chunks, each with the end of its delay
        let mut line: VecDeque<(Option<oneshot::Receiver<()>>, Vec<u8>)> = VecDeque::new();
        let mut is_open = true;
        while is_open || !line.is_empty() {
            let (is_idle, may_read) = (line.is_empty(), is_open && line.len() < MAX_CHUNKS);
            let arrival = line.front_mut().and_then(|(arrival, _)| arrival.as_mut());
            let read = tokio::select! {
                biased;
                () = reached(arrival), if !is_idle => None,
                length = from.read(&mut buffer), if may_read => Some(&buffer[..length?]),
            };
            let Some(chunk) = read else {
                if states.borrow().holds[direction as usize] {
                    counts.holds.store(true, Ordering::Relaxed);
                    if states.wait_for(|state| !state.holds[direction as usize]).await.is_err() {
                        return Ok(());
                    }
                    counts.late.fetch_add(1, Ordering::Relaxed);
                }
                if let Some((_, chunk)) = line.pop_front() {
                    to.write_all(&chunk).await?;
                }
                continue;
            };
            if chunk.is_empty() {
                is_open = false;
                continue;
            }
            if direction == Direction::ToClient
                && !marker.is_empty()
                && chunk.windows(marker.len()).any(|part| part == *marker)
            {
                counts.marked.fetch_add(1, Ordering::Relaxed);
            }
            let passes = take_one(&counts.to_pass[direction as usize]);
            if !passes && take_one(&counts.to_lose[direction as usize]) {
                counts.lost.fetch_add(1, Ordering::Relaxed);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let delay = states.borrow().delay;
            let arrival = (!delay.is_zero()).then(|| alarm(Instant::now() + delay));
            line.push_back((arrival, chunk.into()));
        }
        to.shutdown().await
    }
}

async fn reached(arrival: Option<&mut oneshot::Receiver<()>>) {
    if let Some(arrival) = arrival {
        // an error: the thread has gone, with the process
        let _ = arrival.await;
    }
}

/// A receiver that gets its message at this time. A thread waits for it: Tokio's timer would add up to two milliseconds, which is the whole
/// distance of a near server.
fn alarm(at: Instant) -> oneshot::Receiver<()> {
    static ALARMS: LazyLock<mpsc::Sender<(Instant, oneshot::Sender<()>)>> = LazyLock::new(|| {
        let (sender, alarms) = mpsc::channel();
        thread::spawn(move || ring(&alarms));
        sender
    });
    let (fire, fired) = oneshot::channel();
    // an error drops `fire`, which fires as well
    let _ = ALARMS.send((at, fire));
    fired
}

fn ring(alarms: &mpsc::Receiver<(Instant, oneshot::Sender<()>)>) {
    let mut waiting: BTreeMap<Instant, Vec<oneshot::Sender<()>>> = BTreeMap::new();
    loop {
        let next = waiting.first_key_value().map(|(at, _)| at.duration_since(Instant::now()));
        let new = match next {
            Some(wait) => alarms.recv_timeout(wait),
            None => alarms.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match new {
            Ok((at, fire)) => waiting.entry(at).or_default().push(fire),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Some(first) = waiting.first_entry().filter(|first| *first.key() <= Instant::now())
        {
            for fire in first.remove() {
                // an error: the receiver is gone
                let _ = fire.send(());
            }
        }
    }
}

/// Subtracts one, unless the count is zero. Returns whether it did.
fn take_one(count: &AtomicU64) -> bool {
    let less = |count: u64| count.checked_sub(1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

#[cfg(test)]
mod tests;
