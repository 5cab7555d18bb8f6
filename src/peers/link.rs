//! The link of the service: HTTP/2 over one connection to each peer.
//!
//! It uses hyper's connection without a client around it, so that nothing sends a request again, and an answer belongs to its
//! request. Dropping a request resets its stream, which tells the peer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{Request, StatusCode, header};
use futures_util::StreamExt as _;
use http_body_util::{BodyDataStream, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::tls::Io;
use super::{Credentials, Link, LinkError, MAX_BYTES, MAX_PEERS, MAX_STREAMS, Pieces, Text};
use crate::error_chain::ErrorChain;
use crate::process::spawn;
use crate::sale::BoxError;
use crate::throttle::Throttle;

pub(super) const PATH: &str = "/v1/batches";

/// How long it may take to connect, and to get a place among the batches that are on their way.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a connection may stay silent while a request is under way.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Connections to peers, each opened when it is first used.
pub struct HttpLink {
    credentials: Credentials,
    connections: Mutex<HashMap<Box<str>, Arc<Opened>>>,
}

/// A connection, if one was opened. The lock is held while another one is opened.
type Opened = tokio::sync::Mutex<Option<Connection>>;

#[derive(Clone)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// One permit for each batch on its way.
    places: Arc<Semaphore>,
}

impl HttpLink {
    /// A link that shows these credentials at each door.
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, connections: Mutex::default() }
    }

    /// A connection that this process believes to be open, and a place among the batches on it.
    async fn place(&self, address: &str) -> Result<(Connection, OwnedSemaphorePermit), BoxError> {
        let connection = self.connection(address).await?;
        let place = Arc::clone(&connection.places).acquire_owned().await?;
        Ok((connection, place))
    }

    async fn connection(&self, address: &str) -> Result<Connection, BoxError> {
        let place = {
            let mut connections = self.connections.lock();
            if connections.len() >= MAX_PEERS && !connections.contains_key(address) {
                connections.clear();
            }
            Arc::clone(connections.entry(address.into()).or_default())
        };
        let mut place = place.lock().await;
        if let Some(open) = place.as_ref().filter(|open| !open.sender.is_closed()) {
            return Ok(open.clone());
        }
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Io> = match &self.credentials.tls {
            Some(tls) => tls.connect(address, stream).await?,
            None => Box::new(stream),
        };
        let window = u32::try_from(MAX_BYTES).unwrap_or(u32::MAX);
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .handshake(TokioIo::new(stream));
        let (sender, task) = handshake.await?;
        let peer = address.to_owned();
        spawn(async move {
            if let Err(error) = task.await {
                tracing::debug!(peer, error = %ErrorChain(&error), "a connection to a peer ended");
            }
        });
        let connection = Connection { sender, places: Arc::new(Semaphore::new(MAX_STREAMS)) };
        *place = Some(connection.clone());
        Ok(connection)
    }
}

#[async_trait]
impl Link for HttpLink {
    async fn send(&self, address: &str, frame: Text<'_>) -> Result<Pieces, LinkError> {
        static REFUSED: Throttle = Throttle::new(Duration::from_mins(1));
        let not_sent = |error: BoxError| LinkError::NotSent(error);
        let mut request = Request::post(format!("http://{address}{PATH}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.credentials.token {
            let token = token.read().map_err(|error| not_sent(error.into()))?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let place = timeout(CONNECT, self.place(address)).await;
        let (mut connection, place) = place.map_err(BoxError::from).flatten().map_err(not_sent)?;
        let request = request.body(Full::from(frame())).map_err(|error| not_sent(error.into()))?;
        let answer = connection.sender.try_send_request(request).await.map_err(|mut failed| {
            // hyper gives the request back if it has written no byte of it
            let is_unsent = failed.take_message().is_some();
            let error = failed.into_error().into();
            if is_unsent { LinkError::NotSent(error) } else { LinkError::NoAnswer(error) }
        })?;
        let status = answer.status();
        if status == StatusCode::OK {
            let pieces = BodyDataStream::new(answer.into_body()).map(move |piece| {
                let _until_its_end = &place;
                piece.map_err(BoxError::from)
            });
            return Ok(pieces.boxed());
        }
        if status == StatusCode::UNAUTHORIZED
            && let Some(suppressed) = REFUSED.pass()
        {
            tracing::error!(
                suppressed,
                "the peer at {address} refuses the token of this instance: orders wait for the lock instead. Give all \
                 instances the same --peer-token-file"
            );
        }
        let error = format!("the peer answered {status}").into();
        // a door refuses before it looks at the frame; another server may have passed the frame on
        Err(if status.is_client_error() { not_sent(error) } else { LinkError::NoAnswer(error) })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::http::Response;
    use fenced_lock::{ClusterId, Token};
    use futures_util::future::join_all;
    use hyper::service::service_fn;
    use testkit::Proxy;
    use tokio::net::{TcpListener, TcpSocket};

    use super::super::wire::{Tenure, Watermark};
    use super::super::{Outgoing, Peers, SILENT_RESTS, SendError};
    use super::*;
    use crate::inventory::Item;

    /// A door that answers with this status, over any number of connections.
    async fn answering(status: StatusCode) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = service_fn(move |_| async move {
                    Response::builder().status(status).body(Full::<Bytes>::default())
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
            }
        });
        port
    }

    /// Goal: a batch that the door refuses was not sent. After any other bad answer, it may have been passed on. A connection
    /// that has fallen silent is not used again.
    #[tokio::test]
    async fn what_an_answer_tells() {
        let link = HttpLink::new(Credentials::default());
        for (status, told) in [(200, "answered"), (413, "not sent"), (502, "no answer")] {
            let port = answering(StatusCode::from_u16(status).expect("a status")).await;
            let sent = link.send(&format!("127.0.0.1:{port}"), Box::new(Vec::new)).await;
            let is = match sent {
                Ok(_) => "answered",
                Err(LinkError::NotSent(_)) => "not sent",
                Err(LinkError::NoAnswer(_)) => "no answer",
            };
            assert_eq!(is, told, "{status}");
        }
        let proxy = Proxy::to(answering(StatusCode::OK).await).await.expect("a port");
        let address = format!("127.0.0.1:{}", proxy.port());
        let send = || link.send(&address, Box::new(Vec::new));
        assert!(send().await.is_ok());
        proxy.silence();
        tokio::time::pause();
        let silent = timeout(Duration::from_mins(1), send()).await.expect("it notices");
        assert!(matches!(silent, Err(LinkError::NoAnswer(_))));
        tokio::time::resume();
        assert!(send().await.is_ok());
    }

    /// Goal: a batch that waits for a connection is not sent, however many wait and however the wait ends, and the address rests
    /// once. Method: a port whose system accepts no further connection.
    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_connection_is_not_sent() {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let listener = socket.listen(1).expect("a listener");
        let address = listener.local_addr().expect("its address");
        let filling = (0..9).map(|_| timeout(CONNECT, TcpStream::connect(address)));
        let _full = join_all(filling).await;
        let address = address.to_string();
        let peers = Peers::new("sender:1", Arc::new(HttpLink::new(Credentials::default())));
        let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 5) };
        for over in [None, Some(CONNECT / 2)] {
            let sends = (0..4).map(|_| {
                let batch = Outgoing {
                    address: &address,
                    tenure: &tenure,
                    item: &Item::DEFAULT,
                    instance: "8080",
                    watermark: Watermark::default(),
                    orders: Vec::new(),
                    patience: Duration::from_secs(5),
                };
                peers.send(batch, async {
                    match over {
                        Some(over) => tokio::time::sleep(over).await,
                        None => pending().await,
                    }
                })
            });
            for sent in join_all(sends).await {
                let is_unsent = matches!(sent, Err(SendError::Link(LinkError::NotSent(_))));
                assert!(is_unsent, "{over:?}: {sent:?}");
            }
        }
        let rests = peers.rests_until(&address).map(|until| until - tokio::time::Instant::now());
        assert!(rests.is_none_or(|rests| rests < SILENT_RESTS.0), "{rests:?}");
    }
}
