//! Goal: `lab watch` shows the sale of the instance, through outages, and restores the terminal. Method: the real program, to a pipe and on a pseudo-terminal, beside a real instance.

mod terminal;

use std::process::{ExitStatus, Stdio};

use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::ports::reserve;
use testkit::probe;
use testkit::shared::fresh_database;
use testkit::shared::{fresh_lock_name, shared_endpoint};
use testkit::wait::{eventually, within};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::etcd::session;

/// An instance that can be started again at the same address, and what it sells from.
struct Shop {
    child: Option<Child>,
    port: u16,
    etcd: String,
    redis: String,
    lock_name: String,
}

impl Shop {
    async fn selling(stock: &'static str) -> Self {
        let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
        let lock_name = fresh_lock_name();
        let mut shop = Self { child: None, port: reserve(&[0]), etcd, redis, lock_name };
        shop.start().await;
        assert_eq!(shop.ask(Method::PUT, "/stock", stock).await["balanced"], true);
        shop
    }

    async fn start(&mut self) {
        let mut command = program("serve");
        command.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        command.args(["--etcd", &self.etcd, "--redis", &self.redis, "--lock-ttl", "5s"]);
        command.args(["--lock-name", &self.lock_name]).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        eventually("the instance is ready", async || {
            let answer = probe::http(Method::GET, self.port, "/readyz", "").await;
            answer.is_ok_and(|(status, _)| status == 200)
        })
        .await;
    }

    async fn kill(&mut self) {
        self.child.take().expect("it runs").kill().await.unwrap();
    }

    async fn ask(&self, method: Method, path: &str, body: &'static str) -> Value {
        let (status, body) = probe::http(method, self.port, path, body).await.unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The stock of the instance, in the words of `lab watch`.
    async fn stock_in_words(&self) -> String {
        let stock = self.ask(Method::GET, "/stock", "").await;
        let [left, lucky, initial] =
            ["stock", "lucky", "initial"].map(|name| stock[name].as_i64().unwrap());
        format!("stock {left} + lucky {lucky} = initial {initial};")
    }

    fn url(&self) -> String {
        url(self.port)
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// A command of the program, without settings from the environment. It ends with the test.
fn program(command: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_lab"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLASH_SALE_") {
            program.env_remove(name);
        }
    }
    program.arg(command).kill_on_drop(true);
    program
}

/// The program watching, to a pipe.
struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
}

impl Watch {
    fn start(args: &[&str]) -> Self {
        let mut command = program("watch");
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, said: Vec::new() }
    }

    /// Reads on until a line contains all of these, and gives that line.
    async fn until(&mut self, words: &[&str]) -> String {
        let reading = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.said.push(line);
                let line = self.said.last().expect("one was added");
                if words.iter().all(|words| line.contains(words)) {
                    return line.clone();
                }
            }
            panic!("it ended without saying {words:?}: {:#?}", self.said);
        };
        within(&format!("{words:?}"), reading).await
    }

    async fn signalled(&mut self, signal: Signal) -> ExitStatus {
        kill_process(pid(&self.child), signal).unwrap();
        within("it ends", self.child.wait()).await.unwrap()
    }

    /// Its exit code, and all that it said on its standard error.
    async fn failed(mut self) -> (Option<i32>, String) {
        let mut stderr = self.child.stderr.take().unwrap();
        let mut error = String::new();
        within("it ends", stderr.read_to_string(&mut error)).await.unwrap();
        (self.child.wait().await.unwrap().code(), error)
    }
}

/// Waits for a caller, and until it has asked.
async fn asked(listener: &TcpListener) -> TcpStream {
    let (mut caller, _) = within("it calls", listener.accept()).await.unwrap();
    let mut request = [0; 1024];
    assert!(within("it asks", caller.read(&mut request)).await.unwrap() > 0);
    caller
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().expect("it runs").try_into().unwrap()).unwrap()
}

/// Goal: a pipe gets lines with the stock, the holder, the queue and the rate, which are those that the
/// instance tells elsewhere; and Ctrl-C is the normal end.
#[tokio::test]
async fn a_pipe_gets_a_line_for_each_change() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    shop.ask(Method::POST, "/stock/reduce?quantity=2", "").await;
    let mut watch = Watch::start(&[&shop.url()]);
    let first = watch.until(&["stock"]).await;
    assert!(first.contains(&shop.stock_in_words().await), "{first}");
    assert!(first.contains("stock 3 + lucky 2 = initial 5; lock "), "{first}");

    let session = session(&shop.etcd, "somebody").await;
    let guard = session.mutex(&shop.lock_name).unwrap().lock().await.unwrap();
    let token = guard.token().revision();
    watch.until(&[&format!("lock somebody holds it, token {token};")]).await;
    let lock = shop.ask(Method::GET, "/lock", "").await;
    assert_eq!(lock["holder"]["token"], token, "{lock}");

    let buying = shop.ask(Method::POST, "/stock/reduce", "");
    let unlocking = async {
        let waits = format!("lock somebody holds it, token {token}; behind it {};", shop.port);
        watch.until(&[&waits]).await;
        guard.unlock().await.unwrap();
    };
    let (sold, ()) = tokio::join!(buying, unlocking);
    assert_eq!(sold["remaining"], 2);
    watch.until(&["stock 2 + lucky 3 = initial 5;"]).await;
    // it moves no more, so the comparison is with what still is
    watch.until(&[&shop.stock_in_words().await, "; 0 orders/s"]).await;
    assert!(watch.said.iter().all(|line| !line.contains('\x1b')), "{:#?}", watch.said);
    assert_eq!(watch.signalled(Signal::INT).await.code(), Some(0));
}

/// Goal: an instance that is away is said to be, once however often it is asked, and watched again when it is
/// back.
#[tokio::test]
async fn an_instance_goes_away_and_comes_back() {
    let mut shop = Shop::selling(r#"{"stock":5}"#).await;
    let mut watch = Watch::start(&[&shop.url()]);
    watch.until(&["stock 5 + lucky 0 = initial 5;"]).await;

    shop.kill().await;
    let authority = format!("127.0.0.1:{}", shop.port);
    watch.until(&[&format!("cannot reach {authority}"), "asking again"]).await;
    // an instance that hangs up is asked again and again
    let listener = TcpListener::bind(&authority).await.unwrap();
    for _ in 0..3 {
        drop(asked(&listener).await);
    }
    drop(listener);

    shop.start().await;
    watch.until(&[&format!("{authority} answers")]).await;
    watch.until(&["stock 5 + lucky 0 = initial 5;"]).await;
    shop.ask(Method::POST, "/stock/reduce", "").await;
    watch.until(&["stock 4 + lucky 1 = initial 5;"]).await;
    let hung_up = watch.said.iter().filter(|line| line.contains("connection closed"));
    assert_eq!(hung_up.count(), 1, "{:#?}", watch.said);
}

/// Goal: of several instances, one that answers is enough, and the next takes over from one that goes away.
#[tokio::test]
async fn the_next_instance_is_asked() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    let mut second = Shop {
        child: None,
        port: reserve(&[0]),
        etcd: shop.etcd.clone(),
        redis: shop.redis.clone(),
        lock_name: shop.lock_name.clone(),
    };
    second.start().await;
    let nobody = url(reserve(&[0]));
    let mut watch = Watch::start(&[&nobody, &second.url(), &shop.url()]);
    watch.until(&["cannot reach", &nobody["http://".len()..]]).await;
    watch.until(&[&format!("127.0.0.1:{} answers", second.port)]).await;
    watch.until(&["stock 5 + lucky 0 = initial 5;"]).await;
    second.kill().await;
    watch.until(&[&format!("127.0.0.1:{} answers", shop.port)]).await;
    watch.until(&["stock 5 + lucky 0 = initial 5;"]).await;
}

/// Goal: an invalid address is refused with an example.
#[tokio::test]
async fn a_bad_address_is_refused() {
    for address in [
        "127.0.0.1:8080",
        "https://127.0.0.1:8080",
        "http://",
        "http://127.0.0.1:8080/stock",
        "http://127.0.0.1:8080/?item=a",
        "http://me:hidden@127.0.0.1:8080",
    ] {
        let (code, error) = Watch::start(&[address]).failed().await;
        assert_eq!(code, Some(2), "{address}: {error}");
        assert!(error.contains("looks like http://127.0.0.1:8080"), "{address}: {error}");
    }
}

/// Goal: what will not change by asking again ends it, with the reason: another kind of server, an item that
/// cannot be.
#[tokio::test]
async fn who_cannot_be_watched_is_not_asked_again() {
    for answer in [
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\nhere",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let watch = Watch::start(&[&url(listener.local_addr().unwrap().port())]);
        let mut caller = asked(&listener).await;
        caller.write_all(answer.as_bytes()).await.unwrap();
        let (code, error) = watch.failed().await;
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains("is it an instance of flash-sale?"), "{error}");
    }

    let shop = Shop::selling(r#"{"stock":5}"#).await;
    let (code, error) = Watch::start(&[&shop.url(), "--item", "Not An Item"]).failed().await;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("400 Bad Request (") && error.contains("item"), "{error}");
}

/// Goal: an item that is not sold yet is waited for, and followed once it is.
#[tokio::test]
async fn an_item_without_a_sale_is_waited_for() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    let mut watch = Watch::start(&[&shop.url(), "--item", "tea"]);
    watch.until(&["404 Not Found (", "tea"]).await;
    shop.ask(Method::PUT, "/stock?item=tea", r#"{"stock":7}"#).await;
    watch.until(&["stock 7 + lucky 0 = initial 7;"]).await;
}

/// Goal: output that cannot be written is an error; a reader that has gone away is none.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn output_that_cannot_be_written() {
    let shop = Shop::selling(r#"{"stock":5}"#).await;
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut watch = program("watch");
    watch.arg(shop.url()).stdout(full).stderr(Stdio::piped());
    let output = within("it ends", watch.spawn().unwrap().wait_with_output()).await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write"), "{error}");

    let Watch { mut child, mut lines, .. } = Watch::start(&[&shop.url()]);
    within("it tells", lines.next_line()).await.unwrap().unwrap();
    drop(lines);
    shop.ask(Method::POST, "/stock/reduce", "").await;
    assert_eq!(within("it ends", child.wait()).await.unwrap().code(), Some(0));
}
