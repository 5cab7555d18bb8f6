//! The `recover` command: an operator accepts a new etcd cluster or a loss of data.
//!
//! Two faults stop a sale until an operator acts: the fence is of another etcd cluster, so no token can be compared with it
//! (`recover cluster`); or the store lost acknowledged data (`recover store`). In both cases the command takes the item's lock,
//! prints the state and the data that would be given up, and without `--yes` changes nothing.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fenced_lock::{EtcdBackend, Guard, LockError, Session, SessionOptions, Token};
use tokio::time::timeout;

use crate::config::{Servers, duration};
use crate::error_chain::ErrorChain;
use crate::inventory::{Entry, Inspection, Inventory, InventoryError, Item, Stock};
use crate::sale::{BoxError, lock_name};

/// The exit status of a dry run that found something to do.
const NOT_DONE: u8 = 3;

/// How long the lock outlives this command if the command is killed.
const LOCK_TTL: Duration = Duration::from_secs(10);

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
/// A sentence that says why the sale was not recovered.
pub async fn run(options: RecoverOptions) -> Result<ExitCode, BoxError> {
    options.servers.check_files()?;
    let item = options.item.clone().unwrap_or_default();
    let inventory = options.servers.inventory()?;
    // before the lock is taken: the store may not answer
    inventory.exists(&item).await?;
    let name = lock_name(&options.servers.lock_name, &item);
    let failed = |error: &LockError| format!("cannot take the lock {name}: {}", ErrorChain(error));
    let etcd = EtcdBackend::new(options.servers.etcd_options()?);
    let etcd = Arc::new(etcd.map_err(|error| failed(&error.into()))?);
    let session = SessionOptions::new(LOCK_TTL).label("flash-sale recover");
    let waited = options.wait_timeout;
    let late = |what: &str| LockError::Timeout { what: what.into(), waited };
    let session = timeout(waited, Session::open(etcd, session)).await;
    let session =
        session.unwrap_or_else(|_| Err(late("lock session"))).map_err(|error| failed(&error))?;
    let mutex = session.mutex(&name).map_err(|error| failed(&error))?;
    let done = match timeout(waited, mutex.lock()).await.unwrap_or_else(|_| Err(late("grant"))) {
        Ok(guard) => under_lock(&options, &item, &inventory, &guard).await,
        Err(error) => {
            let error = failed(&error);
            Err(match timeout(LOCK_TTL, mutex.probe()).await {
                Ok(Ok(Some(front))) => {
                    let holder = front.label.unwrap_or(front.key);
                    format!("{error}; {holder:?}, under lease {:x}, holds it", front.lease)
                }
                _ => error,
            }
            .into())
        }
    };
    // releases the lock; if that fails, the lock ends with the lease
    let _ = timeout(LOCK_TTL, session.close()).await;
    done
}

async fn under_lock(
    options: &RecoverOptions,
    item: &Item,
    inventory: &Inventory,
    guard: &Guard,
) -> Result<ExitCode, BoxError> {
    let token = guard.token();
    let inspected = match inventory.inspect(item).await {
        // a new sale mends the rest, and needs a fence of this cluster
        Err(InventoryError::Damaged { what }) if options.what == What::Cluster => {
            print(&format!("item     {item}\nstore    {}\ndamaged  {what}", inventory.address()));
            let loss = "The fence would become one of this cluster, whatever it is now. Make sure that no instance uses\n\
                        another cluster. Then start a new sale with PUT /stock, or repair the data.";
            let result = format!("The fence is {}. The data are still damaged.", of(token));
            return accept(options, item, inventory, token, [loss, &result]).await;
        }
        inspected => inspected?,
    };
    // if the keys of an item were deleted, only the loss that an instance reported is left
    let has_loss = options.what == What::Store && inspected.rollback_detected.is_some();
    if inspected.stock.is_none() && !has_loss {
        let advice = "and no instance reported a loss: start a sale with PUT /stock";
        return Err(format!("the store has no stock of {item}, {advice}").into());
    }
    print(&state(item, inventory, &inspected, token));
    let fence = inspected.stock.as_ref().and_then(|stock| stock.fence);
    if let Some(fence) = fence.filter(|fence| *fence > token) {
        let (fence, token) = (fence.revision(), token.revision());
        return Err(format!(
            "the fence is token {fence} of this etcd cluster, but its next token is {token}: the cluster was \
             restored from a backup and its revisions went back. Restore it with \
             `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`"
        )
        .into());
    }
    let foreign = fence.map(Token::cluster).filter(|cluster| *cluster != token.cluster());
    let (loss, result) = match (options.what, foreign) {
        (What::Cluster, None) => {
            print("\nThe item has no fence of another cluster. Nothing to do.");
            return Ok(ExitCode::SUCCESS);
        }
        (What::Store, Some(theirs)) => {
            return Err(format!(
                "the fence is of etcd cluster {theirs}, and this is cluster {}: if this is the right cluster, \
                 run `flash-sale recover cluster` first",
                token.cluster()
            )
            .into());
        }
        (What::Cluster, Some(theirs)) => (
            format!(
                "The fence would become one of this cluster. The store would refuse every token of cluster {theirs},\n\
                 including that of a live holder. No order is lost. Make sure that no instance uses that cluster."
            ),
            format!("The fence is {}.", of(token)),
        ),
        (What::Store, None) if inspected.stock.is_none() => (
            "This would end the sale of the item and give up all its acknowledged orders. If a complete\n\
             copy of the data exists, restore it instead."
                .to_owned(),
            "The item has no sale. PUT /stock starts one.".to_owned(),
        ),
        (What::Store, None) => (
            "All instances would resume the sale from this state. Every acknowledged order that is not in it would be\n\
             given up: its buyer has a confirmation, and its units would be sold again. The instances' logs name a\n\
             missing order. If a complete copy of the data exists, restore it instead.\n\
             If etcd was restored from a backup as well, stop all instances first: its tokens went back."
                .to_owned(),
            format!(
                "All instances resume with this state, under token {} or later. If etcd was restored\n\
                 as well and instances were running, stop them, repeat this command, and start them again.",
                token.revision()
            ),
        ),
    };
    accept(options, item, inventory, token, [&loss, &result]).await
}

/// Says what would be given up, and with --yes changes the store.
async fn accept(
    options: &RecoverOptions,
    item: &Item,
    inventory: &Inventory,
    token: Token,
    [loss, result]: [&str; 2],
) -> Result<ExitCode, BoxError> {
    print(&format!("\n{loss}"));
    if !options.yes {
        print("\nDry run. Rerun with --yes to apply.");
        return Ok(ExitCode::from(NOT_DONE));
    }
    match options.what {
        What::Cluster => inventory.recover_cluster(item, token).await?,
        What::Store => inventory.recover_store(item, token).await?,
    }
    print(&format!("\nDone. {result}"));
    Ok(ExitCode::SUCCESS)
}

fn of(token: Token) -> String {
    format!("token {} of etcd cluster {}", token.revision(), token.cluster())
}

fn state(item: &Item, inventory: &Inventory, inspected: &Inspection, token: Token) -> String {
    let mut lines = vec![format!("item     {item}"), format!("store    {}", inventory.address())];
    if let Some(Stock { stock, lucky, initial, fence, orders, .. }) = &inspected.stock {
        lines.push(format!("stock    {stock} left and {lucky} sold, of {initial}"));
        let latest = inspected.latest.as_ref();
        let latest = latest.map(|latest| match latest {
            Entry::Order(order) => format!(", the latest is {}", order.order.as_str()),
            Entry::Other(entry) => format!(", the latest entry is {:?}", entry.event),
        });
        lines.push(format!("ledger   {orders} orders{}", latest.unwrap_or_default()));
        lines.push(format!("fence    {}", fence.map_or("none".to_owned(), of)));
    } else {
        lines.push("stock    none".to_owned());
    }
    lines.extend(inspected.rollback_detected.iter().map(|missing| format!("missing  {missing}")));
    lines.push(format!("lock     taken, with {}", of(token)));
    lines.join("\n")
}

/// Prints for the operator. A failure to print does not stop the command.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
