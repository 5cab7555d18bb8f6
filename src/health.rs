//! The `health` command, for a container's health check: the image has no `curl`.

use std::time::Duration;

use clap::Args;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::error_chain::ErrorChain;
use crate::sale::BoxError;

/// The default URL: the default instance on this machine.
const DEFAULT_URL: &str = "http://127.0.0.1:8080/readyz";

/// The flags of `health`.
#[derive(Args, Clone, Debug)]
pub struct HealthOptions {
    /// URL to request: healthy if it answers 2xx
    #[arg(env = "FLASH_SALE_HEALTH_URL", default_value = DEFAULT_URL)]
    pub url: Uri,

    // Longer than a busy instance needs, shorter than the usual five seconds of a container engine, which gives
    // no reason.
    /// Time limit of the check
    #[arg(long, env = "FLASH_SALE_HEALTH_TIMEOUT", value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// Sends one `GET`; any 2xx status is healthy. The time limit covers everything from the DNS look-up to the head
/// of the answer. The body is not read.
///
/// # Errors
///
/// A sentence that says which step failed.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub async fn check(HealthOptions { url, timeout }: &HealthOptions) -> Result<(), BoxError> {
    let limit = humantime::format_duration(*timeout);
    let asked = tokio::time::timeout(*timeout, ask(url)).await;
    let status = asked.map_err(|_| format!("{url} did not answer within {limit}"))??;
    if !status.is_success() {
        return Err(format!("{url} answered {status}").into());
    }
    Ok(())
}

async fn ask(url: &Uri) -> Result<StatusCode, String> {
    let authority = url.authority().filter(|_| url.scheme_str() == Some("http"));
    let invalid = || format!("invalid URL {url}: it must look like {DEFAULT_URL} (http only)");
    let authority = authority.ok_or_else(invalid)?;
    let request = Request::get(url.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, authority.as_str())
        .header(USER_AGENT, concat!("flash-sale-health/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|_| invalid())?;
    // an IPv6 address has brackets in a URL and none in a socket address
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| format!("cannot connect to {}:{port}: {error}", authority.host()))?;

    let exchange = async {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // the connection is driven by a task, which ends with this check
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        Ok(sender.send_request(request).await?.status())
    };
    let answered: hyper::Result<StatusCode> = exchange.await;
    answered.map_err(|error| format!("no HTTP answer from {url}: {}", ErrorChain(&error)))
}

#[cfg(test)]
mod tests {
    //! Goal: each way to be unhealthy has its error. Method: a listener on a free port that answers with given
    //! bytes.

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers every connection with `answer` once a request has come, and returns the URL to ask.
    async fn serve(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _peer)) = listener.accept().await {
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.expect("a request");
                let head = String::from_utf8_lossy(&request[..length]);
                assert!(head.starts_with("GET /readyz?deep=1 HTTP/1.1\r\n"), "{head}");
                assert!(head.contains(&format!("host: {address}\r\n")), "{head}");
                stream.write_all(answer.as_bytes()).await.expect("the asker is still there");
            }
        });
        format!("http://{address}/readyz?deep=1")
    }

    #[tokio::test]
    async fn only_a_success_is_healthy() {
        let listen = async || TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = |of: &TcpListener| format!("http://{}/", of.local_addr().expect("it is bound"));
        let closed = url(&listen().await);
        // the system accepts the connection, and no answer ever comes
        let silent = listen().await;
        let unavailable = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        let generous = Duration::from_secs(30);
        for (url, timeout, told) in [
            (serve("HTTP/1.1 204 No Content\r\n\r\n").await, generous, None),
            (serve(unavailable).await, generous, Some("answered 503 Service Unavailable")),
            (serve("+PONG\r\n").await, generous, Some("no HTTP answer from http://127.0.0.1:")),
            (closed, generous, Some("cannot connect to 127.0.0.1:")),
            (url(&silent), Duration::from_millis(50), Some("/ did not answer within 50ms")),
            ("https://127.0.0.1/readyz".to_owned(), generous, Some("invalid URL https:")),
            ("/readyz".to_owned(), generous, Some("invalid URL /readyz: ")),
            ("127.0.0.1:8080".to_owned(), generous, Some("invalid URL 127.0.0.1:8080: ")),
        ] {
            let options = HealthOptions { url: url.parse().expect("a URI"), timeout };
            match (check(&options).await, told) {
                (Ok(()), None) => {}
                (Err(error), Some(told)) if error.to_string().contains(told) => {}
                (checked, _) => panic!("{url}: {checked:?}"),
            }
        }
    }
}
