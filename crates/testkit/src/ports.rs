//! Ports on the loopback interface.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::wait::eventually;

/// Below the ephemeral ports of Linux and macOS, so that no outgoing connection takes the port while a killed
/// server is restarted.
const RANGE: Range<u16> = 15_000..30_000;

/// Below [`RANGE`], so that no server on a random port takes one of these.
const RESERVABLE: Range<u16> = 10_000..15_000;

/// How many ports were tried. It starts from a random number, so that parallel runs begin at different places.
static TRIED: LazyLock<AtomicUsize> = LazyLock::new(|| {
    let [first, second, ..] = uuid::Uuid::new_v4().into_bytes();
    AtomicUsize::new(u16::from_be_bytes([first, second]).into())
});

/// How many times a server or a test is started on other ports if another program took its port.
pub const PORT_ATTEMPTS: usize = 5;

/// Whether a server could listen on `127.0.0.1:port` now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// `N` ports of 127.0.0.1 that were free a moment ago. This process gives out every port of the range once before it repeats
/// one.
///
/// Another program may take a port before it is used. Then the caller tries again.
///
/// # Errors
/// When no port is free.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut found = [0; N];
    for port in &mut found {
        *port = take(RANGE, &[0]).ok_or(io::ErrorKind::AddrInUse)?;
    }
    Ok(found)
}

/// A port `p` such that all `p + offset` are free, and no other test gets them.
///
/// Another run of the tests may take a port before it is used. That is unlikely, because each run begins at a random place.
///
/// # Panics
/// When thousands of ports are taken.
pub fn reserve(offsets: &[u16]) -> u16 {
    take(RESERVABLE, offsets).expect("thousands of ports are not all taken")
}

/// The next port `p` of the range for which a server could listen on every `p + offset`.
fn take(range: Range<u16>, offsets: &[u16]) -> Option<u16> {
    let length = usize::from(offsets.iter().max()? + 1);
    let next = || range.clone().nth(TRIED.fetch_add(length, Ordering::Relaxed) % range.len());
    let are_free = |port: &u16| offsets.iter().all(|offset| is_free(port + offset));
    std::iter::repeat_with(next).take(range.len()).flatten().find(are_free)
}

/// The address of an instance with `--listen 127.0.0.1:0`, read from its log.
///
/// # Panics
/// If the log does not have it in time.
pub async fn address_in(log: &Path) -> SocketAddr {
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
