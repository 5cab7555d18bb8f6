//! One connection to a Redis, opened when it is needed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, FromRedisValue, PushInfo, PushKind,
    RedisError, RedisResult, cmd,
};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use super::options::{RedisOptions, Servers};
use super::script::Call;
use crate::backoff::Backoff;
use crate::shared::Shared;
use crate::{BackendError, BackendErrorKind};

/// The most steps of one script call: each step removes a thousand claims, and `MORE` asks for the next one.
const MOST_STEPS: u32 = 1000;

/// How many times the time limit of a handshake is doubled.
const MOST_DOUBLINGS: u32 = 3;

/// Takes messages, and a `Disconnection` when the connection breaks.
type OnMessage = dyn Fn(PushInfo) + Send + Sync;

/// One connection that all requests share, opened when it is first needed.
pub(super) struct Connection {
    pub(super) options: RedisOptions,
    server: Arc<Server>,
    link: Shared<Link>,
    /// The task that connects, until a caller has taken its outcome.
    connecting: AsyncMutex<Option<JoinHandle<Result<Link, BackendError>>>>,
}

#[derive(Clone)]
struct Link {
    redis: MultiplexedConnection,
    is_broken: Arc<AtomicBool>,
    address: ConnectionAddr,
    made_at: Instant,
}

impl Connection {
    /// Does not connect yet.
    pub(super) fn new(
        servers: Servers,
        options: RedisOptions,
        channel: Option<String>,
        on_message: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Self {
        let server = Server {
            servers,
            request_timeout: options.request_timeout,
            channel,
            on_message: Arc::new(on_message),
            trouble: Mutex::default(),
        };
        let (link, connecting) = (Shared::new(), AsyncMutex::default());
        Self { options, server: Arc::new(server), link, connecting }
    }

    pub(super) async fn run<T: FromRedisValue>(&self, script: &Call) -> Result<T, BackendError> {
        self.run_within(self.options.request_timeout, script).await
    }

    /// Runs a script, with a time limit for each request.
    pub(super) async fn run_within<T: FromRedisValue>(
        &self,
        limit: Duration,
        script: &Call,
    ) -> Result<T, BackendError> {
        let mut left = MOST_STEPS;
        loop {
            let run = async |redis: &mut MultiplexedConnection| {
                match script.by_hash().query_async(redis).await {
                    // send the text and run it in one request: behind a proxy, a script that was loaded first may be on another
                    // server
                    Err(error) if error.code() == Some("NOSCRIPT") => {
                        script.by_text().query_async(redis).await
                    }
                    answer => answer,
                }
            };
            left -= 1;
            let run = async |redis: &mut MultiplexedConnection| match run(redis).await {
                Err(error) if error.code() == Some("MORE") && left > 0 => Ok(None),
                answer => answer.map(Some),
            };
            if let Some(answer) = self.request(limit, run).await? {
                return Ok(answer);
            }
        }
    }

    /// Sends a command once.
    pub(super) async fn send<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, BackendError> {
        self.request(self.options.request_timeout, async |redis| command.query_async(redis).await)
            .await
    }

    async fn request<T>(
        &self,
        limit: Duration,
        send: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, BackendError> {
        let (began_at, most) = (Instant::now(), self.options.request_timeout);
        // the connection gets the full time: with a shorter limit, a distant server would never be reached
        let mut link = timeout(most, self.link()).await.map_err(silence)??;
        let limit = limit.min(most.saturating_sub(began_at.elapsed()));
        let answer = timeout(limit, send(&mut link.redis)).await.map_err(|elapsed| {
            // The server may have vanished. But if this request had to connect first, the answer had less time, and a distant
            // server may need more.
            if link.made_at <= began_at {
                self.server.give_up(&link);
            }
            silence(elapsed)
        })?;
        answer.map_err(|error| {
            // this primary has become a replica; by now the address may lead to the new primary
            let is_replica = code_of(&error) == Some("READONLY");
            if error.is_io_error() || error.is_unrecoverable_error() || is_replica {
                self.server.give_up(&link);
            }
            backend_error(error)
        })
    }

    async fn link(&self) -> Result<Link, BackendError> {
        let is_usable = |link: &Link| !link.is_broken.load(Ordering::Acquire);
        // a separate task connects and runs to its end, even if every caller stops waiting earlier
        let connect = async {
            let mut connecting = self.connecting.lock().await;
            let connect = || tokio::spawn(Arc::clone(&self.server).connect());
            let connected = connecting.get_or_insert_with(connect).await;
            *connecting = None;
            connected.map_err(BackendError::transient)?
        };
        self.link.get(is_usable, connect).await
    }

    /// Leaves a primary that the sentinels have replaced: it may still accept writes, which will be lost.
    ///
    /// # Errors
    /// If the sentinels have replaced it, or if a majority of them names no primary: they may have replaced it.
    pub(super) async fn follow(&self, within: Duration) -> Result<(), BackendError> {
        if self.server.servers.primary.is_some()
            && let Ok(Ok(link)) = timeout(within, self.link()).await
            && *self.server.servers.find(within).await?.get_connection_info().addr() != link.address
        {
            self.server.give_up(&link);
            return Err(BackendError::transient("the sentinels have replaced this primary"));
        }
        Ok(())
    }
}

fn silence(_: Elapsed) -> BackendError {
    BackendError::transient(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}

/// How to connect, and how the latest attempts ended.
struct Server {
    servers: Servers,
    request_timeout: Duration,
    /// The channel to listen to, if any.
    channel: Option<String>,
    on_message: Arc<OnMessage>,
    /// The failed attempts to connect since the last success.
    trouble: Mutex<Trouble>,
}

#[derive(Default)]
struct Trouble {
    backoff: Backoff,
    /// How many attempts took too long: as long as the sentinels may take to answer, or longer.
    late: u32,
    /// The latest failure; no further attempt begins before this time.
    latest: Option<(Instant, BackendError)>,
}

impl Server {
    /// Stops using the connection. Messages may have been lost with it.
    fn give_up(&self, link: &Link) {
        if !link.is_broken.swap(true, Ordering::AcqRel) {
            (self.on_message)(PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
        }
    }

    /// Connects. After a failure it pauses first. After an attempt that took too long, the next one gets more time: a handshake
    /// takes several round trips, and a distant server needs more time for them than for one request.
    async fn connect(self: Arc<Self>) -> Result<Link, BackendError> {
        let limit = {
            let trouble = self.trouble.lock();
            if let Some((until, error)) = &trouble.latest
                && Instant::now() < *until
            {
                return Err(error.clone());
            }
            self.request_timeout.saturating_mul(1 << trouble.late.min(MOST_DOUBLINGS))
        };
        let began_at = Instant::now();
        let outcome = timeout(limit, self.handshake(limit)).await;
        let mut trouble = self.trouble.lock();
        match outcome.unwrap_or_else(|elapsed| Err(silence(elapsed))) {
            Ok(link) => {
                *trouble = Trouble::default();
                Ok(link)
            }
            Err(error) => {
                trouble.late += u32::from(began_at.elapsed() >= limit / 4);
                let until = Instant::now() + trouble.backoff.next();
                trouble.latest = Some((until, error.clone()));
                Err(error)
            }
        }
    }

    async fn handshake(&self, limit: Duration) -> Result<Link, BackendError> {
        let is_broken = Arc::new(AtomicBool::new(false));
        let (broken, on_message) = (Arc::clone(&is_broken), Arc::clone(&self.on_message));
        let config = AsyncConnectionConfig::new()
            // only `connect` limits the time, so that it can tell a slow attempt from any other failure
            .set_connection_timeout(None)
            .set_response_timeout(Some(self.request_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    broken.store(true, Ordering::Release);
                }
                on_message(push);
                Ok::<_, SendError>(())
            });
        let server = self.servers.find(limit / 4).await?;
        let connect = server.get_multiplexed_async_connection_with_config(&config);
        let mut redis = connect.await.map_err(refusal)?;
        check_server(&mut redis).await?;
        if let Some(channel) = &self.channel {
            redis.subscribe(channel).await.map_err(backend_error)?;
            // checks that this user may publish
            let publish = cmd("PUBLISH").arg(channel).arg("").to_owned();
            publish.query_async::<()>(&mut redis).await.map_err(backend_error)?;
        }
        let (address, made_at) = (server.get_connection_info().addr().clone(), Instant::now());
        Ok(Link { redis, is_broken, address, made_at })
    }
}

/// The error for a connection that cannot be made.
pub(super) fn refusal(error: RedisError) -> BackendError {
    let what = match error.kind() {
        #[cfg(feature = "redis-tls")]
        _ if is_about_tls(&error) => "the server and we do not agree on TLS",
        ErrorKind::Parse => "this is no Redis, or it wants TLS",
        _ => return backend_error(error),
    };
    BackendError::in_words(BackendErrorKind::Permanent, format!("{what}: {error}"), error)
}

#[cfg(feature = "redis-tls")]
fn is_about_tls(error: &RedisError) -> bool {
    use std::error::Error;

    let cause = error.source().and_then(<dyn Error>::downcast_ref::<Arc<dyn Error + Send + Sync>>);
    cause
        .and_then(|cause| cause.downcast_ref::<io::Error>())
        .and_then(io::Error::get_ref)
        .is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
}

/// Refuses a server that cannot keep a lock safe.
async fn check_server(redis: &mut MultiplexedConnection) -> Result<(), BackendError> {
    let mut info = redis::pipe();
    for section in ["server", "replication", "memory"] {
        info.cmd("INFO").arg(section);
    }
    let info: Vec<String> = info.query_async(redis).await.map_err(backend_error)?;
    let field = |name: &str| {
        let lines = info.iter().flat_map(|section| section.lines());
        let mut fields = lines.filter_map(|line| line.split_once(':'));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value.trim())
    };
    // Valkey calls it `server_mode`
    let mode = field("redis_mode").or_else(|| field("server_mode"));
    let what = if mode == Some("cluster") {
        "this Redis is a node of a Redis Cluster, where the keys of a lock are on several nodes: use one primary"
    } else if field("maxmemory") != Some("0") && field("maxmemory_policy") != Some("noeviction") {
        "this Redis evicts keys, locks among them: set its maxmemory-policy to noeviction"
    } else if field("role") == Some("slave") {
        // transient: the replica may be promoted, or the address may lead to the primary later
        let what = "this Redis is a replica, which grants no locks";
        return Err(BackendError::transient(what));
    } else {
        return Ok(());
    };
    Err(BackendError::permanent(what))
}

/// The code of the server's error. Redis before version 7 wraps what it refuses inside a script, in an error with another code.
fn code_of(error: &RedisError) -> Option<&str> {
    let wrapped = error.detail().filter(|text| text.starts_with("Error running script"));
    let refusal = wrapped.and_then(|text| text.split_once(": -")).map(|(_, refusal)| refusal);
    refusal.and_then(|refusal| refusal.split(' ').next()).or_else(|| error.code())
}

fn backend_error(error: RedisError) -> BackendError {
    let kind = match (error.kind(), code_of(&error)) {
        (_, Some("LEASEGONE")) => BackendErrorKind::LeaseGone,
        // not the primary, or still loading
        (_, Some("LOADING" | "READONLY" | "MASTERDOWN")) => BackendErrorKind::Transient,
        (_, Some("ERR")) if error.to_string().contains("max number of clients") => {
            BackendErrorKind::Refused
        }
        (_, Some("ERR" | "NOPERM" | "NOAUTH" | "WRONGPASS" | "WRONGTYPE"))
        | (
            ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::RESP3NotSupported
            | ErrorKind::UnexpectedReturnType,
            _,
        ) => BackendErrorKind::Permanent,
        // out of memory, too few replicas, a failing disk, a script that is running
        (_, Some(_)) => BackendErrorKind::Refused,
        (_, None) => BackendErrorKind::Transient,
    };
    BackendError::new(kind, error)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use testkit::shared::fresh_database;

    use super::*;

    /// Goal: a connection is given up when an answer does not arrive in time, but not by a request that first had to wait for
    /// the connection: its answer had less time. Method: the first request makes the connection, the second one finds it.
    #[tokio::test]
    async fn a_new_connection_has_time_to_answer() {
        let options = RedisOptions::new(fresh_database().await).checked().expect("valid options");
        let (servers, breaks) =
            (options.servers().expect("a server"), Arc::<Mutex<u32>>::default());
        let broken = Arc::clone(&breaks);
        let connection = Connection::new(servers, options, None, move |_| *broken.lock() += 1);
        for given_up in [0, 1] {
            let send = async |_: &mut _| pending::<RedisResult<()>>().await;
            let answer = connection.request(Duration::from_millis(1), send).await;
            answer.expect_err("there is none");
            assert_eq!(*breaks.lock(), given_up);
        }
    }
}
