//! Ports for programs that must be told theirs, and addresses of those that choose one themselves.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use testkit::ports::is_free;

use super::eventually;

/// Below the range from which the program draws ports for its servers, so that those get none of these.
const RANGE: Range<u16> = 10_000..15_000;

/// How often a test is played again if another program took its port.
const PLAYS: u32 = 5;

/// Who was given a port by [`reserve`] keeps it for as long as this process lives.
static RESERVED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port `p` so that nothing listens on `p + offset` for each of these, and no other test gets them.
///
/// Another run of the tests may take one before it is used: see [`on_free_ports`].
pub(crate) fn reserve(offsets: &[u16]) -> u16 {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = uuid::Uuid::new_v4().into_bytes();
    // runs side by side look at different places first
    let start = usize::from(u16::from_be_bytes([bytes[0], bytes[1]])) % RANGE.len();
    let mut ports = RANGE.cycle().skip(start).take(RANGE.len());
    let all = |port| offsets.iter().map(move |offset| port + offset);
    let port = ports.find(|port| all(*port).all(|port| !reserved.contains(&port) && is_free(port)));
    let port = port.expect("thousands of ports are not all taken");
    reserved.extend(all(port));
    port
}

/// Another program took the port between the look at it and its use.
#[derive(Debug)]
pub(crate) struct PortTaken;

/// Plays a test again from its beginning, which reserves other ports, as long as another program took
/// its port; panics if that happens again and again.
pub(crate) async fn on_free_ports<T>(mut play: impl AsyncFnMut() -> Result<T, PortTaken>) -> T {
    for _ in 0..PLAYS {
        if let Ok(played) = play().await {
            return played;
        }
    }
    panic!("other programs took the port {PLAYS} times in a row");
}

/// Where an instance listens that was told to choose a port (`--listen 127.0.0.1:0`), once its log says
/// so.
pub(crate) async fn address_in(log: &Path) -> SocketAddr {
    let mut address = None;
    eventually("the log says where it listens", async || {
        let text = std::fs::read_to_string(log).unwrap();
        let rest = text.split_once("listening on http://").map(|(_, rest)| rest);
        let line = rest.and_then(|rest| rest.split_once(char::is_whitespace));
        address = line.map(|(word, _)| word.parse().unwrap());
        address.is_some()
    })
    .await;
    address.expect("it was just found")
}
