//! Ports on the loopback interface.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Below the range from which Linux and macOS number outgoing connections, so that none of those
/// takes the port while a server that was killed on it is being started again.
const RANGE: std::ops::Range<u16> = 15_000..30_000;

/// How many ports are tried for each one that is wanted.
const ATTEMPTS: usize = 200;

/// Whether a server could listen on `127.0.0.1:port` now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// `N` different ports of 127.0.0.1 that were free a moment ago.
///
/// Another program may take one before it is used: the start is then tried again.
///
/// # Errors
/// When hardly any port is free.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut found = [0; N];
    for n in 0..N {
        found[n] = (0..ATTEMPTS)
            .map(|_| random_port())
            .find(|port| !found[..n].contains(port) && is_free(*port))
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free port was found"))?;
    }
    Ok(found)
}

fn random_port() -> u16 {
    let bytes = uuid::Uuid::new_v4().into_bytes();
    RANGE.start + u16::from_be_bytes([bytes[0], bytes[1]]) % (RANGE.end - RANGE.start)
}
