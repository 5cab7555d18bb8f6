//! Goal: the image can be built from a fresh clone. Method: the test copies what `.dockerignore` lets through, and cargo reads
//! every manifest of that: if a target or a package is missing there, it fails as it would in the image.

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The paths that the rules let through: `*`, then `!PATH` for each of them. Other rules are not in use.
fn build_context() -> Vec<String> {
    let rules = std::fs::read_to_string(Path::new(ROOT).join(".dockerignore")).unwrap();
    let mut rules = rules.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(rules.next(), Some("*"), "this test knows lists of what is let through");
    let kept =
        rules.map(|rule| rule.strip_prefix('!').expect("nothing else is left out").to_owned());
    kept.collect()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_build_context_is_complete() {
    let context = tempfile::tempdir().unwrap();
    run(Command::new("cp").arg("-R").args(build_context()).arg(context.path()).current_dir(ROOT));

    let version = run(Command::new("rustc").arg("-vV"));
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("it says so");
    // dependencies of other platforms need not be at hand
    let flags = ["metadata", "--locked", "--offline", "--format-version=1", "--filter-platform"];
    let metadata = run(Command::new(env!("CARGO"))
        .args(flags)
        .arg(host)
        .current_dir(context.path())
        .env_remove("CARGO_TARGET_DIR"));
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let has_program = |name: &str| {
        let packages = metadata["packages"].as_array().unwrap().iter();
        let mut targets = packages.flat_map(|package| package["targets"].as_array().unwrap());
        targets.any(|target| target["name"] == name && target["kind"][0] == "bin")
    };
    let dockerfile = std::fs::read_to_string(Path::new(ROOT).join("Dockerfile")).unwrap();
    let copied =
        dockerfile.split_whitespace().filter_map(|word| word.split_once("target/release/"));
    for (_, program) in copied {
        assert!(has_program(program), "the image copies {program}, which no package builds");
    }
}
