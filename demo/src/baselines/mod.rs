//! Other ways to guard the same sale, for comparison.
//!
//! | `--lock` | what guards the stock | what one order costs |
//! |---|---|---|
//! | `etcd` | the service's own lock | its part of a batch |
//! | `redis`, `redlock`, `postgres`, `zookeeper`, `file` | the same lock on another service | its part of a batch |
//! | `postgres-advisory` | PostgreSQL's own locks, a connection for each claim | its part of a batch |
//! | `local` | a mutex in each process: oversells with two instances | GET, SET and INCRBY in Redis |
//! | `no-lock` | nothing: oversells | GET, SET and INCRBY in Redis |
//! | `etcd-recipe` | the recipe of Go's etcd client | one claim in etcd: two commits, and for a waiter a read and a watcher as well |
//! | `etcd-rpc` | etcd's own `Lock` call | one lease in etcd: four commits; GET, SET and INCRBY in Redis |
//! | `batched-script` | no lock: the script is atomic | its part of a batch |
//! | `atomic-script` | no lock: the script is atomic | one script in Redis |
//!
//! Everything but the lock is the service's: the plain read before the wait, the limits on the number and the time of waiting
//! orders, the connection to the store, and the script where order ids and ledger are kept.

pub mod etcd;
pub(crate) mod naive;
mod order_locks;
mod per_order;
mod switch;

use std::sync::Arc;

use flash_sale::config::Config;
use flash_sale::sale::{BoxError, EtcdLock, Sale, SaleContext, SaleGuard};
use flash_sale::serve;
use parking_lot::Mutex;

use self::order_locks::{Etcd, OrderLock, Recipe};
use self::per_order::PerOrder;
pub use self::switch::Switch;
use crate::decorated::Decorated;
use crate::locks::{AnyLock, Fence, LockMode, Server};
use crate::safeguard::Safeguard;
use crate::writer::Writer;

/// A guard that is none of the library's locks.
async fn per_order(
    context: &Arc<SaleContext>,
    mode: LockMode,
    config: &Config,
) -> Result<PerOrder, BoxError> {
    if mode.server() != Server::Etcd {
        return Ok(in_process(context, mode));
    }
    let etcd = Etcd::connect(&config.servers.etcd_options()?, config.lock_ttl).await?;
    let lock = if mode == LockMode::EtcdRecipe {
        OrderLock::Recipe(Recipe::new(etcd))
    } else {
        tracing::warn!("the lock has no token and the sale no ledger: a retry buys again");
        OrderLock::Call(etcd)
    };
    Ok(PerOrder::new(context, mode, lock))
}

/// `local`, `no-lock`, `batched-script` or `atomic-script`. The last two do not oversell, because the script is one atomic step:
/// the lock is measured against them.
fn in_process(context: &Arc<SaleContext>, mode: LockMode) -> PerOrder {
    let is_local = mode == LockMode::Local;
    let lock = if is_local { OrderLock::Local(Mutex::default()) } else { OrderLock::None };
    PerOrder::new(context, mode, lock)
}

/// The guard of a sale, and the fence that refuses the writes of a holder that was overtaken.
#[derive(clap::Args, Clone, Debug)]
pub struct GuardOptions {
    /// Guard of the stock
    #[arg(long, env = "FLASH_SALE_LOCK", default_value = "etcd")]
    pub lock: LockMode,

    /// Where the lock is, if it is not etcd: addresses of its servers, separated by commas, or its directory
    #[arg(long, env = "FLASH_SALE_LOCK_AT", value_name = "ADDRESS", value_delimiter = ',')]
    pub lock_at: Vec<String>,

    /// Fence of the stock [default: that of the lock if it has tokens, else that of the store]
    #[arg(long, env = "FLASH_SALE_FENCE")]
    pub fence: Option<Fence>,
}

/// The sale as `config` describes it under this guard, for an instance that listens on `port`, and the
/// switch between its guards.
///
/// # Errors
/// Permanent errors: a malformed address, a wrong password.
pub async fn sale(
    config: &Config,
    options: &GuardOptions,
    writer: &Arc<Writer>,
    port: u16,
) -> Result<(Sale, Arc<Switch>), BoxError> {
    let lock = options.lock;
    if options.fence == Some(Fence::None) {
        writer.set(Safeguard::Fence, false);
    }
    let inventory = serve::inventory(config).await?.with_writer(Arc::clone(writer) as _);
    let mut sale_options = config.sale_options(port);
    if lock.server() == Server::Etcd {
        sale_options.etcd = Some(serve::etcd(config)?);
    }
    let context = SaleContext::new(inventory, sale_options);
    let main: Box<dyn SaleGuard> = if lock.is_shared() {
        let any = match &context.options.etcd {
            Some(etcd) => AnyLock::Fenced(Arc::clone(etcd) as _),
            None => AnyLock::at(lock, &options.lock_at)?,
        };
        let name = &context.options.lock_name;
        let fenced = any.fenced_by(options.fence, &context.inventory, name)?;
        let fenced = Arc::new(Decorated::with(fenced, Arc::clone(writer)));
        let instance = &context.options.instance;
        let place = match lock.server() {
            Server::Etcd => config.servers.etcd_place(),
            _ => format!("{} at {}", lock.name(), options.lock_at.join(",")),
        };
        let sessions = serve::lock_sessions(config, instance, fenced as _, &place).await?;
        Box::new(EtcdLock::new(&context, sessions))
    } else {
        for (_, warning) in lock.status().warnings {
            tracing::warn!("{warning}");
        }
        Box::new(per_order(&context, lock, config).await?)
    };
    let switch = Arc::new(Switch::new(&context, Arc::clone(writer), lock, main));
    Ok((Sale::new(context, Arc::clone(&switch) as Arc<dyn SaleGuard>), switch))
}
