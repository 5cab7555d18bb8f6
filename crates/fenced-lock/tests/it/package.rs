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

/// Goal: the crate builds with the oldest Rust that it names. Method: no dependency of any backend asks for a later one; and
/// clippy knows of each item of the standard library that the crate uses whether that Rust has it.
#[test]
fn no_dependency_needs_a_later_rust() {
    // with all features, other packages of the workspace have dependencies that no test needs
    let features = "--features=etcd-tls,file,metrics,postgres-tls,redis-tls,serde,zookeeper-tls";
    let cargo = |flags: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(flags).args(["--locked", "--offline", features]);
        let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output();
        String::from_utf8(output.expect("cargo runs this test").stdout).expect("a text")
    };
    // for this platform: cargo has downloaded no others, and is offline
    let tree = cargo(&["tree", "--edges=normal,build", "--prefix=none"]);
    let name_and_version = |line| str::split(line, ' ').take(2).collect::<Vec<_>>();
    let needed: HashSet<_> = tree.lines().map(name_and_version).collect();
    let metadata = cargo(&["metadata", "--format-version=1", "--filter-platform=host-tuple"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("cargo says it in JSON");
    let minor = |rust: &str| rust.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    let mut count = 0;
    for package in metadata["packages"].as_array().expect("a list") {
        let [name, version, rust] = ["name", "version", "rust_version"]
            .map(|key| package[key].as_str().unwrap_or_default());
        if needed.contains(&vec![name, &format!("v{version}")]) {
            count += 1;
            assert!(
                minor(rust) <= minor(env!("CARGO_PKG_RUST_VERSION")),
                "{name} needs Rust {rust}"
            );
        }
    }
    assert!(count > 50, "only {count} packages");
}
