//! A TCP proxy that can cut what runs through it, and hold it up.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{self, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy on a port of its own. It ends with the runtime that it was started on.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
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
        let state = watch::Sender::new(State::default());
        let states = state.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let cuts = states.borrow().cuts;
                tokio::spawn(forward(client, port, cuts, states.clone()));
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends all connections that are open.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
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
) -> io::Result<()> {
    let mut cut = states.clone();
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (from_client, to_client) = io::split(client);
    let (from_server, to_server) = io::split(server);
    let there = pump(from_client, to_server, states.clone());
    let back = pump(from_server, to_client, states);
    tokio::select! {
        ended = async { tokio::try_join!(there, back) } => ended.map(drop),
        _ = cut.wait_for(|state| state.cuts != cuts) => Ok(()),
    }
}

async fn pump(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    mut states: watch::Receiver<State>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        if states.wait_for(|state| !state.frozen).await.is_err() {
            return Ok(());
        }
        to.write_all(&buffer[..length]).await?;
    }
}
