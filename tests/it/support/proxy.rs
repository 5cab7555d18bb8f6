//! A TCP proxy that can cut what runs through it, and hold it up.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{self, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy on a port of its own. It ends with the runtime that it was started on.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    /// Whether something came while it was frozen.
    holds: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Where new connections go.
    port: u16,
    /// A connection ends when the number changes.
    cuts: u32,
    /// While it is set, connections are accepted and nothing comes out of them.
    frozen: bool,
}

impl Proxy {
    /// Forwards connections to `port` on this machine.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = watch::Sender::new(State { port, ..State::default() });
        let states = state.subscribe();
        let holds = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&holds);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let State { cuts, port, .. } = *states.borrow();
                tokio::spawn(forward(client, port, cuts, states.clone(), Arc::clone(&held)));
            }
        });
        Self { address, state, holds }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Whether it is frozen and something has come that it holds up.
    pub(crate) fn holds_something(&self) -> bool {
        self.holds.load(Ordering::Relaxed)
    }

    /// Ends all connections that are open.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Lets everything through again, what was held up first.
    #[cfg(feature = "chaos")]
    pub(crate) fn thaw(&self) {
        self.state.send_modify(|state| state.frozen = false);
    }

    /// Leads new connections to another port from now on. Those that are open stay.
    pub(crate) fn lead_to(&self, port: u16) {
        self.state.send_modify(|state| state.port = port);
    }

    /// From now on holds up what comes, in both directions, without ending anything.
    pub(crate) fn freeze(&self) {
        self.state.send_modify(|state| state.frozen = true);
    }
}

/// Until both sides have ended, or the connection is cut: when there were more than `cuts`.
async fn forward(
    client: TcpStream,
    port: u16,
    cuts: u32,
    states: watch::Receiver<State>,
    holds: Arc<AtomicBool>,
) -> io::Result<()> {
    let mut cut = states.clone();
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (from_client, to_client) = io::split(client);
    let (from_server, to_server) = io::split(server);
    let there = pump(from_client, to_server, states.clone(), &holds);
    let back = pump(from_server, to_client, states, &holds);
    tokio::select! {
        ended = async { tokio::try_join!(there, back) } => ended.map(drop),
        _ = cut.wait_for(|state| state.cuts != cuts) => Ok(()),
    }
}

async fn pump(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    mut states: watch::Receiver<State>,
    holds: &AtomicBool,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        if states.borrow().frozen {
            holds.store(true, Ordering::Relaxed);
        }
        if states.wait_for(|state| !state.frozen).await.is_err() {
            return Ok(());
        }
        to.write_all(&buffer[..length]).await?;
    }
}
