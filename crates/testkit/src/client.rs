//! An HTTP client that sends exactly the given bytes.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::wait::DEADLINE;

/// One connection.
pub struct Connection(BufReader<TcpStream>);

/// One answer.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The whole body.
    pub body: String,
}

impl Connection {
    /// Connects to a server.
    pub async fn open(address: SocketAddr) -> Self {
        Self::try_open(address).await.unwrap()
    }

    /// A connection on this stream.
    pub fn over(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// The server did not take the connection.
    pub async fn try_open(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self::over(TcpStream::connect(address).await?))
    }

    /// Sends these bytes and nothing more.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a `GET` without further headers.
    pub async fn send_get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
    }

    /// Sends a `GET` and reads the answer.
    pub async fn get(&mut self, path: &str) -> Answer {
        self.send_get(path).await;
        self.answer().await
    }

    /// Reads one answer with a `Content-Length`.
    pub async fn answer(&mut self) -> Answer {
        timeout(DEADLINE, self.try_answer()).await.expect("an answer in time").expect("an answer")
    }

    /// Sends nothing more. The connection can still read.
    pub async fn stop_sending(&mut self) {
        self.0.get_mut().shutdown().await.unwrap();
    }

    /// Whether the server closes the connection without another byte.
    pub async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        // a reset is an end too
        matches!(timeout(DEADLINE, self.0.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
    }

    /// Whether nothing arrives for a while.
    pub async fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        timeout(Duration::from_millis(50), self.0.read(&mut byte)).await.is_err()
    }

    async fn try_answer(&mut self) -> std::io::Result<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut answer = Answer { status, headers, body: String::new() };
        let length = answer.header("content-length").map_or(0, |text| text.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        answer.body = String::from_utf8(body).unwrap();
        Ok(answer)
    }
}

impl Answer {
    /// The value of the first header with this name; `name` is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Checks that this is the problem of type `word`.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, word: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(body["type"], word, "{body}");
        assert_eq!(body["status"], status, "{body}");
        assert_eq!(body["request_id"].as_str(), self.header("x-request-id"), "{body}");
    }
}
