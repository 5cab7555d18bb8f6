//! The documentation: what a program can check of it.

use std::path::{Path, PathBuf};

use flash_sale::http::problem::ProblemType;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// Goal: the documentation of the HTTP interface has the same table of problems as the code.
#[test]
fn http_api_lists_the_problems() {
    let page = read("docs/http-api.md");
    let (_, page) = page.split_once("\n## Problems").unwrap();
    let (section, _) = page.split_once("\n## ").unwrap();
    let documented: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).collect();
    let row = |kind: &&ProblemType| {
        let ProblemType { word, title, status, retry_after_seconds } = kind;
        let retry = if retry_after_seconds.is_some() { ", retry" } else { "" };
        format!("| `{word}` | {}{retry} | {title} |", status.as_u16())
    };
    assert_eq!(documented, ProblemType::ALL.iter().map(row).collect::<Vec<_>>());
}

/// Goal: no link between the pages of the documentation, or from there to a file, is broken.
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
