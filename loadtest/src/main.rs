//! The program `loadtest`: parses the flags and calls the library.

use std::process::ExitCode;

use loadtest::Cli;

/// One thread, because the program shares the machine with the service that it measures. One thread serves hundreds of
/// connections for less CPU time than several threads do.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    loadtest::run(Cli::of_process()).await
}
