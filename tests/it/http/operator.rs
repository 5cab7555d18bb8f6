//! The `sale` command.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::any;
use tempfile::NamedTempFile;
use testkit::ports::free_ports;
use testkit::wait::within;
use testkit::{Direction, Proxy};

use super::server::{OPTIONS, Running};
use crate::program::{program, run};
use crate::shop::{Shop, ShopOptions};

/// Goal: an operator runs a sale from a shell. A lost answer is asked for again under the same key; where that does not help, the
/// exit status and the words say that it is unknown, and a repetition by hand changes nothing twice. What was refused, and who was not
/// reached, is told apart. No output has the token.
/// Method: the program; an instance behind a proxy that loses answers; and one that waits for a replica that is not there, so that
/// it answers 504.
#[tokio::test]
async fn a_sale_is_run_from_a_shell() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let server = Running::start(shop.router.clone(), OPTIONS);
    let wait_timeout = Duration::from_secs(1);
    let doubtful = shop.with(ShopOptions { replicas: 1, wait_timeout, ..ShopOptions::default() });
    let doubtful = Running::start(doubtful.router.clone(), OPTIONS);
    let line = Proxy::to(server.address.port()).await.unwrap();
    let [token, wrong] = ["s3cret", "wr0ng"].map(|token| {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(&file, token).unwrap();
        file
    });
    let (token, wrong) = (token.path().to_str().unwrap(), wrong.path().to_str().unwrap());
    let [nobody] = free_ports().unwrap();
    let nobody = format!("http://127.0.0.1:{nobody}");
    let url = line.url();
    let sale = async |flags: &str, status: i32, words: &[&str]| {
        let mut arguments: Vec<&str> = ["sale"].into_iter().chain(flags.split(' ')).collect();
        for (flag, value) in [("--url", &*url), ("--token-file", token)] {
            if !arguments.contains(&flag) {
                arguments.extend([flag, value]);
            }
        }
        let (ended, said) = run(&arguments).await;
        assert_eq!(ended, Some(status), "{flags}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{flags}: {said}");
        assert!(!said.contains("s3cret") && !said.contains("wr0ng"), "{flags}: {said}");
        said
    };

    let start = "start --stock 10 --id tea-1 --hold 10m --per-user 2";
    sale(&format!("{start} --url {nobody}"), 1, &["cannot reach 127.0.0.1:"]).await;
    let with_wrong = format!("{start} --token-file {wrong}");
    sale(&with_wrong, 1, &["401", "--token-file or FLASH_SALE_ADMIN_TOKEN is"]).await;
    sale(start, 0, &["Started.", "sale tea-1 of item default", "10 units left"]).await;
    sale(start, 0, &["Started before."]).await;
    // it has no order yet
    sale("start --stock 5", 1, &["sale tea-1 is there", "--replace tea-1"]).await;
    sale("start --stock 5 --hold 500ms", 2, &["whole seconds"]).await;
    sale("pause --key p-1", 2, &["--sale"]).await;
    let order = "POST /stock/reduce?user==1";
    shop.call_with(order, &[("idempotency-key", "a-1")], "").await.json(200);
    sale("start --stock 5 --id tea-2", 1, &["refuses: 428", "add --replace tea-1"]).await;

    // the answer to the question for the sale arrives, and that to the change is lost
    line.lose_after(Direction::ToClient, 1);
    let done = ["Done before, at ", "add 5", "note \"more\"", "14 units left", "of 15"];
    sale("change --add 5 --note more", 0, &done).await;
    assert!(line.has_lost());

    let pause = "pause --sale tea-1 --key p-1";
    let at_doubtful = format!("{pause} --timeout 3s --url http://{}", doubtful.address);
    sale(&at_doubtful, 3, &["UNKNOWN", "Ask again: repeat the command"]).await;
    let proxy = Router::new().route("/stock", any(async || StatusCode::SERVICE_UNAVAILABLE));
    let proxy = Running::start(proxy, OPTIONS);
    let at_proxy = format!("{pause} --timeout 1s --url http://{}", proxy.address);
    sale(&at_proxy, 3, &["UNKNOWN", "answers: 503"]).await;
    // where it is not known whether a sale would be replaced, no start is sent
    let start = format!("start --stock 5 --timeout 1s --url http://{}", proxy.address);
    let said = sale(&start, 1, &["answers: 503"]).await;
    assert!(!said.contains("To repeat this very call"), "{said}");
    sale(pause, 0, &["Done before, at ", "paused true", "version 2: paused"]).await;

    // once unknown, a call stays unknown, whatever its repetition is told
    let calls = AtomicUsize::new(0).into();
    let statuses = async move |State(calls): State<Arc<AtomicUsize>>| {
        let statuses = [504, 409].map(|status| StatusCode::from_u16(status).unwrap());
        statuses[calls.fetch_add(1, Ordering::Relaxed) % 2]
    };
    let other =
        Running::start(Router::new().route("/stock", any(statuses)).with_state(calls), OPTIONS);
    let at_other = format!("{pause} --url http://{}", other.address);
    sale(&at_other, 3, &["UNKNOWN", "no answer, and then", "refuses: 409"]).await;
    let arguments = ["sale", "--url", &*url].into_iter().chain(pause.split(' '));
    let with_variable = program().args(arguments).env("FLASH_SALE_ADMIN_TOKEN", "s3cret").output();
    assert!(within("it ends", with_variable).await.unwrap().status.success());

    sale("resume --sale tea-1:1", 1, &["refuses: 412"]).await;
    let resumed = "resume --sale tea-1:2";
    let said = sale(resumed, 0, &["Done: paused false", "version 3: running"]).await;
    // it names only the flags that were not given: a flag can be given once
    let key = said.lines().find_map(|line| line.strip_prefix("To repeat this very call, add "));
    sale(&format!("{resumed} {}", key.unwrap()), 0, &["Done before, at ", "version 3"]).await;
    sale("change --add -15", 1, &["refuses: 409"]).await;
    let ended = sale("end --json --sale tea-1 --key e-1", 0, &[]).await;
    let ended: serde_json::Value = serde_json::from_str(ended.lines().next().unwrap()).unwrap();
    let told = ["outcome", "key", "state", "id"].map(|name| ended[name].as_str().unwrap());
    assert_eq!(told, ["done", "e-1", "ended", "tea-1"]);
    sale("show", 0, &["version 4: ended", "14 units left, 1 held, 0 confirmed"]).await;

    let lines = sale("ledger --csv", 0, &["sale,position,", ",changed,,,,14,"]).await;
    assert!(lines.contains(",reserved,a-1,\"'=1\",1,9,8080,"), "{lines}");
    let (_, cursor) = lines.trim().rsplit_once(' ').unwrap();
    sale("ledger", 0, &["1 units, order a-1 =1; 9 left, by 8080", "note \"more\""]).await;
    let rest = sale(&format!("ledger --json --after {cursor}"), 0, &[]).await;
    assert_eq!(rest.trim(), format!("To read on, add --after {cursor}"));
}
