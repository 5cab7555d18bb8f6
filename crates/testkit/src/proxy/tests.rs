#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;
use crate::wait::within;

/// Answers each byte with the same byte.
async fn echo() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = client.split();
        tokio::io::copy(&mut from, &mut to).await.ok();
    });
    port
}

/// Goal: a delay adds latency in both directions and costs no throughput, because chunks do not wait for one another. If they
/// did, they would take longer than this test may.
#[tokio::test]
async fn delays_do_not_add_up() {
    let proxy = Proxy::to(echo().await).await.unwrap();
    let delay = Duration::from_millis(500);
    proxy.delay(delay);
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap();
    let sent = Instant::now();
    let mut chunks = vec![b'x'; 100 * CHUNK_BYTES];
    client.write_all(&chunks).await.unwrap();
    within("all chunks come back", client.read_exact(&mut chunks)).await.unwrap();
    assert!(sent.elapsed() >= delay * 2, "there and back");
}
