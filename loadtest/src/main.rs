//! The program `loadtest`: parses the flags and calls the library.

use std::process::ExitCode;

use loadtest::Cli;

/// One thread: it shares the machine with what it measures, and hundreds of connections that one
/// thread looks after cost less than the same ones on several.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    loadtest::run(Cli::of_process()).await
}
