//! The documentation: what a program can check of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flash_sale::http::problem::ProblemType;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// Goal: the documentation of the HTTP interface has the problems of the code by status, and marks those that are worth a retry.
#[test]
fn http_api_lists_the_problems() {
    let page = read("docs/http-api.md");
    let mut by_status = BTreeMap::<u16, Vec<String>>::new();
    for ProblemType { word, status, retry_after_seconds, .. } in ProblemType::ALL {
        let mark = if retry_after_seconds.is_some() { "†" } else { "" };
        by_status.entry(status.as_u16()).or_default().push(format!("`{word}`{mark}"));
    }
    let rows =
        by_status.iter().map(|(status, words)| format!("| {status} | {} |", words.join(", ")));
    let documented: Vec<_> =
        page.lines().filter(|line| line.starts_with("| 4") || line.starts_with("| 5")).collect();
    assert_eq!(documented, rows.collect::<Vec<_>>());
}

/// Goal: no link between the pages of the documentation, or from there to a file, is broken, and no page has a heading twice.
#[test]
fn links_lead_somewhere() {
    let others = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "crates/fenced-lock/README.md",
        "loadtest/oha.md",
    ];
    let mut pages: Vec<_> = others.map(PathBuf::from).into();
    for entry in std::fs::read_dir(Path::new(ROOT).join("docs")).unwrap() {
        let name = entry.unwrap().file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(Path::new("docs").join(name));
        }
    }
    let mut broken = Vec::new();
    for page in &pages {
        let text = read(page);
        let mut headings = BTreeSet::new();
        let twice = anchors(&text).filter(|heading| !headings.insert(heading.clone()));
        broken.extend(twice.map(|heading| format!("{}: #{heading} twice", page.display())));
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if file.contains("://") {
                continue;
            }
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let exists = Path::new(ROOT).join(&target).exists();
            if !exists || !(anchor.is_empty() || anchors(&read(&target)).any(|a| a == anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Goal: figures in sentences are those of the tables beside the pages.
#[test]
fn figures_are_those_of_the_tables() {
    let ratios = table("docs/performance/ratios.csv");
    let ratio = |name: &str| -> f64 { cell(&ratios, name, "median").parse().unwrap() };
    let batched = format!("{:.2} of the", ratio("throughput, guarded : batched script"));
    let single = format!("{} times as fast", ratio("throughput, guarded : atomic script"));
    let far = "throughput, guarded : batched script, etcd 6, Redis 2 ms away, ";
    let [far, far_5000] = ["500", "5000"].map(|n| ratio(&format!("{far}{n} connections")));
    let forwarded = table("docs/performance/forwarded.csv");
    let values = |contender: &str, instances: &str, column: &str| -> Vec<f64> {
        let row_is = |row: &&Row| {
            let [who, how_many, what] = ["contender", "instances", "measure"].map(|it| &row[it]);
            who == contender && how_many == instances && what == "distance"
        };
        let cells = forwarded.iter().filter(row_is).map(|row| row[column].parse().unwrap());
        let mut values: Vec<f64> = cells.collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let eight = values("forwarded", "8", ": batched script")[0];
    let row_of = |instances: &str| {
        let [turns, orders, none] = ["combined", "forwarded", "batched-script"];
        let (share, p99) = (": batched script", "p99 ms");
        let cells = [(turns, share), (turns, p99), (orders, share), (orders, p99), (none, p99)];
        let ranges = cells.map(|(contender, column)| {
            let values = values(contender, instances, column);
            let (least, most) = (values[0], values[values.len() - 1]);
            let digits = if column == share { 2 } else { 0 };
            format!("{least:.digits$} to {most:.digits$}")
        });
        format!("| {instances} | {} |", ranges.join(" | "))
    };
    let (faults, controls) = (table("docs/safety/faults.csv"), table("docs/safety/controls.csv"));
    let orders = faults.iter().map(|row| row["orders"].parse::<f64>().unwrap()).sum::<f64>();
    let lost = cell(&controls, "holder-paused", "units lost");
    let (lost, of) = lost.split_once(" of ").unwrap();
    let lost = 100.0 * lost.parse::<f64>().unwrap() / of.parse::<f64>().unwrap();
    let flaws = table("docs/arena/articles.csv");
    let locks: BTreeSet<_> = flaws.iter().map(|row| &row["article's lock"]).collect();
    assert!(flaws.iter().all(|row| row["wrong in"] == "3 of 3"));
    let takeover = table("docs/arena/takeover.csv");
    let two_holders = |lock: &str| {
        let is = |row: &&Row| row["lock"] == lock && row["fault"] == "failover";
        takeover.iter().find(is).unwrap()["two holders"].clone()
    };
    let requests = cell(&table("docs/arena/fairness.csv"), "redlock", "requests/s, all waiting");
    for (page, figure) in [
        ("README.md", batched.clone()),
        ("README.md", single.clone()),
        ("docs/performance.md", batched),
        ("docs/performance.md", single),
        ("docs/performance.md", format!("reach {} of the", ratio("throughput, 8 instances : 2"))),
        ("README.md", format!("eight keep {eight:.2} of")),
        ("docs/performance.md", row_of("2")),
        ("docs/performance.md", row_of("8")),
        ("docs/performance.md", format!("leaves {far_5000} of")),
        ("docs/performance.md", format!("and {far} at 500")),
        ("docs/safety.md", format!("all {} scenarios held", faults.len())),
        ("docs/safety.md", format!("{:.1} million orders", orders / 1e6)),
        ("docs/safety.md", format!("all {} [controls]", controls.len())),
        ("docs/safety.md", format!("lost {lost:.0} % of")),
        ("docs/arena.md", format!("All {} flaws of the {} locks", flaws.len(), locks.len())),
        ("docs/arena.md", format!("in {} trials of Redis' queue", two_holders("redis"))),
        ("docs/arena.md", format!("in {} of PostgreSQL's", two_holders("postgres"))),
        ("docs/arena.md", format!("send {requests} requests")),
    ] {
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&figure), "{page}: {figure}");
    }
}

/// Goal: the table of the simulator's controls has a row for each control and no other.
#[test]
fn each_control_of_the_simulator_is_in_its_table() {
    let source = read("crates/simulator/tests/simulate/controls.rs");
    let (_, list) = source.split_once("CONTROLS: ").unwrap();
    let (list, _) = list.split_once("];").unwrap();
    let controls: Vec<_> =
        list.split("(\"").skip(1).filter_map(|row| row.split('"').next()).collect();
    let table = table("docs/safety/simulated.csv");
    assert_eq!(controls, table.iter().map(|row| &*row["without"]).collect::<Vec<_>>());
}

/// A line of a table, by column.
type Row = BTreeMap<String, String>;

/// The lines of a file in CSV. A comma within quotes does not end a cell.
fn table(path: &str) -> Vec<Row> {
    let text = read(path);
    let mut lines = text.lines().map(|line| {
        let mut cells = vec![String::new()];
        for (part, text) in line.split('"').enumerate() {
            let mut pieces = if part % 2 == 0 { text.split(',') } else { text.split('\n') };
            cells.last_mut().unwrap().push_str(pieces.next().unwrap());
            cells.extend(pieces.map(str::to_owned));
        }
        cells
    });
    let head = lines.next().unwrap();
    lines.map(|row| head.iter().cloned().zip(row).collect()).collect()
}

/// The cell in this column of the line that has this value.
fn cell(table: &[Row], value: &str, column: &str) -> String {
    let row = table.iter().find(|row| row.values().any(|cell| cell == value));
    row.unwrap_or_else(|| panic!("there is no line {value}"))[column].clone()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// Goal: the service directly uses these six crates, outside of tests, and a crate that only tests use is a dependency of tests.
#[test]
fn the_service_stands_on_its_six() {
    let manifest = read("Cargo.toml");
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (section, _) = rest.split_once("\n[").unwrap();
    let names = section.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<_> = names.filter_map(|line| line.split(['.', ' ']).next()).collect();
    for six in ["axum", "tokio", "etcd-client", "redis", "serde", "tower-http"] {
        assert!(names.contains(&six), "{six}");
        assert!(!section.contains(&format!("{six} = {{ workspace = true, optional")), "{six}");
    }
    let (mut sources, mut folders) = (String::new(), vec![Path::new(ROOT).join("src")]);
    while let Some(folder) = folders.pop() {
        for path in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                let source = std::fs::read_to_string(path).unwrap();
                sources += source.split("#[cfg(test)]").next().unwrap();
            }
        }
    }
    for name in names {
        let name = name.replace('-', "_");
        let uses = [format!("{name}::"), format!("use {name};")];
        assert!(uses.iter().any(|used| sources.contains(used)), "only tests use {name}");
    }
}
