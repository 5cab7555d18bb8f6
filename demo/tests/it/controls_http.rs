//! Goal: the controls of the page show what lock and fence prevent, and refuse other sites.
//! Method: real instances as processes, since some are stopped and killed.

use std::collections::HashSet;

use serde_json::{Value, json};
use testkit::client::{Answer, Connection};
use testkit::ports;
use testkit::shared::fresh_database;
use testkit::shared::{fresh_lock_name, shared_endpoint};
use testkit::wait::{DEADLINE, eventually};
use tokio::process::Child;
use tokio::time::timeout;

use crate::launch;

/// Two instances of one sale, and their control.
struct Pair {
    ports: [u16; 2],
    children: [Child; 2],
    control: Child,
}

impl Pair {
    async fn start() -> Self {
        let [control, ports @ ..]: [u16; 3] = ports::free_ports().unwrap();
        let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
        let lock_name = fresh_lock_name();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (control_url, urls) = (url(control), ports.map(url).join(","));
        let sale = ["--etcd", &etcd, "--redis", &redis, "--lock-name", &lock_name];
        let flags = [&sale[..], &["--lock-ttl", "2s", "--control", &control_url]].concat();
        let control = launch::start("control", control, &["--instances", &urls]).await;
        let [first, second] = ports.map(|port| launch::start("serve", port, &flags));
        let children = tokio::join!(first, second).into();
        Self { ports, children, control }
    }

    /// Calls the first or the second.
    async fn call(&self, at: usize, line: &str, body: &Value) -> Answer {
        let port = self.ports[at];
        let mut connection = Connection::open(([127, 0, 0, 1], port).into()).await;
        let body = body.to_string();
        let length = body.len();
        connection
            .send(format!(
                "{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            ))
            .await;
        connection.answer().await
    }

    async fn json(&self, at: usize, line: &str, body: &Value) -> Value {
        serde_json::from_str(&self.call(at, line, body).await.body).unwrap()
    }

    /// Carries out a run from the first, and returns it with its verdict.
    async fn run(&self, wanted: Value) -> Value {
        let answer = self.call(0, "POST /demo/run", &wanted).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        let run = self.over(0).await;
        assert_eq!(run["state"], "done", "{run}");
        run
    }

    /// The run of this instance, once it is over.
    async fn over(&self, at: usize) -> Value {
        let mut run = Value::Null;
        eventually("the run is over", async || {
            run = self.json(at, "GET /demo/run", &json!({})).await;
            run["state"] == "done" || run["state"] == "failed"
        })
        .await;
        run
    }

    /// Sends these bytes to the first.
    async fn send(&self, bytes: &str) -> Answer {
        let mut connection = Connection::open(([127, 0, 0, 1], self.ports[0]).into()).await;
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

    /// Where it happened.
    fn shop(&self, event: &Value) -> Value {
        let has_buyer = matches!(event[1].as_str(), Some("asked" | "sold" | "none" | "failed"));
        let place = event[if has_buyer { 3 } else { 2 }].as_u64().unwrap();
        self.0["shops"][usize::try_from(place).unwrap()].clone()
    }
}

/// Goal: with the lock every unit goes to one buyer; without one, or with one in each instance, the verdict says
/// that too many were sold.
#[tokio::test]
async fn runs_show_what_the_lock_prevents() {
    let pair = Pair::start().await;
    for guard in ["etcd", "no-lock", "local", "etcd"] {
        let run = pair.run(json!({"stock": 60, "requests": 100, "guard": guard})).await;
        let verdict = &run["verdict"];
        let is_locked = guard == "etcd";
        assert_eq!((&verdict["pass"], &verdict["lost"]), (&is_locked.into(), &0.into()), "{run}");
        let sold = verdict["sold"].as_u64().unwrap();
        assert_eq!(verdict["oversold"], sold - 60, "{run}");
        if is_locked {
            assert_eq!((sold, &verdict["sold_out"]), (60, &40.into()), "{run}");
        } else {
            let start = format!("{sold} sold of 60: {} too many. That is what happens", sold - 60);
            assert!(verdict["text"].as_str().unwrap().starts_with(&start), "{run}");
        }
        let other = pair.json(1, "GET /demo", &json!({})).await;
        assert_eq!((&other["guard"], &other["run"]["id"]), (&guard.into(), &run["id"]), "{other}");
    }
    let stock = pair.json(1, "GET /stock", &json!({})).await;
    assert_eq!((&stock["lucky"], &stock["balanced"]), (&60.into(), &true.into()), "{stock}");
}

/// Goal: a holder is paused beyond its lease: the fence refuses its batch, and without the fence it undoes
/// what others have sold. A holder is killed: the next is served when the lease ends, and no unit is sold twice.
#[tokio::test]
async fn runs_show_what_the_fence_prevents() {
    let mut pair = Pair::start().await;
    for (fence, fault, passes, words) in [
        (true, "pause", true, "the fence refused"),
        (false, "pause", false, "without a fence"),
        (true, "kill", true, "was killed"),
    ] {
        let wanted =
            json!({"stock": 60, "requests": 100, "guard": "etcd", "fence": fence, "fault": fault});
        let run = pair.run(wanted).await;
        let verdict = &run["verdict"];
        assert_eq!(run["victim"], pair.ports[1].to_string(), "{run}");
        assert_eq!((&verdict["pass"], &run["failed"]), (&passes.into(), &0.into()), "{run}");
        assert_eq!(verdict["oversold"].as_u64().unwrap() > 0, !passes, "{run}");
        assert_eq!(
            verdict["stale_batches"].as_u64().unwrap() > 0,
            words.contains("refused"),
            "{run}"
        );
        assert!(verdict["text"].as_str().unwrap().contains(words), "{run}");
    }
    let ended = timeout(DEADLINE, pair.children[1].wait()).await.unwrap().unwrap();
    assert!(!ended.success(), "{ended}");
    let again = json!({"stock": 1, "requests": 1, "fault": "kill"});
    pair.call(0, "POST /demo/run", &again).await.assert_problem(409, "needs-instances");
}

/// Goal: a run can be replayed as it was: who was sold which unit, where and under which number is what the ledger says, and
/// the fault and the fence are among the events. Of a large run, some buyers are, and it says so.
#[tokio::test]
async fn a_run_can_be_replayed_as_it_was() {
    let pair = Pair::start().await;
    assert_eq!(pair.json(0, "GET /demo/run/replay", &json!({})).await, Value::Null);
    for (requests, fence, fault) in [
        (100, true, None),
        (100, false, Some("pause")),
        (100, true, Some("pause")),
        (3000, true, None),
    ] {
        let run = json!({"stock": 60, "requests": requests, "guard": "etcd", "fence": fence, "fault": fault});
        let run = pair.run(run).await;
        let replay = Replay(pair.json(1, "GET /demo/run/replay", &json!({})).await);
        for (name, value) in [
            ("run", &run["id"]),
            ("stock", &json!(60)),
            ("buyers", &json!(requests)),
            ("fault", &run["fault"]),
        ] {
            assert_eq!(replay.0[name], *value, "{name}");
        }
        let [asked, sold, none] = ["asked", "sold", "none"].map(|what| replay.all(what));
        assert_eq!(asked.len(), sold.len() + none.len(), "{run}");
        let times: Vec<_> = replay.events().map(|event| event[0].as_u64().unwrap()).collect();
        assert!(times.is_sorted() && times.last() == replay.0["took_us"].as_u64().as_ref());
        if requests > 2000 {
            assert_eq!(replay.0["sample"], json!({"of": requests}));
            assert!((1000..2000).contains(&asked.len()) && times.len() <= 4000, "{}", times.len());
            continue;
        }
        assert_eq!((&replay.0["sample"], asked.len()), (&Value::Null, 100));
        let mut sold: Vec<_> = sold
            .iter()
            .map(|event| json!([event[2], replay.shop(event), event[4], event[5]]))
            .collect();
        let ledger = pair.json(0, "GET /orders?limit=1000", &json!({})).await;
        let mut expected: Vec<_> = ledger["orders"]
            .as_array()
            .unwrap()
            .iter()
            .map(|order| {
                let (_, buyer) = order["order"].as_str().unwrap().rsplit_once('-').unwrap();
                let unit = 60 - order["remaining"].as_i64().unwrap();
                json!([buyer.parse::<u64>().unwrap(), order["instance"], unit, order["token"]])
            })
            .collect();
        for all in [&mut sold, &mut expected] {
            all.sort_by_key(|one| one[0].as_u64());
        }
        assert_eq!(sold, expected, "{run}");
        // each number was the key of its shop
        let keys: Vec<_> =
            replay.all("key").iter().map(|event| (replay.shop(event), event[3].clone())).collect();
        assert!(
            sold.iter().all(|sold| keys.contains(&(sold[1].clone(), sold[3].clone()))),
            "{keys:?}"
        );
        let [asleep, awake, bounced] = ["asleep", "awake", "bounced"].map(|what| replay.all(what));
        assert_eq!([asleep.len(), awake.len()], [usize::from(fault.is_some()); 2], "{run}");
        assert_eq!(bounced.len(), usize::from(fence && fault.is_some()), "{run}");
        if let [asleep] = &asleep[..] {
            assert_eq!(replay.shop(asleep), run["victim"]);
            let slept = awake[0][0].as_u64().unwrap() - asleep[0].as_u64().unwrap();
            assert!(slept > 2_000_000, "{slept}");
        }
        if let [bounced] = &bounced[..] {
            assert_eq!(replay.shop(bounced), run["victim"]);
            assert!(bounced[3].as_i64() < bounced[4].as_i64(), "{bounced}");
        }
        let units: HashSet<_> = sold.iter().map(|sold| sold[2].as_i64()).collect();
        assert_eq!(units.len() < sold.len(), !fence, "{run}");
    }
}

/// Goal: switches reach the other instance, and `kill` ends the one that is named.
#[tokio::test]
async fn switches_reach_all_instances() {
    let mut pair = Pair::start().await;
    for (at, line, body) in [
        (0, "PUT /demo/guard", json!({"guard": "local"})),
        (1, "PUT /demo/fence", json!({"on": false})),
    ] {
        let answer = pair.call(at, line, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for at in [0, 1] {
        let demo = pair.json(at, "GET /demo", &json!({})).await;
        assert_eq!((&demo["guard"], &demo["fence"]), (&"local".into(), &false.into()), "{demo}");
        assert_eq!(demo["guards"], json!(["etcd", "local", "no-lock", "atomic-script"]));
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
    ] {
        pair.call(0, line, &body).await.assert_problem(400, "bad-body");
    }
    let nobody = json!({"instance": "nobody"});
    pair.call(0, "POST /demo/kill", &nobody).await.assert_problem(404, "unknown-instance");
    let named = json!({"instance": pair.ports[1].to_string()});
    let answer = pair.call(0, "POST /demo/kill", &named).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let ended = timeout(DEADLINE, pair.children[1].wait()).await.unwrap().unwrap();
    assert!(!ended.success(), "{ended}");
    eventually("it is known to be away", async || {
        let demo = pair.json(0, "GET /demo", &json!({})).await;
        demo["instances"][1]["up"] == false && demo["instances"][0]["up"] == true
    })
    .await;
}

/// Goal: there is one run at a time, also if two instances are asked at once.
#[tokio::test]
async fn one_run_at_a_time() {
    let pair = Pair::start().await;
    for method in ["GET", "DELETE"] {
        let line = format!("{method} /demo/run");
        pair.call(0, &line, &json!({})).await.assert_problem(404, "no-run");
    }
    let sale = json!({"stock": 20, "requests": 40, "guard": "etcd"});
    for _ in 0..20 {
        let begin = |at| pair.call(at, "POST /demo/run", &sale);
        let answers = <[Answer; 2]>::from(tokio::join!(begin(0), begin(1)));
        let winner = answers.iter().position(|answer| answer.status == 202).expect("one begins");
        answers[1 - winner].assert_problem(409, "run-in-progress");
        let run = pair.over(winner).await;
        assert_eq!(run["verdict"]["pass"], true, "{run}");
    }
}

/// Goal: a run that is stopped, or whose sale is replaced by another one, ends without a verdict: neither is a fault of the
/// service.
#[tokio::test]
async fn a_run_without_an_end_has_no_verdict() {
    let pair = Pair::start().await;
    let long = json!({"stock": 1_000_000, "requests": 500_000, "guard": "etcd"});
    for error in ["The run was stopped.", "Another sale was started meanwhile."] {
        assert_eq!(pair.call(0, "POST /demo/run", &long).await.status, 202);
        eventually("orders were answered", async || {
            pair.json(0, "GET /demo/run", &json!({})).await["answered"].as_u64().unwrap() > 0
        })
        .await;
        if error.contains("stopped") {
            // as curl sends it
            let stopped = pair.send("DELETE /demo/run HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            assert_eq!(stopped.status, 202, "{stopped:?}");
        } else {
            let other = pair.call(1, "PUT /stock", &json!({"stock": 1})).await;
            assert_eq!(other.status, 200, "{other:?}");
        }
        let run = pair.over(1).await;
        assert_eq!(
            (&run["state"], &run["error"], &run["verdict"]),
            (&"failed".into(), &error.into(), &Value::Null),
            "{run}"
        );
    }
}

/// Goal: pages of other sites in a browser of this machine can neither use the controls nor start a sale.
#[tokio::test]
async fn other_sites_are_kept_out() {
    let pair = Pair::start().await;
    for (call, headers, status, word) in [
        ("POST /demo/kill", "Host: 127.0.0.1\r\nContent-Type: text/plain", 415, "json-required"),
        ("POST /demo/here", "Host: evil.example", 403, "cross-site"),
        ("PUT /stock", "Host: evil.example", 403, "cross-site"),
        ("PUT /stock", "Host: localhost\r\nOrigin: http://evil.example", 403, "cross-site"),
    ] {
        let request =
            format!("{call} HTTP/1.1\r\n{headers}\r\nContent-Length: 11\r\n\r\n{{\"stock\":5}}");
        pair.send(&request).await.assert_problem(status, word);
    }
}

/// Goal: an instance without a control sells, and says why it has no controls.
#[tokio::test]
async fn without_a_control_there_is_a_sale_all_the_same() {
    let mut pair = Pair::start().await;
    pair.control.kill().await.unwrap();
    for line in ["GET /demo", "POST /demo/run", "GET /demo/run/replay"] {
        pair.call(0, line, &json!({})).await.assert_problem(503, "no-control");
    }
    assert_eq!(pair.call(0, "PUT /stock", &json!({"stock": 1})).await.status, 200);
    assert_eq!(pair.call(1, "POST /stock/reduce", &Value::Null).await.status, 400);
}
