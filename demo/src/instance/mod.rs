//! One instance of the demo: the service with four guards, and the commands of the control.

mod guards;
pub mod rig;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::middleware::from_fn;
use axum::response::{Redirect, Response};
use axum::routing::get;
use clap::Args;
use flash_sale::config::Config;
use flash_sale::http::problem::{Problem, ProblemType};
use flash_sale::http::{Extension, body, reply};
use flash_sale::inventory::Inventory;
use flash_sale::sale::{BoxError, EtcdLock, Sale, SaleContext, SaleGuard, SaleOptions};
use flash_sale::serve::{self, serve_with};
use serde_json::{Value, json};
use testkit::signals::kill_now;
use tokio::time::sleep;

pub use self::guards::Guard;
use self::guards::Switch;
use self::rig::{FENCE, Rig};
use self::writer::Writer;
pub use self::writer::write_what_was_seen;
use crate::control::address;
use crate::control::record::{Command, Status};
use crate::same_site;

/// How long an instance that is to be killed still lives, so that the control gets its answer.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// How long the lock and the next holder may take to notice that a lease has ended.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

/// The flags of `serve`: those of the service, and the demo's own.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// The flags of the service
    #[command(flatten)]
    pub service: Config,

    /// Guard of the stock
    #[arg(long, env = "FLASH_SALE_LOCK", default_value = "etcd")]
    pub lock: Guard,

    /// Address of the demo's control (`demo control`), which has the page
    #[arg(long, env = "FLASH_SALE_CONTROL", value_name = "URL", value_parser = address)]
    pub control: Option<Authority>,
}

/// Runs one instance as [`flash_sale::serve::serve`] does, with the four guards.
///
/// # Errors
/// See [`serve_under`].
pub async fn serve(options: ServeOptions) -> Result<(), BoxError> {
    let ServeOptions { service, lock, control } = options;
    let rig = Arc::new(Rig::default());
    let writer = Arc::new(Writer(Arc::clone(&rig)));
    let open = async |config: &Config, inventory: Inventory, mut options: SaleOptions| {
        let etcd = serve::etcd(config)?;
        options.etcd = Some(Arc::clone(&etcd));
        let context = SaleContext::new(inventory.with_writer(writer), options);
        let instance = &context.options.instance;
        let sessions =
            serve::lock_sessions(config, instance, etcd, &config.servers.etcd_place()).await?;
        let lock: Box<dyn SaleGuard> = Box::new(EtcdLock::new(&context, sessions));
        Ok((context, lock))
    };
    serve_under(service, control, lock, rig, open).await
}

/// Runs one instance whose shared lock is the one that `open` returns.
///
/// # Errors
/// A token for clients was given, or the service failed.
pub async fn serve_under(
    config: Config,
    control: Option<Authority>,
    guard: Guard,
    rig: Arc<Rig>,
    open: impl AsyncFnOnce(
        &Config,
        Inventory,
        SaleOptions,
    ) -> Result<(Arc<SaleContext>, Box<dyn SaleGuard>), BoxError>,
) -> Result<(), BoxError> {
    if config.shop_token().or(config.admin_token()).is_some() {
        let no = "`demo serve` takes no shop's and no admin token: any client may make each call";
        return Err(no.into());
    }
    tracing::warn!(
        "this is a demo: any client may start a sale, confirm orders and read the ledger"
    );
    let sale = async |config: &Config, port| {
        let inventory = serve::inventory(config).await?;
        let (context, lock) = open(config, inventory, config.sale_options(port)).await?;
        let switch = Arc::new(Switch::new(&context, &rig, lock, guard));
        for (_, warning) in switch.status().warnings {
            tracing::warn!("{warning}");
        }
        let sale = Sale::new(context, Arc::clone(&switch) as Arc<dyn SaleGuard>);
        let controls = Controls { sale: sale.clone(), switch, rig, control };
        Ok((sale, Some(Arc::new(controls) as Arc<dyn Extension>)))
    };
    serve_with(config, sale).await
}

/// The routes by which the control sets this instance.
struct Controls {
    sale: Sale,
    switch: Arc<Switch>,
    rig: Arc<Rig>,
    control: Option<Authority>,
}

impl Extension for Controls {
    fn routes(self: Arc<Self>) -> Router {
        let controls = Router::new().route("/demo/here", get(status).post(execute));
        let controls = controls.layer(from_fn(same_site::layer));
        controls.route("/", get(to_the_page)).with_state(self)
    }

    /// Any client may start a sale, except pages of other sites.
    fn check_start(&self, head: &Parts) -> Result<(), Problem> {
        same_site::check(&head.headers)
    }
}

type App = State<Arc<Controls>>;

/// Leads to the page, which is at the control's port of the host that the browser has called.
async fn to_the_page(State(controls): App, request: Request) -> Result<Redirect, Problem> {
    let called =
        request.headers().get(header::HOST).and_then(|host| host.to_str().ok()?.parse().ok());
    let page = called.zip(controls.control.as_ref().and_then(Authority::port_u16));
    let elsewhere = || Problem::new(ProblemType::NOT_FOUND, "the page is at the control");
    let (called, port): (Authority, _) = page.ok_or_else(elsewhere)?;
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    Ok(Redirect::temporary(&format!("http://{}:{port}/{query}", called.host())))
}

async fn status(State(controls): App) -> Response {
    let Controls { sale, switch, rig, .. } = &*controls;
    let (tenures, looks) = rig.noted();
    let status = Status {
        instance: sale.instance().to_owned(),
        guard: switch.chosen(),
        fence: rig.has(FENCE),
        stale_batches: sale.metrics().stale_batches.get(),
        lease_ms: sale.lease_ttl().and_then(|ttl| ttl.as_millis().try_into().ok()),
    };
    reply::json(&(status, tenures, looks))
}

async fn execute(State(controls): App, request: Request) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let bad_body = |_| Problem::new(ProblemType::BAD_BODY, "the body is no command of a control");
    match body::object(&body).map_err(bad_body)? {
        Command::Guard(guard) => controls.switch.choose(guard),
        Command::Fence(is_on) => controls.rig.set(FENCE, is_on),
        Command::Fault(fault) => {
            // longer than the lease lives and the next holder takes to notice its end
            let long = controls.sale.lease_ttl().unwrap_or_default() * 2 + NOTICED_WITHIN;
            let pause = |seconds: Option<u64>| seconds.map_or(long, Duration::from_secs);
            let report = json!({"instance": controls.sale.instance()}).to_string();
            let control = controls.control.clone().map(|control| (control, report));
            let fault = fault.map(|(fault, seconds)| (fault, pause(seconds), control));
            *controls.rig.fault.lock() = fault;
        }
        Command::Kill {} => {
            tracing::error!("killing this instance, as the control of the demo asks");
            tokio::spawn(async {
                sleep(ANSWER_TIME).await;
                kill_now()
            });
        }
    }
    Ok(reply::json(&Value::Null))
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

    /// Goal: the answer to a wrong value says which values are allowed.
    #[test]
    fn wrong_values_are_explained() {
        flags::assert_refused::<ServeOptions>(&[
            ("--control", "127.0.0.1:8080", "an address looks like"),
            ("--lock", "redis", "[possible values: etcd, local, no-lock, atomic-script]"),
        ]);
    }

    /// Goal: any client may make each call, so a token that would protect nothing is refused.
    #[tokio::test]
    async fn a_token_is_refused() {
        for token in
            ["--admin-token=x", "--admin-token-file=x", "--shop-token=x", "--shop-token-file=x"]
        {
            let refused = serve(parse(&[token]).expect("it can be read")).await;
            let error = refused.expect_err(token).to_string();
            assert!(error.contains("takes no shop's and no admin token"), "{error}");
        }
    }
}
