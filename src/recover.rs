//! The `recover` command: an operator accepts a new etcd cluster or a loss of data.
//!
//! Two faults stop a sale until an operator acts. The fence comes from another etcd cluster, so no token can
//! be compared with it: `recover cluster`. Or the store lost acknowledged data: `recover store`. In both cases
//! the command takes the item's lock, prints the state and what would be given up, and changes nothing
//! without `--yes`.

mod report;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fenced_lock::{EtcdBackend, LockError, Session, SessionOptions, Token};
use tokio::time::{sleep, timeout};

use crate::config::{FileError, Servers, duration};
use crate::inventory::{Fence, Inventory, InventoryError, Item};
use crate::sale::lock_name;

/// The exit status of a dry run that found something to do.
const NOT_DONE: u8 = 3;

/// How long the lock outlives this command if it is killed.
const LOCK_TTL: Duration = Duration::from_secs(10);

/// The attempts to reach the store, and the pause between them.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// Resume a sale after etcd or Redis was replaced or restored: a dry run unless --yes is given
///
/// Exit status: 0 done, or nothing to do; 1 failed; 3 dry run, rerun with --yes.
#[derive(Args, Clone, Debug)]
pub struct RecoverOptions {
    /// What to accept
    #[arg(value_enum)]
    pub what: What,

    /// Item [default: the default item]
    #[arg(long, env = "FLASH_SALE_RECOVER_ITEM")]
    pub item: Option<Item>,

    /// Apply the change
    #[arg(long)]
    pub yes: bool,

    /// How long to wait for the item's lock
    #[arg(long, env = "FLASH_SALE_RECOVER_WAIT_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = duration("1s", "10m"))]
    pub wait_timeout: Duration,

    /// Where the servers are
    #[command(flatten)]
    pub servers: Servers,
}

/// What to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// This etcd cluster, in place of the one that guarded the stock
    Cluster,
    /// The data in the store, without the acknowledged orders that it lost
    Store,
}

/// Why the sale was not recovered.
#[derive(Debug, thiserror::Error)]
enum RecoverError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("etcd did not answer within {}", humantime::format_duration(*.0))]
    Silent(Duration),
    #[error("cannot take the lock {name}{}", held_by(.holder.as_deref()))]
    Lock {
        name: String,
        holder: Option<String>,
        #[source]
        source: LockError,
    },
    #[error(
        "the fence is token {fence} of this etcd cluster, but its next token is {token}: the cluster was \
         restored from a backup and its revisions went back. Restore it with \
         `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`"
    )]
    Restored { fence: i64, token: i64 },
    #[error(
        "the fence is of etcd cluster {theirs}, and this is cluster {ours}: if this is the right cluster, \
         run `flash-sale recover cluster` first"
    )]
    ForeignFence { theirs: String, ours: String },
    #[error(
        "the store has no stock of {0}, and no instance reported a loss: start a sale with PUT /stock"
    )]
    NoSale(Item),
    #[error(transparent)]
    Store(#[from] InventoryError),
}

fn held_by(holder: Option<&str>) -> String {
    holder.map_or_else(String::new, |holder| format!(": {holder} holds it"))
}

/// Runs the command, and returns its exit status.
///
/// # Errors
/// Why the sale was not recovered.
pub async fn run(options: RecoverOptions) -> Result<ExitCode, Box<dyn Error>> {
    Ok(recover(&options).await?)
}

async fn recover(options: &RecoverOptions) -> Result<ExitCode, RecoverError> {
    options.servers.check_files()?;
    let item = options.item.clone().unwrap_or_default();
    let inventory = options.servers.inventory()?;
    reach(&inventory, &item).await?;
    let name = lock_name(&options.servers.lock_name, &item);
    let lock_error = |source| RecoverError::Lock { name: name.clone(), holder: None, source };
    let etcd = EtcdBackend::new(options.servers.etcd_options()?)
        .map_err(|error| lock_error(error.into()))?;
    let session =
        SessionOptions { label: "flash-sale recover".into(), ..SessionOptions::new(LOCK_TTL) };
    let session = timeout(options.wait_timeout, Session::open(Arc::new(etcd), session)).await;
    let session = session.map_err(|_| RecoverError::Silent(options.wait_timeout))?;
    let session = session.map_err(lock_error)?;
    let done = under_lock(options, &item, &name, &inventory, &session).await;
    // releases the lock; if that fails, it ends with the lease
    let _ = timeout(LOCK_TTL, session.close()).await;
    done
}

/// Whether the store answers about the item. It may have just been started. Checked before the lock is taken.
async fn reach(inventory: &Inventory, item: &Item) -> Result<(), InventoryError> {
    for _ in 1..ATTEMPTS {
        match inventory.inspect(item).await {
            Err(error) if error.is_retryable() => sleep(PAUSE).await,
            reached => return reached.map(drop),
        }
    }
    inventory.inspect(item).await.map(drop)
}

async fn under_lock(
    options: &RecoverOptions,
    item: &Item,
    name: &str,
    inventory: &Inventory,
    session: &Session,
) -> Result<ExitCode, RecoverError> {
    let lock_error = |holder, source| RecoverError::Lock { name: name.to_owned(), holder, source };
    let mutex = session.mutex(name).map_err(|error| lock_error(None, error))?;
    let guard = match mutex.lock_timeout(options.wait_timeout).await {
        Ok(guard) => guard,
        Err(error) => {
            let queue = timeout(LOCK_TTL, mutex.queue()).await;
            let first = queue.ok().and_then(Result::ok).and_then(|queue| queue.into_iter().next());
            let holder = first.map(|first| match first.label {
                Some(label) => format!("{label:?}, under lease {:x},", first.lease),
                None => format!("lease {:x}", first.lease),
            });
            return Err(lock_error(holder, error));
        }
    };
    match options.what {
        What::Cluster => recover_cluster(options, item, inventory, guard.token()).await,
        What::Store => recover_store(options, item, inventory, guard.token()).await,
    }
}

async fn recover_cluster(
    options: &RecoverOptions,
    item: &Item,
    inventory: &Inventory,
    token: Token,
) -> Result<ExitCode, RecoverError> {
    let inspected = inventory.inspect(item).await?;
    let fence = inspected.stock.as_ref().ok_or_else(|| RecoverError::NoSale(item.clone()))?.fence;
    print(&report::state(item, inventory, &inspected, token));
    let Some(fence) = fence else {
        print("\nThe item has no fence yet: any cluster may guard it. Nothing to do.\n");
        return Ok(ExitCode::SUCCESS);
    };
    if fence.cluster == token.cluster() {
        check_is_later(token, fence)?;
        print("\nThe fence is of this cluster already. Nothing to do.\n");
        return Ok(ExitCode::SUCCESS);
    }
    print(&report::cluster_given_up(fence));
    if !options.yes {
        print("\nDry run. Rerun with --yes to apply.\n");
        return Ok(ExitCode::from(NOT_DONE));
    }
    inventory.recover_cluster(item, token).await?;
    print(&format!("\nDone. The fence is token {token} of cluster {}.\n", token.cluster()));
    Ok(ExitCode::SUCCESS)
}

async fn recover_store(
    options: &RecoverOptions,
    item: &Item,
    inventory: &Inventory,
    token: Token,
) -> Result<ExitCode, RecoverError> {
    let inspected = inventory.inspect(item).await?;
    // an item whose keys were deleted has only what an instance misses
    if inspected.stock.is_none() && inspected.rollback_detected.is_none() {
        return Err(RecoverError::NoSale(item.clone()));
    }
    print(&report::state(item, inventory, &inspected, token));
    if let Some(fence) = inspected.stock.and_then(|stock| stock.fence) {
        if fence.cluster != token.cluster() {
            let (theirs, ours) = (fence.cluster.to_string(), token.cluster().to_string());
            return Err(RecoverError::ForeignFence { theirs, ours });
        }
        check_is_later(token, fence)?;
    }
    print(&report::store_given_up(&inspected));
    if !options.yes {
        print("\nDry run. Rerun with --yes to apply.\n");
        return Ok(ExitCode::from(NOT_DONE));
    }
    inventory.recover_store(item, token).await?;
    print(&report::store_accepted(&inspected, token));
    Ok(ExitCode::SUCCESS)
}

/// Refuses a token of an etcd that was restored with smaller revisions.
fn check_is_later(token: Token, fence: Fence) -> Result<(), RecoverError> {
    if fence.revision > token.revision() {
        return Err(RecoverError::Restored { fence: fence.revision, token: token.revision() });
    }
    Ok(())
}

/// Prints for the operator. A failure to print does not stop the command.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
