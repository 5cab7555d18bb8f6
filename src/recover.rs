//! The `recover` command: an operator accepts a new etcd cluster or a loss of data.
//!
//! Two faults stop a sale until an operator acts. The fence comes from another etcd cluster, so no token can
//! be compared with it: `recover cluster`. Or the store lost acknowledged data: `recover store`. In both cases
//! the command takes the item's lock, prints the state and what would be given up, and changes nothing
//! without `--yes`.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fenced_lock::{EtcdBackend, LockError, Session, SessionOptions, Token};
use tokio::time::{sleep, timeout};

use crate::config::{Servers, duration};
use crate::error_chain::ErrorChain;
use crate::inventory::{Inspection, Inventory, Item, Stock};
use crate::sale::{BoxError, lock_name};

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

/// Runs the command, and returns its exit status.
///
/// # Errors
/// A sentence: why the sale was not recovered.
pub async fn run(options: RecoverOptions) -> Result<ExitCode, BoxError> {
    options.servers.check_files()?;
    let item = options.item.clone().unwrap_or_default();
    let inventory = options.servers.inventory()?;
    // before the lock is taken: the store may not answer, or may have just been started
    for _ in 1..ATTEMPTS {
        match inventory.inspect(&item).await {
            Err(error) if error.is_retryable() => sleep(PAUSE).await,
            _ => break,
        }
    }
    inventory.inspect(&item).await?;
    let name = lock_name(&options.servers.lock_name, &item);
    let etcd = EtcdBackend::new(options.servers.etcd_options()?)
        .map_err(|error| not_locked(&name, "", &error.into()))?;
    let session = SessionOptions::new(LOCK_TTL).label("flash-sale recover");
    let limit = humantime::format_duration(options.wait_timeout);
    let session = timeout(options.wait_timeout, Session::open(Arc::new(etcd), session)).await;
    let session = session.map_err(|_| format!("etcd did not answer within {limit}"))?;
    let session = session.map_err(|error| not_locked(&name, "", &error))?;
    let done = under_lock(&options, &item, &name, &inventory, &session).await;
    // releases the lock; if that fails, it ends with the lease
    let _ = timeout(LOCK_TTL, session.close()).await;
    done
}

fn not_locked(name: &str, held_by: &str, error: &LockError) -> String {
    format!("cannot take the lock {name}{held_by}: {}", ErrorChain(error))
}

async fn under_lock(
    options: &RecoverOptions,
    item: &Item,
    name: &str,
    inventory: &Inventory,
    session: &Session,
) -> Result<ExitCode, BoxError> {
    let mutex = session.mutex(name).map_err(|error| not_locked(name, "", &error))?;
    let waited = options.wait_timeout;
    let locked = timeout(waited, mutex.lock()).await;
    let guard = match locked.unwrap_or(Err(LockError::Timeout { waited })) {
        Ok(guard) => guard,
        Err(error) => {
            let holder = match timeout(LOCK_TTL, mutex.probe()).await {
                Ok(Ok(Some(front))) => {
                    let name = front.label.unwrap_or(front.key);
                    format!(": {name:?}, under lease {:x}, holds it", front.lease)
                }
                _ => String::new(),
            };
            return Err(not_locked(name, &holder, &error).into());
        }
    };
    let token = guard.token();
    let inspected = inventory.inspect(item).await?;
    // an item whose keys were deleted has only what an instance misses
    let has_loss = options.what == What::Store && inspected.rollback_detected.is_some();
    if inspected.stock.is_none() && !has_loss {
        let advice = "and no instance reported a loss: start a sale with PUT /stock";
        return Err(format!("the store has no stock of {item}, {advice}").into());
    }
    print(&state(item, inventory, &inspected, token));
    let fence = inspected.stock.as_ref().and_then(|stock| stock.fence);
    if let Some(fence) = fence.filter(|fence| *fence > token) {
        return Err(format!(
            "the fence is token {fence} of this etcd cluster, but its next token is {token}: the cluster was \
             restored from a backup and its revisions went back. Restore it with \
             `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`"
        )
        .into());
    }
    let (ours, foreign) =
        (token.cluster(), fence.filter(|fence| fence.cluster() != token.cluster()));
    print(&match (options.what, foreign) {
        (What::Cluster, Some(fence)) => cluster_given_up(fence),
        (What::Cluster, None) => {
            print("\nThe item has no fence of another cluster. Nothing to do.");
            return Ok(ExitCode::SUCCESS);
        }
        (What::Store, Some(fence)) => {
            return Err(format!(
                "the fence is of etcd cluster {}, and this is cluster {ours}: if this is the right cluster, \
                 run `flash-sale recover cluster` first",
                fence.cluster()
            )
            .into());
        }
        (What::Store, None) => store_given_up(&inspected),
    });
    if !options.yes {
        print("\nDry run. Rerun with --yes to apply.");
        return Ok(ExitCode::from(NOT_DONE));
    }
    match options.what {
        What::Cluster => {
            inventory.recover_cluster(item, token).await?;
            print(&format!("\nDone. The fence is token {token} of cluster {ours}."));
        }
        What::Store => {
            inventory.recover_store(item, token).await?;
            print(&store_accepted(&inspected, token));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The state of the item, for the operator.
fn state(item: &Item, inventory: &Inventory, inspected: &Inspection, token: Token) -> String {
    let mut lines = vec![format!("item     {item}"), format!("store    {}", inventory.address())];
    match &inspected.stock {
        None => lines.push("stock    none".to_owned()),
        Some(Stock { stock, lucky, initial, fence, orders, .. }) => {
            lines.push(format!("stock    {stock} left and {lucky} sold, of {initial}"));
            let latest = inspected.latest.as_ref();
            let latest = latest.map(|latest| format!(", the latest is {}", latest.order.as_str()));
            lines.push(format!("ledger   {orders} orders{}", latest.unwrap_or_default()));
            lines.push(match fence {
                Some(fence) => {
                    format!("fence    token {fence} of etcd cluster {}", fence.cluster())
                }
                None => "fence    none".to_owned(),
            });
        }
    }
    lines.extend(inspected.rollback_detected.iter().map(|missing| format!("missing  {missing}")));
    lines.push(format!("lock     taken, with token {token} of etcd cluster {}", token.cluster()));
    lines.join("\n")
}

/// The effect of another cluster.
fn cluster_given_up(fence: Token) -> String {
    format!(
        "\nThe fence would become one of this cluster. The store would refuse every token of cluster {},\n\
         including that of a live holder. No order is lost. Make sure that no instance uses that cluster.",
        fence.cluster()
    )
}

/// The effect of accepting the store.
fn store_given_up(inspected: &Inspection) -> String {
    if inspected.stock.is_none() {
        return "\nThis would end the sale of the item and give up all its acknowledged orders. If a complete\n\
                copy of the data exists, restore it instead."
            .to_owned();
    }
    "\nAll instances would resume the sale from this state. Every acknowledged order that is not in it would be\n\
     given up: its buyer has a confirmation, and its units would be sold again. The instances' logs name a\n\
     missing order. If a complete copy of the data exists, restore it instead.\n\
     If etcd was restored from a backup as well, stop all instances first: its tokens went back."
        .to_owned()
}

/// The result of accepting the store.
fn store_accepted(inspected: &Inspection, token: Token) -> String {
    if inspected.stock.is_none() {
        return "\nDone. The item has no sale. PUT /stock starts one.".to_owned();
    }
    format!(
        "\nDone. All instances resume with this state, under token {token} or later. If etcd was restored\n\
         as well and instances were running, stop them, repeat this command, and start them again."
    )
}

/// Prints for the operator. A failure to print does not stop the command.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
