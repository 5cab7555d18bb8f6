//! The flags of the demo.

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::FalseyValueParser;

use crate::baselines::{Fence, LockMode};

/// Each further instance listens this many ports higher.
const PORT_STEP: u16 = 10;

/// Whether this program was built with the locks besides etcd's.
const OTHER_LOCKS: bool = cfg!(feature = "other-locks");

// no doc comment: it would replace that of the program in `--help`
#[derive(Clone, Debug, Args)]
pub struct DemoOptions {
    /// Exit after the verdict.
    #[arg(long, env = "FLASH_SALE_DEMO_ONCE", value_parser = FalseyValueParser::new())]
    pub once: bool,

    /// Use mutual TLS and users for etcd and Redis.
    #[arg(long, env = "FLASH_SALE_DEMO_SECURE", value_parser = FalseyValueParser::new())]
    pub secure: bool,

    /// Buyers, with one order each, all at once: 1 to 1000000.
    #[arg(long, env = "FLASH_SALE_DEMO_REQUESTS", default_value = "500", value_name = "N",
          allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub requests: u64,

    /// Units for sale: 0 to 1000000000.
    #[arg(long, env = "FLASH_SALE_DEMO_STOCK", default_value = "300", value_name = "UNITS",
          allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub stock: u64,

    /// Instances: 1 to 32.
    #[arg(long, env = "FLASH_SALE_DEMO_INSTANCES", default_value = "2", value_name = "N",
          allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub instances: u16,

    /// Port of the first instance on 127.0.0.1; each further one is 10 higher. With --beside, the instances of the
    /// second lock follow those of the first.
    #[arg(long, env = "FLASH_SALE_DEMO_PORT", default_value = "8080", value_name = "PORT",
          allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Guard of the sale. `redis`, `redlock`, `postgres`, `postgres-advisory`, `zookeeper` and `file` are
    /// other locks, which need their servers, but no etcd. `no-lock` and `local` oversell, to show why the lock is
    /// there; `etcd-recipe`, `etcd-rpc`, `batched-script` and `atomic-script` are for comparison.
    #[arg(long, env = "FLASH_SALE_DEMO_LOCK", default_value = "etcd", value_name = "KIND")]
    pub lock: LockMode,

    /// A second lock: the same sale beside the first, with instances, a stock and servers of its own. The page
    /// shows both under the same fault. Both are among etcd, redis, redlock, postgres, postgres-advisory,
    /// zookeeper and file.
    #[arg(long, env = "FLASH_SALE_DEMO_BESIDE", value_name = "KIND")]
    pub beside: Option<LockMode>,

    /// Fence of the stock [default: that of the lock if it has tokens, else that of the store]
    #[arg(long, env = "FLASH_SALE_DEMO_FENCE")]
    pub fence: Option<Fence>,
}

impl DemoOptions {
    /// Each lock, and the ports of its instances.
    ///
    /// # Errors
    /// When the last ports would be beyond 65535, and when the two locks cannot stand side by side.
    pub(crate) fn sides(&self) -> Result<Vec<(LockMode, Vec<u16>)>> {
        let locks: Vec<_> = [self.lock].into_iter().chain(self.beside).collect();
        if let [one, other] = *locks {
            if one == other {
                let name = one.name();
                bail!("{name} is given twice: choose another lock with --beside");
            }
            if let Some(baseline) = locks.iter().find(|lock| !lock.is_shared()) {
                let all: Vec<_> = LockMode::shared().map(LockMode::name).collect();
                bail!(
                    "{} is no lock that instances share, so it cannot stand beside another: choose two of {}; the \
                     page offers no-lock and local on both sides",
                    baseline.name(),
                    all.join(", ")
                );
            }
        }
        let is_built =
            |lock: &LockMode| OTHER_LOCKS || *lock == LockMode::Etcd || !lock.is_shared();
        if let Some(lock) = locks.iter().find(|lock| !is_built(lock)) {
            bail!(
                "this program was built for a sale under etcd, without {0}: `make demo ARGS='--lock {0}'` builds it in",
                lock.name()
            );
        }
        let instances = self.instances * if locks.len() == 2 { 2 } else { 1 };
        let highest = u16::MAX - (instances - 1) * PORT_STEP;
        if self.port > highest {
            bail!("{instances} instances, 10 ports apart, need a --port of {highest} or lower");
        }
        let ports: Vec<_> = (0..instances).map(|n| self.port + n * PORT_STEP).collect();
        let ports = ports.chunks(self.instances.into()).map(<[u16]>::to_vec);
        Ok(locks.into_iter().zip(ports).collect())
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

    /// Goal: the defaults are as documented, the ports follow from the first one, and the instances of a second lock
    /// follow those of the first.
    #[test]
    fn ports_follow_from_the_first() {
        let options = parse(&[]).expect("no flag is needed");
        assert_eq!((options.requests, options.stock, options.once), (500, 300, false));
        for (line, sides) in [
            ("", vec![(LockMode::Etcd, vec![8080, 8090])]),
            (
                "--lock redis --beside embedded",
                vec![(LockMode::Redis, vec![8080, 8090]), (LockMode::File, vec![8100, 8110])],
            ),
            ("--instances 3 --port 65515", vec![(LockMode::Etcd, vec![65515, 65525, 65535])]),
        ] {
            let options = parse(&line.split_whitespace().collect::<Vec<_>>()).expect(line);
            assert_eq!(options.sides().expect(line), sides);
        }
    }

    /// Goal: a value out of its bounds, ports beyond the last one, and two locks that cannot stand side by side are refused
    /// with the reason.
    #[test]
    fn wrong_values_are_explained() {
        for (line, message) in [
            ("--requests 0", "1..=1000000"),
            ("--requests 1000001", "1..=1000000"),
            ("--stock -1", "--stock"),
            ("--stock 1000000001", "0..=1000000000"),
            ("--instances 0", "1..=32"),
            ("--instances 33", "1..=32"),
            ("--port 0", "1..=65535"),
            ("--lock consul", "etcd, redis, redlock"),
            ("--instances 3 --port 65516", "--port of 65515 or lower"),
            ("--beside etcd", "etcd is given twice: choose another lock with --beside"),
            ("--beside no-lock", "no-lock is no lock that instances share"),
            (
                "--lock etcd-rpc --beside redis",
                "choose two of etcd, redis, redlock, postgres, postgres-advisory,",
            ),
        ] {
            let options = parse(&line.split(' ').collect::<Vec<_>>());
            let sides = options.and_then(|it| it.sides().map_err(|error| error.to_string()));
            let refused = sides.expect_err(line);
            assert!(refused.contains(message), "{line}: {refused}");
        }
    }
}
