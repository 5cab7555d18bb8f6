//! Goal: what `ops/` ships fits the service. Method: its metrics, its help, and Prometheus' own checks.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flash_sale::sale::metrics::OUTCOMES;
use serde_json::Value;
use testkit::or_left_out;

use crate::program::run;
use crate::shop::{Shop, ShopOptions};

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ops")
}

/// The queries of the dashboard.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(ops().join("grafana/dashboards/flash-sale.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables = variables.filter_map(|variable| variable["definition"].as_str());
    targets
        .map(|target| target["expr"].as_str().unwrap())
        .chain(variables)
        .map(str::to_owned)
        .collect()
}

/// The words of this beginning in a text.
fn words<'a>(text: &'a str, beginning: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(beginning).map(move |(start, _)| {
        let rest = &text[start..];
        &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())]
    })
}

/// `None` where the test is left out.
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut promtool = Command::new("promtool");
    promtool.args(arguments).current_dir(ops().join("prometheus"));
    let pipes = promtool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let missing = "promtool is not installed (apt-get install prometheus)";
    let mut child = or_left_out(pipes.spawn().ok(), missing)?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let text = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
    Some((ended.status.success(), text))
}

/// The metrics with their types, as docs/operations.md has them.
fn documented() -> BTreeSet<String> {
    let (_, docs) = include_str!("../../docs/operations.md").split_once("\n## Metrics").unwrap();
    let (section, _) = docs.split_once("\n## ").unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| {
        let [_, names, kind, ..] = row.split('|').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let names = names.split('`').skip(1).step_by(2).map(|name| name.split('{').next().unwrap());
        names.map(|name| format!("{name} {}", kind.trim())).collect::<Vec<_>>()
    })
    .collect()
}

/// Goal: the documentation has each metric and no other; so have the dashboard and the alerts together.
fn assert_names(page: &str) {
    let metrics = page.lines().filter_map(|line| line.strip_prefix("# TYPE flash_sale_"));
    let metrics: BTreeSet<_> = metrics.map(str::to_owned).collect();
    assert_eq!(metrics, documented());
    let names: BTreeSet<_> = metrics.iter().filter_map(|metric| metric.split(' ').next()).collect();
    let alerts = std::fs::read_to_string(ops().join("prometheus/alerts.yml")).unwrap();
    let texts = queries().join("\n") + &alerts;
    let mut used = BTreeSet::new();
    for word in words(&texts, "flash_sale_").filter_map(|word| word.strip_prefix("flash_sale_")) {
        let parts =
            ["_bucket", "_sum", "_count"].into_iter().filter_map(|end| word.strip_suffix(end));
        let known = parts.chain([word]).find(|name| names.contains(name));
        used.insert(known.unwrap_or_else(|| panic!("there is no metric {word}")));
    }
    assert_eq!(used, names, "each metric is of use");
    // an outcome can itself begin with this word, and then no operator follows
    for choice in texts.match_indices("outcome").filter_map(|(at, label)| {
        texts[at + label.len()..].trim_start_matches(['=', '!', '~']).strip_prefix('"')
    }) {
        for outcome in choice.split('"').next().unwrap().split('|') {
            assert!(OUTCOMES.contains(&outcome), "there is no outcome {outcome}");
        }
    }
}

#[tokio::test]
async fn dashboard_and_alerts_fit_the_metrics() {
    let shop = Shop::selling(2, ShopOptions::default()).await;
    shop.order("a").await.json(200);
    let metrics = shop.call("GET /metrics").await.text;
    assert_names(&metrics);
    // recorded, each query of the dashboard is a rule
    let rules = queries().into_iter().filter(|query| !query.starts_with("label_values"));
    let rules = rules.map(|query| {
        serde_json::json!({ "record": "query", "expr": query.replace("$__rate_interval", "1m") })
    });
    // JSON is YAML
    let rules = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules.collect::<Vec<_>>() }] });
    let dashboard = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(dashboard.path(), rules.to_string()).unwrap();
    for (arguments, input) in [
        (&["check", "config", "prometheus.yml"][..], ""),
        (&["test", "rules", "alerts.test.yml"], ""),
        (&["check", "rules", "--lint=none", dashboard.path().to_str().unwrap()], ""),
        (&["check", "metrics"], &metrics),
    ] {
        let Some((is_fine, text)) = promtool(arguments, input) else { return };
        assert!(is_fine, "{arguments:?}: {text}");
    }
}

/// Goal: an example uses no setting that was renamed since.
#[tokio::test]
async fn the_examples_use_settings_that_exist() {
    let (_, help) = run(&["serve", "--help"]).await;
    let known: BTreeSet<_> = words(&help, "FLASH_SALE_").collect();
    let mut folders = vec![ops()];
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for path in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for word in words(&text, "FLASH_SALE_") {
                assert!(known.contains(word), "{} names {word}", path.display());
                found += 1;
            }
        }
    }
    assert!(found > 8, "the search finds what is there: {found}");
}

/// Goal: systemd starts an instance again however it ended, and however often: SIGINT ends it with 0, and a wrong password of
/// Redis ends it at once.
#[test]
fn systemd_does_not_give_up() {
    let unit = std::fs::read_to_string(ops().join("systemd/flash-sale.service")).unwrap();
    let (before, service) = unit.split_once("\n[Service]\n").unwrap();
    assert!(before.contains("\nStartLimitIntervalSec=0\n"), "{before}");
    assert!(service.contains("\nRestart=always\n"), "{service}");
}
