//! The `serve` command: the service with a relay to the control, baselines and faults.

use std::sync::Arc;

use axum::http::uri::Authority;
use clap::Args;
use flash_sale::config::Config;
use flash_sale::http::Extension;
use flash_sale::sale::BoxError;
use flash_sale::serve::serve_with;

use crate::baselines::{self, GuardOptions};
use crate::control::address;
use crate::fault::{self, Rule};
use crate::locks::LockMode;
use crate::relay::Relay;
use crate::safeguard::{Safeguard, end_at_once};
use crate::writer::Writer;

/// The flags of `serve`: those of the service, and the demo's own.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// The flags of the service
    #[command(flatten)]
    pub service: Config,

    /// What guards the stock
    #[command(flatten)]
    pub guard: GuardOptions,

    /// Address of the demo's control (`demo control`), which the page's calls are passed on to
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

/// Runs one instance as [`flash_sale::serve::serve`] does, with the relay.
///
/// # Errors
/// A token for clients was given, or the service failed.
pub async fn serve(mut options: ServeOptions) -> Result<(), BoxError> {
    let Config { shop_token, shop_token_file, admin_token, admin_token_file, .. } =
        &options.service;
    let (tokens, files) = ([shop_token, admin_token], [shop_token_file, admin_token_file]);
    if tokens.into_iter().any(Option::is_some) || files.into_iter().any(Option::is_some) {
        return Err(
            "`demo serve` takes no shop's and no admin token: any client may make each call".into(),
        );
    }
    tracing::warn!(
        "this is a demo: any client may start a sale, confirm orders and read the ledger"
    );
    let writer = remove_safeguards(&mut options);
    let ServeOptions { service, guard, control, .. } = options;
    let sale = async |config: &Config, port| {
        let (sale, switch) = baselines::sale(config, &guard, &writer, port).await?;
        let relay = Arc::new(Relay::new(sale.clone(), switch, control));
        tokio::spawn(Arc::clone(&relay).follow());
        Ok((sale, Some(relay as Arc<dyn Extension>)))
    };
    serve_with(service, sale).await
}

/// Removes the safeguards that `options` name, and arms the faults.
fn remove_safeguards(options: &mut ServeOptions) -> Arc<Writer> {
    let mut writer = Writer::default();
    writer.without_tokens = options.guard.lock == LockMode::BatchedScript;
    let writer = Arc::new(writer);
    for safeguard in &options.without {
        writer.set(*safeguard, false);
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
        for (flag, value, message) in [
            ("--control", "127.0.0.1:8080", "an address looks like"),
            ("--without", "fence,sense", "[possible values: fence, order-ids"),
            ("--fault-at", "before-write:stop", "a fault is written POINT:ACTION:FILE"),
        ] {
            let error = parse(&[flag, value]).expect_err(value);
            assert!(error.contains(message), "{flag} {value}: {error}");
        }
        assert_eq!(parse(&["--without", "limits"]).is_ok(), cfg!(fenced_lock_chaos));
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
