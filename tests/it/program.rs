//! The program `flash-sale` as a process.

use std::process::Stdio;

use testkit::wait::within;
use tokio::process::Command;

/// The program, without input. Its output can be read, and it ends with the test.
pub(crate) fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_flash-sale"));
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    program
}

/// The exit status of the program with these arguments, and all that it prints.
pub(crate) async fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let ended = within("it ends", program().args(arguments).output()).await.unwrap();
    let text = [ended.stdout, ended.stderr].concat();
    (ended.status.code(), String::from_utf8_lossy(&text).into_owned())
}
