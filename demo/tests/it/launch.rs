//! The program `demo`, started by a test.

use std::process::Stdio;

use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use testkit::probe;
use testkit::wait::eventually;
use tokio::process::{Child, Command};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_demo");

/// The program without the settings of the environment. It ends with the test.
pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLASH_SALE_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Starts `demo serve` or `demo control` on this port, and waits until it is ready.
pub(crate) async fn start(command: &str, port: u16, flags: &[&str]) -> Child {
    let listen = format!("127.0.0.1:{port}");
    let mut program = program(&[&[command, "--listen", &listen], flags].concat());
    let child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until_ok(port, if command == "serve" { "/readyz" } else { "/healthz" }).await;
    child
}

/// Waits until the answer is 200.
pub(crate) async fn until_ok(port: u16, path: &str) {
    eventually(&format!("{path} answers on port {port}"), async || {
        let answer = probe::http(Method::GET, port, path, "").await;
        answer.is_ok_and(|(status, _)| status.as_u16() == 200)
    })
    .await;
}

/// Starts a sale of the default item at the instance on this port.
pub(crate) async fn sell(port: u16, stock: u64) {
    let body = format!("{{\"stock\":{stock}}}");
    let answer = probe::http(Method::PUT, port, "/stock", body).await.unwrap();
    assert_eq!(answer.0, 200, "{}", answer.1);
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    kill_process(pid.expect("it runs"), signal).unwrap();
}
