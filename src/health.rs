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

    const GENEROUS: Duration = Duration::from_secs(30);

    async fn check_within(url: &Uri, timeout: Duration) -> Result<(), String> {
        let checked = check(&HealthOptions { url: url.clone(), timeout }).await;
        checked.map_err(|error| error.to_string())
    }

    /// Answers every connection with `answer` once a request has come, and returns the URL to ask.
    async fn serve(answer: &'static str) -> Uri {
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
        format!("http://{address}/readyz?deep=1").parse().expect("a URL")
    }

    #[tokio::test]
    async fn any_success_is_healthy() {
        let url = serve("HTTP/1.1 204 No Content\r\n\r\n").await;
        check_within(&url, GENEROUS).await.expect("204 is a success");
    }

    #[tokio::test]
    async fn another_status_is_reported() {
        let url = serve("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await;
        let error = check_within(&url, GENEROUS).await.expect_err("503 is not healthy");
        assert_eq!(error, format!("{url} answered 503 Service Unavailable"));
    }

    #[tokio::test]
    async fn an_answer_that_is_not_http_is_reported() {
        let url = serve("+PONG\r\n").await;
        let error = check_within(&url, GENEROUS).await.expect_err("that was not HTTP");
        assert!(error.starts_with(&format!("no HTTP answer from {url}: ")), "{error}");
    }

    #[tokio::test]
    async fn a_refused_connection_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        drop(listener);
        let url = format!("http://{address}/").parse().expect("a URL");
        let error = check_within(&url, GENEROUS).await.expect_err("the port is closed");
        assert!(error.starts_with(&format!("cannot connect to {address}: ")), "{error}");
    }

    #[tokio::test]
    async fn silence_is_reported_in_time() {
        // the system accepts the connection, and no answer ever comes
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("it is bound"))
            .parse()
            .expect("a URL");
        let error = check_within(&url, Duration::from_millis(50)).await.expect_err("silence");
        assert_eq!(error, format!("{url} did not answer within 50ms"));
    }

    #[tokio::test]
    async fn a_url_that_cannot_be_asked_is_refused() {
        for url in ["https://127.0.0.1/readyz", "/readyz", "127.0.0.1:8080"] {
            let url = url.parse().expect("a URI");
            let error = check_within(&url, GENEROUS).await.expect_err("not an http URL");
            assert!(error.starts_with(&format!("invalid URL {url}: ")), "{error}");
        }
    }
}
