//! The `sale` command: the calls of an operator, from a shell.
//!
//! A call that changes something has a key, which is shown before the call is sent. If the answer is lost, or the service does
//! not know what became of the call (504), the call is sent again under its key, and so has one effect at most.

use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use axum::http::request::Builder;
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use clap::{Args, Subcommand};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::config::{FileError, duration, is_plain_url, number};
use crate::error_chain::ErrorChain;
use crate::inventory::{Inventory, Item, OrderId, SaleId, Terms, Timestamp};
use crate::logging::{is_invisible, say};
use crate::process::{random_id, spawn};
use crate::sale::BoxError;
use crate::secret::SecretSource;

/// The exit status of a call of which nobody knows whether it was done.
const UNKNOWN: u8 = 3;

/// The pause before a call is sent again, unless the service names another one.
const PAUSE: Duration = Duration::from_millis(300);

/// The media type of bodies and answers.
const JSON: &str = "application/json";

/// The most bytes of an answer: a page of the ledger has less.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Start, change and show a sale
///
/// Exit status: 0 done; 1 not done: refused, or no instance was reached; 2 wrong use; 3 unknown whether done: repeat the
/// command with the --sale and --key (of a start: the --id) that it printed, which has no second effect.
#[derive(Args, Clone, Debug)]
pub struct OperatorOptions {
    /// Instance, at its port for operators
    #[arg(long, global = true, env = "FLASH_SALE_SALE_URL", default_value = "http://127.0.0.1:8080", value_parser = address)]
    pub url: String,

    /// File with the admin token in its first line; to read the ledger, the shop's token will do
    #[arg(long, global = true, env = "FLASH_SALE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Item [default: the default item]
    #[arg(long, global = true, env = "FLASH_SALE_SALE_ITEM")]
    pub item: Option<Item>,

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
        /// Running sale to replace, or this version of it; without this, a sale with orders or an id is not replaced
        #[arg(long, value_name = "ID[:VERSION]", value_parser = reference)]
        replace: Option<String>,
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
        #[arg(long, value_name = "CURSOR", value_parser = reference)]
        after: Option<String>,
    },
}

/// What a sale allows.
#[derive(Args, Clone, Debug)]
pub struct TermFlags {
    /// Most units of an order [default of a start: 1]; 1000000: no limit
    #[arg(long, value_name = "UNITS", value_parser = number::<u32>(1..=Terms::MAX_LIMIT))]
    pub per_order: Option<u32>,

    /// Most units of a user
    #[arg(long, value_name = "UNITS", value_parser = number::<u32>(1..=Terms::MAX_LIMIT))]
    pub per_user: Option<u32>,

    /// How long an order holds its units until it is confirmed, such as 10m
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub hold: Option<u64>,

    /// When the sale begins, such as 2026-11-27T08:00:00Z; to change it also: now
    #[arg(long, value_name = "TIME", value_parser = when)]
    pub starts_at: Option<String>,

    /// When it ends
    #[arg(long, value_name = "TIME", value_parser = when)]
    pub ends_at: Option<String>,
}

/// The sale and the key of a change.
#[derive(Args, Clone, Debug)]
pub struct NamedFlags {
    /// Sale to change, or this version of it: no other sale is changed [default: the running one, which is printed]
    #[arg(long, value_name = "ID[:VERSION]", value_parser = reference)]
    pub sale: Option<String>,

    /// Idempotency-Key: a change under a known key is not done again [default: a random one, which is printed]
    #[arg(long, requires = "sale", value_parser = |text: &str| OrderId::new(text))]
    pub key: Option<OrderId>,

    /// Why, for the ledger; at most 200 characters
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// Host and port of an instance.
fn address(url: &str) -> Result<String, &'static str> {
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
    let host = uri.as_ref().and_then(Uri::authority).filter(|_| is_plain_url(url));
    let host = host.ok_or("an instance is http://HOST:PORT: it has no TLS, and no path")?;
    Ok(format!("{}:{}", host.host(), host.port_u16().unwrap_or(80)))
}

/// The id of a sale with a version or a position: nothing that ends a header or a parameter.
fn reference(text: &str) -> Result<String, &'static str> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.~:".contains(&b);
    let is_valid = (1..=128).contains(&text.len()) && text.bytes().all(allowed);
    is_valid
        .then(|| text.to_owned())
        .ok_or("an id has letters, digits, dots, - and _; behind it may be `:` and a number")
}

fn seconds(text: &str) -> Result<u64, &'static str> {
    let time = duration("1s", "24h")(text).ok().filter(|time| time.subsec_nanos() == 0);
    time.map(|time| time.as_secs()).ok_or("whole seconds from 1s to 24h are allowed, such as 10m")
}

fn when(text: &str) -> Result<String, &'static str> {
    if text != "now" {
        text.parse::<Timestamp>()?;
    }
    Ok(text.to_owned())
}

impl TermFlags {
    /// The body of a call with these fields, without those that are null.
    fn body(&self, others: Value) -> Value {
        let Self { per_order, per_user, hold, starts_at, ends_at } = self;
        let mut body = json!({ "per_order": per_order, "per_user": per_user, "hold_seconds": hold, "starts_at": starts_at,
            "ends_at": ends_at });
        if let (Value::Object(body), Value::Object(others)) = (&mut body, others) {
            body.extend(others);
            body.retain(|_, value| !value.is_null());
        }
        body
    }
}

/// What is known of a call that has no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The service refused it.
    Refused,
    /// It was not sent.
    NotSent,
    /// It may have been done.
    Unknown,
}

/// Why a call has no good answer.
#[derive(Debug)]
struct Failure {
    fate: Fate,
    text: String,
    /// What the service answered, if that is JSON.
    problem: Value,
    retry_after: Option<Duration>,
    /// The flags with which the command is the same call again; empty if it only reads.
    again: String,
}

impl Failure {
    fn new(fate: Fate, text: impl ToString) -> Self {
        let (text, again) = (text.to_string(), String::new());
        Self { fate, text, problem: Value::Null, retry_after: None, again }
    }

    fn not_sent(why: impl ToString) -> Self {
        Self::new(Fate::NotSent, why)
    }
}

/// A good answer, and whether the service says that it had done the call before.
struct Answer {
    body: Value,
    is_repeated: bool,
}

/// Runs the command, and returns its exit status.
///
/// # Errors
/// A sentence that says why the call was not done.
pub async fn run(options: OperatorOptions) -> Result<ExitCode, BoxError> {
    if let Call::Ledger { csv, sale, after } = &options.call {
        return options.ledger(*csv, sale.as_ref(), after.clone()).await;
    }
    let (body, told) = match options.carry_out().await {
        Ok((told, body)) => (body, Ok(told)),
        Err(mut failure) => (std::mem::take(&mut failure.problem), Err(failure)),
    };
    let is_unknown = |failure: &Failure| failure.fate == Fate::Unknown && !failure.again.is_empty();
    let outcome = match &told {
        Ok(_) => "done",
        Err(failure) if is_unknown(failure) => "unknown",
        Err(Failure { fate: Fate::Refused, .. }) => "refused",
        Err(_) => "no-answer",
    };
    // a failure to print changes nothing of what was done
    let mut stdout = io::stdout();
    if options.json {
        let mut body = if body.is_object() { body } else { json!({}) };
        body["outcome"] = outcome.into();
        let _ = writeln!(stdout, "{body}");
    } else if let Ok(told) = &told {
        let _ = writeln!(stdout, "{told}");
    }
    match told {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(Failure { text, again, .. }) if outcome == "unknown" => {
            say(&format!("flash-sale: it is UNKNOWN whether this was done: {text}"));
            say(&format!("Ask again: repeat the command with {again}"));
            Ok(ExitCode::from(UNKNOWN))
        }
        Err(failure) => Err(failure.text.into()),
    }
}

impl OperatorOptions {
    /// What to tell the operator of the call, and the answer.
    async fn carry_out(&self) -> Result<(String, Value), Failure> {
        match &self.call {
            Call::Start { stock, id, replace, terms } => {
                let id = id.clone().unwrap_or_else(SaleId::random);
                let (id, body) = (id.as_str(), terms.body(json!({ "stock": stock })));
                let again = format!("--id {id}");
                self.write(Method::PUT, &body, replace.as_deref(), id, again).await
            }
            Call::Change { add, terms, named } => {
                self.change(named, terms.body(json!({ "add": add }))).await
            }
            Call::Pause(named) => self.change(named, json!({ "paused": true })).await,
            Call::Resume(named) => self.change(named, json!({ "paused": false })).await,
            Call::End(named) => self.change(named, json!({ "ends_at": "now" })).await,
            Call::Show | Call::Ledger { .. } => self.read().await.map(|sale| (state(&sale), sale)),
        }
    }

    /// The running sale.
    async fn read(&self) -> Result<Value, Failure> {
        let request = self.request(Method::GET, "/stock", None);
        self.call(request, Bytes::new(), "stock").await.map(|answer| answer.body)
    }

    /// Changes the sale that is named, or else the running one, whose name is read first.
    async fn change(
        &self,
        named: &NamedFlags,
        mut body: Value,
    ) -> Result<(String, Value), Failure> {
        let NamedFlags { sale, key, note } = named;
        let sale = match sale {
            Some(sale) => sale.clone(),
            None => {
                let running = self.read().await?;
                let id = running["id"].as_str();
                let no_id = "the running sale has no id by which to change it";
                reference(id.ok_or_else(|| Failure::not_sent(no_id))?).map_err(Failure::not_sent)?
            }
        };
        let key =
            key.as_ref().map_or_else(|| random_id().to_string(), |key| key.as_str().to_owned());
        if let Some(note) = note {
            body["note"] = note.as_str().into();
        }
        let again = format!("--sale {sale} --key {key}");
        self.write(Method::PATCH, &body, Some(&sale), &key, again).await
    }

    /// Sends a call that starts or changes a sale: the one of this name, if there is one.
    async fn write(
        &self,
        method: Method,
        body: &Value,
        sale: Option<&str>,
        key: &str,
        again: String,
    ) -> Result<(String, Value), Failure> {
        let token = self.token().map_err(Failure::not_sent)?;
        let is_start = method == Method::PUT;
        let mut request = self.request(method, "/stock", token);
        request = request.header("idempotency-key", key).header(header::CONTENT_TYPE, JSON);
        if let Some(sale) = sale {
            request = request.header(header::IF_MATCH, format!("\"{sale}\""));
        }
        // now, since this command may end before the answer
        say(&format!("If the answer is lost, repeat the command with {again}"));
        let done = self.call(request, body.to_string().into(), "stock").await;
        let Answer { mut body, is_repeated } =
            done.map_err(|failure| Failure { again, ..failure })?;
        let entry = &body["entry"];
        let done = match (is_start, is_repeated) {
            (true, false) => "Started.".to_owned(),
            (true, true) => "It was started before. This was its state at the start:".to_owned(),
            (false, false) => format!("Done: {}.", changed(entry)),
            (false, true) => {
                format!("It was done at {}: {}.", text(&entry["time"]), changed(entry))
            }
        };
        let told = format!("{done}\n{}", state(&body));
        body["key"] = key.into();
        Ok((told, body))
    }

    /// Prints the rest of a ledger, page by page.
    async fn ledger(
        &self,
        csv: bool,
        sale: Option<&SaleId>,
        after: Option<String>,
    ) -> Result<ExitCode, BoxError> {
        let token = self.token()?;
        let mut after = after.unwrap_or("0".to_owned());
        let mut out = BufWriter::new(io::stdout());
        if csv {
            writeln!(out, "{},more", COLUMNS.join(","))?;
        }
        loop {
            let sale = sale.map(|id| format!("&sale={}", id.as_str())).unwrap_or_default();
            let path = format!("/orders?limit={}&after={after}{sale}", Inventory::MAX_PAGE);
            let page = self
                .call(self.request(Method::GET, &path, token.clone()), Bytes::new(), "orders")
                .await;
            let Answer { mut body, .. } = page.map_err(|Failure { text, .. }| {
                format!("{text} (the ledger was read to {after})")
            })?;
            for entry in body["orders"].as_array_mut().into_iter().flatten() {
                match (csv, self.json) {
                    (true, _) => writeln!(out, "{}", row(entry)),
                    (_, true) => writeln!(out, "{entry}"),
                    _ => writeln!(out, "{}", line(entry)),
                }?;
            }
            out.flush()?;
            let (last, goes_on) = (text(&body["cursor"]), !body["next"].is_null());
            let goes_on = goes_on && last != after;
            after = reference(&last)?;
            if !goes_on {
                break;
            }
        }
        say(&format!("To read on, add --after {after}"));
        Ok(ExitCode::SUCCESS)
    }

    /// The header with the token, if there is one.
    fn token(&self) -> Result<Option<HeaderValue>, BoxError> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let unusable = |source| FileError { flag: "--token-file", path: path.clone(), source };
        let tokens = SecretSource::File(path.clone()).read_tokens().map_err(unusable)?;
        let [token, ..] = &*tokens else { return Ok(None) };
        let token = HeaderValue::try_from(format!("Bearer {}", token.expose()));
        let mut token = token.map_err(|_| "the token has characters that no header has")?;
        token.set_sensitive(true);
        Ok(Some(token))
    }

    fn request(&self, method: Method, path: &str, token: Option<HeaderValue>) -> Builder {
        let item = self.item.clone().unwrap_or_default();
        let separator = if path.contains('?') { '&' } else { '?' };
        let request =
            Request::builder().method(method).uri(format!("{path}{separator}item={item}"));
        let request = request.header(header::HOST, &self.url).header(header::ACCEPT, JSON);
        token
            .into_iter()
            .fold(request, |request, token| request.header(header::AUTHORIZATION, token))
    }

    /// Sends a call, and sends it again if that is safe and can help. `member`: what each good answer has.
    async fn call(&self, request: Builder, body: Bytes, member: &str) -> Result<Answer, Failure> {
        let request = request.body(Full::new(body)).map_err(Failure::not_sent)?;
        let until = Instant::now() + self.timeout;
        let mut is_unknown = false;
        loop {
            // half the time, so that there is time for another attempt
            let attempt_until = until.min(Instant::now() + self.timeout / 2);
            let mut failure = match self.attempt(request.clone(), attempt_until, member).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // an attempt without an answer may still arrive
            is_unknown |= failure.fate == Fate::Unknown;
            let again =
                failure.retry_after.is_some() || is_unknown && failure.fate != Fate::Refused;
            let resume = Instant::now() + failure.retry_after.unwrap_or(PAUSE);
            if !again || resume >= until {
                if is_unknown {
                    failure.fate = Fate::Unknown;
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
    ) -> Result<Answer, Failure> {
        let url = &self.url;
        let connect = async {
            let stream = TcpStream::connect(&**url).await?;
            Ok::<_, BoxError>(http1::handshake(TokioIo::new(stream)).await?)
        };
        let connected = timeout_at(until, connect).await.map_err(BoxError::from).flatten();
        let (mut sender, connection) = connected.map_err(|error| {
            Failure::not_sent(format!("cannot reach {url}: {}", ErrorChain(&*error)))
        })?;
        spawn(connection);
        let answer = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            Ok::<_, BoxError>((head, Limited::new(body, MOST_BYTES).collect().await?.to_bytes()))
        };
        let answered = timeout_at(until, answer).await.map_err(BoxError::from).flatten();
        let (head, body) = answered.map_err(|error| {
            Failure::new(Fate::Unknown, format!("no answer from {url}: {}", ErrorChain(&*error)))
        })?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if head.status.is_success() && !body[member].is_null() {
            let is_repeated = head.headers.contains_key("idempotency-replayed");
            return Ok(Answer { body, is_repeated });
        }
        let seconds =
            head.headers.get(header::RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse().ok());
        let mut failure = refusal(url, head.status, body);
        failure.retry_after = seconds.map(Duration::from_secs);
        Err(failure)
    }
}

/// What an answer means that is not the one that was asked for.
fn refusal(url: &str, status: StatusCode, problem: Value) -> Failure {
    let of = |name: &str| text(&problem[name]);
    let (kind, sale) = (of("type"), of("sale"));
    let fate = match (status.as_u16(), &*kind) {
        (503, _) | (500, "damaged") => Fate::Refused,
        (200..=299 | 500.., _) => Fate::Unknown,
        _ => Fate::Refused,
    };
    let advice = match (status.as_u16(), &*kind) {
        (_, "") => "is it the port of an instance?".to_owned(),
        (401 | 403, _) => "is --token-file missing or wrong?".to_owned(),
        (405, _) | (_, "not-found") => {
            "is it the port for buyers, or an instance of an earlier build?".to_owned()
        }
        (428, _) if !sale.is_empty() => format!("to replace that sale, add --replace {sale}"),
        _ => String::new(),
    };
    let said = if kind.is_empty() {
        status.to_string()
    } else {
        format!("{}: {}", of("title"), of("detail"))
    };
    let does = if fate == Fate::Refused { "refuses" } else { "answers" };
    let text = format!("{url} {does}: {said} {advice}").trim_end().to_owned();
    Failure { problem, ..Failure::new(fate, text) }
}

/// A value for the terminal: no character of it moves the cursor or changes how others are shown.
fn text(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    text.chars().map(|c| if is_invisible(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The state of a sale, in lines.
fn state(sale: &Value) -> String {
    let of = |name: &str| text(&sale[name]);
    // unknown while an instance of an earlier build sells
    let units = |name: &str| sale["units"][name].as_i64().map_or("?".to_owned(), |n| n.to_string());
    let mut lines = vec![
        format!("sale    {} of item {}, version {}", of("id"), of("item"), of("version")),
        format!("state   {}", of("state")),
        format!(
            "units   {} left, {} held, {} confirmed, of {}",
            of("stock"),
            units("held"),
            units("confirmed"),
            of("initial")
        ),
        format!("orders  {}, {} of them held", of("orders"), of("held")),
    ];
    for (name, before, after) in [
        ("starts_at", "starts  ", ""),
        ("ends_at", "ends    ", ""),
        ("per_order", "limit   ", " units an order"),
        ("per_user", "limit   ", " units a user"),
        ("hold_seconds", "holds   ", " seconds"),
    ] {
        if !sale[name].is_null() {
            lines.push(format!("{before}{}{after}", of(name)));
        }
    }
    if sale["balanced"] == false {
        lines.push("WRONG   stock and lucky do not add up to initial".to_owned());
    }
    lines.join("\n")
}

/// What an entry changed of its sale, in words.
fn changed(entry: &Value) -> String {
    let changes = entry["change"].as_object().into_iter().flatten().map(|(name, value)| {
        let value = text(value);
        match (&**name, value.strip_prefix('-')) {
            ("add", Some(units)) => format!("{units} units withdrawn"),
            ("add", None) => format!("{value} units added"),
            ("paused", _) => (if value == "true" { "paused" } else { "resumed" }).to_owned(),
            ("starts_at", _) => format!("starts {value}"),
            ("ends_at", _) => format!("ends {value}"),
            ("per_order", _) => format!("at most {value} units an order"),
            ("per_user", _) => format!("at most {value} units a user"),
            ("hold_seconds", _) => format!("holds of {value} seconds"),
            _ => format!("{name} {value}"),
        }
    });
    let note = Some(text(&entry["note"])).filter(|note| !note.is_empty());
    changes.chain(note.map(|note| format!("\"{note}\""))).collect::<Vec<_>>().join(", ")
}

/// An entry of the ledger for people.
fn line(entry: &Value) -> String {
    let of = |name: &str| text(&entry[name]);
    let what = match (&entry["change"], &*of("user")) {
        (Value::Object(_), _) => changed(entry),
        (_, "") => format!("{} units, order {}", of("quantity"), of("order")),
        (_, user) => format!("{} units, order {} of {user}", of("quantity"), of("order")),
    };
    let (position, time, event, left) = (of("position"), of("time"), of("event"), of("remaining"));
    format!("{position:>7}  {time}  {event:<9}  {what}; {left} left, by {}", of("instance"))
}

/// The columns in CSV. What else an entry has is in one more column, as JSON.
const COLUMNS: [&str; 12] = [
    "sale",
    "position",
    "time",
    "event",
    "order",
    "user",
    "quantity",
    "remaining",
    "instance",
    "holder",
    "token",
    "hold_until",
];

/// An entry of the ledger as a line of CSV (RFC 4180).
fn row(entry: &mut Value) -> String {
    let mut cells = COLUMNS.map(|name| cell(&entry[name].take())).to_vec();
    let others = entry.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let others: serde_json::Map<_, _> =
        others.map(|(name, value)| (name.clone(), value.clone())).collect();
    cells.push(if others.is_empty() {
        String::new()
    } else {
        cell(&Value::from(Value::Object(others).to_string()))
    });
    cells.join(",")
}

/// A value as a cell of CSV. Spreadsheets take a text that begins with one of these characters for a formula, so a `'` is put
/// before it, as OWASP recommends (<https://owasp.org/www-community/attacks/CSV_Injection>).
fn cell(value: &Value) -> String {
    let Value::String(text) = value else {
        return if value.is_null() { String::new() } else { value.to_string() };
    };
    let mark = if text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) { "'" } else { "" };
    let is_plain = mark.is_empty() && !text.contains([',', ';', '"', '\'', '\n', '\r', '\t']);
    if is_plain { text.clone() } else { format!("\"{mark}{}\"", text.replace('"', "\"\"")) }
}
