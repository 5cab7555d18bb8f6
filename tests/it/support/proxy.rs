//! A TCP proxy that can cut what runs through it.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy on a port of its own. It ends with the runtime that it was started on.
pub(crate) struct Proxy {
    address: SocketAddr,
    /// Counts the cuts: a connection ends when the number changes.
    cuts: watch::Sender<u32>,
}

impl Proxy {
    /// Forwards connections to `port` on this machine.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = watch::Sender::new(0);
        let cut = cuts.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut cut = cut.clone();
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                    tokio::select! {
                        ended = copy_bidirectional(&mut client, &mut server) => ended.map(drop),
                        _ = cut.changed() => Ok(()),
                    }
                });
            }
        });
        Self { address, cuts }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends all connections that are open.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}
