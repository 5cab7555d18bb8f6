//! Requests to servers on this machine.

use std::io;
use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest answer of a Redis that is read, in bytes.
const ANSWER_LIMIT: u64 = 256 * 1024;

/// One connection for each request: pooled ones would end with the runtime of a test.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let client = Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(TIMEOUT).build();
    client.expect("without TLS there is nothing to set up that can fail")
});

/// Sends one HTTP request to `127.0.0.1:port` and returns the status and the body.
///
/// # Errors
/// When there is no whole answer within 2 s.
pub async fn http(
    method: Method,
    port: u16,
    path: &str,
    body: impl Into<reqwest::Body>,
) -> io::Result<(StatusCode, String)> {
    let request = CLIENT.request(method, format!("http://127.0.0.1:{port}{path}"));
    let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
    let answer = async {
        let answer = request.send().await?;
        Ok((answer.status(), answer.text().await?))
    };
    answer.await.map_err(|error: reqwest::Error| io::Error::other(error))
}

/// Sends one of its four-letter words to the ZooKeeper at `127.0.0.1:port` and returns its answer.
///
/// # Errors
/// When there is no answer within 2 s, or one of more than 256 KiB.
pub async fn zookeeper(port: u16, word: &str) -> io::Result<String> {
    let answer = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_LIMIT).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    timeout(TIMEOUT, answer).await?
}

/// Sends one inline command to the Redis at `127.0.0.1:port` and returns its answer.
///
/// # Errors
/// When there is no answer within 2 s, or one of more than 256 KiB.
pub async fn redis(port: u16, command: &str) -> io::Result<String> {
    let answer = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        // QUIT makes it close the connection after the answer
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_LIMIT).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    timeout(TIMEOUT, answer).await?
}
