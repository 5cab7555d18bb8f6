//! Goal: the server's bounds hold, and stopping drops no request. Method: small routers on a real
//! socket, and a client that sends what well-behaved clients do not.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use flash_sale::http::server::{self, ServerOptions};
use flash_sale::http::with_defaults;
use testkit::client::Connection;
use testkit::ports::free_ports;
use testkit::wait::{DEADLINE, eventually};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(super) const OPTIONS: ServerOptions = ServerOptions {
    header_timeout: Duration::from_mins(1),
    max_connections: 100,
    shutdown_grace: Duration::from_mins(1),
};

/// A server that runs, and how to stop it.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) stop: oneshot::Sender<()>,
    pub(super) ended: JoinHandle<usize>,
}

impl Running {
    pub(super) fn start(router: Router, options: ServerOptions) -> Self {
        Self::on(server::bind("127.0.0.1:0".parse().unwrap()).unwrap(), router, options)
    }

    fn on(listener: TcpListener, router: Router, options: ServerOptions) -> Self {
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

/// Goal: a request that is too large, or that a proxy in front may understand in another way (RFC 9112, sections 3.2 and
/// 6.1), is a problem: no handler sees it, and no other request follows. Method: each on a connection of its own.
#[tokio::test]
async fn what_http_forbids_is_refused() {
    let (calls, mut called) = mpsc::channel(10);
    let echo = async move |body: String| {
        calls.send(()).await.unwrap();
        body
    };
    let server = Running::start(Router::new().route("/", post(echo)), OPTIONS);
    let request = |path: &str, headers: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\n{headers}\r\n{body}")
    };
    let with_path =
        |length: usize| request(&format!("/?{}", "x".repeat(length - 2)), "Host: a\r\n", "");
    let with_header =
        |length: usize| request("/", &format!("Host: a\r\nX: {}\r\n", "x".repeat(length)), "");
    let chunked =
        |headers: &str| request("/", &format!("Host: a\r\n{headers}\r\n"), "1\r\nx\r\n0\r\n\r\n");
    // unread data would reset the connection when the server closes it
    let mut endless = with_header(server::MAX_HEAD_BUFFER);
    endless.truncate(server::MAX_HEAD_BUFFER);
    for (bytes, status, word) in [
        (with_path(8 * 1024 + 1), 414, "uri-too-long"),
        (with_header(16 * 1024), 431, "headers-too-large"),
        // hyper answers the next three itself, without a body
        (endless, 431, "headers-too-large"),
        (request("/", &"X: x\r\n".repeat(101), ""), 431, "headers-too-large"),
        (request("/\0", "Host: a\r\n", ""), 400, "bad-request"),
        (request("/", "", ""), 400, "bad-request"),
        (request("/", "Host: a\r\nHost: b\r\n", ""), 400, "bad-request"),
        (chunked("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 400, "bad-request"),
        (chunked("Transfer-Encoding: chunked, chunked"), 400, "bad-request"),
        (chunked("Transfer-Encoding: gzip, chunked"), 400, "bad-request"),
    ] {
        let mut connection = server.connect().await;
        connection.send(&bytes).await;
        let answer = connection.answer().await;
        answer.assert_problem(status, word);
        assert_eq!(answer.header("connection"), Some("close"), "{bytes}");
        assert!(connection.is_closed().await, "{bytes}");
    }
    assert!(called.try_recv().is_err(), "no handler was called");
    for (bytes, body) in [
        (with_path(8 * 1024), ""),
        (with_header(15 * 1024), ""),
        ("POST / HTTP/1.0\r\n\r\n".to_owned(), ""),
        // the length counts for nothing
        (chunked("Content-Length: 5\r\nTransfer-Encoding: chunked"), "x"),
    ] {
        let mut connection = server.connect().await;
        connection.send(&bytes).await;
        let answer = connection.answer().await;
        assert_eq!((answer.status, answer.body.as_str()), (200, body), "{bytes}");
        assert!(body.is_empty() || connection.is_closed().await, "{bytes}");
    }
}

/// Goal: an instance that is full still answers probes, refuses the rest at once, and serves again when there is room,
/// also if silent clients take every place beyond the limit.
#[tokio::test]
async fn probes_are_answered_beyond_the_limit() {
    let options = ServerOptions { max_connections: 1, ..OPTIONS };
    let server = Running::start(hello().route("/healthz", get(async || "ok")), options);
    let mut first = server.connect().await;
    assert_eq!(first.get("/").await.status, 200);
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(server.connect().await);
    }
    let mut probe = server.connect().await;
    let answer = probe.get("/healthz").await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(probe.is_closed().await);
    let mut second = server.connect().await;
    let answer = second.get("/").await;
    answer.assert_problem(503, "too-many-connections");
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.header("retry-after").is_some());
    assert!(second.is_closed().await);
    assert_eq!(first.get("/").await.status, 200);
    drop(first);
    let is_served = async || server.connect().await.get("/").await.status == 200;
    eventually("there is room again", is_served).await;
}

/// Goal: a stopping server answers every client that is connected, and tells it to go elsewhere. Method: connections that were
/// opened while the server had no turn, an idle one, and one that had asked nothing yet; no other may be opened.
#[tokio::test]
async fn stopping_serves_who_is_connected() {
    let options = ServerOptions { max_connections: 300, ..OPTIONS };
    let server = Running::start(hello(), options);
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/").await.header("connection"), None);
    let mut unused = server.connect().await;
    let asked = |_| {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        stream
    };
    let waiting: Vec<_> = (0..200).map(asked).collect();
    server.stop.send(()).unwrap();
    for connection in [&mut idle, &mut unused] {
        let answer = connection.get("/").await;
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        assert!(connection.is_closed().await);
    }
    assert_eq!(Running::end(server.ended).await, 0);
    for mut stream in waiting {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("no reset");
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("close"), "{answer}");
    }
    let refused = Connection::try_open(server.address).await.map(|_| ());
    assert_eq!(refused.expect_err("the port is closed").kind(), ErrorKind::ConnectionRefused);
}

/// Goal: no connection is opened and then reset, whenever it comes. Method: clients that connect all the time, and many servers
/// that stop. To make a handshake take as long as over a network, a filter drops its last segment, and the request completes it.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "threads of their own")]
async fn stopping_resets_no_connection() {
    use socket2::{SockFilter, SockRef};
    let mut clients = Vec::new();
    let lose_acknowledgements = [
        SockFilter::new(0x30, 0, 0, 13),   // the flags of the TCP segment
        SockFilter::new(0x15, 0, 1, 0x10), // ACK alone
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ];
    for _ in 0..30 {
        // not any port: another test's server could get it next, and answer these clients
        let listener = std::iter::repeat_with(|| {
            let [port] = free_ports().unwrap();
            server::bind(([127, 0, 0, 1], port).into())
        });
        let listener = listener.take(9).find_map(Result::ok).unwrap();
        SockRef::from(&listener).attach_filter(&lose_acknowledgements).unwrap();
        let server = Running::on(listener, hello(), OPTIONS);
        let (address, answers) = (server.address, Arc::new(AtomicUsize::new(0)));
        for _ in 0..4 {
            let answers = Arc::clone(&answers);
            clients.push(tokio::task::spawn_blocking(move || {
                while let Ok(mut stream) = std::net::TcpStream::connect(address) {
                    let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
                    std::thread::sleep(Duration::from_millis(2));
                    stream.write_all(request).expect("no reset");
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).expect("no reset");
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        eventually("they are answered", async || answers.load(Ordering::Relaxed) > 100).await;
        server.stop.send(()).unwrap();
        assert_eq!(Running::end(server.ended).await, 0);
    }
    for client in clients {
        client.await.unwrap();
    }
}

/// Goal: a stop does not wait for a slow client: not for the rest of a head or of a body, nor until one reads its answers. But it
/// waits for a client whose order waits.
#[tokio::test]
async fn stopping_waits_for_no_slow_client() {
    let (router, mut arrivals, gate) = gated();
    let large = async || vec![b'x'; 1 << 20];
    let router = router.route("/large", get(large)).route("/", post(async |body: String| body));
    let hour = Duration::from_hours(1);
    let server = Running::start(
        router,
        ServerOptions { header_timeout: hour, shutdown_grace: hour, ..OPTIONS },
    );
    let mut buyer = server.connect().await;
    buyer.send_get("/gate").await;
    arrivals.recv().await.unwrap();
    let mut slow = Vec::new();
    for bytes in [
        "",
        "GET / HT",
        "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n1",
        &"GET /large HTTP/1.1\r\nHost: test\r\n\r\n".repeat(100),
    ] {
        let mut connection = server.connect().await;
        connection.send(bytes).await;
        slow.push(connection);
    }
    server.stop.send(()).unwrap();
    for connection in &mut slow[..3] {
        assert!(connection.is_closed().await);
    }
    gate.add_permits(1);
    assert_eq!(buyer.answer().await.status, 200);
    assert_eq!(Running::end(server.ended).await, 0);
}

/// Goal: a request that outlasts the grace period does not keep the server from stopping.
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
    let idle = Arc::new(Semaphore::new(1));
    let one = Arc::clone(&idle);
    let handler = async move || {
        let _busy = one.acquire().await.unwrap();
        std::future::pending::<()>().await;
    };
    let server = Running::start(Router::new().route("/", get(handler)), OPTIONS);
    for (stays_open, requests) in [(false, 1), (true, 1), (false, 3), (true, 3), (false, 1000)] {
        let mut connection = server.connect().await;
        connection.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n".repeat(requests)).await;
        eventually("the request arrives", async || idle.available_permits() == 0).await;
        connection.stop_sending().await;
        let _open = stays_open.then_some(connection);
        eventually("the handler ends", async || idle.available_permits() == 1).await;
    }
}

/// Goal: requests that a client sent ahead are not handled once it is gone. Method: the first is handled until then.
#[tokio::test]
async fn what_a_client_sent_ahead_ends_with_it() {
    for requests in [3, 1000] {
        let (router, mut arrivals, gate) = gated();
        let server = Running::start(router, OPTIONS);
        let mut connection = server.connect().await;
        connection.send("GET /gate HTTP/1.1\r\nHost: test\r\n\r\n".repeat(requests)).await;
        arrivals.recv().await.unwrap();
        drop(connection);
        // the system knows of the end before it opens the next connection
        assert_eq!(server.connect().await.get("/").await.status, 200);
        gate.add_permits(1);
        assert_eq!(server.connect().await.get("/").await.status, 200);
        assert!(arrivals.try_recv().is_err(), "{requests} requests");
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
    let is_served = async || Connection::open(address).await.get("/").await.status == 200;
    eventually("there is room again", is_served).await;
    let greedier = ask_ahead().await;
    stop.send(()).unwrap();
    assert_eq!(Running::end(ended).await, 0);
    drop((greedy, greedier));
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
