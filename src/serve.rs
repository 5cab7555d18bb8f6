//! The `serve` command: connect, run, stop.

mod connect;

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::http::server::{self, MAX_BEYOND, ServerOptions};
use crate::http::{AppState, Extension, OperatorsPort, buyers_router, router};
use crate::peers::{self, Credentials, Doorkeeper};
use crate::sale::{BoxError, Sale};
pub use connect::{etcd, etcd_client, inventory, lock_sessions};

/// File descriptors besides those of clients within the limit: for etcd, Redis, the runtime, the standard streams, and clients
/// beyond the limit.
const RESERVED_FILES: u64 = 64 + 2 * MAX_BEYOND as u64;

/// The time to release the lock, even if the requests in flight have used up the time to stop.
const MIN_CLOSE_TIME: Duration = Duration::from_secs(2);

/// Runs one instance until SIGTERM or SIGINT. It then makes itself not ready, gives load balancers time to notice, accepts no
/// more connections, answers the requests in flight, releases the lock and revokes its lease. It ignores a further SIGTERM. A
/// further SIGINT ends it at once.
///
/// # Errors
/// A sentence that says why the instance did not start, or did not stop in order.
pub async fn serve(config: Config) -> Result<(), BoxError> {
    let sale = async |config: &Config, port| Ok((connect::sale(config, port).await?, None));
    serve_with(config, sale).await
}

/// The same, with the sale and the extension that `sale` returns for the port of the instance.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with(
    mut config: Config,
    sale: impl AsyncFnOnce(&Config, u16) -> Result<(Sale, Option<Arc<dyn Extension>>), BoxError>,
) -> Result<(), BoxError> {
    config.read_files()?;
    let watchers = config.admin_listen.map(|_| config.max_watchers);
    let (max_connections, operators) = room_for(config.max_connections, watchers);
    let options = ServerOptions {
        header_timeout: config.header_timeout,
        max_connections,
        shutdown_grace: config.shutdown_grace,
    };
    let listen = |kind| signal(kind).map_err(|error| format!("cannot handle signals: {error}"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let (address, listener) = bind("--listen", config.listen)?;
    let admin = config.admin_listen.map(|address| bind("--admin-listen", address)).transpose()?;
    let peers = config.peer_listen.map(|address| bind("--peer-listen", address)).transpose()?;
    if let Some((address, _)) = &peers {
        config.peer_address = Some(peer_address(&config, *address)?);
    }

    let (sale, extension) = sale(&config, address.port()).await?;
    let credentials = config.peer_credentials();
    let is_service = extension.is_none();
    if is_service && config.shop_token().or(config.admin_token()).is_none() {
        tracing::warn!(
            "nobody can start a sale, confirm an order or read the ledger: set --shop-token-file and --admin-token-file"
        );
    }
    let state = Arc::new(AppState::new(sale.clone(), config.http_options(extension)));
    let instance = sale.instance();
    let stop = CancellationToken::new();
    let mut doors = Vec::new();
    if let Some((address, admin)) = admin {
        tracing::info!("operators: http://{address}");
        doors.push((listener, buyers_router(Arc::clone(&state)), options));
        let options = ServerOptions { max_connections: operators, ..options };
        let router = router(Arc::clone(&state)).layer(axum::Extension(OperatorsPort));
        doors.push((admin, router, options));
    } else {
        if is_service {
            tracing::warn!("buyers can reach all paths for operators: set --admin-listen");
        }
        doors.push((listener, router(Arc::clone(&state)), options));
    }
    // open until the lock is released, so that batches of peers are answered
    let let_in = CancellationToken::new();
    let peers = peers.zip(sale.door()).map(|((address, listener), door)| {
        tracing::info!("peers: http://{address}, and {} for others", door.peers.address());
        let keeper = Doorkeeper { door, credentials };
        tokio::spawn(peers::serve(listener, keeper, let_in.clone()))
    });
    // this line is the last: a program that waits for it has seen the others
    tracing::info!(instance, lock = sale.guard().status().name, "listening on http://{address}");
    tell_systemd("READY=1");

    let servers = doors.into_iter().map(|(listener, router, options)| {
        server::serve(listener, router, options, stop.clone().cancelled_owned())
    });
    let mut serving = pin!(join_all(servers));
    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        // the servers end only after `stop`
        _ = &mut serving => return Ok(()),
    };
    let drain_delay = humantime::format_duration(config.drain_delay);
    tracing::info!(%drain_delay, "{signal}: stopping after the requests in flight");
    tell_systemd("STOPPING=1");
    state.set_draining();

    let finish = async {
        let drain = async {
            sleep(config.drain_delay).await;
            state.set_stopping();
            sale.finish();
            stop.cancel();
            Instant::now() + options.shutdown_grace
        };
        let (stop_by, connections) = tokio::join!(drain, serving);
        let connections: usize = connections.into_iter().sum();
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
        let_in.cancel();
        if let Some(peers) = peers {
            // it fails only if it panicked
            let _ = peers.await;
        }
    };
    tokio::select! {
        () = finish => {
            tracing::info!("stopped");
            Ok(())
        }
        _ = interrupt.recv() => {
            tracing::warn!("a second SIGINT: ending at once");
            Err("a second Ctrl-C ended the instance before it had stopped".into())
        }
    }
}

/// The address at which others reach this instance, which listens for them at `bound`. Checks its credentials.
fn peer_address(config: &Config, bound: SocketAddr) -> Result<String, BoxError> {
    let Credentials { token, tls } = config.peer_credentials();
    if let Some(tls) = &tls {
        tls.check().map_err(|error| format!("TLS between peers: {error}"))?;
    }
    if token.is_none() && tls.is_none() && !bound.ip().is_loopback() {
        return Err(
            "--peer-listen is not a loopback address: give all instances one --peer-token-file, or certificates of one \
             --peer-ca"
                .into(),
        );
    }
    match &config.peer_address {
        Some(address) => Ok(address.clone()),
        None if bound.ip().is_unspecified() => Err(format!(
            "--peer-listen {bound} names no address that others could dial: give one with --peer-address"
        )
        .into()),
        None => Ok(bound.to_string()),
    }
}

/// Tells systemd the state of this process, if a unit of `Type=notify` started it.
fn tell_systemd(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = UnixDatagram::unbound().and_then(|from| from.send_to(state.as_bytes(), socket));
    if let Err(error) = told {
        tracing::warn!(%error, "systemd could not be told {state}");
    }
}

/// Listens on the address of this flag. Returns the address with the actual port.
fn bind(flag: &str, address: SocketAddr) -> Result<(SocketAddr, TcpListener), BoxError> {
    let bound = server::bind(address).and_then(|bound| Ok((bound.local_addr()?, bound)));
    bound.map_err(|error| {
        format!("cannot listen on {address}: {error}; choose an address with {flag}").into()
    })
}

/// Raises the soft limit on open files to the hard limit. Returns how many connections fit at `--listen` and at
/// `--admin-listen`: `wanted` each, if possible, and `watchers` more at the latter (`None`: no port). The usual soft limit of
/// 1024 is for programs that use `select`, which this one does not.
fn room_for(wanted: usize, watchers: Option<usize>) -> (usize, usize) {
    let limit = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(u64::MAX);
    let (buyers, operators) = room_within(limit, wanted, watchers);
    if buyers < wanted
        || watchers.is_some_and(|watchers| operators < wanted.saturating_add(watchers))
    {
        tracing::warn!(
            buyers,
            operators,
            "the limit on open files leaves no room for {wanted} connections at each port: raise it with `ulimit -n`, \
             LimitNOFILE= or --ulimit"
        );
    }
    (buyers, operators)
}

fn room_within(limit: u64, wanted: usize, watchers: Option<usize>) -> (usize, usize) {
    let room = usize::try_from(limit.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX);
    let Some(watchers) = watchers else { return (room.clamp(1, wanted), 0) };
    let room = room.saturating_sub(watchers);
    // where there is too little, operators get a quarter
    let buyers = (room - room / 4).max(room.saturating_sub(wanted)).clamp(1, wanted);
    (buyers, room.saturating_sub(buyers).clamp(1, wanted).saturating_add(watchers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_other_files() {
        assert_eq!(room_within(u64::MAX, 20_000, None), (20_000, 0));
        assert_eq!(room_within(1024, 20_000, None), (832, 0));
        assert_eq!(room_within(1_048_576, 20_000, Some(64)), (20_000, 20_064));
        assert_eq!(room_within(32_768, 20_000, Some(64)), (20_000, 12_576));
        assert_eq!(room_within(20_000, 20_000, Some(64)), (14_808, 5000));
        assert_eq!(room_within(1024, 20_000, Some(64)), (576, 256));
        assert_eq!(room_within(10, 20_000, Some(64)), (1, 65));
        assert_eq!(room_within(1024, 100, Some(64)), (100, 164));
    }
}
