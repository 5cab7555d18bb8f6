use testkit::flags;

use super::*;
use crate::error_chain::ErrorChain;

fn parse(flags: &[&str]) -> Result<Config, String> {
    let program = Config::augment_args(Command::new("program"));
    flags::parse(flags).map_err(|error| without_secrets(error, program).to_string())
}

/// Goal: the defaults are those of the documentation.
#[test]
fn the_defaults() {
    let config = parse(&[]).expect("no flag is needed");
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.servers.etcd, ["http://127.0.0.1:2379"]);
    assert_eq!(config.servers.redis.expose(), "redis://127.0.0.1:6379");
    assert_eq!(config.lock_ttl, Duration::from_secs(8));
    assert!(
        config.wait_timeout > config.lock_ttl + Duration::from_millis(1500),
        "they fit each other"
    );
    assert_eq!(config.sale_options(8090).instance, "8090");
    assert_eq!(config.admin_token, None);
    assert_eq!(parse(&["--rate-limit", "100/m"]).expect("valid").rate_limit, rate("100/m").ok());
    // Go's `NewMutex` accepts such names
    let given = parse(&["--etcd", "http://a:2379,http://b:2379", "--lock-name", "/lock/"]);
    let servers = given.expect("two addresses").servers;
    assert_eq!(servers.etcd, ["http://a:2379", "http://b:2379"]);
    assert_eq!(servers.lock_name, "/lock/");
    let origins =
        ["--allow-origin", "https://shop.example,http://127.0.0.1:3000", "--allow-origin"];
    let given = parse(&[&origins[..], &["http://[::1]:8"]].concat()).expect("three origins");
    assert_eq!(
        given.allow_origin,
        ["https://shop.example", "http://127.0.0.1:3000", "http://[::1]:8"]
    );
    let with_header = [&origins[..2], &["--user-header=x-user"]].concat();
    let error = parse(&with_header).expect_err("a page sends no credentials");
    assert!(error.contains("--user-header"), "{error}");
    let given = parse(&["--trusted-proxy=10.0.7.0/29,::1,::ffff:10.0.8.1"])
        .expect("three networks")
        .proxies();
    assert_eq!(
        given.trusted.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.7.0/29", "::1/128", "10.0.8.1/32"]
    );
    assert_eq!(given.header.expect("the default"), "x-forwarded-for");
}

/// Goal: the error about a wrong value says what is allowed.
#[test]
fn wrong_values_get_a_message() {
    flags::assert_refused::<Config>(&[
        ("--listen", "8080", "an address is an IP and a port"),
        ("--etcd", "http://root:pw@a:1", "flags of their own"),
        ("--etcd", "http://a/prefix:2379", "without path"),
        ("--etcd", "http://a:2379/prefix", "without path"),
        ("--etcd", "http://a:2379?db=3", "without path"),
        ("--etcd", "https://a:2379/#x", "without path"),
        ("--etcd-cert", "a.pem", "--etcd-key"),
        ("--etcd-password", "x", "--etcd-user"),
        ("--redis-key", "a.pem", "--redis-cert"),
        ("--peer-address", "10.0.0.7", "a host and a port"),
        ("--peer-address", "2001:db8::5:7070", "a host and a port"),
        ("--peer-address", "token@10.0.0.7:7070", "a host and a port"),
        ("--peer-address", "10.0.0.7?x:7070", "a host and a port"),
        ("--peer-address", "10.0.0.7/x:7070", "a host and a port"),
        ("--peer-address", "10.0.0.7:7070/", "a host and a port"),
        ("--peer-address", "ten 7:7070", "a host and a port"),
        ("--peer-address", "10.0.0.7:0", "a host and a port"),
        ("--peer-address", "10.0.0.7:70700", "a host and a port"),
        ("--peer-address", ":7070", "a host and a port"),
        ("--peer-token-file", "x", "--peer-listen"),
        ("--lock-ttl", "30", "a time from 2s to 10m is allowed"),
        ("--lock-ttl", "1s", "a time from 2s to 10m is allowed"),
        ("--queue-length", "0", "a whole number from 1 to 1000000 is allowed"),
        ("--instance", "a b", "an instance name is"),
        ("--lock-name", "a b", "a lock name is"),
        ("--redis-replicas", "101", "a whole number from 0 to 100 is allowed"),
        ("--redis-replica-timeout", "0s", "a time from 1ms to 1m is allowed"),
        ("--admin-token", "", "at least one character"),
        ("--shop-token", "old\nnew", "no spaces"),
        ("--allow-origin", "*", "as browsers send it"),
        ("--allow-origin", "null", "as browsers send it"),
        ("--allow-origin", "https://*.shop.example", "as browsers send it"),
        ("--allow-origin", "https://shop.example/", "as browsers send it"),
        ("--allow-origin", "https://shop.example:443", "as browsers send it"),
        ("--allow-origin", "https://Shop.example", "as browsers send it"),
        ("--allow-origin", "shop.example", "as browsers send it"),
        ("--trusted-proxy", "10.0.0.0/33", "the length of its prefix"),
        ("--trusted-proxy", "0.0.0.0/0", "every client could name any address"),
        ("--trusted-proxy", "::/0", "every client could name any address"),
        ("--trusted-proxy", "::ffff:0:0/96", "every client could name any address"),
        ("--proxy-header", "Forwarded", "addresses alone"),
        ("--admin-token", &"x".repeat(16 * 1024), "at most 15360 bytes"),
        ("--rate-limit", "20", "20/s or 100/m"),
        ("--rate-limit", "0/s", "20/s or 100/m"),
    ]);
}

#[test]
fn secrets_are_not_shown() {
    let config = parse(&[
        "--redis=redis://:hidden@localhost",
        "--shop-token=hidden",
        "--admin-token=hidden",
        "--etcd-user=root",
        "--etcd-password=hidden",
    ])
    .expect("valid");
    assert!(!format!("{config:?}").contains("hidden"), "{config:?}");
    for (flag, value) in [
        ("--admin-token", "hidden\nhidden"),
        ("--shop-token", "hidden hidden"),
        ("--etcd", "http://a:2379,http://root:hidden@b:2379"),
    ] {
        let error = parse(&[flag, value]).expect_err("it is refused");
        assert!(error.contains(flag) && !error.contains("hidden"), "{error}");
    }
    for (flags, shown) in [
        (&["redis://:hidden@localhost"][..], "***"),
        (&["--lock-ttl", "shown"], "'shown'"),
        (&["--unknown", "hidden"], "--unknown"),
    ] {
        let error = parse(flags).expect_err("it is refused");
        assert!(error.contains(shown) && !error.contains("hidden"), "{error}");
    }
    let flag = "--redis-file=redis://:hidden@localhost";
    let error = parse(&[flag]).expect("valid").read_files().expect_err("an address is no file");
    let shown = ErrorChain(&*error).to_string();
    assert!(shown.contains("--redis-file") && !shown.contains("hidden"), "{shown}");
    // a certificate is no secret
    let error = parse(&["--redis-ca=missing.pem"]).expect("valid").read_files();
    let shown = error.expect_err("there is none").to_string();
    assert!(shown.contains("missing.pem"), "{shown}");
}

#[test]
fn secrets_can_come_from_files() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").expect("it can be written");
    let flag = format!("--admin-token-file={}", file.display());
    let mut config = parse(&[&flag]).expect("valid");
    config.read_files().expect("it can be read");
    let tokens = || config.admin_token().expect("there is one").read_tokens().expect("a file");
    assert_eq!(tokens(), [Secret::from("s3cret")]);
    std::fs::write(&file, "\n s3cret\n\n n3xt \n").expect("it can be written");
    assert_eq!(tokens(), [Secret::from("s3cret"), Secret::from("n3xt")]);
    let shown = config.admin_token().expect("there is one").read();
    assert_eq!(shown.expect("a file"), Secret::from("s3cret"), "as a peer shows it");

    for (wrong, reason) in [
        (&*"x".repeat(16 * 1024), "at most 15360 bytes"),
        ("\n", "empty"),
        ("a\nb\nc\n", "more than two"),
        ("a\n# made in October\n", "no spaces"),
    ] {
        std::fs::write(&file, wrong).expect("it can be written");
        let error = parse(&[&flag]).expect("valid").read_files().expect_err(reason);
        let shown = ErrorChain(&*error).to_string();
        assert!(shown.contains("--admin-token-file") && shown.contains(reason), "{shown}");
    }
    let missing = format!("--redis-file={}", dir.path().join("none").display());
    let error = parse(&[&missing]).expect("valid").read_files().expect_err("missing");
    assert!(error.to_string().contains("--redis-file"), "{error}");
    parse(&["--redis", "redis://a", "--redis-file", "b"]).expect_err("two addresses");
}

/// Goal: the token of the peers can come through a pipe, which has it once.
#[test]
fn the_token_of_the_peers_can_come_through_a_pipe() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("a pipe").success());
    let flag = format!("--peer-token-file={}", pipe.display());
    let mut config = parse(&[&flag, "--peer-listen=[::1]:1"]).expect("valid");
    let writer = std::thread::spawn(move || std::fs::write(pipe, "s3cret\n"));
    config.read_files().expect("it can be read");
    writer.join().expect("a thread").expect("it can be written");
    let token = config.peer_credentials().token.expect("there is one");
    assert!(matches!(token, SecretSource::Text(_)), "it is not read again");
    assert_eq!(token.read_tokens().expect("a text"), [Secret::from("s3cret")]);
}

/// Goal: whoever has one token does not have the rights of another one.
#[test]
fn equal_tokens_end_the_start() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        path.display().to_string()
    };
    let flag = |role: &str, text| format!("--{role}-token-file={}", file(role, text));
    for (shop, admin, peers, equal) in [
        ("a\nb", "c\nd", "e", None),
        ("a\nb", "c\nb", "e", Some("--shop-token-file and --admin-token-file")),
        ("a\n a ", "c", "e", Some("--shop-token-file and --shop-token-file")),
        ("a", "c\nd", "d", Some("--admin-token-file and --peer-token-file")),
    ] {
        let flags = [flag("shop", shop), flag("admin", admin), flag("peer", peers)];
        let flags: Vec<_> =
            flags.iter().map(|flag| &**flag).chain(["--peer-listen=[::1]:1"]).collect();
        let read = parse(&flags).expect("valid").read_files();
        let said = read.err().map(|error| error.to_string());
        let is_said = said.as_deref().zip(equal).map(|(said, equal)| said.starts_with(equal));
        assert_eq!((said.is_some(), is_said.unwrap_or(true)), (equal.is_some(), true), "{said:?}");
    }
    let texts = ["--shop-token=a", "--admin-token=a"];
    parse(&texts).expect("valid").read_files().expect_err("they are equal");
}
