//! A TCP proxy that can hold, delay and lose what it forwards, and cut connections.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// How much is forwarded at once.
const CHUNK_BYTES: usize = 16 << 10;

/// The most chunks of one direction that are delayed at once.
const MAX_CHUNKS: usize = 1024;

/// The pause before the next accept when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The direction of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    #[default]
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// A proxy on its own port. Dropping it ends the proxy and all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    line: Line,
    listening: AbortHandle,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The port to which new connections go.
    port: u16,
    /// A connection ends when this number changes.
    cuts: u32,
    /// When this number changes, a connection forwards nothing more, but stays open.
    silences: u32,
    /// For each direction: while set, the proxy accepts connections and forwards nothing.
    holds: [bool; 2],
    /// While set, connections are closed as soon as they are accepted.
    refuses: bool,
    delay: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    connections: u64,
    /// Whether a chunk arrived while its direction was held.
    holds: bool,
    /// How many chunks were held and forwarded later.
    late: u64,
    /// The chunks to lose: their direction, how many pass first, and how many are lost then.
    to_lose: (Direction, u64, u64),
    lost: u64,
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(State { port, ..State::default() });
        let states = state.subscribe();
        let line = Line { counts: Arc::default(), alarms: alarms() };
        let accepting = line.clone();
        let listening = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let State { port, cuts, refuses, .. } = *states.borrow();
                if !refuses {
                    accepting.counts().connections += 1;
                    tokio::spawn(accepting.clone().forward(client, port, cuts, states.clone()));
                }
            }
        });
        Ok(Self { address, state, line, listening: listening.abort_handle() })
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
        self.line.counts().holds
    }

    /// How many chunks were held and forwarded later.
    pub fn late_chunks(&self) -> u64 {
        self.line.counts().late
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.line.counts().connections
    }

    /// How many answers were lost.
    pub fn lost_answers(&self) -> u64 {
        self.line.counts().lost
    }

    /// Ends all open connections.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Forwards nothing more on the open connections, without ending them. New connections work.
    pub fn silence(&self) {
        self.state.send_modify(|state| state.silences += 1);
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
        self.line.counts().holds = false;
        self.state.send_modify(|state| state.holds[direction as usize] = true);
    }

    /// Forwards all held chunks, even those of a client that has gone meanwhile.
    pub fn release(&self) {
        self.state.send_modify(|state| state.holds = [false; 2]);
    }

    /// From now on delays each chunk, in both directions, as a long line does: a chunk does not wait for the one before.
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
        self.line.counts().to_lose = (direction, chunks, 1);
    }

    /// Whether the chunk of [`lose_after`](Self::lose_after) has been lost.
    pub fn has_lost(&self) -> bool {
        self.line.counts().to_lose.2 == 0
    }

    /// Loses the next `answers` answers: the server gets the request, but the client's connection ends without the answer.
    pub fn lose_answers(&self, answers: u64) {
        self.line.counts().to_lose = (Direction::ToClient, 0, answers);
    }
}

/// The state that the connections share.
#[derive(Clone, Debug)]
struct Line {
    counts: Arc<Mutex<Counts>>,
    alarms: Alarms,
}

type Alarms = std::sync::mpsc::Sender<(Instant, oneshot::Sender<()>)>;

impl Line {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A receiver that gets a message at this time.
    fn alarm(&self, at: Instant) -> oneshot::Receiver<()> {
        let (fire, fired) = oneshot::channel();
        // an error drops `fire`, and that also wakes the receiver
        let _ = self.alarms.send((at, fire));
        fired
    }

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
        // a direct connection would not keep small chunks waiting for more data either
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = tokio::io::split(client);
        let (from_server, to_server) = tokio::io::split(server);
        let there = self.pump(Direction::ToServer, from_client, to_server, states.clone());
        let back = self.pump(Direction::ToClient, from_server, to_client, states);
        tokio::select! {
            ended = async { tokio::try_join!(there, back) } => ended.map(drop),
            // an error means that the proxy is gone
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
        // the chunks, each with the time at which its delay ends
        let (sender, mut line) = mpsc::channel(MAX_CHUNKS);
        let current = states.clone();
        let reading = async move {
            let mut buffer = vec![0; CHUNK_BYTES];
            let silences = current.borrow().silences;
            loop {
                let length = from.read(&mut buffer).await?;
                if current.borrow().silences != silences {
                    // nor is the end of one side forwarded to the other
                    pending::<()>().await;
                }
                if length == 0 {
                    return Ok(());
                }
                self.counts().arrived(direction)?;
                let delay = current.borrow().delay;
                let arrival = (!delay.is_zero()).then(|| self.alarm(Instant::now() + delay));
                // an error means that nothing is written any more
                let _ = sender.send((arrival, buffer[..length].to_vec())).await;
            }
        };
        let writing = async {
            while let Some((arrival, chunk)) = line.recv().await {
                if let Some(arrival) = arrival {
                    // an error means that the thread has ended with the process
                    let _ = arrival.await;
                }
                if states.borrow().holds[direction as usize] {
                    self.counts().holds = true;
                    if states.wait_for(|state| !state.holds[direction as usize]).await.is_err() {
                        return Ok(());
                    }
                    self.counts().late += 1;
                }
                to.write_all(&chunk).await?;
            }
            to.shutdown().await
        };
        tokio::try_join!(reading, writing).map(drop)
    }
}

impl Counts {
    /// Counts a chunk.
    ///
    /// # Errors
    /// The chunk is to be lost.
    fn arrived(&mut self, direction: Direction) -> io::Result<()> {
        let (of, to_pass, left) = &mut self.to_lose;
        if *of != direction || *left == 0 {
            return Ok(());
        }
        if *to_pass > 0 {
            *to_pass -= 1;
            return Ok(());
        }
        *left -= 1;
        self.lost += 1;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

/// Starts a thread that sends each message at its time, in order. Tokio's timer would add up to two milliseconds, as much as
/// the whole distance of a near server.
fn alarms() -> Alarms {
    let (alarms, set) = std::sync::mpsc::channel::<(Instant, oneshot::Sender<()>)>();
    #[allow(clippy::disallowed_methods, reason = "the thread is for waiting")]
    thread::spawn(move || {
        for (at, fire) in set {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            // an error means that the connection has gone
            let _ = fire.send(());
        }
    });
    alarms
}

#[cfg(test)]
mod tests;
