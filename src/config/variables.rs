//! Finds environment variables that no flag reads.

use std::collections::BTreeSet;

use clap::Command;

/// The beginning of each variable of the service.
const PREFIX: &str = "FLASH_SALE_";

/// The variables of this service that no flag of `program` or of its commands reads, each with the most similar variable that a
/// flag reads. `variables` has names and values. Variables that Kubernetes sets in each pod for a service called `flash-sale` or
/// `flash-sale-...` are left out.
pub fn unknown_variables(
    program: &Command,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let mut known = BTreeSet::new();
    for command in std::iter::once(program).chain(program.get_subcommands()) {
        let names = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str());
        known.extend(names.filter(|name| name.starts_with(PREFIX)));
    }
    let unknown = variables.into_iter().filter(|(name, value)| {
        name.starts_with(PREFIX) && !known.contains(&**name) && !is_of_kubernetes(name, value)
    });
    let nearest = |name: &str| known.iter().min_by_key(|known| distance(name, known)).copied();
    let with_nearest = |(name, _): (String, String)| {
        let nearest = nearest(&name)?.to_owned();
        Some((name, nearest))
    };
    unknown.filter_map(with_nearest).collect()
}

/// Whether Kubernetes sets this variable to tell a pod where a service is: `.._SERVICE_HOST`, `.._SERVICE_PORT`,
/// `.._SERVICE_PORT_<name>`, `.._PORT` with a URL, `.._PORT_<number>_<protocol>`, and longer names that begin like the last.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    // the name without the service's own part
    let name = &name[PREFIX.len() - 1..];
    let has_number = |(_, rest): (&str, &str)| rest.starts_with(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && value.contains("://")
        || name.split_once("_PORT_").is_some_and(has_number)
}

/// How many characters must be inserted, removed or replaced to turn one text into the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let least = (before + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            before = std::mem::replace(&mut row[j + 1], least);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;
    use crate::config::Config;
    use crate::health::HealthOptions;

    /// Goal: a misspelt variable is reported with the one that was meant. A variable of Kubernetes, of another program or of
    /// another command is not reported.
    #[test]
    fn a_misspelt_variable_is_named() {
        let program = Command::new("program")
            .subcommand(Config::augment_args(Command::new("serve")))
            .subcommand(HealthOptions::augment_args(Command::new("health")));
        for (name, value, nearest) in [
            ("FLASH_SALE_REDIS_REPLICA", "2", Some("FLASH_SALE_REDIS_REPLICAS")),
            ("FLASH_SALE_LOCKTTL", "", Some("FLASH_SALE_LOCK_TTL")),
            ("FLASH_SALE_PORT", "8080", Some("FLASH_SALE_ETCD")),
            ("FLASH_SALE_REDIS_REPLICAS", "2", None),
            ("FLASH_SALE_HEALTH_URL", "", None),
            ("FLASH_SALES", "", None),
            ("PATH", "", None),
            ("FLASH_SALE_SERVICE_HOST", "10.0.0.1", None),
            ("FLASH_SALE_SERVICE_PORT", "80", None),
            ("FLASH_SALE_SERVICE_PORT_HTTP", "80", None),
            ("FLASH_SALE_PORT", "tcp://10.0.0.1:8080", None),
            ("FLASH_SALE_PORT_8080_TCP", "tcp://10.0.0.1:8080", None),
            ("FLASH_SALE_PORT_8080_TCP_ADDR", "10.0.0.1", None),
            ("FLASH_SALE_ADMIN_SERVICE_HOST", "10.0.0.1", None),
            ("FLASH_SALE_ADMIN_PORT_8081_TCP_PROTO", "tcp", None),
        ] {
            let variables = [(name.to_owned(), value.to_owned())];
            let unknown = unknown_variables(&program, variables);
            let named = unknown.iter().map(|(name, nearest)| (&**name, &**nearest));
            assert_eq!(
                named.collect::<Vec<_>>(),
                nearest.map(|of| (name, of)).as_slice(),
                "{name}"
            );
        }
    }
}
