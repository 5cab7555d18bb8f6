//! The `serve` command: the service with the page's controls, and with ways to break it.

use std::str::FromStr;
use std::sync::Arc;

use axum::http::Uri;
use clap::Args;
use flash_sale::config::{Config, switch};
use flash_sale::defence::Defence;
use flash_sale::fault::{self, Rule};
use flash_sale::http::Extension;
use flash_sale::serve::{ServeError, serve_with};

use crate::baselines::{self, LockMode};
use crate::controls::Controls;
use crate::writer::{WriteDefence, Writer};

/// The flags of `serve`: those of the service, and some of the laboratory.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// Those of the service
    #[command(flatten)]
    pub service: Config,

    /// What guards the stock
    #[arg(long, env = "FLASH_SALE_LOCK", default_value = "etcd")]
    pub lock: LockMode,

    /// Addresses of all instances, this one included, separated by commas, each with a port of its own: the page
    /// controls them together
    #[arg(long, env = "FLASH_SALE_INSTANCES", value_name = "URL", value_delimiter = ',', value_parser = instance_address)]
    pub instances: Vec<Uri>,

    /// Tell the page that an instance that was killed is started again
    #[arg(long, env = "FLASH_SALE_RESTARTED", value_parser = switch, hide = true)]
    pub restarted: bool,

    /// Run without these defences, to show what they are for; all but fence, order-ids and atomic-ledger need
    /// the cargo feature chaos
    #[arg(long, env = "FLASH_SALE_WITHOUT", value_name = "DEFENCE", value_delimiter = ',')]
    pub without: Vec<Without>,

    /// Stop, kill or pause this instance at a point of a tenure: POINT:ACTION:WHEN, such as before-write:stop:7
    #[arg(long, env = "FLASH_SALE_FAULT_AT", value_name = "FAULT", value_delimiter = ',')]
    pub fault_at: Vec<Rule>,

    /// Keep every worker of this instance busy when this file appears, for the time that stands in it
    #[cfg(feature = "chaos")]
    #[arg(long, env = "FLASH_SALE_STARVE_FILE", value_name = "FILE")]
    pub starve_file: Option<std::path::PathBuf>,
}

/// Why an instance did not start, or did not stop as it should.
#[derive(Debug, thiserror::Error)]
pub enum LabServeError {
    /// There is an admin token, although everybody may start a sale.
    #[error("`lab serve` takes no admin token: everybody may start a sale")]
    AdminToken,
    /// As for the service.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Runs one instance as [`flash_sale::serve::serve`] does, with the controls.
///
/// # Errors
/// See [`LabServeError`].
pub async fn serve(options: ServeOptions) -> Result<(), LabServeError> {
    let config = &options.service;
    if config.admin_token.is_some() || config.admin_token_file.is_some() {
        return Err(LabServeError::AdminToken);
    }
    let writer = take_away(&options);
    let ServeOptions { service, lock, instances, restarted, .. } = options;
    let sale = async |config: &Config, port| {
        let (sale, switch) = baselines::sale(config, lock, &writer, port).await?;
        let controls = Controls::new(sale.clone(), switch, port, &instances, restarted);
        Ok((sale, Some(Arc::new(controls) as Arc<dyn Extension>)))
    };
    Ok(serve_with(service, sale).await?)
}

/// Switches off what this instance shall run without, and prepares the faults that are asked for.
fn take_away(options: &ServeOptions) -> Arc<Writer> {
    let writer = Arc::new(Writer::default());
    for without in &options.without {
        let defence = match without {
            Without::Write(defence) => {
                writer.set(*defence, false);
                defence.name()
            }
            Without::Other(defence) => {
                defence.switch_off();
                defence.name()
            }
        };
        tracing::error!(
            "RUNNING WITHOUT {defence}: this instance can lose orders or sell units twice"
        );
    }
    fault::follow(options.fault_at.clone());
    for rule in &options.fault_at {
        let when = rule.when();
        tracing::error!(?when, "a FAULT is asked for: {} at {}", rule.action(), rule.point());
    }
    #[cfg(feature = "chaos")]
    if let Some(path) = &options.starve_file {
        fault::starvation::on_file(path.clone());
    }
    writer
}

/// What an instance can run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Something of the write.
    Write(WriteDefence),
    /// Something of the service, which only a build with the cargo feature `chaos` can do without.
    Other(Defence),
}

impl FromStr for Without {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let of_the_write = WriteDefence::ALL.into_iter().find(|defence| defence.name() == name);
        if let Some(defence) = of_the_write {
            return Ok(Self::Write(defence));
        }
        if Defence::ALL.iter().any(|defence| defence.name() == name) {
            return name.parse().map(Self::Other);
        }
        let others = Defence::ALL.iter().filter(|defence| defence.can_be_off());
        let names: Vec<_> = WriteDefence::ALL
            .into_iter()
            .map(WriteDefence::name)
            .chain(others.map(|defence| defence.name()))
            .collect();
        Err(format!("a defence that this program can do without is {}", names.join(", ")))
    }
}

fn instance_address(text: &str) -> Result<Uri, &'static str> {
    let uri: Option<Uri> = text.parse().ok();
    let plain = uri.filter(|uri| {
        uri.scheme_str() == Some("http")
            && uri.port().is_some()
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
    });
    plain.ok_or("an instance's address looks like http://127.0.0.1:8080")
}

#[cfg(test)]
mod tests {
    use testkit::flags;

    use super::*;

    fn parse(flags: &[&str]) -> Result<ServeOptions, String> {
        flags::parse(flags).map_err(|error| error.to_string())
    }

    /// Goal: each flag has the variable that its name promises.
    #[test]
    fn every_flag_has_its_variable() {
        flags::assert_variables::<ServeOptions>();
    }

    /// Goal: a wrong value is answered with what is allowed.
    #[test]
    fn wrong_values_get_a_sentence() {
        for (flag, value, sentence) in [
            ("--instances", "127.0.0.1:8080", "an instance's address looks like"),
            ("--lock", "redis", "etcd, local, none"),
            ("--without", "fence,sense", "a defence that this program can do without is fence"),
            ("--fault-at", "before-write:stop", "a fault is written POINT:ACTION:WHEN"),
        ] {
            let error = parse(&[flag, value]).expect_err(value);
            assert!(error.contains(sentence), "{flag} {value}: {error}");
        }
    }

    /// Goal: everybody may start a sale, so a token is refused.
    #[tokio::test]
    async fn an_admin_token_is_refused() {
        for token in ["--admin-token=x", "--admin-token-file=x"] {
            let error = serve(parse(&[token]).expect("it can be read")).await;
            assert!(matches!(error, Err(LabServeError::AdminToken)), "{token}");
        }
    }

    /// Goal: without the cargo feature, the other defences are there for good, and the flag says why.
    #[cfg(not(feature = "chaos"))]
    #[test]
    fn other_defences_need_the_feature() {
        let error = parse(&["--without", "limits"]).expect_err("no such way");
        assert!(error.contains("cargo feature chaos"), "{error}");
    }
}
