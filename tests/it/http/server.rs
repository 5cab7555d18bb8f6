//! Goal: the server's bounds hold, and stopping drops no request. Method: small routers on a real
//! socket, and a client that sends what well-behaved clients do not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use flash_sale::http::server::{self, ServerOptions};
use flash_sale::http::with_defaults;
use testkit::client::Connection;
use testkit::wait::DEADLINE;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(super) const OPTIONS: ServerOptions = ServerOptions {
    header_timeout: Duration::from_mins(1),
    max_connections: 100,
    shutdown_grace: Duration::from_mins(1),
};

/// A server that runs, and how to stop it.
pub(super) struct Running {
    address: SocketAddr,
    pub(super) stop: oneshot::Sender<()>,
    pub(super) ended: JoinHandle<usize>,
}

impl Running {
    pub(super) fn start(router: Router, options: ServerOptions) -> Self {
        let listener = server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async move {
            // a sender that was dropped ends the server with the test
            let _ = stopped.await;
        };
        let ended = tokio::spawn(server::serve(listener, with_defaults(router), options, stopped));
        Self { address, stop, ended }
    }

    pub(super) async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    /// Waits until the server ends, having been stopped, and returns how many connections it cut off.
    pub(super) async fn end(ended: JoinHandle<usize>) -> usize {
        timeout(DEADLINE, ended).await.expect("it ends in time").unwrap()
    }
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// A route that reports each request, and answers when it gets a permit.
fn gated() -> (Router, mpsc::Receiver<()>, Arc<Semaphore>) {
    let (arrived, arrivals) = mpsc::channel(10);
    let gate = Arc::new(Semaphore::new(0));
    let passage = Arc::clone(&gate);
    let handler = async move || {
        arrived.send(()).await.unwrap();
        passage.acquire().await.unwrap().forget();
        "passed"
    };
    (hello().route("/gate", get(handler)), arrivals, gate)
}

/// Goal: a client that sends its head byte by byte, or nothing at all, does not keep a connection.
#[tokio::test]
async fn a_slow_head_is_cut_off_at_the_timeout() {
    let options = ServerOptions { header_timeout: Duration::from_millis(100), ..OPTIONS };
    let server = Running::start(hello(), options);
    let mut slow = server.connect().await;
    slow.send("GET / HTTP/1.1\r\nHost: te").await;
    let mut silent = server.connect().await;
    assert!(slow.is_closed().await);
    assert!(silent.is_closed().await);
    assert_eq!(server.connect().await.get("/").await.status, 200);
}

/// Goal: a head that is too large is a problem, and no handler sees the request; hyper's limit bounds the memory for one
/// without end.
#[tokio::test]
async fn a_head_beyond_the_limits_is_a_problem() {
    let (calls, mut called) = mpsc::channel(10);
    let router = Router::new().route("/", get(async move || calls.send(()).await.unwrap()));
    let server = Running::start(router, OPTIONS);
    let with_header = |length: usize| {
        format!("GET / HTTP/1.1\r\nHost: test\r\nX-Padding: {}\r\n\r\n", "x".repeat(length))
    };
    let mut connection = server.connect().await;
    connection.send(with_header(15 * 1024)).await;
    assert_eq!(connection.answer().await.status, 200);
    called.recv().await.unwrap();
    connection.send(with_header(16 * 1024)).await;
    let answer = connection.answer().await;
    answer.assert_problem(431, "headers-too-large");
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(connection.is_closed().await);
    let mut connection = server.connect().await;
    assert_eq!(connection.get(&format!("/?{}", "x".repeat(8 * 1024 - 2))).await.status, 200);
    called.recv().await.unwrap();
    let answer = connection.get(&format!("/?{}", "x".repeat(8 * 1024 - 1))).await;
    answer.assert_problem(414, "uri-too-long");
    let mut connection = server.connect().await;
    // not a byte more: unread data would reset the connection when the server closes it
    let mut head = b"GET / HTTP/1.1\r\nX: ".to_vec();
    head.resize(server::MAX_HEAD_BUFFER, b'x');
    connection.send(head).await;
    assert_eq!(connection.answer().await.status, 431);
    assert!(connection.is_closed().await);
    assert!(called.try_recv().is_err(), "no handler was called");
}

/// Goal: with room for one connection, the second waits, and is served when the first ends.
#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let options = ServerOptions { max_connections: 1, ..OPTIONS };
    let server = Running::start(hello(), options);
    let mut first = server.connect().await;
    assert_eq!(first.get("/").await.status, 200);
    let mut second = server.connect().await;
    second.send_get("/").await;
    assert!(second.is_silent().await);
    assert_eq!(first.get("/").await.status, 200);
    drop(first);
    assert_eq!(second.answer().await.status, 200);
}

/// Goal: a request that outlasts the grace period does not keep the server.
#[tokio::test]
async fn stopping_cuts_off_what_takes_too_long() {
    let (router, mut arrivals, _gate) = gated();
    let options = ServerOptions { shutdown_grace: Duration::from_millis(50), ..OPTIONS };
    let Running { address, stop, ended } = Running::start(router, options);
    let mut busy = Connection::open(address).await;
    busy.send_get("/gate").await;
    arrivals.recv().await.unwrap();
    stop.send(()).unwrap();
    assert_eq!(Running::end(ended).await, 1);
    assert!(busy.is_closed().await);
}

/// Goal: a client that disconnects, or sends no more, is gone: its request ends while it waits, so that the order
/// leaves the queue.
#[tokio::test]
async fn a_client_that_goes_away_ends_its_request() {
    struct NotifyOnDrop(Arc<Notify>);
    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let (arrived, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (arrival, end) = (Arc::clone(&arrived), Arc::clone(&ended));
    let handler = async move || {
        let _end = NotifyOnDrop(end);
        arrival.notify_one();
        std::future::pending::<()>().await;
    };
    let server = Running::start(Router::new().route("/", get(handler)), OPTIONS);
    for stays_open in [false, true] {
        let mut connection = server.connect().await;
        connection.send_get("/").await;
        timeout(DEADLINE, arrived.notified()).await.expect("the request arrives");
        connection.stop_sending().await;
        let _open = stays_open.then_some(connection);
        timeout(DEADLINE, ended.notified()).await.expect("the handler ends");
    }
}

/// Goal: a client that does not read its answer blocks neither other connections nor a stop. Method: room for one
/// connection, which asks ahead for far more than the system keeps for it.
#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off() {
    let options = ServerOptions {
        header_timeout: Duration::from_millis(200),
        max_connections: 1,
        shutdown_grace: Duration::from_hours(1),
    };
    let large = async || vec![b'x'; 1 << 20];
    let Running { address, stop, ended } =
        Running::start(hello().route("/large", get(large)), options);
    let ask_ahead = async || {
        let mut greedy = Connection::open(address).await;
        greedy.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n".repeat(100)).await;
        greedy
    };
    let greedy = ask_ahead().await;
    assert_eq!(Connection::open(address).await.get("/").await.status, 200);
    let greedier = ask_ahead().await;
    stop.send(()).unwrap();
    assert_eq!(Running::end(ended).await, 0);
    drop((greedy, greedier));
}

/// Goal: a proxy in front cannot be made to see other requests in the same bytes (RFC 9112, sections 3.2
/// and 6.1).
#[tokio::test]
async fn what_http_forbids_is_refused() {
    let server = Running::start(hello().route("/", post(async |body: String| body)), OPTIONS);
    let chunked = "1\r\nx\r\n0\r\n\r\n";
    for (headers, body) in [
        ("", ""),
        ("Host: a\r\nHost: b\r\n", ""),
        ("Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked),
        ("Host: a\r\nTransfer-Encoding: chunked, chunked\r\n", chunked),
        ("Host: a\r\nTransfer-Encoding: gzip, chunked\r\n", chunked),
    ] {
        let mut connection = server.connect().await;
        connection.send(format!("POST / HTTP/1.1\r\n{headers}\r\n{body}")).await;
        connection.answer().await.assert_problem(400, "bad-request");
        assert!(connection.is_closed().await, "{headers}");
    }
    let mut old = server.connect().await;
    old.send("GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.answer().await.status, 200);
    // a length beside the chunks counts for nothing, and no request follows
    let mut both = server.connect().await;
    let headers = "Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked";
    both.send(format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n{chunked}")).await;
    let answer = both.answer().await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "x"));
    assert!(both.is_closed().await);
}

/// Goal: a panic costs one request, not the connection, and the client does not see its message.
#[tokio::test]
async fn a_connection_survives_a_panic() {
    async fn fault() {
        panic!("redis://:pw@10.0.0.1")
    }
    let server = Running::start(hello().route("/fault", get(fault)), OPTIONS);
    let mut connection = server.connect().await;
    let answer = connection.get("/fault").await;
    answer.assert_problem(500, "internal");
    assert!(!answer.body.contains("pw"), "{answer:?}");
    assert_eq!(connection.get("/").await.status, 200);
}
