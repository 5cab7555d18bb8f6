//! The `sale` command: the calls of an operator, from a shell.
//!
//! A call that changes something has a key, which is shown before the call is sent. If the answer is lost, or the service does
//! not know whether the call was done (504), the call is sent again under its key, so it has at most one effect.

use std::env;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use axum::http::request::Builder;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, Request, Uri, header};
use clap::{Args, Subcommand};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::config::{FileError, duration, is_plain_url, number};
use crate::error_chain::ErrorChain;
use crate::inventory::{Inventory, Item, OrderId, SaleId, SaleVersion, Terms, When};
use crate::logging::{is_invisible, say};
use crate::process::{random_id, spawn};
use crate::sale::BoxError;
use crate::secret::{Secret, SecretSource};

/// The exit status of a call whose outcome is unknown.
const UNKNOWN: u8 = 3;

/// The pause before a call is sent again, unless the service names another one.
const PAUSE: Duration = Duration::from_millis(300);

/// The variable with the token, as of `serve`. There is no flag for it: other users of the machine see flags.
const TOKEN: &str = "FLASH_SALE_ADMIN_TOKEN";

/// The media type of bodies and answers.
const JSON: &str = "application/json";

/// The most bytes of an answer. A page of the ledger has fewer.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Start, change and show a sale
///
/// Exit status: 0 done; 1 not done: refused, or no instance was reached; 2 wrong use; 3 unknown whether done: repeat the
/// command with the flags that it printed (--sale and --key; of a start: --id), which has no second effect.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every call")]
pub struct OperatorOptions {
    /// Instance, at its port for operators
    #[arg(long, global = true, env = "FLASH_SALE_SALE_URL", default_value = "http://127.0.0.1:8080", value_parser = address)]
    pub url: String,

    /// File with the admin token in its first line; to read the ledger, the shop's token will do [else: the token in the variable
    /// `FLASH_SALE_ADMIN_TOKEN`]
    #[arg(long, global = true, env = "FLASH_SALE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Item
    #[arg(long, global = true, env = "FLASH_SALE_SALE_ITEM", default_value_t = Item::DEFAULT)]
    pub item: Item,

    /// Time limit of the call and its repetitions; of the ledger, for each page
    #[arg(long, global = true, env = "FLASH_SALE_SALE_TIMEOUT", value_name = "TIME", default_value = "30s", value_parser = duration("100ms", "10m"))]
    pub timeout: Duration,

    /// Print JSON: the service's answer with the key and the outcome; the ledger one entry a line
    #[arg(long, global = true)]
    pub json: bool,

    /// The call
    #[command(subcommand)]
    pub call: Call,
}

/// The calls.
#[derive(Clone, Debug, Subcommand)]
pub enum Call {
    /// Start a sale
    Start {
        /// Units on sale
        #[arg(long, value_name = "UNITS", value_parser = number::<u64>(0..=Inventory::MAX_UNITS))]
        stock: u64,
        /// Id of the sale: the same start again changes nothing [default: a random one, which is printed]
        #[arg(long, visible_alias = "key")]
        id: Option<SaleId>,
        /// Running sale to replace, or this version of it; without this, and with --id, only a sale without orders is replaced
        #[arg(long, value_name = "ID[:VERSION]")]
        replace: Option<SaleVersion>,
        /// What it allows
        #[command(flatten)]
        terms: TermFlags,
    },
    /// Change the running sale
    #[command(arg_required_else_help = true)]
    Change {
        /// Units to put on sale; less than 0: to withdraw, all or none
        #[arg(long, value_name = "UNITS", allow_negative_numbers = true)]
        add: Option<i64>,
        /// What it allows from now on
        #[command(flatten)]
        terms: TermFlags,
        /// Which sale, and the key
        #[command(flatten)]
        named: NamedFlags,
    },
    /// Accept no new orders until `resume`; confirmations go on, and holds end in their time
    Pause(NamedFlags),
    /// Accept orders again
    Resume(NamedFlags),
    /// End the sale now; holds can be confirmed until they end
    End(NamedFlags),
    /// Show the running sale; this needs no token
    Show,
    /// Print the ledger, and on standard error how to read on
    Ledger {
        /// Print CSV for a spreadsheet: a ' is before text that the program would take for a formula
        #[arg(long, conflicts_with = "json")]
        csv: bool,
        /// Sale whose ledger was kept [default: the running one]
        #[arg(long, value_name = "ID")]
        sale: Option<SaleId>,
        /// Where to read on: the cursor that was printed
        #[arg(long, value_name = "CURSOR", value_parser = cursor)]
        after: Option<String>,
    },
}

/// What a sale allows.
#[derive(Args, Clone, Debug, Serialize)]
pub struct TermFlags {
    /// Most units of an order [default of a start: 1]; 1000000: no limit
    #[arg(long, value_name = "UNITS", value_parser = number::<u32>(1..=Terms::MAX_LIMIT))]
    pub per_order: Option<u32>,

    /// Most units of a user
    #[arg(long, value_name = "UNITS", value_parser = number::<u32>(1..=Terms::MAX_LIMIT))]
    pub per_user: Option<u32>,

    /// How long an order holds its units until it is confirmed, such as 10m
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    #[serde(rename = "hold_seconds")]
    pub hold: Option<u64>,

    /// When the sale begins, such as 2026-11-27T08:00:00Z; to change it also: now
    #[arg(long, value_name = "TIME")]
    pub starts_at: Option<When>,

    /// When it ends
    #[arg(long, value_name = "TIME")]
    pub ends_at: Option<When>,
}

impl TermFlags {
    /// The body of a call: these fields and another one.
    fn with(&self, name: &str, value: impl Serialize) -> Value {
        let mut body = json!(self);
        body[name] = json!(value);
        body
    }
}

/// The sale and the key of a change.
#[derive(Args, Clone, Debug)]
pub struct NamedFlags {
    /// Sale to change, or this version of it: no other sale is changed [default: the running one, which is printed]
    #[arg(long, value_name = "ID[:VERSION]")]
    pub sale: Option<SaleVersion>,

    /// Idempotency-Key: a change under a known key is not done again [default: a random one, which is printed]
    #[arg(long, requires = "sale", value_parser = |text: &str| OrderId::new(text))]
    pub key: Option<OrderId>,

    /// Why, for the ledger; at most 200 characters
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// The host and port of an instance.
fn address(url: &str) -> Result<String, &'static str> {
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
    let host = uri.as_ref().and_then(Uri::authority).filter(|_| is_plain_url(url));
    // a port that is no number, or too large, counts as none there
    let is_whole = |it: &&Authority| it.as_str() == it.host() || it.port_u16() > Some(0);
    let host = host.filter(is_whole);
    let host = host.ok_or("an instance is http://HOST:PORT: it has no TLS, and no path")?;
    Ok(format!("{}:{}", host.host(), host.port_u16().unwrap_or(80)))
}

/// A position in a ledger, without characters that end a parameter.
fn cursor(text: &str) -> Result<String, &'static str> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.~:".contains(&b);
    let cursor = Some(text).filter(|text| !text.is_empty() && text.bytes().all(allowed));
    cursor.map(str::to_owned).ok_or("a cursor is what an earlier call printed")
}

fn seconds(text: &str) -> Result<u64, &'static str> {
    let time = duration("1s", "24h")(text).ok().filter(|time| time.subsec_nanos() == 0);
    time.map(|time| time.as_secs()).ok_or("whole seconds from 1s to 24h are allowed, such as 10m")
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Done,
    Refused,
    /// It was not sent, or it only reads.
    NoAnswer,
    /// It may have been done.
    Unknown,
}

/// The reason for which a call was not done, or may not have been done.
struct Failure {
    outcome: Outcome,
    text: String,
    /// The service's answer, if it is a JSON object.
    body: Value,
    retry_after: Option<Duration>,
}

impl Failure {
    fn new(outcome: Outcome, text: impl Into<String>) -> Self {
        Self { outcome, text: text.into(), body: Value::Null, retry_after: None }
    }

    fn not_sent(why: impl Into<String>) -> Self {
        Self::new(Outcome::NoAnswer, why)
    }
}

/// Runs the command, and returns its exit status.
///
/// # Errors
/// A sentence that says why the call was not done.
pub async fn run(options: OperatorOptions) -> Result<ExitCode, BoxError> {
    if let Call::Ledger { csv, sale, after } = &options.call {
        options.ledger(*csv, sale.as_ref(), after.clone()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let (outcome, text, mut body) = match options.carry_out().await {
        Ok(body) => (Outcome::Done, told(&options.call, &body), body),
        Err(Failure { outcome, text, body, .. }) => (outcome, text, body),
    };
    body["outcome"] = json!(outcome);
    if options.json {
        // a failure to print changes nothing about the call
        let _ = writeln!(io::stdout(), "{body}");
    }
    match outcome {
        Outcome::Done if options.json => {}
        Outcome::Done => _ = writeln!(io::stdout(), "{text}"),
        Outcome::Refused | Outcome::NoAnswer => return Err(text.into()),
        Outcome::Unknown => {
            say(&format!("flash-sale: {text}"));
            return Ok(ExitCode::from(UNKNOWN));
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl OperatorOptions {
    async fn carry_out(&self) -> Result<Value, Failure> {
        match &self.call {
            Call::Start { stock, id, replace, terms } => {
                let is_given = id.is_some();
                // a new sale with an id may replace one without orders, so a forgotten flag could end a sale that was prepared
                if !is_given && replace.is_none() {
                    self.refuse_if_a_sale_runs().await?;
                }
                let id = id.as_ref().map_or_else(random, |id| id.as_str().to_owned());
                let body = terms.with("stock", stock);
                let again = [("--id", is_given, &*id)];
                self.write(Method::PUT, body, replace.as_ref(), &id, &again).await
            }
            Call::Change { add, terms, named } => self.change(named, terms.with("add", add)).await,
            Call::Pause(named) => self.change(named, json!({ "paused": true })).await,
            Call::Resume(named) => self.change(named, json!({ "paused": false })).await,
            Call::End(named) => self.change(named, json!({ "ends_at": "now" })).await,
            Call::Show | Call::Ledger { .. } => self.read().await,
        }
    }

    async fn refuse_if_a_sale_runs(&self) -> Result<(), Failure> {
        let sale = match self.read().await {
            // a new sale repairs one that is damaged
            Err(failure)
                if !matches!(failure.body["type"].as_str(), Some("unknown-item" | "damaged")) =>
            {
                return Err(failure);
            }
            sale => sale.unwrap_or_default(),
        };
        let Some(running) = sale["id"].as_str() else { return Ok(()) };
        let text = format!(
            "sale {running} is there: a start would replace it; if you mean that, add --replace {running}"
        );
        let mut failure = Failure::new(Outcome::Refused, text);
        failure.body = json!({ "sale": running });
        Err(failure)
    }

    /// The running sale.
    async fn read(&self) -> Result<Value, Failure> {
        let path = format!("/stock?item={}", self.item);
        self.call(self.request(Method::GET, &path, None), String::new(), "stock").await
    }

    /// Changes the named sale, or else the running one, whose name is read first. Changes no other sale.
    async fn change(&self, named: &NamedFlags, mut body: Value) -> Result<Value, Failure> {
        let NamedFlags { sale, key, note } = named;
        let mut sale = sale.clone();
        if sale.is_none() {
            sale = self.read().await?["id"].as_str().and_then(|id| id.parse().ok());
        }
        let sale =
            sale.ok_or_else(|| Failure::not_sent("the running sale has no id to name it"))?;
        let is_given = key.is_some();
        let key = key.as_ref().map_or_else(random, |key| key.as_str().to_owned());
        body["note"] = json!(note);
        let name = sale.to_string();
        let again = [("--sale", named.sale.is_some(), &*name), ("--key", is_given, &*key)];
        self.write(Method::PATCH, body, Some(&sale), &key, &again).await
    }

    /// Sends a call that starts a sale, or that changes or replaces `sale`. Each of the flags `again` has its value and whether
    /// the caller gave it. With all of them, the command makes the same call once more.
    async fn write(
        &self,
        method: Method,
        mut body: Value,
        sale: Option<&SaleVersion>,
        key: &str,
        again: &[(&str, bool, &str)],
    ) -> Result<Value, Failure> {
        let token =
            self.token().map_err(|error| Failure::not_sent(ErrorChain(&*error).to_string()))?;
        let mut request = self.request(method, &format!("/stock?item={}", self.item), token);
        request = request.header("idempotency-key", key).header(header::CONTENT_TYPE, JSON);
        if let Some(sale) = sale {
            request = request.header(header::IF_MATCH, format!("\"{sale}\""));
        }
        if let Some(fields) = body.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        // a flag can be given only once
        let missing = again.iter().filter(|(_, is_given, _)| !is_given);
        let missing: Vec<_> = missing.map(|(flag, _, value)| format!("{flag} {value}")).collect();
        let again = match &*missing {
            [] => "repeat the command".to_owned(),
            flags => format!("add {}", flags.join(" ")),
        };
        // before the call, since this command may end before the answer
        say(&format!("To repeat this very call, {again}"));
        let mut done = self.call(request, body.to_string(), "stock").await;
        if let Err(Failure { outcome: Outcome::Unknown, text, .. }) = &mut done {
            *text = format!("UNKNOWN whether this was done: {text}. Ask again: {again}");
        }
        match &mut done {
            Ok(body) | Err(Failure { body, .. }) => body["key"] = key.into(),
        }
        done
    }

    /// Prints the rest of a ledger. Only one page is in memory at a time.
    async fn ledger(
        &self,
        csv: bool,
        sale: Option<&SaleId>,
        after: Option<String>,
    ) -> Result<(), BoxError> {
        let (token, mut out) = (self.token()?, BufWriter::new(io::stdout()));
        let sale = sale.map(|id| format!("&sale={}", id.as_str())).unwrap_or_default();
        let path = format!("/orders?item={}&limit={}{sale}", self.item, Inventory::MAX_PAGE);
        let mut after = after.unwrap_or("0".to_owned());
        if csv {
            writeln!(out, "{COLUMNS},more")?;
        }
        loop {
            let request =
                self.request(Method::GET, &format!("{path}&after={after}"), token.clone());
            let page = self.call(request, String::new(), "orders").await;
            let page = page.map_err(|Failure { text, .. }| {
                format!("{text}. This is the ledger before --after {after}")
            })?;
            for entry in page["orders"].as_array().into_iter().flatten() {
                let line = match (csv, self.json) {
                    (true, _) => row(entry),
                    (_, true) => entry.to_string(),
                    _ => line(entry),
                };
                writeln!(out, "{line}")?;
            }
            out.flush()?;
            let cursor = cursor(page["cursor"].as_str().unwrap_or_default())?;
            let is_last = page["next"].is_null() || cursor == after;
            after = cursor;
            if is_last {
                say(&format!("To read on, add --after {after}"));
                return Ok(());
            }
        }
    }

    fn token(&self) -> Result<Option<HeaderValue>, BoxError> {
        let tokens = if let Some(path) = &self.token_file {
            let unusable = |source| FileError { flag: "--token-file", path: path.clone(), source };
            SecretSource::File(path.clone()).read_tokens().map_err(unusable)?
        } else if let Ok(text) = env::var(TOKEN) {
            let unusable = |error| format!("{TOKEN} is unusable: {error}");
            SecretSource::Text(Secret::from(&*text)).read_tokens().map_err(unusable)?
        } else {
            return Ok(None);
        };
        let header = tokens.first().map(|token| format!("Bearer {}", token.expose()).try_into());
        Ok(header.transpose().map_err(|_| "the token has characters that a header cannot have")?)
    }

    fn request(&self, method: Method, path: &str, token: Option<HeaderValue>) -> Builder {
        let request = Request::builder().method(method).uri(path).header(header::ACCEPT, JSON);
        let request = request.header(header::HOST, &self.url);
        let with_token = |request: Builder, token| request.header(header::AUTHORIZATION, token);
        token.into_iter().fold(request, with_token)
    }

    /// Sends a call, and again if that is safe and can help. A good answer has this member.
    async fn call(&self, request: Builder, body: String, member: &str) -> Result<Value, Failure> {
        let request =
            request.body(Full::from(body)).map_err(|error| Failure::not_sent(error.to_string()))?;
        let until = Instant::now() + self.timeout;
        let mut is_unknown = false;
        loop {
            // half of the time, so that another attempt has time
            let late = until.min(Instant::now() + self.timeout / 2);
            let mut failure = match self.attempt(request.clone(), late, member).await {
                Err(failure) => failure,
                answer => return answer,
            };
            is_unknown |= failure.outcome == Outcome::Unknown;
            let is_silent = is_unknown && failure.outcome != Outcome::Refused;
            let resume = Instant::now() + failure.retry_after.unwrap_or(PAUSE);
            if resume >= until || !is_silent && failure.retry_after.is_none() {
                if is_unknown && failure.outcome != Outcome::Unknown {
                    // the earlier attempt may be done, or may still arrive
                    failure.outcome = Outcome::Unknown;
                    failure.text = format!("an attempt got no answer, and then {}", failure.text);
                }
                return Err(failure);
            }
            sleep_until(resume).await;
        }
    }

    async fn attempt(
        &self,
        request: Request<Full<Bytes>>,
        until: Instant,
        member: &str,
    ) -> Result<Value, Failure> {
        let (url, reads) = (&self.url, request.method() == Method::GET);
        let unknown = if reads { Outcome::NoAnswer } else { Outcome::Unknown };
        let connect = async {
            let stream = TcpStream::connect(&**url).await?;
            Ok(http1::handshake(TokioIo::new(stream)).await?)
        };
        let connected = timeout_at(until, connect).await.map_err(BoxError::from).flatten();
        let unreachable = |error: BoxError| format!("cannot reach {url}: {}", ErrorChain(&*error));
        let (mut sender, connection) =
            connected.map_err(|error| Failure::not_sent(unreachable(error)))?;
        spawn(connection);
        let answer = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            Ok((head, Limited::new(body, MOST_BYTES).collect().await?.to_bytes()))
        };
        let answered = timeout_at(until, answer).await.map_err(BoxError::from).flatten();
        let lost = |error: BoxError| format!("no answer from {url}: {}", ErrorChain(&*error));
        let (head, body) = answered.map_err(|error| Failure::new(unknown, lost(error)))?;
        let body = serde_json::from_slice(&body).ok().filter(Value::is_object);
        let mut body: Value = body.unwrap_or_default();
        if head.status.is_success() && !body[member].is_null() {
            if head.headers.contains_key("idempotency-replayed") {
                body["repeated"] = true.into();
            }
            return Ok(body);
        }
        let of = |name: &str| text(&body[name]);
        let (kind, sale) = (of("type"), of("sale"));
        let status = head.status.as_u16();
        let advice = match (status, &*kind) {
            (_, "") => "this may not be the port of an instance",
            (401 | 403, _) => "--token-file or FLASH_SALE_ADMIN_TOKEN is missing or wrong",
            (405, _) | (_, "not-found") => "this may be the port for buyers, or an older instance",
            (_, "unknown-item") => "`flash-sale sale start` starts one",
            (_, "sale-conflict") => "`flash-sale sale change` changes it",
            (428, _) if !sale.is_empty() => &format!("to replace that sale, add --replace {sale}"),
            _ => "",
        };
        // a 503 of the service promises that nothing was done (a 503 of a proxy has no type), and damage is found before anything
        // is written
        let (outcome, does) = match (status, &*kind) {
            (300..=499, _) | (500, "damaged") => (Outcome::Refused, "refuses"),
            (503, kind) if !kind.is_empty() => (Outcome::Refused, "refuses"),
            _ => (unknown, "answers"),
        };
        let mut said =
            vec![format!("{url} {does}: {status}"), of("title"), of("detail"), advice.to_owned()];
        said.retain(|part| !part.is_empty());
        let mut failure = Failure::new(outcome, said.join("; "));
        let after = head.headers.get(header::RETRY_AFTER).and_then(|after| after.to_str().ok());
        let seconds = after.and_then(|after| after.parse::<u32>().ok());
        failure.retry_after = seconds.map(|seconds| Duration::from_secs(seconds.into()));
        failure.body = body;
        Err(failure)
    }
}

fn random() -> String {
    random_id().to_string()
}

/// A value for people, without characters that move the cursor or change how others are shown.
fn text(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    text.replace(is_invisible, "\u{fffd}")
}

/// The result of a call, and the state of the sale.
fn told(call: &Call, sale: &Value) -> String {
    let of = |name: &str| text(&sale[name]);
    // unknown until a batch counts the orders of an instance of an earlier build
    let units = |name| Some(text(&sale["units"][name])).filter(|n| !n.is_empty());
    let units = |name| units(name).unwrap_or("?".to_owned());
    let (entry, is_repeated) = (&sale["entry"], sale["repeated"] == true);
    let done = match (call, is_repeated) {
        (Call::Start { .. }, false) => "Started.\n".to_owned(),
        (Call::Start { .. }, true) => "Started before. Its state at the start:\n".to_owned(),
        (_, false) if entry.is_null() => String::new(),
        (_, false) => format!("Done: {}.\n", changed(entry)),
        (_, true) => format!("Done before, at {}: {}.\n", text(&entry["time"]), changed(entry)),
    };
    let [id, item, version] = ["id", "item", "version"].map(of);
    let [left, all, orders] = ["stock", "initial", "orders"].map(of);
    let [held, confirmed] = ["held", "confirmed"].map(units);
    let mut lines = vec![format!(
        "{done}sale {id} of item {item}, version {version}: {}\n{left} units left, {held} held, {confirmed} confirmed, of \
         {all}, in {orders} orders",
        of("state")
    )];
    for name in ["starts_at", "ends_at", "per_order", "per_user", "hold_seconds"] {
        if !sale[name].is_null() {
            lines.push(format!("{}: {}", name.replace('_', " "), of(name)));
        }
    }
    if sale["balanced"] == false {
        lines.push("WRONG: the units left and sold are not those of the sale".to_owned());
    }
    lines.join("\n")
}

/// The changes that an entry made.
fn changed(entry: &Value) -> String {
    let changes = entry["change"].as_object().into_iter().flatten();
    let changes =
        changes.map(|(name, value)| format!("{} {}", name.replace('_', " "), text(value)));
    let note = entry["note"].as_str().map(|note| format!("note \"{}\"", text(&note.into())));
    changes.chain(note).collect::<Vec<_>>().join(", ")
}

/// An entry of the ledger for people.
fn line(entry: &Value) -> String {
    let of = |name: &str| text(&entry[name]);
    let what = match (&entry["change"], &*of("user")) {
        (Value::Object(_), _) => changed(entry),
        (_, user) => format!("{} units, order {} {user}", of("quantity"), of("order")),
    };
    let (position, time, event, left) = (of("position"), of("time"), of("event"), of("remaining"));
    format!("{position:>7}  {time}  {event:<9}  {what}; {left} left, by {}", of("instance"))
}

/// The columns in CSV. One more column has all other fields of the entry, as JSON.
const COLUMNS: &str =
    "sale,position,time,event,order,user,quantity,remaining,instance,holder,token,hold_until";

/// An entry of the ledger as a line of CSV (RFC 4180).
fn row(entry: &Value) -> String {
    let cells = COLUMNS.split(',').map(|name| cell(&entry[name])).collect::<Vec<_>>().join(",");
    let mut others = entry.as_object().cloned().unwrap_or_default();
    others.retain(|name, _| !COLUMNS.split(',').any(|column| column == name));
    let others = if others.is_empty() { Value::Null } else { json!(json!(others).to_string()) };
    format!("{cells},{}", cell(&others))
}

/// A value as a cell of CSV. Spreadsheets take a text that begins with one of these characters for a formula. A `'` goes before
/// it, as OWASP recommends (<https://owasp.org/www-community/attacks/CSV_Injection>).
fn cell(value: &Value) -> String {
    let Value::String(text) = value else {
        return if value.is_null() { String::new() } else { value.to_string() };
    };
    let mark = if text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) { "'" } else { "" };
    let is_plain = mark.is_empty() && !text.contains([',', ';', '"', '\'', '\n', '\r', '\t']);
    if is_plain { text.clone() } else { format!("\"{mark}{}\"", text.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wrong port is refused: the token of the operators must not go to another one.
    #[test]
    fn a_wrong_port_is_refused() {
        for (url, at) in [
            ("http://a", Some("a:80")),
            ("http://[::1]", Some("[::1]:80")),
            ("http://[::1]:8081", Some("[::1]:8081")),
            ("http://a:80810", None),
            ("http://a:808l", None),
            ("http://a:", None),
            ("http://a:0", None),
        ] {
            assert_eq!(address(url).ok().as_deref(), at, "{url}");
        }
    }

    /// Goal: no text of a client is a formula in a spreadsheet, or ends its cell; numbers stay numbers, and no field is lost.
    #[test]
    fn cells_hold_text_only() {
        for (value, expected) in [
            (json!("ann"), "ann"),
            (json!(-5), "-5"),
            (json!(null), ""),
            (json!("=1+1"), "\"'=1+1\""),
            (json!("+1"), "\"'+1\""),
            (json!("-1"), "\"'-1\""),
            (json!("@SUM(A1)"), "\"'@SUM(A1)\""),
            (json!("\t=1"), "\"'\t=1\""),
            (json!("\r=1"), "\"'\r=1\""),
            (json!("a\",=1"), "\"a\"\",=1\""),
            (json!("a;=1"), "\"a;=1\""),
            (json!("a\n=1"), "\"a\n=1\""),
        ] {
            assert_eq!(cell(&value), expected, "{value}");
        }
        let entry =
            json!({ "sale": "tea-1", "position": 3, "event": "changed", "change": { "add": -5 } });
        let others = r#"{""change"":{""add"":-5}}"#;
        assert_eq!(row(&entry), format!("tea-1,3,,changed,,,,,,,,,\"{others}\""));
        assert_eq!(
            changed(&json!({ "change": { "ends_at": "now" }, "note": "a\u{202e}b" })),
            "ends at now, note \"a\u{fffd}b\""
        );
    }
}
