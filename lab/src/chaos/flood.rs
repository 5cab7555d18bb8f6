//! Clients that mean no good.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// By then a silent connection must have been closed, on a machine with much to do: the instances are
/// told to wait 2 s for a head.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// How long one of the others may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How many connections are opened at a time.
const AT_A_TIME: usize = 200;

const HEADER_BYTES: usize = 1 << 20;
const BODY_BYTES: usize = 1 << 30;
const PIECE_BYTES: usize = 1 << 16;

/// More than the system itself takes on the way, and far less than a body.
const TOO_MUCH_BYTES: usize = 64 << 20;

/// What became of silent connections.
#[derive(Debug)]
pub(super) struct Silent {
    pub(super) opened: u64,
    pub(super) harm: Option<String>,
}

/// Sends one order each, and waits for no answer. They leave when they are dropped.
pub(super) async fn buyers(port: u16, count: usize) -> io::Result<Vec<TcpStream>> {
    let mut buyers = Vec::new();
    for _ in 0..count {
        let mut buyer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let order = "POST /stock/reduce HTTP/1.1\r\nhost: buyer\r\ncontent-length: 0\r\n\r\n";
        buyer.write_all(order.as_bytes()).await?;
        buyers.push(buyer);
    }
    Ok(buyers)
}

/// Opens connections, sends nothing, and expects all of them to be closed.
pub(super) async fn silent(port: u16, count: usize) -> Silent {
    let connect = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let opened: Vec<_> = stream::iter(0..count)
        .map(connect)
        .buffer_unordered(AT_A_TIME)
        .filter_map(|opened| std::future::ready(opened.ok()))
        .collect()
        .await;
    let count = opened.len();
    let closing = opened.into_iter().map(|mut connection| async move {
        // an answer such as 408 may come before the end
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer).await;
    });
    let closed = timeout(CLOSED_WITHIN, futures_util::future::join_all(closing)).await;
    let harm = closed.err().map(|_| {
        format!("of {count} connections that sent nothing, some were open after {CLOSED_WITHIN:?}")
    });
    Silent { opened: u64::try_from(count).unwrap_or(u64::MAX), harm }
}

/// Asks for a large file again and again, reads no answer, and expects to be cut off.
pub(super) async fn deaf(port: u16, count: usize) -> Option<String> {
    let requests = b"GET /static/style/panels.css HTTP/1.1\r\nhost: flood\r\n\r\n".repeat(100);
    let reads_nothing = async |_| {
        let Ok(mut connection) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else {
            return;
        };
        // stands still once the instance reads no more, and fails once it has closed
        while connection.write_all(&requests).await.is_ok() {}
    };
    let cut_off = (0..count).map(reads_nothing);
    let cut_off = timeout(CLOSED_WITHIN, futures_util::future::join_all(cut_off)).await;
    cut_off.err().map(|_| {
        format!("of {count} clients that read nothing, some were connected after {CLOSED_WITHIN:?}")
    })
}

/// Sends a head of 1 MB, and expects it to be refused.
pub(super) async fn headers(port: u16) -> Option<String> {
    let mut head = b"GET /stock HTTP/1.1\r\nhost: flood\r\nx-large: ".to_vec();
    head.resize(head.len() + HEADER_BYTES, b'x');
    head.extend(b"\r\n\r\n");
    let answer = timeout(TIMEOUT, async {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        // it may be refused before it is whole
        let _ = connection.write_all(&head).await;
        let mut answer = [0; 12];
        connection.read_exact(&mut answer).await?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
    })
    .await;
    match answer {
        Err(_) => Some("a head of 1 MB was neither answered nor refused".to_owned()),
        Ok(Ok(answer)) if !answer.ends_with(" 431") && !answer.ends_with(" 400") => {
            Some(format!("a head of 1 MB was answered: {answer}"))
        }
        // refused, or cut off
        Ok(_) => None,
    }
}

/// Sends a body of 1 GB, and expects it to be refused long before its end.
pub(super) async fn body(port: u16) -> Option<String> {
    let mut taken = 0;
    let sent = timeout(TIMEOUT, async {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let head = format!(
            "PUT /stock?item=flood HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             content-length: {BODY_BYTES}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await?;
        let piece = vec![b' '; PIECE_BYTES];
        while taken < TOO_MUCH_BYTES {
            connection.write_all(&piece).await?;
            taken += piece.len();
        }
        Ok::<_, io::Error>(())
    })
    .await;
    match sent {
        Ok(Ok(())) => Some(format!("{taken} bytes of a body of 1 GB were taken")),
        // cut off, or no longer read
        Ok(Err(_)) | Err(_) => None,
    }
}
