//! Ports on the loopback interface.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::wait::eventually;

/// Below the ephemeral ports of Linux and macOS, so that no outgoing connection takes the port while a killed
/// server is restarted.
const RANGE: Range<u16> = 15_000..30_000;

/// Below [`RANGE`], so that servers on random ports get none of these.
const RESERVABLE: Range<u16> = 10_000..15_000;

/// The ports given out.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// How often a server or a test is started on other ports if another program took its port.
pub const PORT_ATTEMPTS: usize = 5;

/// Whether a server could listen on `127.0.0.1:port` now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// `N` ports of 127.0.0.1 that were free a moment ago, and that nobody else in this process gets before each was given out
/// once.
///
/// Another program may take one before it is used; then the caller tries again.
///
/// # Errors
/// When no port is free.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let search = || {
        let mut found = [0; N];
        for port in &mut found {
            *port = take(RANGE, &[0])?;
        }
        Some(found)
    };
    let again = || {
        taken().retain(|port| !RANGE.contains(port));
        search()
    };
    Ok(search().or_else(again).ok_or(io::ErrorKind::AddrInUse)?)
}

/// A port `p` such that all `p + offset` are free, and no other test gets them.
///
/// Another run of the tests may take one before it is used, which is unlikely: each begins at a random place.
///
/// # Panics
/// When thousands of ports are taken.
pub fn reserve(offsets: &[u16]) -> u16 {
    take(RESERVABLE, offsets).expect("thousands of ports are not all taken")
}

fn taken() -> MutexGuard<'static, BTreeSet<u16>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(range: Range<u16>, offsets: &[u16]) -> Option<u16> {
    let mut taken = taken();
    let bytes = uuid::Uuid::new_v4().into_bytes();
    // parallel runs begin at different places
    let start = usize::from(u16::from_be_bytes([bytes[0], bytes[1]])) % range.len();
    let mut ports = range.clone().cycle().skip(start).take(range.len());
    let all = |port| offsets.iter().map(move |offset| port + offset);
    let port = ports.find(|port| all(*port).all(|port| !taken.contains(&port) && is_free(port)))?;
    taken.extend(all(port));
    Some(port)
}

/// The address of an instance with `--listen 127.0.0.1:0`, from its log.
///
/// # Panics
/// When it is not there in time.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a long run does not run out of ports.
    #[test]
    fn ports_are_given_out_again() {
        taken().extend(RANGE);
        let [one, other] = free_ports().unwrap();
        assert!(one != other && RANGE.contains(&one), "{one}, {other}");
    }
}
