//! One instance of the service in an experiment: other locks and guards, without safeguards, or with faults.
//!
//! | `--lock` | what guards the stock | what one order costs |
//! |---|---|---|
//! | `etcd` | the service's own lock | its part of a batch |
//! | `redis`, `redlock`, `postgres`, `zookeeper`, `file` | the same lock on another service | its part of a batch |
//! | `postgres-advisory` | PostgreSQL's own locks, a connection for each claim | its part of a batch |
//! | `etcd-recipe` | the recipe of Go's etcd client | one claim in etcd: two commits, and for a waiter a read and a watcher as well |
//! | `batched-script` | no lock: the script is atomic | its part of a batch |
//! | `atomic-script` | no lock: the script is atomic | one script in Redis |
//!
//! Everything but the lock is the service's: the plain read before the wait, the limits on the number and the time of waiting
//! orders, the connection to the store, the script, order ids and ledger.

mod by_flags;
mod fault;
mod guards;
mod recipe;
mod safeguard;
mod writer;

use std::sync::Arc;

use axum::http::uri::Authority;
use clap::Args;
use demo::control::address;
use demo::instance::rig::Rig;
use demo::instance::{self, serve_under};
use flash_sale::config::Config;
use flash_sale::inventory::Inventory;
use flash_sale::sale::{BoxError, EtcdLock, SaleContext, SaleGuard, SaleOptions};
use flash_sale::serve;

use self::fault::{Point, Rule};
use self::guards::{Guard, Kind};
use self::recipe::Recipe;
use self::safeguard::{Safeguard, end_at_once};
use self::writer::Writer;
use crate::locks::{AnyLock, Decorated, Fence, LockMode, Server};

/// The flags of `serve`: those of the service, and the laboratory's own.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// The flags of the service
    #[command(flatten)]
    pub service: Config,

    /// Guard of the stock
    #[arg(long, env = "FLASH_SALE_LOCK", default_value = "etcd")]
    pub lock: LockMode,

    /// Where the lock is, if it is not etcd: addresses of its servers, separated by commas, or its directory
    #[arg(long, env = "FLASH_SALE_LOCK_AT", value_name = "ADDRESS", value_delimiter = ',')]
    pub lock_at: Vec<String>,

    /// Fence of the stock [default: that of the lock if it has tokens, else that of the store]
    #[arg(long, env = "FLASH_SALE_FENCE")]
    pub fence: Option<Fence>,

    /// Address of the control of a run
    #[arg(long, env = "FLASH_SALE_CONTROL", value_name = "URL", value_parser = address)]
    pub control: Option<Authority>,

    /// Run without these safeguards, to show what they prevent; a build with `--cfg fenced_lock_chaos` has more
    #[arg(long, env = "FLASH_SALE_WITHOUT", value_name = "SAFEGUARD", value_delimiter = ',', value_parser = Safeguard::parser())]
    pub without: Vec<Safeguard>,

    /// Stop, kill, pause or starve this instance at a point of a tenure once a file exists: POINT:ACTION:FILE, such as
    /// before-write:stop:/tmp/now
    #[arg(long, env = "FLASH_SALE_FAULT_AT", value_name = "FAULT", value_delimiter = ',')]
    pub fault_at: Vec<Rule>,
}

/// Runs one instance as [`demo::instance::serve`] does, under these flags.
///
/// # Errors
/// A token for clients was given, or the service failed.
pub async fn serve(mut options: ServeOptions) -> Result<(), BoxError> {
    let writer = remove_safeguards(&mut options);
    let ServeOptions { service, lock, lock_at, fence, control, .. } = options;
    let rig = Arc::clone(&writer.rig);
    // a sale by the script alone needs no lock; the service beside it still opens etcd's
    let chosen = match lock {
        LockMode::AtomicScript => instance::Guard::AtomicScript,
        _ => instance::Guard::Lock,
    };
    let open = async |config: &Config, inventory: Inventory, mut options: SaleOptions| {
        let inventory = inventory.with_writer(Arc::clone(&writer) as _);
        if lock.server() == Server::Etcd {
            options.etcd = Some(serve::etcd(config)?);
        }
        let context = SaleContext::new(inventory, options);
        let guard: Box<dyn SaleGuard> = match lock {
            LockMode::EtcdRecipe => {
                let etcd = config.servers.etcd_options()?;
                let recipe = Arc::new(Recipe::connect(&etcd, config.lock_ttl).await?);
                Box::new(Guard::new(&context, Kind::Recipe(recipe)))
            }
            LockMode::BatchedScript => Box::new(Guard::batches(&context)),
            _ => {
                let any = match &context.options.etcd {
                    Some(etcd) => AnyLock::Fenced(Arc::clone(etcd) as _),
                    None => AnyLock::at(lock, &lock_at)?,
                };
                let name = &context.options.lock_name;
                let fenced = any.fenced_by(fence, &context.inventory, name)?;
                let fenced = Arc::new(Decorated::with(fenced, Arc::clone(&writer)));
                let instance = &context.options.instance;
                let place = match lock.server() {
                    Server::Etcd => config.servers.etcd_place(),
                    _ => format!("{} at {}", lock.name(), lock_at.join(",")),
                };
                let sessions = serve::lock_sessions(config, instance, fenced as _, &place).await?;
                let lock = EtcdLock::new(&context, sessions);
                if writer.has(Safeguard::BatchOwnership) {
                    Box::new(lock)
                } else {
                    Box::new(Guard::new(&context, Kind::InTheRequest(lock)))
                }
            }
        };
        Ok((context, guard))
    };
    serve_under(service, control, chosen, rig, open).await
}

/// Removes the safeguards that `options` name, and arms the faults.
fn remove_safeguards(options: &mut ServeOptions) -> Arc<Writer> {
    let without_tokens = options.lock == LockMode::BatchedScript;
    let rig = Arc::new(Rig::with(|| Box::pin(fault::at(Point::BeforeWrite))));
    let writer = Arc::new(Writer::new(rig, without_tokens));
    if options.fence == Some(Fence::None) {
        writer.rig.set(&Safeguard::Fence.to_string(), false);
    }
    for safeguard in &options.without {
        writer.rig.set(&safeguard.to_string(), false);
        if *safeguard == Safeguard::Drain {
            tokio::spawn(end_at_once());
        }
        #[cfg(fenced_lock_chaos)]
        safeguard.remove_inside(&mut options.service);
        tracing::error!(
            "RUNNING WITHOUT {safeguard}: this instance can lose orders or sell units twice"
        );
    }
    for Rule { point, action, file } in &options.fault_at {
        tracing::error!(?point, ?action, ?file, "a FAULT is asked for");
    }
    fault::follow(std::mem::take(&mut options.fault_at));
    writer
}

#[cfg(test)]
mod tests {
    use testkit::flags;

    use super::*;

    fn parse(flags: &[&str]) -> Result<ServeOptions, String> {
        flags::parse(flags).map_err(|error| error.to_string())
    }

    /// Goal: each flag, including those of the service, has the variable that its name promises.
    #[test]
    fn every_flag_has_its_variable() {
        flags::assert_variables::<ServeOptions>();
    }

    /// Goal: the answer to a wrong value says which values are allowed. Only a build with `--cfg fenced_lock_chaos` can remove
    /// the safeguards of the lock and of the server.
    #[test]
    fn wrong_values_are_explained() {
        flags::assert_refused::<ServeOptions>(&[
            ("--control", "127.0.0.1:8080", "an address looks like"),
            ("--without", "fence,sense", "[possible values: fence, order-ids"),
            ("--fault-at", "before-write:stop", "a fault is written POINT:ACTION:FILE"),
        ]);
        assert_eq!(parse(&["--without", "limits"]).is_ok(), cfg!(fenced_lock_chaos));
    }
}
