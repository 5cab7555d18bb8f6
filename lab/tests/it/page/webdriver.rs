//! As much of the `WebDriver` protocol as the tests need: JSON over HTTP.

use std::net::Ipv4Addr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A command that loads a page or runs a script may take a while on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// One browser, by its driver.
#[derive(Clone, Debug)]
pub(super) struct Session {
    port: u16,
    id: String,
}

impl Session {
    /// Asks the driver at `port` for a browser with these capabilities.
    pub(super) async fn open(port: u16, capabilities: Value) -> Self {
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let session = call(port, "/session", &wanted).await.unwrap();
        Self { port, id: session["sessionId"].as_str().unwrap().to_owned() }
    }

    /// Sends one command of the session. The error is what the driver says.
    pub(super) async fn post(&self, command: &str, body: Value) -> Result<Value, String> {
        call(self.port, &self.path(command), &body).await
    }

    /// Sends a command of Chromium's own protocol, which can do more than `WebDriver`.
    pub(super) async fn devtools(&self, command: &str, params: Value) -> Value {
        let body = json!({ "cmd": command, "params": params });
        self.post("goog/cdp/execute", body).await.unwrap()
    }

    fn path(&self, command: &str) -> String {
        format!("/session/{}/{command}", self.id)
    }
}

/// A connection for each command: a test's runtime takes its connections along when it ends, and the
/// browser outlives it.
async fn call(port: u16, path: &str, body: &Value) -> Result<Value, String> {
    let body = body.to_string();
    let exchange = async {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, format!("127.0.0.1:{port}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let answer = async {
            let answer = sender.send_request(request).await.unwrap();
            answer.into_body().collect().await.unwrap().to_bytes()
        };
        // the connection makes progress only while it is polled
        tokio::join!(answer, connection).0
    };
    let answer = timeout(COMMAND_TIMEOUT, exchange).await;
    let answer = answer.unwrap_or_else(|_| panic!("the browser does not answer to {path}"));
    let mut answer: Value = serde_json::from_slice(&answer).unwrap();
    let value = answer["value"].take();
    match value["error"].as_str() {
        Some(error) => Err(format!("{error}: {}", value["message"])),
        None => Ok(value),
    }
}
