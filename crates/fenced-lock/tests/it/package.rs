//! Goal: what is published can be built by those who add it. Method: cargo packs the crate, as for a registry, and builds
//! it from that package alone.

use std::collections::HashSet;
use std::process::Command;

use serde_json::Value;

#[test]
fn the_package_builds_by_itself() {
    // kept between runs, so that the dependencies are compiled once
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/package");
    let flags = ["package", "--offline", "--allow-dirty", "--features", "file", "--target-dir"];
    let mut pack = Command::new(env!("CARGO"));
    pack.args(flags).arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    // as its users build it: with every safeguard
    let output = pack.env_remove("RUSTFLAGS").output().expect("cargo runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Goal: the oldest Rust that the crate names suffices. Method: no dependency of any backend asks for a later one; clippy
/// knows of each item of the standard library that the crate uses whether that Rust has it.
#[test]
fn no_dependency_needs_a_later_rust() {
    let mut metadata = Command::new(env!("CARGO"));
    // with all features, other packages of the workspace have dependencies that no test needs
    let features = "--features=etcd-tls,metrics,postgres-tls,redis-tls,zookeeper-tls";
    metadata.args(["metadata", "--locked", "--offline", "--format-version=1", features]);
    let output =
        metadata.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs this test");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo says it in JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let package =
        |id: &Value| packages.iter().find(|package| package["id"] == *id).expect("it is listed");
    let rust = |package: &Value| -> Vec<u32> {
        let version = package["rust_version"].as_str().unwrap_or_default();
        version.split('.').take(2).filter_map(|part| part.parse().ok()).collect()
    };
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a list");
    let lock =
        packages.iter().find(|package| package["name"] == "fenced-lock").expect("it is listed");
    let (mut seen, mut next) = (HashSet::new(), vec![&lock["id"]]);
    while let Some(id) = next.pop() {
        if !seen.insert(id.as_str()) {
            continue;
        }
        assert!(rust(package(id)) <= rust(lock), "{id} needs Rust {:?}", rust(package(id)));
        let node = nodes.iter().find(|node| node["id"] == *id).expect("it is resolved");
        let normal = |dep: &&Value| {
            dep["dep_kinds"]
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev"))
        };
        next.extend(
            node["deps"].as_array().expect("a list").iter().filter(normal).map(|dep| &dep["pkg"]),
        );
    }
    assert!(seen.len() > 50, "only {} packages", seen.len());
}
