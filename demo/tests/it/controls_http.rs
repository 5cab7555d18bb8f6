//! Goal: the controls of the page show the harm that lock and fence prevent, and refuse other sites. Method: real instances as
//! processes, since the tests stop and kill some.

use std::collections::{BTreeMap, HashSet};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::client::{Answer, Connection};
use testkit::ports;
use testkit::processes::processes;
use testkit::shared::fresh_database;
use testkit::shared::{fresh_lock_name, shared_endpoint};
use testkit::wait::{DEADLINE, eventually};
use tokio::process::Child;
use tokio::time::timeout;

use crate::launch;

/// Two instances of one sale, and their control.
struct Pair {
    /// The ports of the instances, and of the control.
    ports: [u16; 3],
    children: [Child; 2],
    control: Child,
}

/// The control, in `Pair::ports`.
const PAGE: usize = 2;

impl Pair {
    async fn start() -> Self {
        let ports @ [first, second, control] = ports::free_ports().unwrap();
        let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
        let lock_name = fresh_lock_name();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (control_url, urls) = (url(control), [first, second].map(url).join(","));
        let sale = ["--etcd", &etcd, "--redis", &redis, "--lock-name", &lock_name];
        let flags = [&sale[..], &["--lock-ttl", "2s", "--control", &control_url]].concat();
        let control = launch::start("control", control, &["--instances", &urls]).await;
        let instances = [first, second].map(|port| launch::start("serve", port, &flags));
        let children = join_all(instances).await.try_into().unwrap();
        Self { ports, children, control }
    }

    /// Calls an instance or the page.
    async fn call(&self, at: usize, line: &str, body: &Value) -> Answer {
        let (host, body) = (format!("127.0.0.1:{}", self.ports[at]), body.to_string());
        let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}", body.len());
        self.send(at, &format!("{head}\r\n\r\n{body}")).await
    }

    async fn json(&self, at: usize, line: &str, body: &Value) -> Value {
        serde_json::from_str(&self.call(at, line, body).await.body).unwrap()
    }

    /// Carries out a run, and returns it with its verdict. With `is_overtaken`, the second instance stops between its first look
    /// at the stock and the write, until the first one has sold to all of its buyers. If the first one did so before that look,
    /// the run shows nothing, and is repeated.
    async fn run(&self, wanted: Value, is_overtaken: bool) -> Value {
        let [stock, requests] = ["stock", "requests"].map(|name| wanted[name].as_u64().unwrap());
        loop {
            if is_overtaken {
                // the control's own command
                let stop = json!({"fault": ["pause", null]});
                assert_eq!(self.call(1, "POST /demo/here", &stop).await.status, 200);
            }
            let answer = self.call(PAGE, "POST /demo/run", &wanted).await;
            assert_eq!(answer.status, 202, "{answer:?}");
            if is_overtaken {
                launch::until_stopped(&self.children[1]).await;
                eventually("the first has sold", async || {
                    let run = self.json(PAGE, "GET /demo/run", &json!({})).await;
                    run["sold"].as_u64().unwrap() >= requests / 2
                })
                .await;
                launch::signal(&self.children[1], Signal::CONT);
                // its alarm would end a later pause
                let alarm = format!("kill -CONT {}", self.children[1].id().unwrap());
                for (pid, _) in processes(&alarm) {
                    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
                }
            }
            let run = self.over().await;
            assert_eq!(run["state"], "done", "{run}");
            let replay = Replay(self.json(PAGE, "GET /demo/run/replay", &json!({})).await);
            let second = json!(self.ports[1].to_string());
            let look = replay.all("read").into_iter().find(|look| replay.shop(look) == second);
            if !is_overtaken || look.unwrap()[3].as_u64() > Some(stock - requests / 2) {
                return run;
            }
        }
    }

    /// The run, when it is over.
    async fn over(&self) -> Value {
        let mut run = Value::Null;
        eventually("the run is over", async || {
            run = self.json(PAGE, "GET /demo/run", &json!({})).await;
            run["state"] == "done" || run["state"] == "failed"
        })
        .await;
        run
    }

    async fn send(&self, at: usize, bytes: &str) -> Answer {
        let mut connection = Connection::open(([127, 0, 0, 1], self.ports[at]).into()).await;
        connection.send(bytes).await;
        connection.answer().await
    }
}

/// A recorded run.
struct Replay(Value);

impl Replay {
    fn events(&self) -> impl Iterator<Item = &Value> {
        self.0["events"].as_array().unwrap().iter()
    }

    fn all(&self, what: &str) -> Vec<&Value> {
        self.events().filter(|event| event[1] == what).collect()
    }

    /// For each buyer, the unit that was sold, where, and under which token.
    fn sold(&self) -> BTreeMap<u64, Value> {
        let sold = self.all("sold").into_iter();
        sold.map(|event| {
            (event[2].as_u64().unwrap(), json!([self.shop(event), event[4], event[5]]))
        })
        .collect()
    }

    /// The instance of an event.
    fn shop(&self, event: &Value) -> Value {
        let has_buyer = matches!(event[1].as_str(), Some("asked" | "sold" | "none" | "failed"));
        let place = event[if has_buyer { 3 } else { 2 }].as_u64().unwrap();
        self.0["shops"][usize::try_from(place).unwrap()].clone()
    }
}

/// The same by the ledger, for a sale of this many units.
fn entries(ledger: &Value, stock: u64) -> BTreeMap<u64, Value> {
    let orders = ledger["orders"].as_array().unwrap().iter();
    orders
        .map(|order| {
            let (_, buyer) = order["order"].as_str().unwrap().rsplit_once('-').unwrap();
            let unit = stock - order["remaining"].as_u64().unwrap();
            (buyer.parse().unwrap(), json!([order["instance"], unit, order["token"]]))
        })
        .collect()
}

/// Goal: the verdict says what lock, fence and fault did. With the lock every unit goes to one buyer, and without one too many
/// units are sold. The fence refuses a holder that was paused, or the holder undoes other sales. After a killed holder, the next
/// claim is granted. The replay says the same event by event: which buyer got which unit, where and under which number, agrees
/// with the ledger. If the fence refuses, each shop has one buyer: a holder with more buyers may have two batches on their way,
/// and both are refused.
#[tokio::test]
async fn runs_are_judged_and_can_be_replayed() {
    let mut pair = Pair::start().await;
    assert_eq!(pair.json(PAGE, "GET /demo/run/replay", &json!({})).await, Value::Null);
    for (guard, fence, fault, words) in [
        ("etcd", true, None, "60 of 60 sold, 40 told sold out"),
        ("no-lock", true, None, "too many. That is what happens"),
        ("local", true, None, "too many. That is what happens"),
        ("atomic-script", true, None, "60 of 60 sold"),
        ("etcd", false, None, "60 of 60 sold"),
        ("etcd", false, Some("pause"), "without a fence"),
        ("etcd", true, Some("pause"), "the fence refused"),
        ("etcd", true, Some("kill"), "was killed"),
    ] {
        let (stock, buyers) = if words.contains("refused") { (1, 2) } else { (60, 100) };
        let wanted = json!({"stock": stock, "requests": buyers, "guard": guard, "fence": fence, "fault": fault});
        let is_naive = words.contains("too many");
        let run = pair.run(wanted, is_naive).await;
        let (verdict, sold) = (&run["verdict"], run["sold"].as_u64().unwrap());
        let passes = !is_naive && words != "without a fence";
        assert_eq!(
            (&verdict["pass"], &verdict["lost"], &run["failed"]),
            (&passes.into(), &0.into(), &0.into()),
            "{run}"
        );
        assert_eq!(
            (&verdict["oversold"], sold > stock),
            (&(sold - stock).into(), !passes),
            "{run}"
        );
        assert_eq!(verdict["stale_batches"], u64::from(words.contains("refused")), "{run}");
        assert!(verdict["text"].as_str().unwrap().contains(words), "{run}");
        let victim = fault.map_or(Value::Null, |_| pair.ports[1].to_string().into());
        assert_eq!(run["victim"], victim);
        let other = pair.json(PAGE, "GET /demo", &json!({})).await;
        assert_eq!((&other["guard"], &other["run"]["id"]), (&guard.into(), &run["id"]), "{other}");

        let replay = Replay(pair.json(PAGE, "GET /demo/run/replay", &json!({})).await);
        for name in ["guard", "fence", "fault", "stock"] {
            assert_eq!(replay.0[name], run[name], "{name}");
        }
        assert_eq!((&replay.0["run"], &replay.0["buyers"]), (&run["id"], &buyers.into()));
        assert!(replay.0["sample"].is_null() && replay.all("asked").len() == buyers, "{run}");
        let told = replay.all("sold");
        assert_eq!(
            (told.len() as u64, told.len() + replay.all("none").len()),
            (sold, buyers),
            "{run}"
        );
        let units: HashSet<_> = told.iter().map(|event| event[4].as_u64().unwrap()).collect();
        assert!(units.iter().all(|unit| (1..=stock).contains(unit)));
        assert_eq!(units.len() < told.len(), !passes, "{run}");
        // without tokens there is no ledger
        if guard == "etcd" || guard == "atomic-script" {
            let ledger = pair.json(0, "GET /orders?limit=1000", &json!({})).await;
            let [mut seen, mut written] = [replay.sold(), entries(&ledger, stock)];
            // the other instance answered the buyers of a dead victim; without the fence, the store gets no token
            let differs = if fence { (fault == Some("kill")).then_some(0) } else { Some(2) };
            let both = seen.values_mut().chain(written.values_mut());
            both.zip(differs.into_iter().cycle()).for_each(|(it, place)| drop(it[place].take()));
            assert_eq!(seen, written, "{run}");
        }
        // without a shared lock, a shop sells by the number that it has read
        for sold in &told {
            let left = stock + 1 - sold[4].as_u64().unwrap();
            let is_read = |read: &&Value| {
                let is_before = read[0].as_u64() <= sold[0].as_u64();
                is_before && read[2] == sold[3] && read[3] == left
            };
            assert_eq!(replay.all("read").iter().any(is_read), is_naive, "{sold}");
        }
        let count = |what| replay.all(what).len();
        let is_paused = fault == Some("pause");
        let is_killed = fault == Some("kill");
        let hits = [is_paused, is_paused, is_killed, is_paused && fence].map(usize::from);
        assert_eq!(["asleep", "awake", "killed", "bounced"].map(count), hits, "{run}");
        assert_eq!(count("key") > 0, guard == "etcd", "{run}");
        for event in ["asleep", "killed", "bounced"].iter().flat_map(|what| replay.all(what)) {
            assert_eq!(replay.shop(event), run["victim"], "{event}");
        }
        for awake in replay.all("awake") {
            let slept = awake[0].as_u64().unwrap() - replay.all("asleep")[0][0].as_u64().unwrap();
            assert!(slept > 2_000_000, "longer than the lease: {slept}");
        }
        for bounced in replay.all("bounced") {
            assert!(bounced[3].as_i64() < bounced[4].as_i64(), "{bounced}");
            let metrics = pair.call(1, "GET /metrics", &json!({})).await.body;
            for name in ["stale_batches", "lost_tenures"] {
                assert!(!metrics.contains(&format!("flash_sale_{name}_total 0\n")), "{name}");
            }
        }
    }
    let ended = timeout(DEADLINE, pair.children[1].wait()).await.unwrap().unwrap();
    assert!(!ended.success(), "{ended}");
    let again = json!({"stock": 1, "requests": 1, "fault": "kill"});
    pair.call(PAGE, "POST /demo/run", &again).await.assert_problem(409, "needs-instances");
    // a large run shows some of its buyers
    let run = pair.run(json!({"stock": 60, "requests": 3000}), false).await;
    let replay = Replay(pair.json(PAGE, "GET /demo/run/replay", &json!({})).await);
    assert_eq!((&replay.0["run"], &replay.0["sample"]), (&run["id"], &json!({"of": 3000})));
    let [asked, sold, none] = ["asked", "sold", "none"].map(|what| replay.all(what).len());
    assert!((1000..2000).contains(&asked) && asked == sold + none, "{asked} {sold} {none}");
    let times: Vec<_> = replay.events().map(|event| event[0].as_u64()).collect();
    assert!(times.is_sorted() && times.last() == Some(&replay.0["took_us"].as_u64()));
    assert!(times.len() <= 4000);
}

/// Goal: switches reach all instances, and `kill` ends the named one.
#[tokio::test]
async fn switches_reach_all_instances() {
    let mut pair = Pair::start().await;
    for (line, body) in
        [("PUT /demo/guard", json!({"guard": "local"})), ("PUT /demo/fence", json!({"on": false}))]
    {
        let answer = pair.call(PAGE, line, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let demo = pair.json(PAGE, "GET /demo", &json!({})).await;
    assert_eq!((&demo["guard"], &demo["fence"]), (&"local".into(), &false.into()), "{demo}");
    assert_eq!(demo["guards"], json!(["etcd", "local", "no-lock", "atomic-script"]));
    for at in [0, 1] {
        let version = pair.json(at, "GET /version", &json!({})).await;
        assert_eq!(version["without"], json!(["fence"]));
    }
    for (line, body) in [
        ("PUT /demo/guard", json!({"guard": "consul"})),
        ("PUT /demo/fence", json!({"on": 1})),
        ("POST /demo/run", json!({"stock": 1})),
        ("POST /demo/run", json!({"stock": 1, "requests": 0})),
        ("POST /demo/run", json!({"stock": 1, "requests": 500_001})),
        (
            "POST /demo/run",
            json!({"stock": 1, "requests": 1, "guard": "no-lock", "fault": "pause"}),
        ),
        ("POST /demo/run", json!({"stock": 1, "requests": 1, "sleep_seconds": 11})),
    ] {
        pair.call(PAGE, line, &body).await.assert_problem(400, "bad-body");
    }
    let nobody = json!({"instance": "nobody"});
    pair.call(PAGE, "POST /demo/kill", &nobody).await.assert_problem(404, "unknown-instance");
    let named = json!({"instance": pair.ports[1].to_string()});
    let answer = pair.call(PAGE, "POST /demo/kill", &named).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let ended = timeout(DEADLINE, pair.children[1].wait()).await.unwrap().unwrap();
    assert!(!ended.success(), "{ended}");
    eventually("it is known to be away", async || {
        let demo = pair.json(PAGE, "GET /demo", &json!({})).await;
        demo["instances"][1]["up"] == false && demo["instances"][0]["up"] == true
    })
    .await;
}

/// Goal: a run whose victim does not reach its fault shows nothing, and fails at once. Method: nothing is left to write.
#[tokio::test]
async fn a_fault_that_is_not_reached_is_not_claimed() {
    let pair = Pair::start().await;
    for fault in ["pause", "kill"] {
        let wanted = json!({"stock": 0, "requests": 10, "guard": "etcd", "fault": fault});
        assert_eq!(pair.call(PAGE, "POST /demo/run", &wanted).await.status, 202);
        let run = pair.over().await;
        let error = format!("{} did not get to its fault while it held the lock.", pair.ports[1]);
        assert_eq!((&run["error"], &run["verdict"]), (&error.into(), &Value::Null), "{run}");
    }
}

/// Goal: there is one run at a time, even if two are asked for at once.
#[tokio::test]
async fn one_run_at_a_time() {
    let pair = Pair::start().await;
    for method in ["GET", "DELETE"] {
        let line = format!("{method} /demo/run");
        pair.call(PAGE, &line, &json!({})).await.assert_problem(404, "no-run");
    }
    let sale = json!({"stock": 20, "requests": 40, "guard": "etcd"});
    for _ in 0..20 {
        let begin = || pair.call(PAGE, "POST /demo/run", &sale);
        let answers = <[Answer; 2]>::from(tokio::join!(begin(), begin()));
        let winner = answers.iter().position(|answer| answer.status == 202).expect("one begins");
        answers[1 - winner].assert_problem(409, "run-in-progress");
        let run = pair.over().await;
        assert_eq!(run["verdict"]["pass"], true, "{run}");
    }
    // a second run is refused also while the victim of the first one is asleep
    let paused = json!({"stock": 20, "requests": 40, "guard": "etcd", "fault": "pause"});
    assert_eq!(pair.call(PAGE, "POST /demo/run", &paused).await.status, 202);
    let is_hit = async || pair.json(PAGE, "GET /demo/run", &json!({})).await["hit_ms"].is_number();
    eventually("it is asleep", is_hit).await;
    pair.call(PAGE, "POST /demo/run", &paused).await.assert_problem(409, "run-in-progress");
}

/// Goal: a run that is stopped, or whose sale another one replaces, ends without a verdict, since the service is not at fault.
#[tokio::test]
async fn a_run_without_an_end_has_no_verdict() {
    let pair = Pair::start().await;
    let long = json!({"stock": 1_000_000, "requests": 5_000, "guard": "etcd"});
    for error in ["The run was stopped.", "Another sale was started meanwhile."] {
        assert_eq!(pair.call(PAGE, "POST /demo/run", &long).await.status, 202);
        eventually("orders were answered", async || {
            pair.json(PAGE, "GET /demo/run", &json!({})).await["answered"].as_u64().unwrap() > 0
        })
        .await;
        if error.contains("stopped") {
            // as curl sends it
            let stopped =
                pair.send(PAGE, "DELETE /demo/run HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            assert_eq!(stopped.status, 202, "{stopped:?}");
        } else {
            let other = pair.call(1, "PUT /stock", &json!({"stock": 1})).await;
            assert_eq!(other.status, 200, "{other:?}");
        }
        let run = pair.over().await;
        assert_eq!(
            (&run["state"], &run["error"], &run["verdict"]),
            (&"failed".into(), &error.into(), &Value::Null),
            "{run}"
        );
    }
}

/// Goal: pages of other sites in a browser of this machine can neither use the controls nor start a sale, at an instance or by
/// the control.
#[tokio::test]
async fn other_sites_are_kept_out() {
    let pair = Pair::start().await;
    for (at, call, headers) in [
        (PAGE, "POST /demo/kill", "Host: localhost\r\nOrigin: http://evil.example"),
        (PAGE, "PUT /stock", "Host: evil.example"),
        (0, "POST /demo/here", "Host: evil.example"),
        (0, "PUT /stock", "Host: evil.example"),
    ] {
        let request =
            format!("{call} HTTP/1.1\r\n{headers}\r\nContent-Length: 11\r\n\r\n{{\"stock\":5}}");
        pair.send(at, &request).await.assert_problem(403, "cross-site");
    }
}

/// Goal: each instance says where the page is, and the page's calls of the service reach an instance that is up. An instance
/// sells without the control.
#[tokio::test]
async fn the_page_is_at_the_control_and_the_sale_at_the_instances() {
    let mut pair = Pair::start().await;
    for at in [0, 1] {
        let there = pair.call(at, "GET /?item=tea", &Value::Null).await;
        let page = format!("http://127.0.0.1:{}/?item=tea", pair.ports[PAGE]);
        assert_eq!((there.status, there.header("location")), (307, Some(&*page)), "{there:?}");
    }
    pair.children[0].kill().await.unwrap();
    eventually("the first is missed", async || {
        pair.json(PAGE, "GET /demo", &Value::Null).await["instances"][0]["up"] == false
    })
    .await;
    for (at, stock) in [(PAGE, 3), (1, 4)] {
        let started = pair.call(at, "PUT /stock", &json!({"stock": stock})).await;
        assert_eq!(started.status, 200, "{started:?}");
        assert_eq!(pair.json(at, "GET /stock", &Value::Null).await["stock"], stock);
        pair.control.kill().await.unwrap();
    }
}
