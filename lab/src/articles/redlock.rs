//! Redlock, as Go's redsync has it.

use std::time::Duration;

use fenced_lock::Token;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult, Script, cmd};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::redis::COMPARE_AND_DELETE;
use super::story::Buyer;
use crate::error::LabError;

/// Sets the key's TTL if it has this value.
const COMPARE_AND_EXPIRE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0";

/// Redlock with the numbers of Go's redsync: expiry 8 s, 32 tries with 50 to 250 ms between them, drift factor 0.01,
/// timeout factor 0.05, more than half of the nodes. See "Distributed Locks with Redis" in Redis's documentation, and
/// `redsync.go` and `mutex.go` of `go-redsync/redsync`.
///
/// `fenced_lock::RedlockBackend` keeps to the same keys, but renews by itself and has no limit of tries. Neither has a
/// token.
pub struct Redlock {
    nodes: Vec<Client>,
    name: String,
    value: String,
    expiry: Duration,
    until: Option<Instant>,
}

/// Why a Redlock was not granted.
#[derive(Debug, thiserror::Error)]
pub enum NotGranted {
    /// Others have these nodes, counted from 0.
    #[error("the lock is taken at nodes {nodes:?}")]
    Taken {
        /// The nodes.
        nodes: Vec<usize>,
    },
    /// Too few nodes answered, or too late.
    #[error("too few nodes answered in time: {errors:?}")]
    Failed {
        /// What the nodes said, or did not say.
        errors: Vec<(usize, String)>,
    },
}

impl Redlock {
    /// How long a grant lasts.
    pub const EXPIRY: Duration = Duration::from_secs(8);
    /// How often the lock is tried.
    const TRIES: u32 = 32;
    /// The shortest and the longest pause between two tries, in milliseconds.
    const DELAY_MS: [u128; 2] = [50, 250];
    /// The part of the expiry that clocks may run apart.
    const DRIFT_FACTOR: f64 = 0.01;
    /// The part of the expiry that a node may take to answer.
    const TIMEOUT_FACTOR: f64 = 0.05;

    /// The lock of this name on the nodes at these URLs.
    ///
    /// # Errors
    /// When a URL is malformed.
    pub fn new(urls: &[String], name: &str, expiry: Duration) -> Result<Self, LabError> {
        let nodes = urls.iter().map(|url| Client::open(&**url)).collect::<Result<_, _>>()?;
        Ok(Self { nodes, name: name.to_owned(), value: String::new(), expiry, until: None })
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// [`NotGranted`].
    pub async fn try_lock(&mut self) -> Result<(), NotGranted> {
        self.value = Uuid::new_v4().to_string();
        let started_at = Instant::now();
        let expiry_ms = self.expiry.as_millis().to_string();
        let mut set = cmd("SET");
        set.arg(&self.name).arg(&self.value).arg("NX").arg("PX").arg(expiry_ms);
        let answers = self
            .ask_all(|mut node| {
                let set = set.clone();
                async move { set.query_async::<bool>(&mut node).await }
            })
            .await;
        if self.has_quorum(&answers) {
            self.until = self.valid_from(started_at);
            if self.until.is_some() {
                return Ok(());
            }
        }
        self.unlock().await;
        let nodes = |which: &dyn Fn(&Result<bool, String>) -> bool| {
            (0..answers.len()).filter(|node| which(&answers[*node])).collect::<Vec<_>>()
        };
        let taken = nodes(&|answer| *answer == Ok(false));
        if taken.len() > self.nodes.len() - self.quorum() {
            return Err(NotGranted::Taken { nodes: taken });
        }
        let failed = answers.into_iter().enumerate();
        let failed = failed.filter_map(|(node, answer)| Some((node, answer.err()?)));
        Err(NotGranted::Failed { errors: failed.collect() })
    }

    /// Gives it back at all nodes. Returns whether most of them still had it.
    pub async fn unlock(&mut self) -> bool {
        self.until = None;
        self.on_all(COMPARE_AND_DELETE).await
    }

    /// Lets it last for another expiry from now on. Returns whether it does.
    pub async fn extend(&mut self) -> bool {
        let started_at = Instant::now();
        let is_extended = self.on_all(COMPARE_AND_EXPIRE).await;
        self.until = self.valid_from(started_at).filter(|_| is_extended);
        self.until.is_some()
    }

    /// Until when it lasts, by this client's clock, if it is held.
    pub fn until(&self) -> Option<Instant> {
        self.until.filter(|until| *until > Instant::now())
    }

    /// Until when a grant lasts that was asked for at this time, if that is not over.
    fn valid_from(&self, started_at: Instant) -> Option<Instant> {
        let until = started_at + self.expiry.mul_f64(1.0 - Self::DRIFT_FACTOR);
        Some(until).filter(|until| *until > Instant::now())
    }

    fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn has_quorum(&self, answers: &[Result<bool, String>]) -> bool {
        answers.iter().filter(|answer| **answer == Ok(true)).count() >= self.quorum()
    }

    async fn on_all(&self, script: &'static str) -> bool {
        let (name, value) = (&self.name, &self.value);
        let expiry_ms = self.expiry.as_millis().to_string();
        let answers = self
            .ask_all(|mut node| {
                let (script, expiry_ms) = (Script::new(script), expiry_ms.clone());
                async move {
                    let mut run = script.key(name);
                    run.arg(value).arg(expiry_ms).invoke_async::<bool>(&mut node).await
                }
            })
            .await;
        self.has_quorum(&answers)
    }

    /// Asks all nodes at once, with a time limit for each.
    async fn ask_all<F: Future<Output = RedisResult<bool>>>(
        &self,
        ask: impl Fn(MultiplexedConnection) -> F,
    ) -> Vec<Result<bool, String>> {
        let limit = self.expiry.mul_f64(Self::TIMEOUT_FACTOR);
        let ask = async |node: &Client| ask(node.get_multiplexed_async_connection().await?).await;
        let answers = self.nodes.iter().map(|node| timeout(limit, ask(node)));
        let said = |answer: Result<RedisResult<bool>, _>| match answer {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer in {limit:?}")),
        };
        join_all(answers).await.into_iter().map(said).collect()
    }
}

impl Buyer for Redlock {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let [shortest, longest] = Self::DELAY_MS;
        let mut tries = 1;
        loop {
            match self.try_lock().await {
                Ok(()) => return Ok(None),
                Err(error) if tries == Self::TRIES => {
                    let source = std::io::Error::other(error);
                    return Err(LabError::System { what: "the lock was not granted", source });
                }
                Err(_) => tries += 1,
            }
            let random = shortest + Uuid::new_v4().as_u128() % (longest - shortest + 1);
            sleep(Duration::from_millis(u64::try_from(random).unwrap_or_default())).await;
        }
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        Self::unlock(self).await;
        Ok(())
    }
}
