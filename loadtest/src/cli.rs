//! The flags and their environment variables.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{RangedI64ValueParser, RangedU64ValueParser, Resettable};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, value_parser};
use hyper::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::conduct::Conduct;
use crate::cpu::{Process, process};
use crate::endpoint::base_url;

/// Sends a burst of orders to the instances of a flash sale and judges the outcome.
///
/// Opens all connections first and releases them together. Ctrl-C ends the load and prints the report. Exit status: 0
/// PASS, 1 FAIL, 2 could not run (a wrong flag, or a service that is unreachable or not ready), 130 interrupted.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "loadtest",
    version,
    term_width = 80,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) args: Args,
}

pub(crate) type Count = RangedU64ValueParser<usize>;
type Units = RangedI64ValueParser<u64>;

impl Cli {
    /// The command line, and the environment.
    pub fn of_process() -> Self {
        Self::of(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn of(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let mut command = Self::with_environment();
        command.build();
        let hidden: Vec<_> = command
            .get_arguments()
            .filter(|it| it.is_hide_env_values_set())
            .map(Arg::to_string)
            .collect();
        let matches = command.try_get_matches_from(words).map_err(|mut error| {
            // a token, or an address with a password
            let said = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
            let [flag, value] = [ContextKind::InvalidArg, ContextKind::InvalidValue].map(said);
            if !value.is_empty() && (hidden.contains(&flag) || value.contains('@')) {
                error.insert(ContextKind::InvalidValue, ContextValue::String("***".to_owned()));
            }
            error
        })?;
        Self::from_arg_matches(&matches)
    }

    /// Gives each flag an environment variable with its name.
    fn with_environment() -> clap::Command {
        let named = |flag: Arg| {
            let name = format!("FLASH_SALE_LOADTEST_{}", flag.get_id().as_str().to_uppercase());
            if flag.get_env().is_some() { flag } else { flag.env(&*name.leak()) }
        };
        Self::command().mut_args(named).mut_subcommands(|check| check.mut_args(named))
    }
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Judge a run recorded with --history, by the limits of this call; the exit status is that of such a run.
    Check {
        /// The file that --history wrote.
        file: PathBuf,

        #[command(flatten)]
        limits: Limits,

        /// Print one JSON object on stdout and the report on stderr.
        #[arg(long)]
        json: bool,
    },
}

/// The limits of I5.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Limits {
    /// Fail if orders are tried for longer than this without a definite answer, such as 3s.
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = positive_duration)]
    pub longest_pause: Duration,

    /// Fail if one order, or one change of it, takes longer than this, retries included, such as 10s
    /// [default: report only].
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub longest_order: Option<Duration>,
}

/// The flags that a record has as well: what buyers do, and what the judge may expect.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Orders a second over all connections, evenly paced, 0.001 to 1000000 [default: each
    /// connection sends its next order after the answer]. An order that is late because all
    /// connections are busy is sent as soon as one is free; its latency counts from when it was due.
    /// One that could not be sent before the end of --duration fails the run.
    #[arg(short = 'q', long, value_name = "ORDERS", value_parser = number(RATES))]
    pub(crate) rate: Option<f64>,

    /// Share of the orders, 0 to 1, whose client closes the connection before the answer. Half of
    /// them retry later with the same id, the others never do.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = number(SHARES))]
    pub(crate) abandon: f64,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) conduct: Conduct,

    /// Seed for --abandon, --pay, --pay-late, --cancel, --return and --again [default: random, and reported].
    #[arg(long, value_name = "N", default_value_t = crate::any_seed(), hide_default_value = true)]
    pub(crate) seed: u64,

    /// Fail if the ledger gains an order of another client.
    #[arg(long, conflicts_with = "probe_path")]
    pub(crate) alone: bool,

    /// Fail if an order was accepted without a token. Always judged once one answer has a token.
    #[arg(long, conflicts_with = "probe_path")]
    pub(crate) tokens: bool,

    /// Judge a service that keeps no ledger and gives no tokens by the sums alone; without this flag, that fails. No order is
    /// sent again after its answer: such a service knows no order ids.
    #[arg(long, conflicts_with_all = ["probe_path", "tokens"])]
    pub(crate) without_ledger: bool,

    /// Item to order, 1 to 64 characters of a-z, 0-9 and - [default: the default item].
    #[arg(long, value_name = "NAME", value_parser = item_name)]
    pub(crate) item: Option<String>,

    /// Units of each order, 1 to 1000000.
    #[arg(long, default_value = "1", value_name = "UNITS",
          value_parser = Units::new().range(1..=1_000_000))]
    pub(crate) quantity: u64,
}

/// The flags of a run.
#[derive(Clone, Debug, Parser)]
#[command(name = "loadtest")]
pub struct Args {
    /// Number of orders, 1 to 10000000 [default: 500, or the maximum with --duration].
    #[arg(short = 'n', long, value_name = "N", value_parser = Count::new().range(1..=10_000_000))]
    requests: Option<usize>,

    /// Send no new order after this time, such as 30s, or after --requests, whichever comes first.
    /// Buyers outlast outages: an order without an answer is given up, and the next one follows
    /// after a pause. Without --duration, a buyer stops after 3 such orders in a row.
    #[arg(short = 'z', long, value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) duration: Option<Duration>,

    #[command(flatten)]
    pub(crate) plan: Plan,

    /// Hold the units of an order of the started sale for so long, such as 10s; part of a second counts as one. The load
    /// test waits for the end of holds of up to a minute, and says which longer ones it did not wait for.
    #[arg(long, value_name = "DURATION", requires = "stock", value_parser = positive_duration)]
    pub(crate) hold: Option<Duration>,

    /// The most units of a user in the started sale.
    #[arg(long, value_name = "UNITS",
          requires_all = ["stock", "users"],
          value_parser = Units::new().range(1..=1_000_000))]
    pub(crate) per_user: Option<u64>,

    /// Name the user of --users in this header, as a gateway does, in place of ?user=.
    #[arg(long, value_name = "NAME", requires = "users")]
    pub(crate) user_header: Option<HeaderName>,

    /// Record each attempt as the client saw it, and at the end the ledger and the state, for
    /// `loadtest check`. Overwrites the file.
    #[arg(long, value_name = "FILE", conflicts_with = "probe_path")]
    pub(crate) history: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) limits: Limits,

    /// Number of connections, 1 to 50000; at most one for each order.
    #[arg(short, long, default_value = "500",
          value_name = "N", value_parser = Count::new().range(1..=50_000))]
    pub(crate) concurrency: usize,

    /// Start a new sale with this many units [default: continue the current one].
    #[arg(long, value_name = "UNITS", allow_negative_numbers = true,
          value_parser = Units::new().range(0..=1_000_000_000_000))]
    pub(crate) stock: Option<u64>,

    /// Send GET requests for this path instead of orders, to see what instances and load test can do
    /// at most: there is no verdict then, and any 2xx is a good answer.
    #[arg(long, value_name = "PATH",
          conflicts_with_all = ["stock", "item", "Conduct"], value_parser = probe_path)]
    pub(crate) probe_path: Option<String>,

    /// Report the CPU time of this process during the load, such as etcd=1234. Repeatable;
    /// processes of one name are added up. Linux only.
    #[arg(long = "process", value_name = "NAME=PID", value_delimiter = ',', value_parser = process)]
    pub(crate) processes: Vec<Process>,

    /// Print one JSON object on stdout and the report on stderr.
    #[arg(long)]
    pub(crate) json: bool,

    /// The token of the shop's server, which confirms, takes back and reads the ledger; the admin token will do. A demo needs none.
    #[arg(long, env = "FLASH_SALE_SHOP_TOKEN", value_name = "TOKEN", value_parser = bearer,
          hide_env_values = true, conflicts_with = "shop_token_file")]
    shop_token: Option<HeaderValue>,

    /// File with the token of the shop's server, in its first line.
    #[arg(long, value_name = "FILE", value_parser = bearer_in)]
    shop_token_file: Option<HeaderValue>,

    /// The admin token, which --stock needs unless the service is a demo.
    #[arg(long, env = "FLASH_SALE_ADMIN_TOKEN", value_name = "TOKEN", value_parser = bearer,
          hide_env_values = true, conflicts_with = "admin_token_file")]
    admin_token: Option<HeaderValue>,

    /// File with the admin token, in its first line.
    #[arg(long, value_name = "FILE", value_parser = bearer_in)]
    admin_token_file: Option<HeaderValue>,

    /// Time limit of one order, retries included, such as 30s or 500ms.
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) timeout: Duration,

    /// How long a buyer waits for units that are held, such as 10s or 0s [default: --timeout]. Who gives up then is counted as
    /// held out, which is no failure.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) patience: Option<Duration>,

    /// Time limit of one attempt, connecting included, before the order is retried at another
    /// instance [default: half of --timeout].
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    attempt_timeout: Option<Duration>,

    /// Retries of one order, with the same id, after a broken connection or a 429, 502, 503 or 504. Where all units are held, an
    /// order is tried again until --patience ends.
    #[arg(long, default_value = "20", value_name = "N",
          value_parser = value_parser!(u32).range(0..=1000))]
    pub(crate) retries: u32,

    /// Instances, such as `http://127.0.0.1:8080` (in the environment: separated by commas).
    #[arg(value_name = "URL", required = true, value_delimiter = ',', num_args = 1..=256,
          value_parser = base_url)]
    pub(crate) urls: Vec<String>,
}

/// The most orders of a run: what fits the memory of a small machine.
pub(crate) const MOST_REQUESTS: usize = 10_000_000;

/// A share, from none to all.
pub(crate) const SHARES: RangeInclusive<f64> = 0.0..=1.0;

/// The possible rates, in orders a second.
pub(crate) const RATES: RangeInclusive<f64> = 0.001..=1_000_000.0;

impl Args {
    /// The flags and URLs of a command line, without its program's name. The environment is not read.
    ///
    /// # Errors
    /// A flag or a value is wrong.
    pub fn from_flags<F: Into<OsString> + Clone>(
        flags: impl IntoIterator<Item = F>,
    ) -> Result<Self, clap::Error> {
        let command = Self::command().no_binary_name(true);
        let command = command.mut_args(|argument| argument.env(Resettable::Reset));
        Self::from_arg_matches(&command.try_get_matches_from(flags)?)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.unwrap_or(if self.duration.is_some() { MOST_REQUESTS } else { 500 })
    }

    /// The header of an operator, who starts sales.
    pub(crate) fn of_admin(&self) -> Option<&HeaderValue> {
        self.admin_token.as_ref().or(self.admin_token_file.as_ref())
    }

    /// The header of the shop's server, which confirms and returns orders and reads the ledger.
    pub(crate) fn of_shop(&self) -> Option<&HeaderValue> {
        let own = self.shop_token.as_ref().or(self.shop_token_file.as_ref());
        own.or_else(|| self.of_admin())
    }

    /// The time limit of one attempt. By default it is half of the order's, so that there is time for another instance.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        self.attempt_timeout.unwrap_or(self.timeout / 2)
    }
}

/// Parses a number of this range.
pub(crate) fn number(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("write a number from {} to {}", range.start(), range.end()))
    }
}

fn item_name(name: &str) -> Result<String, &'static str> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = (1..=64).contains(&name.len()) && name.bytes().all(allowed);
    is_name.then(|| name.to_owned()).ok_or("an item name is 1 to 64 characters of a-z, 0-9 and -")
}

fn probe_path(path: &str) -> Result<String, String> {
    let is_path = path.starts_with('/') && path.parse::<hyper::http::uri::PathAndQuery>().is_ok();
    is_path.then(|| path.to_owned()).ok_or_else(|| "a path looks like /healthz".to_owned())
}

/// The header that carries the token `text`. It is left out of debug output.
fn bearer(text: &str) -> Result<HeaderValue, &'static str> {
    let header = match text.trim() {
        "" => None,
        token => HeaderValue::from_str(&format!("Bearer {token}")).ok(),
    };
    let mut header = header.ok_or("a token is one line of visible characters")?;
    header.set_sensitive(true);
    Ok(header)
}

fn bearer_in(file: &str) -> Result<HeaderValue, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    // a second line is the next token, or the former one
    bearer(text.trim().lines().next().unwrap_or_default()).map_err(str::to_owned)
}

fn positive_duration(text: &str) -> Result<Duration, &'static str> {
    let allowed = Duration::from_millis(1)..=Duration::from_hours(24);
    let duration = humantime::parse_duration(text).ok().filter(|it| allowed.contains(it));
    duration.ok_or("write a duration from 1ms to 24h with its unit, such as 30s or 500ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the command line of the documentation is understood, and so are its defaults. With a duration the number of
    /// orders is bounded by it alone, unless both are given.
    #[test]
    fn reads_the_documented_line() {
        let line =
            ["loadtest", "--stock", "300", "http://127.0.0.1:8080", "http://127.0.0.1:8090/"];
        let args = Args::try_parse_from(line).expect("the documented line");
        assert_eq!((args.requests(), args.concurrency, args.stock), (500, 500, Some(300)));
        assert_eq!((args.plan.quantity, args.timeout), (1, Duration::from_secs(30)));
        let still = Duration::from_secs(30);
        assert_eq!(args.limits.longest_pause, still, "a sale that stands still fails");
        assert_eq!(args.urls, ["http://127.0.0.1:8080", "http://127.0.0.1:8090"]);
        for (bounds, most) in [("--rate=3000", 10_000_000), ("--requests=70", 70)] {
            let line = ["loadtest", "--duration=30s", bounds, "http://127.0.0.1:8080"];
            assert_eq!(Args::try_parse_from(line).expect("good flags").requests(), most);
        }
    }

    /// Goal: each flag of a run and of `check` has a variable of its name; the tokens have those of the service.
    #[test]
    fn flags_have_variables() {
        let mut command = Cli::with_environment();
        command.build();
        let check = command.find_subcommand("check").expect("there is one");
        for (command, flag, variable) in [
            (&command, "probe_path", "FLASH_SALE_LOADTEST_PROBE_PATH"),
            (&command, "urls", "FLASH_SALE_LOADTEST_URLS"),
            (&command, "pay_late", "FLASH_SALE_LOADTEST_PAY_LATE"),
            (&command, "admin_token", "FLASH_SALE_ADMIN_TOKEN"),
            (&command, "shop_token", "FLASH_SALE_SHOP_TOKEN"),
            (check, "longest_pause", "FLASH_SALE_LOADTEST_LONGEST_PAUSE"),
        ] {
            let found = command.get_arguments().find(|argument| argument.get_id() == flag);
            assert_eq!(found.and_then(Arg::get_env), Some(variable.as_ref()), "{flag}");
        }
    }

    /// Goal: a wrong value is refused, and the message says what is allowed.
    #[test]
    fn wrong_values_are_explained() {
        for (flag, value, message) in [
            ("--item", "Shoe", "1 to 64 characters of a-z, 0-9 and -"),
            ("--timeout", "30", "with its unit"),
            ("--requests", "0", "1..=10000000"),
            ("--stock", "-5", "0..=1000000000000"),
            ("--probe-path", "healthz", "looks like /healthz"),
            ("--process", "etcd", "such as etcd=1234"),
            ("--process", "=12", "such as etcd=1234"),
            ("--process", "etcd=0", "such as etcd=1234"),
            ("--rate", "0", "from 0.001 to 1000000"),
            ("--abandon", "2", "from 0 to 1"),
            ("--pay", "2", "from 0 to 1"),
            ("--hold", "25h", "from 1ms to 24h"),
            ("--user-header", "X-User-Id", "--users"),
            ("--per-user", "2", "--users"),
        ] {
            let error = Args::try_parse_from(["loadtest", flag, value, "http://127.0.0.1:8080"])
                .expect_err("the value is not allowed")
                .to_string();
            assert!(error.contains(message), "{flag} {value}: {error}");
        }
        for (flag, value) in
            [("--shop-token", "hidden\nhidden"), ("--admin-token", "hidden\nhidden")]
        {
            let words = ["loadtest", flag, value, "http://127.0.0.1:8080"];
            let error = Cli::of(words).expect_err("it is refused").to_string();
            assert!(error.contains(flag) && !error.contains("hidden"), "{error}");
        }
        let words = ["loadtest", "http://root:hidden@127.0.0.1:8080/path"];
        let error = Cli::of(words).expect_err("it is refused").to_string();
        assert!(!error.contains("hidden"), "{error}");
        Cli::try_parse_from(["loadtest"]).expect_err("no instance was named");
        let error = Args::try_parse_from(["loadtest", "127.0.0.1:8080"]).expect_err("no scheme");
        assert!(error.to_string().contains("such as http://127.0.0.1:8080"), "{error}");
    }
}
