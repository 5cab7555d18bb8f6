//! The log, which goes to standard error; with the feature `otel` also the spans, which go to a collector.
//!
//! A separate thread writes the lines. If nobody reads standard error, lines are dropped and counted, and the program goes on.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write, stderr};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{mem, panic, thread};

use clap::{Args, ValueEnum};
use icu_properties::props::{
    BinaryProperty as _, DefaultIgnorableCodePoint, EnumeratedProperty as _, GeneralCategory,
};
use parking_lot::{Condvar, Mutex};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// The error for a text that is not a filter.
const FORM: &str = "a filter is error, warn, info, debug, trace or off, alone or for parts of the program, such as \
    info,flash_sale=debug";

/// The flags of the log.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// What to log: a level, or levels for parts of the program [default: `RUST_LOG`, or info]
    #[arg(long, global = true, env = "FLASH_SALE_LOG", value_name = "FILTER", value_parser = filter)]
    pub log: Option<String>,

    /// Format of the log
    #[arg(
        long,
        global = true,
        env = "FLASH_SALE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

/// The most bytes of lines that wait to be written.
const MOST_WAITING: usize = 1024 * 1024;

/// How long the program waits for standard error when it ends.
const LAST_WAIT: Duration = Duration::from_secs(1);

static LINES: LazyLock<Lines> = LazyLock::new(|| {
    let thread = thread::Builder::new().name("log".to_owned());
    let started = thread.spawn(|| LINES.write_all());
    started.expect("the system gives a program one thread");
    Lines::default()
});

/// Lines on their way to standard error.
#[derive(Default)]
struct Lines {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    written: Condvar,
    /// How many lines were dropped since the start.
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    /// How many lines were dropped since the last write.
    dropped: u64,
    is_writing: bool,
}

impl Lines {
    /// Adds a line, or drops it if too many wait.
    fn push(&self, line: &[u8]) {
        let mut waiting = self.waiting.lock();
        if waiting.text.len() + line.len() > MOST_WAITING {
            waiting.dropped += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.text.extend_from_slice(line);
        self.filled.notify_one();
    }

    /// Writes the waiting lines, for the life of the process.
    fn write_all(&self) {
        let mut text = Vec::new();
        loop {
            let mut waiting = self.waiting.lock();
            waiting.is_writing = false;
            self.written.notify_all();
            self.filled.wait_while(&mut waiting, |waiting| waiting.text.is_empty());
            waiting.is_writing = true;
            text.clear();
            mem::swap(&mut text, &mut waiting.text);
            let dropped = mem::take(&mut waiting.dropped);
            drop(waiting);
            // if standard error is closed, nobody can be told
            let _ = stderr().write_all(&text);
            if dropped > 0 {
                tracing::warn!(dropped, "lines of the log were dropped: nobody read them");
            }
        }
    }

    /// Waits until everything is written, for at most [`LAST_WAIT`].
    fn flush(&self) {
        let mut waiting = self.waiting.lock();
        let is_busy = |waiting: &mut Waiting| waiting.is_writing || !waiting.text.is_empty();
        self.written.wait_while_for(&mut waiting, is_busy, LAST_WAIT);
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line to standard error in the way of the log, without waiting.
pub fn say(line: &str) {
    LINES.push(format!("{line}\n").as_bytes());
}

/// How many lines of the log were dropped because nobody read them.
pub fn dropped_lines() -> u64 {
    LINES.dropped.load(Ordering::Relaxed)
}

/// Logs a panic. The standard library's own message would wait for standard error.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    tracing::error!("{}", panic.to_string().replace('\n', " "));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        say(&trace.to_string());
    }
    if thread::current().name() == Some("main") {
        LINES.flush();
    }
}

/// Starts the log of this process, which also gets panics. A second call has no effect.
///
/// # Errors
/// A sentence that says what a filter is, if `RUST_LOG` is none. [`LogOptions::log`] was checked when it was parsed.
pub fn init(options: &LogOptions) -> Result<(), String> {
    // an empty variable counts as missing
    let set = |text: &String| !text.trim().is_empty();
    let text = options.log.clone().or_else(|| std::env::var("RUST_LOG").ok()).filter(set);
    let text = text.as_deref().unwrap_or("info");
    let targets: Targets = text.parse().map_err(|_| format!("RUST_LOG is {text:?}, and {FORM}"))?;
    let is_terminal = stderr().is_terminal();
    let lines = layer().with_ansi(is_terminal);
    let lines = match options.log_format {
        LogFormat::Text => lines.with_writer(move || OneLine { to: &*LINES, is_terminal }).boxed(),
        LogFormat::Json => lines.with_writer(|| &*LINES).json().boxed(),
    };
    let layers = tracing_subscriber::registry().with(lines.with_filter(targets));
    #[cfg(feature = "otel")]
    let layers = layers.with(otel::layer());
    // fails only if a log was started before, which then goes on
    if layers.try_init().is_ok() {
        panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

/// Sends the spans and writes the lines that still wait. Gives up after a second if nobody reads standard error.
pub fn end() {
    #[cfg(feature = "otel")]
    otel::end();
    LINES.flush();
}

/// Keeps each event on one line, whatever it contains: a key in etcd or a message of a server may have line ends, or characters
/// that change how other text is shown.
struct OneLine<W> {
    to: W,
    /// On a terminal the line has the library's colours, and the library escapes such characters in foreign text itself.
    is_terminal: bool,
}

impl<W: Write> Write for OneLine<W> {
    /// The library writes each event in one call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let mut line = String::with_capacity(text.len() + 1);
        for c in text.trim_end_matches('\n').chars() {
            if is_invisible(c) && !(c == '\x1b' && self.is_terminal) {
                line.extend(c.escape_default());
            } else {
                line.push(c);
            }
        }
        line.push('\n');
        self.to.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Whether a character shows nothing, or changes how others are shown. By Unicode's tables these are control and format
/// characters, separators of lines and paragraphs, and characters that a font may ignore, such as fillers and variation
/// selectors.
pub(crate) fn is_invisible(c: char) -> bool {
    use GeneralCategory::{Control, Format, LineSeparator, ParagraphSeparator};
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let category = GeneralCategory::for_char(c);
    matches!(category, Control | Format | LineSeparator | ParagraphSeparator)
        || DefaultIgnorableCodePoint::for_char(c)
        // the Braille pattern without dots
        || c == '\u{2800}'
}

fn filter(text: &str) -> Result<String, &'static str> {
    text.parse::<Targets>().map(|_| text.to_owned()).map_err(|_| FORM)
}

/// Spans for an OpenTelemetry collector, by gRPC.
#[cfg(feature = "otel")]
pub(crate) mod otel {
    use std::sync::OnceLock;

    use axum::http::HeaderMap;
    use opentelemetry::propagation::TextMapPropagator as _;
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_http::HeaderExtractor;
    use opentelemetry_otlp::SpanExporter;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::{Level, Span, Subscriber};
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::registry::LookupSpan;

    static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

    /// The standard variables choose the collector, the name of the service and the share of traces that is sent. Without a
    /// collector there are no spans.
    pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> Option<impl Layer<S>> {
        let collector = std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT")?;
        if !crate::config::is_plain_url(&collector.to_string_lossy()) {
            let what = "is http://HOST:PORT or https://HOST:PORT, and nothing else";
            eprintln!("OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT {what}: no spans are sent");
            return None;
        }
        let exporter = SpanExporter::builder().with_tonic().build();
        let exporter = exporter.inspect_err(|error| eprintln!("OpenTelemetry: {error}")).ok()?;
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        let provider = PROVIDER.get_or_init(|| provider.build());
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("flash-sale"));
        Some(layer.with_filter(Targets::new().with_target("flash_sale", Level::DEBUG)))
    }

    pub(super) fn end() {
        if let Some(Err(error)) = PROVIDER.get().map(SdkTracerProvider::shutdown) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }

    /// Makes the span a part of the trace that the header `traceparent` names.
    pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
        // fails if the span is not recorded
        let _ = span.set_parent(TraceContextPropagator::new().extract(&HeaderExtractor(headers)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_checked() {
        assert!(filter("info,flash_sale=debug").is_ok());
        assert!(filter("flash_sale=loud").is_err());
    }

    /// Goal: text from outside makes no second line, even with the library's own colours.
    #[test]
    fn an_event_is_one_line() {
        for (is_terminal, event, line) in [
            (false, "WARN key \"a\"\n", "WARN key \"a\"\n"),
            (
                false,
                "a\nINFO forged\r\u{202e}\u{2028}\x1b[0m\u{9b}é\n",
                "a\\nINFO forged\\r\\u{202e}\\u{2028}\\u{1b}[0m\\u{9b}é\n",
            ),
            (true, "\x1b[33mWARN\x1b[0m a\nb\n", "\x1b[33mWARN\x1b[0m a\\nb\n"),
        ] {
            let mut to = Vec::new();
            OneLine { to: &mut to, is_terminal }.write_all(event.as_bytes()).expect("memory");
            assert_eq!(String::from_utf8_lossy(&to), line);
        }
    }
}
