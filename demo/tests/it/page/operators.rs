//! The operators' page of a sale: the service alone, without a demo.

use axum::http::Method;
use flash_sale::recover::{self, RecoverOptions};
use serde_json::{Value, json};
use testkit::client::Connection;
use testkit::wait::eventually;
use testkit::{
    Direction, EtcdOptions, PrivateEtcd, PrivateRedis, Proxy, RedisOptions, ports, probe,
};

use super::browser::{DESKTOP, PHONE, Tab};
use super::looks::assert_fits;
use crate::launch;

/// Starts an instance of the service with the admin token `adm1n`, in this process. Returns its port.
async fn serve(etcd: &PrivateEtcd, redis: &Proxy) -> u16 {
    #[derive(clap::Parser)]
    struct Service {
        #[command(flatten)]
        config: flash_sale::config::Config,
    }
    let [port] = ports::free_ports().unwrap();
    let Service { config } = clap::Parser::parse_from([
        "serve",
        &format!("--listen=127.0.0.1:{port}"),
        &format!("--etcd={}", etcd.endpoint()),
        &format!("--redis=redis://127.0.0.1:{}", redis.port()),
        "--admin-token=adm1n",
        "--wait-timeout=1s",
    ]);
    tokio::spawn(flash_sale::serve::serve(config));
    launch::until_ok(port, "/readyz").await;
    port
}

impl Tab {
    /// Clicks a button, and then the one that confirms this sentence.
    async fn change(&self, button: &str, sentence: &str) {
        self.click(button).await;
        self.until_reads("#ask-text", sentence).await;
        self.click("#yes").await;
    }
}

/// Goal: a visitor with a token, and no other, sees the state of a sale, and starts, changes, pauses and ends it, each by two
/// clicks with a sentence between them. A change without an answer is sent again under its key and done once. Texts from outside
/// stay texts, the token leaves no trace, and the audit finds nothing.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn an_operator_runs_a_sale() {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let between = Proxy::to(redis.port()).await.unwrap();
    let port = serve(&etcd, &between).await;
    let call = async |method, path: &str| probe::http(method, port, path, "").await.unwrap();
    let stock = async || -> Value {
        serde_json::from_str(&call(Method::GET, "/stock?item=tea").await.1).unwrap()
    };
    let url = format!("http://127.0.0.1:{port}/?item=tea");
    let page = Tab::open(&url, DESKTOP).await;
    page.until_shown("#token-form").await;
    // a pasted text may have characters that no header can have
    for (token, id, words) in
        [("wrong", "#notice", "This token is not accepted"), ("\u{200b}adm1n", "#state", "No sale")]
    {
        assert!(!page.is_shown("#shown").await);
        page.fill("#token", token).await;
        page.click("#token-form button").await;
        page.until_reads(id, words).await;
    }

    page.run("for (const part of document.querySelectorAll('details')) part.open = true").await;
    for (name, value) in [("stock", "5"), ("sale", "autumn"), ("hold_seconds", "600")] {
        page.fill(&format!("#start-form [name={name}]"), value).await;
    }
    page.click("#start-form button").await;
    page.until_reads("#ask-text", "Puts 5 units on sale at once.").await;
    assert_eq!(
        call(Method::GET, "/stock?item=tea").await.0,
        404,
        "nothing before the second click"
    );
    page.click("#yes").await;
    page.until_reads("#done", "Done: Start sale autumn of item tea.").await;
    page.until_reads("#state", "Running.").await;

    for (name, value) in [("stock", "5"), ("sale", "autumn")] {
        page.fill(&format!("#start-form [name={name}]"), value).await;
    }
    page.click("#start-form button").await;
    page.until_reads("#done", "This sale runs already.").await;

    // markup, and a character that changes the direction of text
    let order = "/stock/reduce?item=tea&user=%3Cimg/src=x/onerror=document.title=%27taken%27%3E";
    let id = probe::http(Method::POST, port, order, "").await.unwrap().1;
    let id = serde_json::from_str::<Value>(&id).unwrap()["order"].as_str().unwrap().to_owned();
    page.until_reads("#entries", "<img/src=x/onerror=document.title='taken'>").await;
    page.until_reads("#held", "1").await;
    page.fill("#user", "<img/src=x/onerror=document.title='taken'>").await;
    page.fill("#order", &id).await;
    page.click("#order-form button").await;
    page.until_reads("#found", "reserved").await;

    page.click("#pause").await;
    page.click("#no").await;
    assert_eq!(stock().await["state"], "running");
    page.click("#pause").await;
    page.until_reads("#ask-text", "until you resume the sale: 4 units wait").await;
    page.fill("#note", "<b>till</b> \u{202e}ten").await;
    page.click("#yes").await;
    page.until_reads("#state", "Paused.").await;
    page.until_reads("#entries", "<b>till</b> ⟨U+202E⟩ten").await;

    // the store makes the change, and its answer does not arrive
    page.fill("#change-form [name=add]", "-2").await;
    page.click("#change-form button").await;
    page.until_reads("#ask-text", "Takes 2 units off sale").await;
    between.hold(Direction::ToClient);
    page.click("#yes").await;
    page.until_reads("#ask-state", "It is unknown whether this was done").await;
    between.release();
    page.until_reads("#done", "Done: Change sale autumn of item tea.").await;
    assert_eq!(stock().await["stock"], 2);
    // the change is done, and a proxy answers
    page.run(
        "const real = fetch; window.fetch = async (url, options) => {
        const answer = await real(url, options);
        if (options.method !== 'PATCH') return answer;
        window.fetch = real;
        return new Response('', { status: 502 });
    }",
    )
    .await;
    page.change("#resume", "2 units are left").await;
    page.until_reads("#ask-state", "It is unknown whether this was done").await;
    page.until_reads("#done", "Done: Resume sale autumn").await;
    page.until_reads("#state", "Running.").await;
    page.change("#end", "2 units stay unsold").await;
    page.until_reads("#state", "Ended.").await;
    page.assert_is_accessible().await;
    page.become_device(PHONE).await;
    assert_fits(&page).await;

    // an answer that comes when the page shows another item is dropped without a word
    let late = "const call = window.fetch;
        window.fetch = async (path, options) => {
            const answer = await call(path, options);
            if (path.startsWith('metrics') && !window.late) await new Promise((go) => { window.late = go; });
            return answer;
        };";
    page.run(late).await;
    eventually("an answer is late", async || page.run("return Boolean(window.late)").await == true)
        .await;

    // the sale of a stock set by hand has no id, and a change names one
    redis.run::<()>("SET stock:{plain} 3").await.unwrap();
    for (item, state, is_changeable) in
        [("plain", "It was set up without an id", false), ("tea", "Ended.", true)]
    {
        page.fill("#item", item).await;
        page.click("#item-form button").await;
        page.until_reads("#state", state).await;
        for id in ["#pause", "#end", "#change"] {
            let is_shown = is_changeable && id == "#change";
            assert_eq!(page.is_shown(id).await, is_shown, "{item}: {id}");
        }
        page.run("window.late()").await;
    }

    between.refuse();
    page.until_reads("#health", "Redis ✕").await;
    page.until_reads("#state", "The figures are those of").await;
    let kept = "return [location.href, document.cookie, token.value, localStorage.length,
        sessionStorage.length, document.title, document.querySelectorAll('main :is(img, td b)').length]";
    let title = "Flash sale: operators";
    assert_eq!(page.run(kept).await, json!([url, "", "", 0, 0, title, 0]));
    // the browser itself reports refusals
    let mut complaints = page.complaints().await;
    complaints.retain(|complaint| !complaint.contains("Failed to load resource"));
    assert_eq!(complaints, Vec::<String>::new());
}

/// Goal: the page shows the ledger also after an operator has accepted a loss, which gives the ledger another name.
#[tokio::test]
async fn the_ledger_is_shown_after_a_recovery() {
    #[derive(clap::Parser)]
    struct Recover {
        #[command(flatten)]
        options: RecoverOptions,
    }
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let between = Proxy::to(redis.port()).await.unwrap();
    let port = serve(&etcd, &between).await;
    let mut client = Connection::open(([127, 0, 0, 1], port).into()).await;
    let body = r#"{"stock":99,"sale":"autumn"}"#;
    let head = "PUT /stock?item=tea HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer adm1n";
    client.send(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
    assert_eq!(client.answer().await.status, 200);
    // more than the page shows, so it reads from a position
    for _ in 0..25 {
        assert_eq!(client.get("/stock/reduce?item=tea").await.status, 200);
    }
    let redis_url = format!("--redis=redis://127.0.0.1:{}", redis.port());
    let etcd_url = format!("--etcd={}", etcd.endpoint());
    let Recover { options } = clap::Parser::parse_from([
        "recover",
        "store",
        "--item=tea",
        "--yes",
        &redis_url,
        &etcd_url,
    ]);
    recover::run(options).await.unwrap();
    let page = Tab::open(&format!("http://127.0.0.1:{port}/?item=tea"), DESKTOP).await;
    page.until_shown("#token-form").await;
    page.fill("#token", "adm1n").await;
    page.click("#token-form button").await;
    page.until_reads("#left", "74").await;
    page.until_reads("#entries", "reserved").await;
    // an entry of another day has its date
    let words = "return import('/static/page/format.js')
        .then(({ when }) => [0, 864e5].map((ago) => when(Date.now() - ago).length))";
    let lengths = page.run(words).await;
    assert!(lengths[0] == 8 && lengths[1].as_u64() > Some(16), "{lengths}");
}
