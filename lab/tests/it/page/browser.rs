//! One headless Chromium for all tests of the page, and what a visitor can do with it.

use std::path::Path;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use testkit::wait::eventually;
use testkit::{Child, OwnedDir, Program, ports, probe};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::webdriver::Session;

/// Never dropped, as statics are not; it ends with the process, by its guardian, and the browser with it.
static BROWSER: OnceCell<Chromium> = OnceCell::const_new();

struct Chromium {
    _driver: Child,
    _dir: OwnedDir,
    session: Mutex<Session>,
}

/// How the visitor's device differs from a desktop computer with light colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub(super) width: u32,
    pub(super) dark: bool,
    pub(super) reduced_motion: bool,
}

pub(super) const DESKTOP: Device = Device { width: 1440, dark: false, reduced_motion: false };
pub(super) const PHONE: Device = Device { width: 390, dark: false, reduced_motion: false };

/// The browser, for one test at a time.
pub(super) struct Tab(MutexGuard<'static, Session>);

impl Tab {
    /// Waits until no other test uses the browser, and opens `url`.
    pub(super) async fn open(url: &str, device: Device) -> Self {
        let browser = BROWSER.get_or_init(Chromium::start).await;
        let tab = Self(browser.session.lock().await);
        // what the test before has left: its page, and what it said
        tab.go("about:blank").await;
        tab.complaints().await;
        tab.become_device(device).await;
        tab.go(url).await;
        tab
    }

    pub(super) async fn go(&self, url: &str) {
        self.0.post("url", json!({ "url": url })).await.unwrap();
    }

    pub(super) async fn become_device(&self, device: Device) {
        let Device { width, dark, reduced_motion } = device;
        let metrics = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.0.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        let scheme = if dark { "dark" } else { "light" };
        let motion = if reduced_motion { "reduce" } else { "no-preference" };
        let features = json!({ "features": [
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": motion },
        ] });
        self.0.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// The value of a JavaScript function's body.
    pub(super) async fn run(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        self.0.post("execute/sync", body).await.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// The value of the promise that a JavaScript function's body returns.
    pub(super) async fn run_async(&self, body: &str) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1]; \
             (async () => {{ {body} }})().then(done, error => done(`failed: ${{error}}`));"
        );
        self.0.post("execute/async", json!({ "script": script, "args": [] })).await.unwrap()
    }

    /// The text that a visitor reads in the first element that `selector` finds; empty where nothing is shown.
    pub(super) async fn text(&self, selector: &str) -> String {
        let script = format!(
            "const found = document.querySelector({}); \
             return found && found.checkVisibility() ? found.innerText.replace(/\\s+/g, ' ').trim() : '';",
            json!(selector)
        );
        self.run(&script).await.as_str().unwrap().to_owned()
    }

    /// The number in an element's text, whatever separates its thousands.
    pub(super) async fn number(&self, selector: &str) -> Option<i64> {
        let text = self.text(selector).await;
        text.replace([',', '\u{202f}', '\u{a0}'], "").parse().ok()
    }

    pub(super) async fn is_shown(&self, selector: &str) -> bool {
        let script = format!(
            "return document.querySelector({})?.checkVisibility() ?? false;",
            json!(selector)
        );
        self.run(&script).await == true
    }

    /// Waits until the element's text contains `words`.
    pub(super) async fn until_reads(&self, selector: &str, words: &str) {
        let mut seen = String::new();
        let contains = async || {
            seen = self.text(selector).await;
            seen.contains(words)
        };
        eventually(&format!("{selector} reads {words:?}"), contains).await;
    }

    /// Clicks as a mouse does: what is hidden, covered or disabled cannot be.
    pub(super) async fn click(&self, selector: &str) {
        let id = self.element(selector).await;
        self.0.post(&format!("element/{id}/click"), json!({})).await.unwrap();
    }

    /// Puts `text` in the place of what a field has.
    pub(super) async fn fill(&self, selector: &str, text: &str) {
        let id = self.element(selector).await;
        self.0.post(&format!("element/{id}/clear"), json!({})).await.unwrap();
        let keys = json!({ "text": text });
        self.0.post(&format!("element/{id}/value"), keys).await.unwrap();
    }

    /// Presses and releases a key; names are those of the protocol's table.
    pub(super) async fn press(&self, key: &str) {
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": [
            { "type": "keyDown", "value": key },
            { "type": "keyUp", "value": key },
        ] }] });
        self.0.post("actions", actions).await.unwrap();
    }

    async fn element(&self, selector: &str) -> String {
        let query = json!({ "using": "css selector", "value": selector });
        let found = self.0.post("element", query).await;
        let found = found.unwrap_or_else(|error| panic!("{selector}: {error}"));
        let id = found.as_object().and_then(|found| found.values().next()?.as_str());
        id.expect("an element has an id").to_owned()
    }

    /// The whole of the browser's accessibility tree.
    pub(super) async fn accessibility_tree(&self) -> Vec<Value> {
        self.0.devtools("Accessibility.enable", json!({})).await;
        let mut tree = self.0.devtools("Accessibility.getFullAXTree", json!({})).await;
        match tree["nodes"].take() {
            Value::Array(nodes) => nodes,
            other => panic!("not a tree: {other}"),
        }
    }

    /// What the browser had to say against the page since this was last asked: errors of its scripts, breaches
    /// of its content security policy.
    pub(super) async fn complaints(&self) -> Vec<String> {
        let log = self.0.post("se/log", json!({ "type": "browser" })).await.unwrap();
        let entries = log.as_array().unwrap().iter();
        let severe = entries.filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Keeps the whole page as `target/screenshots/NAME.png`.
    pub(super) async fn screenshot(&self, name: &str) {
        self.capture(json!({ "captureBeyondViewport": true }), name).await;
    }

    /// The same of what is in view.
    pub(super) async fn view(&self, name: &str) {
        self.capture(json!({}), name).await;
    }

    /// The same of the top of the page, as far as this rectangle goes.
    pub(super) async fn picture(&self, name: &str, width: u32, height: u32) {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        self.capture(json!({ "captureBeyondViewport": true, "clip": clip }), name).await;
    }

    async fn capture(&self, params: Value, name: &str) {
        let image = self.0.devtools("Page.captureScreenshot", params).await;
        let image = base64(image["data"].as_str().unwrap());
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("{name}.png")), image).unwrap();
    }
}

impl Chromium {
    async fn start() -> Self {
        let version = tokio::process::Command::new("chromedriver").arg("--version").output().await;
        assert!(version.is_ok(), "there is no chromedriver on the PATH: run .ci/setup --test");
        let dir = OwnedDir::create().unwrap();
        let [port] = ports::free_ports().unwrap();
        let driver = start_driver(port, &dir);
        let is_ready = async || {
            let status = probe::http(Method::GET, port, "/status", "").await;
            status.is_ok_and(|(status, _)| status == 200)
        };
        eventually("the browser's driver answers", is_ready).await;
        let args = [
            "--headless",
            // Chromium's own sandbox does not run as root, as in containers; all that it loads here is ours
            "--no-sandbox",
            // a container's /dev/shm may be too small
            "--disable-dev-shm-usage",
            "--disable-gpu",
            // by a pipe instead of a port, so that the browser ends with its driver
            "--remote-debugging-pipe",
        ];
        let capabilities = json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let session = Session::open(port, capabilities).await;
        Self { _driver: driver, _dir: dir, session: Mutex::new(session) }
    }
}

fn start_driver(port: u16, dir: &OwnedDir) -> Child {
    let args = [
        // the profile and all else that the two leave behind go with the directory
        format!("TMPDIR={}", dir.path().display()),
        "chromedriver".to_owned(),
        format!("--port={port}"),
    ];
    let log = dir.path().join("chromedriver.log");
    let grace = Duration::from_secs(5);
    Program::new(Path::new("/usr/bin/env"), dir, &log, grace).start(args).unwrap()
}

/// Decodes base64, of which this is the one use.
fn base64(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values = text.bytes().filter_map(|byte| digits.iter().position(|digit| *digit == byte));
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(text.len() * 3 / 4), 0_usize, 0);
    for value in values {
        bits = (bits << 6 | value) & 0xff_ffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).expect("eight bits"));
        }
    }
    bytes
}
