//! One headless Chromium for all tests of the page, and the actions of a visitor.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::http::Method;
use base64::Engine as _;
use serde_json::{Value, json};
use testkit::wait::{DEADLINE, eventually, until};
use testkit::{Child, OwnedDir, Program, ports, probe};
use thirtyfour::{By, ChromiumLikeCapabilities as _, DesiredCapabilities, LoggingPrefsLogLevel};
use thirtyfour::{WebDriver, WebElement};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Never dropped, since it is a static. The driver's guardian ends it with this process, and the browser ends with it.
static BROWSER: OnceCell<Chromium> = OnceCell::const_new();

struct Chromium {
    _driver: Child,
    _dir: OwnedDir,
    session: Mutex<WebDriver>,
}

/// The time for a command, which may load a page or run a script on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// The differences of the visitor's device from a desktop computer with light colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) dark: bool,
    pub(super) reduced_motion: bool,
}

pub(super) const DESKTOP: Device =
    Device { width: 1440, height: 900, dark: false, reduced_motion: false };
pub(super) const PHONE: Device = Device { width: 390, height: 844, ..DESKTOP };

/// The browser, for one test at a time.
pub(super) struct Tab(MutexGuard<'static, WebDriver>);

impl Tab {
    /// Waits until no other test uses the browser, and opens `url`.
    pub(super) async fn open(url: &str, device: Device) -> Self {
        let browser = BROWSER.get_or_init(Chromium::start).await;
        let tab = Self(browser.session.lock().await);
        // drops the page and the log of the previous test
        tab.load("about:blank").await;
        tab.complaints().await;
        tab.become_device(device).await;
        tab.go(url).await;
        tab
    }

    /// Loads the page in the state in which a visitor finds it.
    pub(super) async fn load(&self, url: &str) {
        self.0.goto(url).await.unwrap();
    }

    /// Loads the page and opens the details.
    pub(super) async fn go(&self, url: &str) {
        self.load(url).await;
        self.run("document.querySelector('#details')?.setAttribute('open', '')").await;
    }

    pub(super) async fn become_device(&self, device: Device) {
        let Device { width, height, dark, reduced_motion } = device;
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        let scheme = if dark { "dark" } else { "light" };
        let motion = if reduced_motion { "reduce" } else { "no-preference" };
        let features = json!({ "features": [
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": motion },
        ] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// Sends a command of Chromium's own protocol, which can do more than `WebDriver`.
    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.0.cdp().send_raw(command, params).await.unwrap()
    }

    /// The value that a JavaScript function with this body returns.
    pub(super) async fn run(&self, body: &str) -> Value {
        let value = self.0.execute(body, []).await;
        value.unwrap_or_else(|error| panic!("{body}: {error}")).json().clone()
    }

    /// The same for an asynchronous function.
    pub(super) async fn run_async(&self, body: &str) -> Value {
        self.run(&format!("return (async () => {{ {body} }})()")).await
    }

    /// The visible text of the first element that `selector` finds; empty if it is hidden or missing.
    pub(super) async fn text(&self, selector: &str) -> String {
        let script = format!(
            "const found = document.querySelector({}); \
             return found && found.checkVisibility() ? found.innerText.replace(/\\s+/g, ' ').trim() : '';",
            json!(selector)
        );
        self.run(&script).await.as_str().unwrap().to_owned()
    }

    /// The number in an element's text, without the separators of thousands.
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

    pub(super) async fn until_shown(&self, selector: &str) {
        eventually(&format!("{selector} is shown"), async || self.is_shown(selector).await).await;
    }

    /// Waits until the element's text contains `words`.
    pub(super) async fn until_reads(&self, selector: &str, words: &str) {
        let mut seen = String::new();
        let contains = async || {
            seen = self.text(selector).await;
            io::Result::Ok(seen.contains(words))
        };
        let what = format!("{selector} reads {words:?}");
        let late = until(&what, DEADLINE, contains).await.err();
        assert!(late.is_none(), "{late:?}, but {seen:?}");
    }

    /// Scrolls to the element and clicks as a mouse does. Fails on an element that is hidden, covered or disabled.
    pub(super) async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        element.scroll_into_view().await.unwrap();
        element.click().await.unwrap();
    }

    /// Replaces the text of a field.
    pub(super) async fn fill(&self, selector: &str, text: &str) {
        let field = self.element(selector).await;
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    /// Presses and releases a key.
    pub(super) async fn press(&self, key: char) {
        self.0.action_chain().key_down(key).key_up(key).perform().await.unwrap();
    }

    async fn element(&self, selector: &str) -> WebElement {
        let found = self.0.find(By::Css(selector)).await;
        found.unwrap_or_else(|error| panic!("{selector}: {error}"))
    }

    /// The errors that the browser has logged since the last call: of scripts, and breaches of the content security policy.
    pub(super) async fn complaints(&self) -> Vec<String> {
        let entries = self.0.browser_log().await.unwrap().into_iter();
        entries.filter(|entry| entry.level == "SEVERE").map(|entry| entry.message).collect()
    }

    /// Saves a rectangle at the top left of the page as `target/screenshots/NAME.png`.
    pub(super) async fn picture(&self, name: &str, [width, height]: [u32; 2], scale: f64) {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": scale });
        let params = json!({ "captureBeyondViewport": true, "clip": clip });
        let image = self.devtools("Page.captureScreenshot", params).await;
        let image = base64::prelude::BASE64_STANDARD.decode(image["data"].as_str().unwrap());
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("{name}.png")), image.unwrap()).unwrap();
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
            // Chromium's sandbox does not run as root, as in containers. The browser loads only the page under test
            "--no-sandbox",
            // a container's /dev/shm may be too small
            "--disable-dev-shm-usage",
            "--disable-gpu",
            // by a pipe, not a port, so that the browser ends with its driver
            "--remote-debugging-pipe",
        ];
        let mut chrome = DesiredCapabilities::chrome();
        chrome.set_logging_prefs("browser", LoggingPrefsLogLevel::All).unwrap();
        for arg in args {
            chrome.add_arg(arg).unwrap();
        }
        // no idle connections: each test has a runtime of its own, and a connection ends with the runtime that opened it
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(COMMAND_TIMEOUT);
        let session = WebDriver::builder(format!("http://127.0.0.1:{port}"), chrome)
            .client(client.build().unwrap())
            .await
            .unwrap();
        Self { _driver: driver, _dir: dir, session: Mutex::new(session) }
    }
}

fn start_driver(port: u16, dir: &OwnedDir) -> Child {
    let args = [
        // the profile and other files end with the directory
        format!("TMPDIR={}", dir.path().display()),
        "chromedriver".to_owned(),
        format!("--port={port}"),
    ];
    let log = dir.path().join("chromedriver.log");
    let grace = Duration::from_secs(5);
    Program::new(Path::new("/usr/bin/env"), dir, &log, grace).start(args).unwrap()
}
