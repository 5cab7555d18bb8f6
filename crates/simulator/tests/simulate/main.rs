//! A seeded simulator: the lock and the sale as they ship, in simulated processes, with simulated services, time and chance.
//!
//! One runtime, whose clock is paused, runs everything of a seed, and time jumps from event to event. A process is a mark on its
//! tasks (`fenced_lock::process`), which says whether they are polled. The same seed gives the same trace, byte for byte.

#![allow(missing_docs, unreachable_pub, reason = "a program, in modules")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::similar_names,
    clippy::struct_excessive_bools,
    reason = "the numbers are small, and the flags are drawn one by one"
)]

#[cfg(fenced_lock_chaos)]
mod controls;
#[cfg(fenced_lock_chaos)]
mod faults;
#[cfg(fenced_lock_chaos)]
mod link;
#[cfg(fenced_lock_chaos)]
mod lock_world;
#[cfg(fenced_lock_chaos)]
mod locks;
#[cfg(fenced_lock_chaos)]
mod process;
#[cfg(fenced_lock_chaos)]
mod program;
#[cfg(fenced_lock_chaos)]
mod sale_world;
#[cfg(fenced_lock_chaos)]
mod shop;
#[cfg(fenced_lock_chaos)]
mod trace;

#[cfg(fenced_lock_chaos)]
use program::Setup;

#[cfg(fenced_lock_chaos)]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(fenced_lock_chaos))]
fn main() {
    eprintln!("built without the seams of the simulator: RUSTFLAGS='--cfg fenced_lock_chaos'");
    // seeds were asked for, and none will run
    if std::env::args().any(|argument| argument.starts_with("--seed") || argument == "--endless") {
        std::process::exit(2);
    }
}
