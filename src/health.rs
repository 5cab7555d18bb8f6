//! The `health` command, for the health check of a container, whose image has no `curl`.

use std::time::Duration;

use clap::Args;
use http_body_util::Empty;
use hyper::Uri;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::error_chain::ErrorChain;
use crate::sale::BoxError;

/// The flags of `health`.
#[derive(Args, Clone, Debug)]
pub struct HealthOptions {
    /// URL to request: healthy if it answers 2xx
    #[arg(env = "FLASH_SALE_HEALTH_URL", default_value = "http://127.0.0.1:8080/readyz")]
    pub url: Uri,

    // Longer than a busy instance needs, shorter than the usual five seconds of a container engine, which gives no reason.
    /// Time limit of the check
    #[arg(long, env = "FLASH_SALE_HEALTH_TIMEOUT", value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// Sends one `GET`; any 2xx status is healthy. The time limit covers everything from the DNS look-up to the head of the answer.
/// The body is not read.
///
/// # Errors
///
/// A sentence that says which step failed.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub async fn check(options: &HealthOptions) -> Result<(), BoxError> {
    let (url, limit) = (&options.url, humantime::format_duration(options.timeout));
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answered = timeout(options.timeout, client.get(url.clone())).await;
    let answered = answered.map_err(|_| format!("{url} did not answer within {limit}"))?;
    let failed = |error| format!("no HTTP answer from {url}: {}", ErrorChain(&error));
    let status = answered.map_err(failed)?.status();
    if !status.is_success() {
        return Err(format!("{url} answered {status}").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Goal: each way to be unhealthy has its error. Method: a listener on a free port that answers with given bytes.

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers every request with `answer`, and returns the URL to ask.
    async fn serve(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _peer)) = listener.accept().await {
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.expect("a request");
                assert!(request[..length].starts_with(b"GET /readyz?deep=1 HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).await.expect("the asker is still there");
            }
        });
        format!("http://{address}/readyz?deep=1")
    }

    #[tokio::test]
    async fn only_a_success_is_healthy() {
        let listen = async || TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = |of: &TcpListener| format!("http://{}/", of.local_addr().expect("it is bound"));
        // the system accepts the connection, but nobody answers
        let silent = listen().await;
        let unavailable = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        let generous = Duration::from_secs(30);
        for (url, timeout, told) in [
            (serve("HTTP/1.1 204 No Content\r\n\r\n").await, generous, None),
            (serve(unavailable).await, generous, Some("answered 503 Service Unavailable")),
            (serve("+PONG\r\n").await, generous, Some("no HTTP answer from http://127.0.0.1:")),
            (url(&silent), Duration::from_millis(50), Some("/ did not answer within 50ms")),
            ("https://127.0.0.1".to_owned(), generous, Some("invalid URL, scheme is not http")),
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
