//! Goal: instances that are stopped under load drop no request. Method: two instances are stopped and started again, one
//! after the other, while buyers order who never send a request twice.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use testkit::client::Connection;
use testkit::or_left_out;
use testkit::ports::free_ports;
use testkit::server::find_program;
use testkit::wait::eventually;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::instance::{Instance, Servers};
use super::server::{OPTIONS, Running};

const BUYERS: usize = 20;

/// Two instances of one sale.
struct Sale {
    servers: Servers,
    instances: [Instance; 2],
    variables: [(&'static str, &'static str); 3],
}

impl Sale {
    async fn start(drain_delay: &'static str, of_peers: (&'static str, &'static str)) -> Self {
        let servers = Servers::shared().await;
        let allow = ("FLASH_SALE_ALLOW_ORIGIN", "https://shop.example");
        let variables = [("FLASH_SALE_DRAIN_DELAY", drain_delay), of_peers, allow];
        let instances = [servers.start(&variables).await, servers.start(&variables).await];
        instances[0].until_ready().await;
        drop(instances[1].start_sale(1_000_000).await);
        Self { servers, instances, variables }
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        self.instances.each_ref().map(|instance| instance.address)
    }

    /// Restarts one instance after the other, while buyers order at these addresses.
    async fn restart_under_load(&mut self, doors: &[SocketAddr]) {
        let (sold, is_over) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let mut buyers = JoinSet::new();
        for _ in 0..BUYERS {
            buyers.spawn(buy(doors.to_vec(), Arc::clone(&sold), is_over.clone()));
        }
        for instance in &mut self.instances {
            let so_far = sold.load(Ordering::Relaxed);
            let goes_on = async || sold.load(Ordering::Relaxed) > so_far + 200;
            eventually("the sale goes on", goes_on).await;
            instance.stop().await;
            let listen = instance.address.to_string();
            let [drain_delay, of_peers, allow] = self.variables;
            let variables = [("FLASH_SALE_LISTEN", &*listen), drain_delay, of_peers, allow];
            *instance = self.servers.start(&variables).await;
            instance.until_ready().await;
        }
        is_over.cancel();
        // a buyer whose request failed has panicked
        while let Some(ended) = buyers.join_next().await {
            ended.unwrap();
        }
        let stock = Connection::open(self.instances[0].address).await.get("/stock").await;
        let stock: serde_json::Value = serde_json::from_str(&stock.body).unwrap();
        assert_eq!(stock["lucky"], sold.load(Ordering::Relaxed), "none was taken twice: {stock}");
    }
}

/// Orders at these addresses in turn, until the end. A connection serves until its answer says `close`. Where none
/// can be opened the buyer goes on to the next address: nothing was sent.
async fn buy(doors: Vec<SocketAddr>, sold: Arc<AtomicU64>, is_over: CancellationToken) {
    let mut connections: Vec<Option<Connection>> = doors.iter().map(|_| None).collect();
    for turn in (0..doors.len()).cycle() {
        if is_over.is_cancelled() {
            return;
        }
        let mut connection = match connections[turn].take() {
            Some(connection) => connection,
            None => match Connection::try_open(doors[turn]).await {
                Ok(connection) => connection,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
                    continue;
                }
            },
        };
        connection.send("POST /stock/reduce HTTP/1.1\r\nHost: test\r\n\r\n").await;
        let answer = connection.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        sold.fetch_add(1, Ordering::Relaxed);
        if answer.header("connection") != Some("close") {
            connections[turn] = Some(connection);
        }
    }
}

/// Starts nginx with the shipped configuration in front of these instances, if it is installed. Behind the default server of a
/// distribution it serves the shop's name alone.
async fn nginx(dir: &Path, instances: [SocketAddr; 2]) -> Option<(Child, SocketAddr)> {
    let program = find_program("FLASH_SALE_NGINX", &["nginx"]).or_else(|| {
        // Debian keeps it off a user's path
        let program = Path::new("/usr/sbin/nginx");
        program.exists().then(|| program.into())
    });
    let program = or_left_out(program, "nginx is not installed (apt-get install nginx-light)")?;
    let [port] = free_ports().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops/nginx.conf");
    let mut sale = std::fs::read_to_string(shipped).unwrap();
    for (shipped, used) in [
        ("server 10.0.0.1:8080 ", format!("server {} ", instances[0])),
        ("server 10.0.0.2:8080 ", format!("server {} ", instances[1])),
        ("listen 80;", format!("listen {address};")),
        ("keepalive_timeout 5s", "keepalive_timeout 1s".to_owned()),
        ("server_name shop.example;", "server_name test;".to_owned()),
    ] {
        assert!(sale.contains(shipped), "{shipped}");
        sale = sale.replace(shipped, &used);
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {name};\n"))
        .concat();
    let all = format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log; events {{}}\n\
         http {{ access_log off;\n{temporary}server {{ listen {address} default_server; return 418; }}\n{sale} }}"
    );
    std::fs::write(dir.join("nginx.conf"), all).unwrap();
    let child = Command::new(program)
        .args(["-e", "error.log", "-c", "nginx.conf", "-p"])
        .arg(dir)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("nginx listens", async || TcpStream::connect(address).await.is_ok()).await;
    Some((child, address))
}

/// Method: nginx closes idle connections before the instance does, after the time of `--drain-delay`. Orders go to the instance
/// that holds the lock.
#[tokio::test]
async fn a_restart_behind_nginx_fails_no_request() {
    let mut sale = Sale::start("1s", ("FLASH_SALE_PEER_LISTEN", "127.0.0.1:0")).await;
    let dir = tempfile::tempdir().unwrap();
    let Some((_nginx, address)) = nginx(dir.path(), sale.addresses()).await else { return };
    let mut outside = Connection::open(address).await;
    for path in ["/orders", "/lock", "/metrics", "/readyz", "/orders/a/confirm", "/order/confirm"] {
        assert_eq!(outside.get(path).await.status, 404, "{path}");
    }
    // a browser asks before a page of another origin may order
    let preflight = "OPTIONS /stock/reduce HTTP/1.1\r\nHost: test\r\nOrigin: https://shop.example\r\n\
                     Access-Control-Request-Method: POST\r\n\r\n";
    outside.send(preflight).await;
    let told = outside.answer().await;
    let allowed = told.header("access-control-allow-headers").unwrap_or_default();
    assert!(told.status == 200 && allowed.contains("idempotency-key"), "{told:?}");
    // it passes this path on, but no token
    let confirm =
        "POST /orders/./confirm HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer s3cret\r\n\r\n";
    outside.send(confirm).await;
    outside.answer().await.assert_problem(401, "token-required");
    every_id_passes(&mut outside, sale.addresses()[0]).await;
    sale.restart_under_load(&[address]).await;
}

/// Goal: an order of any id can be read, cancelled and confirmed: also with `/` (nginx/nginx#501), and with `.` and `..`, which
/// paths lose. nginx lets no confirmation through.
async fn every_id_passes(outside: &mut Connection, instance: SocketAddr) {
    let start =
        "PUT /stock HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer s3cret\r\nIf-Match: *\r\n";
    let body = r#"{"stock":1000000,"sale":"ids","hold_seconds":600}"#;
    let mut inside = Connection::open(instance).await;
    inside.send(format!("{start}Content-Length: {}\r\n\r\n{body}", body.len())).await;
    assert_eq!(inside.answer().await.status, 200);
    let ids = ('!'..='~').map(String::from).chain(["..", "a/../b", "+/=="].map(String::from));
    for id in ids {
        let key = serde_json::to_string(&id).unwrap();
        let order =
            format!("POST /stock/reduce HTTP/1.1\r\nHost: test\r\nIdempotency-Key: {key}\r\n\r\n");
        outside.send(order).await;
        assert_eq!(outside.answer().await.status, 200, "{id}");
        let sent = id.bytes().fold(String::new(), |sent, byte| format!("{sent}%{byte:02X}"));
        let read = outside.get(&format!("/order?order={sent}")).await;
        let entry: serde_json::Value = serde_json::from_str(&read.body).unwrap();
        assert_eq!((read.status, entry["order"].as_str()), (200, Some(&*id)), "{read:?}");
        let post = |path| {
            let token = "Authorization: Bearer s3cret";
            format!("POST {path}?order={sent} HTTP/1.1\r\nHost: test\r\n{token}\r\n\r\n")
        };
        outside.send(post("/order/confirm")).await;
        let closed = outside.answer().await;
        assert_eq!((closed.status, closed.header("x-request-id")), (404, None), "by nginx");
        outside.send(post("/order/cancel")).await;
        assert_eq!(outside.answer().await.status, 200, "{id}");
        inside.send(post("/order/confirm")).await;
        inside.answer().await.assert_problem(410, "cancelled");
    }
}

/// Goal: nginx tells the instance whom it saw, and nothing that a client claims, and passes no token on.
#[tokio::test]
async fn nginx_names_the_client() {
    let told = async |headers: HeaderMap| {
        let told = ["x-forwarded-for", "authorization"].map(|name| headers.get(name).cloned());
        format!("{told:?}")
    };
    let server = Running::start(Router::new().route("/stock", get(told)), OPTIONS);
    let dir = tempfile::tempdir().unwrap();
    let Some((_nginx, address)) = nginx(dir.path(), [server.address; 2]).await else { return };
    let mut client = Connection::open(address).await;
    let claims = "X-Forwarded-For: 203.0.113.7\r\nAuthorization: Bearer s3cret";
    client.send(format!("GET /stock HTTP/1.1\r\nHost: test\r\n{claims}\r\n\r\n")).await;
    assert_eq!(client.answer().await.body, r#"[Some("127.0.0.1"), None]"#);
}

#[tokio::test]
async fn a_restart_fails_no_request_of_a_client_that_honours_close() {
    let mut sale = Sale::start("0s", ("FLASH_SALE_TENURE", "50ms")).await;
    let doors = sale.addresses();
    sale.restart_under_load(&doors).await;
}
