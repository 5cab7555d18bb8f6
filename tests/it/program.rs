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

/// Goal: a shell completes flags, and man has a page for the program and one for each command.
#[tokio::test]
async fn it_has_completions_and_a_manual() {
    let (status, script) = run(&["completions", "bash"]).await;
    assert_eq!(status, Some(0), "{script}");
    let complete = "COMP_WORDS=(flash-sale serve --lock-t); COMP_CWORD=2
        _flash__sale flash-sale --lock-t serve; echo ${COMPREPLY[*]}
        COMP_WORDS=(flash-sale sale change --ad); COMP_CWORD=3
        _flash__sale flash-sale --ad change; echo ${COMPREPLY[*]}";
    let mut bash = Command::new("bash");
    let completed = bash.args(["-c", &format!("{script}\n{complete}")]).output().await.unwrap();
    assert_eq!(String::from_utf8(completed.stdout).unwrap(), "--lock-ttl\n--add\n");
    for (arguments, title, text) in [
        (&["man"][..], ".TH flash-sale 1", "recover"),
        (&["man", "serve"], ".TH flash-sale-serve 1", "FLASH_SALE_LOCK_TTL"),
        (&["man", "sale", "change"], ".TH flash-sale-sale-change 1", "FLASH_SALE_SALE_URL"),
    ] {
        let (status, page) = run(arguments).await;
        assert_eq!(status, Some(0), "{page}");
        assert!(page.contains(title) && page.contains(text), "{page}");
    }
    assert_eq!(run(&["man", "unknown"]).await.0, Some(1));
}
