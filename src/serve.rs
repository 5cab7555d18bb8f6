//! The `serve` command: connect, run, stop.

mod connect;
mod signals;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::http::server::{self, ServerOptions};
use crate::http::{AppState, Extension, router};
use crate::sale::{BoxError, Sale};
pub use connect::{etcd, inventory, lock_sessions};
use signals::Signals;

/// File descriptors for everything but clients: etcd, Redis, the runtime, the standard streams.
const RESERVED_FILES: u64 = 64;

/// The time to release the lock if the requests in flight used up the time to stop.
const MIN_CLOSE_TIME: Duration = Duration::from_secs(2);

/// Runs one instance until SIGTERM, SIGINT or SIGHUP. Then it is no longer ready, accepts no more connections,
/// answers the requests in flight, releases the lock and revokes its lease. Further signals are ignored, but a
/// SIGINT more than a second later ends it at once. A SIGHUP that is ignored from the start, as under `nohup`,
/// stays ignored.
///
/// # Errors
/// A sentence: why the instance did not start, or did not stop in order.
pub async fn serve(config: Config) -> Result<(), BoxError> {
    let sale = async |config: &Config, port| Ok((connect::sale(config, port).await?, None));
    serve_with(config, sale).await
}

/// As [`serve`], with the sale and the extension that `sale` returns for the port of the instance.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with(
    mut config: Config,
    sale: impl AsyncFnOnce(&Config, u16) -> Result<(Sale, Option<Arc<dyn Extension>>), BoxError>,
) -> Result<(), BoxError> {
    config.read_files()?;
    let options = ServerOptions {
        header_timeout: config.header_timeout,
        max_connections: room_for(config.max_connections),
        shutdown_grace: config.shutdown_grace,
    };
    let mut signals = Signals::new().map_err(|error| format!("cannot handle signals: {error}"))?;
    let not_bound = |error: io::Error| {
        format!("cannot listen on {}: {error}; choose an address with --listen", config.listen)
    };
    let listener = server::bind(config.listen).map_err(not_bound)?;
    let address = listener.local_addr().map_err(not_bound)?;

    let (sale, extension) = sale(&config, address.port()).await?;
    let state = AppState::new(sale.clone(), config.admin_token, config.max_watchers, extension);
    let state = Arc::new(state);
    let instance = sale.instance();
    tracing::info!(instance, lock = sale.guard_status().name, "listening on http://{address}");
    tell_systemd("READY=1");

    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let mut serving = pin!(server::serve(listener, router(Arc::clone(&state)), options, stopped));
    let signal = tokio::select! {
        signal = signals.next() => signal,
        // it ends only after `stop`
        _ = &mut serving => return Ok(()),
    };
    tracing::info!("{signal}: stopping after the requests in flight");
    tell_systemd("STOPPING=1");
    state.set_stopping();
    let stop_by = Instant::now() + options.shutdown_grace;
    stop.cancel();

    let finish = async {
        let connections = serving.await;
        if connections > 0 {
            tracing::warn!(connections, "requests in flight took longer than the time to stop");
        }
        let close_by = stop_by.max(Instant::now() + MIN_CLOSE_TIME);
        if timeout_at(close_by, sale.close()).await.is_err() {
            let ttl = humantime::format_duration(config.lock_ttl);
            tracing::warn!(
                "the lock was not released in time: it ends with its lease, within {ttl}"
            );
        }
    };
    tokio::select! {
        () = finish => {
            tracing::info!("stopped");
            Ok(())
        }
        () = signals.second_interrupt() => {
            tracing::warn!("a second SIGINT: ending at once");
            Err("a second Ctrl-C ended the instance before it had stopped".into())
        }
    }
}

/// Tells the state of this process to systemd, if that started it by a unit of `Type=notify`.
fn tell_systemd(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = |to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to);
    if let Err(error) = notify_address(&socket).and_then(send) {
        tracing::warn!(%error, "systemd could not be told {state}");
    }
}

fn notify_address(socket: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let [b'@', name @ ..] = socket.as_bytes() {
        use std::os::linux::net::SocketAddrExt as _;
        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(socket)
}

/// Raises the soft limit on open files to the hard limit, and returns how many of the `wanted` connections
/// fit. The usual soft limit of 1024 is meant for programs that use `select`; this one does not.
fn room_for(wanted: usize) -> usize {
    let room =
        rlimit::increase_nofile_limit(u64::MAX).map_or(wanted, |limit| room_within(limit, wanted));
    if room < wanted {
        tracing::warn!(
            "the limit on open files leaves room for {room} connections, not for {wanted}: raise it with \
             `ulimit -n`, LimitNOFILE= or --ulimit"
        );
    }
    room
}

fn room_within(limit: u64, wanted: usize) -> usize {
    let room = limit.saturating_sub(RESERVED_FILES).max(1);
    usize::try_from(room).map_or(wanted, |room| room.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_other_files() {
        assert_eq!(room_within(u64::MAX, 20_000), 20_000);
        assert_eq!(room_within(1_048_576, 20_000), 20_000);
        assert_eq!(room_within(1024, 20_000), 960);
        assert_eq!(room_within(10, 20_000), 1);
    }
}
