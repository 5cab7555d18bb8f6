//! Clients that leave, and hostile ones.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// How soon a silent connection must be closed, on a busy machine: the instances wait 2 s for a head.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// How long any other request may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How many connections are opened at a time.
const AT_A_TIME: usize = 200;

/// The beginnings of two requests: one whose head has no end, and one with a body of 1 GB.
pub(super) const HEAD: &str = "GET /stock HTTP/1.1\r\nhost: chaos\r\nx-large: ";
pub(super) const BODY: &str = "PUT /stock?item=flood HTTP/1.1\r\nhost: 127.0.0.1\r\n\
                               content-type: application/json\r\ncontent-length: 1073741824\r\n\r\n";

const PIECE_BYTES: usize = 1 << 16;

/// More than the system's buffers take, and far less than the body.
const TOO_MUCH_BYTES: usize = 64 << 20;

async fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await
}

/// Sends a request without a body, and returns the connection with its answer.
async fn send(port: u16, request: &str) -> io::Result<TcpStream> {
    let mut connection = connect(port).await?;
    let head = format!("{request} HTTP/1.1\r\nhost: chaos\r\ncontent-length: 0\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    Ok(connection)
}

/// Connections that have sent an order each and wait for its answer. Dropping one closes it.
pub(super) async fn buyers(port: u16, count: usize) -> io::Result<Vec<TcpStream>> {
    let mut buyers = Vec::new();
    for _ in 0..count {
        buyers.push(send(port, "POST /stock/reduce").await?);
    }
    Ok(buyers)
}

/// How many of these buyers get no answer.
pub(super) async fn unanswered(buyers: Vec<TcpStream>) -> usize {
    let is_unanswered = async |mut buyer: TcpStream| {
        let answer = timeout(TIMEOUT, buyer.read_exact(&mut [0; 12])).await;
        !matches!(answer, Ok(Ok(_)))
    };
    let unanswered = join_all(buyers.into_iter().map(is_unanswered)).await;
    unanswered.into_iter().filter(|unanswered| *unanswered).count()
}

/// Clients that open the feed of a made-up item, read its beginning and leave, again and again. Returns how many feeds they
/// opened.
pub(super) async fn feeds(port: u16, at_a_time: usize, lasts: Duration) -> u64 {
    let opened = AtomicU64::new(0);
    let comes_and_goes = async |_| loop {
        if let Ok(mut feed) = send(port, &format!("GET /events?item={}", Uuid::new_v4())).await {
            let _ = feed.read_exact(&mut [0; 200]).await;
            opened.fetch_add(1, Ordering::Relaxed);
        }
    };
    // the clients do not end by themselves
    let _ = timeout(lasts, join_all((0..at_a_time).map(comes_and_goes))).await;
    opened.into_inner()
}

/// Clients that ask for the state of the sale and for an order, again and again. Returns how many answers they got.
pub(super) async fn looks(port: u16, at_a_time: usize, lasts: Duration) -> u64 {
    let answers = AtomicU64::new(0);
    let asks = async |number| {
        let path = if number % 2 == 0 { "/stock" } else { "/orders/none" };
        let request = format!("GET {path} HTTP/1.1\r\nhost: chaos\r\n\r\n");
        let mut connection = connect(port).await?;
        loop {
            connection.write_all(request.as_bytes()).await?;
            if connection.read(&mut [0; 4096]).await? == 0 {
                return io::Result::Ok(());
            }
            answers.fetch_add(1, Ordering::Relaxed);
        }
    };
    // the clients do not end by themselves
    let _ = timeout(lasts, join_all((0..at_a_time).map(asks))).await;
    answers.into_inner()
}

/// Requests the queues of made-up items and resets each connection before the answer. Returns how many connections were reset.
pub(super) async fn aborted(port: u16, count: usize) -> u64 {
    let asks_and_leaves = async |_| {
        let connection = send(port, &format!("GET /lock?item={}", Uuid::new_v4())).await?;
        // a connection that is reset before it is read makes no request
        sleep(Duration::from_millis(20)).await;
        connection.set_zero_linger()
    };
    let aborted = stream::iter(0..count).map(asks_and_leaves).buffer_unordered(AT_A_TIME);
    aborted.fold(0, async |count, aborted| count + u64::from(aborted.is_ok())).await
}

/// Opens connections, sends nothing, and expects the instance to close all of them. Returns how many were opened.
pub(super) async fn silent(port: u16, count: usize) -> (u64, Option<String>) {
    let opened = stream::iter(0..count).map(|_| connect(port)).buffer_unordered(AT_A_TIME);
    let opened: Vec<_> = opened.collect().await;
    let opened: Vec<_> = opened.into_iter().flatten().collect();
    let count = opened.len();
    let closing = opened.into_iter().map(async |mut connection| {
        // an answer such as 408 may come before the end
        let _ = connection.read_to_end(&mut Vec::new()).await;
    });
    let closed = timeout(CLOSED_WITHIN, join_all(closing)).await;
    let failure = closed.err().map(|_| {
        format!("of {count} connections that sent nothing, some were open after {CLOSED_WITHIN:?}")
    });
    (u64::try_from(count).unwrap_or(u64::MAX), failure)
}

/// Requests the largest file again and again, reads nothing, and expects to be disconnected.
pub(super) async fn without_reading(port: u16, count: usize) -> Option<String> {
    let requests = b"GET /openapi.json HTTP/1.1\r\nhost: chaos\r\n\r\n".repeat(100);
    let reads_nothing = async |_| {
        let Ok(mut connection) = connect(port).await else { return };
        // this blocks when the instance reads no more, and fails when it has closed
        while connection.write_all(&requests).await.is_ok() {}
    };
    let cut_off = timeout(CLOSED_WITHIN, join_all((0..count).map(reads_nothing))).await;
    cut_off.err().map(|_| {
        format!("of {count} clients that read nothing, some were connected after {CLOSED_WITHIN:?}")
    })
}

/// Sends this beginning of a request and then endless bytes, and expects the instance to refuse them or to stop reading.
pub(super) async fn endless(port: u16, beginning: &str) -> Option<String> {
    let mut taken = 0;
    let sent = timeout(TIMEOUT, async {
        let mut connection = connect(port).await?;
        connection.write_all(beginning.as_bytes()).await?;
        let piece = vec![b'x'; PIECE_BYTES];
        while taken < TOO_MUCH_BYTES {
            connection.write_all(&piece).await?;
            taken += piece.len();
        }
        Ok::<_, io::Error>(())
    })
    .await;
    // any other end means: disconnected, or no longer read
    matches!(sent, Ok(Ok(()))).then(|| format!("{taken} bytes were taken after {beginning:?}"))
}
