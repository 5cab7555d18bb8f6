#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::wait::{eventually, within};

/// Answers each byte with the same byte, and counts the bytes.
async fn echo() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let got = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&got);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                while let Ok(byte) = client.read_u8().await {
                    counted.fetch_add(1, Ordering::Relaxed);
                    if client.write_u8(byte).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, got)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap()
}

/// Goal: a held chunk arrives even after its client has given up, as a late packet does.
#[tokio::test]
async fn what_was_held_arrives_late() {
    let (port, got) = echo().await;
    let proxy = Proxy::to(port).await.unwrap();
    let mut client = connect(&proxy).await;
    proxy.hold(Direction::ToServer);
    client.write_u8(b'x').await.unwrap();
    eventually("the chunk is held", async || proxy.has_held_data()).await;
    drop(client);
    assert_eq!(got.load(Ordering::Relaxed), 0);
    proxy.release();
    eventually("it arrives", async || got.load(Ordering::Relaxed) == 1).await;
}

/// Goal: a delay adds latency in both directions and costs no throughput, because chunks do not wait for one another. If they
/// did, they would take longer than this test may.
#[tokio::test]
async fn delays_do_not_add_up() {
    let (port, _) = echo().await;
    let proxy = Proxy::to(port).await.unwrap();
    let delay = Duration::from_secs(3);
    proxy.delay(delay);
    let mut client = connect(&proxy).await;
    let sent = Instant::now();
    let mut chunks = vec![b'x'; 10 * CHUNK_BYTES];
    client.write_all(&chunks).await.unwrap();
    within("all chunks come back", client.read_exact(&mut chunks)).await.unwrap();
    assert!(sent.elapsed() >= delay * 2, "there and back");
}
