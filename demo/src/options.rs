//! The flags of the demo.

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::FalseyValueParser;
use flash_sale::config::number;

use crate::instance::Guard;

const PORT_STEP: u16 = 10;

// no doc comment: it would replace the program's own in `--help`
#[derive(Clone, Debug, Args)]
pub struct DemoOptions {
    /// Units for sale: 0 to 1000000000.
    #[arg(long, env = "FLASH_SALE_DEMO_STOCK", default_value = "300", value_name = "UNITS",
          allow_negative_numbers = true, value_parser = number::<u64>(0..=1_000_000_000))]
    pub stock: u64,

    /// Buyers, with one order each: 1 to 1000000.
    #[arg(long, env = "FLASH_SALE_DEMO_REQUESTS", default_value = "500", value_name = "N",
          allow_negative_numbers = true, value_parser = number::<u64>(1..=1_000_000))]
    pub requests: u64,

    /// Instances: 1 to 32.
    #[arg(long, env = "FLASH_SALE_DEMO_INSTANCES", default_value = "2", value_name = "N",
          allow_negative_numbers = true, value_parser = number::<u16>(1..=32))]
    pub instances: u16,

    /// Guard of the sale: the lock, or for comparison a lock in each instance, no lock, or the store's script alone.
    #[arg(long, env = "FLASH_SALE_DEMO_LOCK", default_value = "etcd", value_name = "KIND")]
    pub lock: Guard,

    /// Have the instances send their orders to the one that holds the lock, in place of taking turns: for the guard `etcd`.
    #[arg(long, env = "FLASH_SALE_DEMO_FORWARD", value_parser = FalseyValueParser::new())]
    pub forward: bool,

    /// Then start a sale of as many units whose orders are held until they are paid: for a shop such as examples/shop.
    #[arg(long, env = "FLASH_SALE_DEMO_HOLDS", value_parser = FalseyValueParser::new())]
    pub holds: bool,

    /// Exit after the verdict.
    #[arg(long, env = "FLASH_SALE_DEMO_ONCE", value_parser = FalseyValueParser::new())]
    pub once: bool,

    /// Port of the first instance on 127.0.0.1, 1 to 65535; each further one is 10 higher, and the page is behind the last.
    #[arg(long, env = "FLASH_SALE_DEMO_PORT", default_value = "8080", value_name = "PORT",
          allow_negative_numbers = true, value_parser = number::<u16>(1..=65_535))]
    pub port: u16,
}

impl DemoOptions {
    /// The ports of the instances and, behind them, of the page.
    ///
    /// # Errors
    /// When the last one would be beyond 65535.
    pub(crate) fn ports(&self) -> Result<Vec<u16>> {
        let Self { instances, port, .. } = *self;
        let highest = u16::MAX - instances * PORT_STEP;
        if port > highest {
            bail!(
                "{instances} instances and the page, 10 ports apart, need a --port of {highest} or lower"
            );
        }
        Ok((0..=instances).map(|n| self.port_of(n)).collect())
    }

    /// The port of the n-th instance, from 0, or behind the last one of the page.
    pub(crate) fn port_of(&self, n: u16) -> u16 {
        self.port + n * PORT_STEP
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        demo: DemoOptions,
    }

    fn parse(args: &[&str]) -> Result<DemoOptions, String> {
        let line = ["demo"].iter().chain(args);
        Cli::try_parse_from(line).map(|cli| cli.demo).map_err(|error| error.to_string())
    }

    /// Goal: the defaults are as documented, and the ports follow from the first one.
    #[test]
    fn ports_follow_from_the_first() {
        let options = parse(&[]).expect("no flag is needed");
        assert_eq!((options.requests, options.stock, options.once), (500, 300, false));
        assert_eq!(options.ports().expect("they are free"), [8080, 8090, 8100]);
        let options = parse(&["--instances=2", "--port=65515"]).expect("good flags");
        assert_eq!(options.ports().expect("they exist"), [65515, 65525, 65535]);
    }

    /// Goal: a value out of its bounds, and ports beyond the last one, get an error that says what is allowed.
    #[test]
    fn wrong_values_are_explained() {
        for (line, message) in [
            ("--requests 0", "'--requests <N>': a whole number from 1 to 1000000 is allowed"),
            ("--requests many", "from 1 to 1000000 is"),
            ("--stock -5", "from 0 to 1000000000 is"),
            ("--stock 1000000001", "from 0 to 1000000000 is"),
            ("--instances 33", "from 1 to 32 is"),
            ("--port 65536", "from 1 to 65535 is"),
            ("--lock redis", "etcd, local, no-lock, atomic-script"),
            ("--instances 2 --port 65516", "--port of 65515 or lower"),
        ] {
            let options = parse(&line.split(' ').collect::<Vec<_>>());
            let ports = options.and_then(|it| it.ports().map_err(|error| error.to_string()));
            let refused = ports.expect_err(line);
            assert!(refused.contains(message), "{line}: {refused}");
        }
    }
}
