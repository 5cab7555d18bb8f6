//! The demo from its beginning to its end.

use std::io::{self, Write as _};
use std::pin::pin;
use std::process::ExitCode;

use crate::baselines::LockMode;
use testkit::LOCK_NAME;
use testkit::etcd::{AuthTokens, EtcdOptions, PrivateEtcd};
use testkit::redis::{PrivateRedis, RedisOptions};

use super::error::DemoError;
use super::instance::{self, Instance, Shared, check_ports};
use super::load::{self, Load};
use super::options::DemoOptions;
use super::screen::{Screen, Tone, say};
use super::signals::{Ending, Signals};
use super::stage::{End, RESTART_PAUSE, Stage};
use super::verdict::explain;

/// Short, so that a viewer who pauses or kills a holder sees soon what comes of it.
const LOCK_TTL: &str = "3s";

/// How long a token of a secured etcd lives that is not used: etcd's default.
const TOKEN_SECONDS: u64 = 300;

const PASS: u8 = 0;
const FAIL: u8 = 1;
const NO_VERDICT: u8 = 2;

/// Starts everything, sells out under load, says how it went, serves until a signal comes, and
/// leaves nothing behind. What it says goes to standard output, errors go to standard error.
///
/// The exit code is 0 if every unit was sold exactly once, 1 if not, 2 if that could not be found
/// out; 128 and the signal's number if a signal came before the verdict.
pub async fn run(options: DemoOptions) -> ExitCode {
    match play(&options, Screen::new()).await {
        Ok(code) => code.into(),
        Err(error) => {
            complain(&error.to_string());
            NO_VERDICT.into()
        }
    }
}

/// Errors before anything was started are returned, later ones are told before all is stopped.
async fn play(options: &DemoOptions, screen: Screen) -> Result<u8, DemoError> {
    let ports = options.ports()?;
    check_ports(&ports)?;
    let own_program = std::env::current_exe()
        .map_err(DemoError::system("the path of this program is not known"))?;
    let mut signals =
        Signals::listen().map_err(DemoError::system("signals cannot be listened to"))?;
    let mut stage =
        Stage::new().map_err(DemoError::system("no temporary directory could be made"))?;

    let mut verdict = None;
    let show = Show { options, screen, ports, own_program };
    let ending = tokio::select! {
        ending = signals.next() => Some(ending),
        result = show.run(&mut stage, &mut verdict) => {
            if let Err(error) = result {
                complain(&error.to_string());
            }
            None
        }
    };
    if ending.is_some() {
        say("");
        say("Stopping; Ctrl-C again hurries.");
    }
    if stop(stage, &mut signals).await && ending.is_some() {
        say("Everything is stopped and removed.");
    }
    let without_verdict = ending.map_or(NO_VERDICT, Ending::exit_code);
    Ok(verdict.unwrap_or(without_verdict))
}

/// Says what went wrong, or returns true.
async fn stop(mut stage: Stage, signals: &mut Signals) -> bool {
    let stopped = tokio::select! {
        stopped = stage.stop() => Some(stopped),
        _ = signals.next() => None,
    };
    let cleared = tokio::select! {
        cleared = async {
            if stopped.is_none() {
                stage.kill().await;
            }
            stage.clear().await
        } => cleared,
        // enough: what is left goes by itself, a little later
        _ = signals.next() => return false,
    };
    let done = stopped.unwrap_or(Ok(())).and(cleared);
    if let Err(error) = &done {
        complain(&format!("not everything is stopped: {error}"));
    }
    done.is_ok()
}

/// What the steps share.
struct Show<'a> {
    options: &'a DemoOptions,
    screen: Screen,
    ports: Vec<u16>,
    own_program: std::path::PathBuf,
}

impl Show<'_> {
    async fn run(&self, stage: &mut Stage, verdict: &mut Option<u8>) -> Result<(), DemoError> {
        let Self { options, screen, .. } = *self;
        self.start(stage).await?;
        let hints = self.hints(stage);
        let urls: Vec<_> = stage.instances.iter().map(Instance::url).collect();
        let concurrency = load::make_room(options.requests);
        self.announce_load(concurrency);
        let load = Load::start(&self.own_program, options, concurrency, &urls, &stage.dir)?;

        let mut watch = pin!(stage.watch(|name, end| report_end(screen, name, end)));
        let report = tokio::select! {
            report = load.report() => report?,
            never = &mut watch => match never {},
        };
        let (code, tone, label) =
            if report.pass { (PASS, Tone::Good, "PASS  ") } else { (FAIL, Tone::Bad, "FAIL  ") };
        *verdict = Some(code);
        say("");
        screen.paragraph(tone, label, &explain(options, &report));
        if options.once {
            return Ok(());
        }
        for line in hints {
            say(&line);
        }
        match watch.await {}
    }

    async fn start(&self, stage: &mut Stage) -> Result<(), DemoError> {
        let options = self.options;
        say("starting etcd, Redis and the instances");
        let secured = options.secure.then_some(AuthTokens::Simple(TOKEN_SECONDS));
        let (etcd, redis) = tokio::try_join!(
            PrivateEtcd::start_in(&stage.dir, EtcdOptions { secured, ..EtcdOptions::default() }),
            PrivateRedis::start_in(
                &stage.dir,
                RedisOptions { secured: options.secure, ..RedisOptions::default() }
            ),
        )?;
        let how = if options.secure { "mutual TLS and users, " } else { "" };
        for (name, port) in [("etcd", etcd.port()), ("Redis", redis.port())] {
            say(&format!("{name} answers on 127.0.0.1:{port} ({how}private, gone at the end)"));
        }
        let (etcd, redis) = (stage.etcd.insert(etcd), stage.redis.insert(redis));
        let urls: Vec<_> = self.ports.iter().map(|&port| instance::url(port)).collect();
        let urls = urls.join(",");
        let mut flags = vec!["--instances", &urls, "--restarted"];
        if options.lock == LockMode::Etcd {
            flags.extend(["--lock-ttl", LOCK_TTL]);
        }
        let shared = Shared {
            program: &self.own_program,
            dir: &stage.dir,
            servers: &[vec!["--etcd".to_owned(), etcd.endpoint()], etcd.flags(), redis.flags()]
                .concat(),
            lock: options.lock,
            lock_name: LOCK_NAME,
            instances: options.instances.into(),
            flags: &flags,
        };
        for &port in &self.ports {
            stage.instances.push(Instance::start(port, shared)?);
        }
        for instance in &mut stage.instances {
            instance.until_ready().await?;
            let what = guarded_by(options.lock);
            say(&format!("instance {} answers on {} ({what})", instance.port, instance.url()));
        }
        Ok(())
    }

    fn announce_load(&self, concurrency: u64) {
        let DemoOptions { requests, stock, .. } = *self.options;
        let at_once = if concurrency < requests {
            format!("{concurrency} at a time")
        } else {
            "all at once".to_owned()
        };
        say("");
        say(&format!("load test: {requests} buyers, {at_once}, for {stock} units"));
        say("");
    }

    /// What can be tried while the demo serves.
    fn hints(&self, stage: &Stage) -> Vec<String> {
        let (first, last) = match self.ports.as_slice() {
            [first, .., last] => (first, last),
            [only] => (only, only),
            [] => return Vec::new(),
        };
        let stock = self.options.stock;
        let mut lines = vec![
            String::new(),
            format!("The page: http://127.0.0.1:{first}/"),
            String::new(),
            "To try from another terminal:".to_owned(),
            format!("  curl -i 'http://127.0.0.1:{first}/stock/reduce'"),
            format!("  curl 'http://127.0.0.1:{last}/stock'"),
            "  curl -X PUT -H 'content-type: application/json' \\".to_owned(),
            format!("       -d '{{\"stock\":{stock}}}' 'http://127.0.0.1:{first}/stock'"),
        ];
        if let Some(redis) = &stage.redis {
            lines.push(format!("  redis-cli {} get stock", redis.tool_flags()));
        }
        if let (true, Some(etcd)) = (has_queue(self.options.lock), &stage.etcd) {
            lines.push(format!("  curl 'http://127.0.0.1:{first}/lock'"));
            lines.push(format!("  etcdctl {} lock {LOCK_NAME}", etcd.tool_flags()));
            lines.push(
                "    (holds the lock: nobody can buy until you end it with Ctrl-C)".to_owned(),
            );
        }
        lines.push(format!("Logs are in {} until the end.", stage.dir.path().display()));
        lines.push(String::new());
        lines.push("Serving until Ctrl-C.".to_owned());
        lines
    }
}

fn guarded_by(lock: LockMode) -> &'static str {
    match lock {
        LockMode::Etcd => "sells under the etcd lock",
        LockMode::Local => "sells under a lock of its own",
        LockMode::None => "sells without a lock",
        LockMode::EtcdRecipe => "sells by the lock recipe of Go's client",
        LockMode::EtcdRpc => "sells by etcd's Lock call",
        LockMode::Unguarded => "sells without a lock, by one script",
    }
}

/// Whether buyers queue in etcd.
fn has_queue(lock: LockMode) -> bool {
    match lock {
        LockMode::Etcd | LockMode::EtcdRecipe | LockMode::EtcdRpc => true,
        LockMode::Local | LockMode::None | LockMode::Unguarded => false,
    }
}

fn report_end(screen: Screen, name: &str, end: End<'_>) {
    let text = match end {
        End::Ended(status) => {
            let how = match status {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            format!("{name} has ended ({how}); the demo goes on without it.")
        }
        End::Killed => {
            let pause = RESTART_PAUSE.as_secs();
            format!("{name} has ended (it was killed); it is started again in {pause} s.")
        }
        End::Back => format!("{name} answers again."),
    };
    screen.paragraph(Tone::Warning, "note  ", &text);
}

/// To standard error; if nobody reads that, the exit code remains.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "lab demo: {text}");
}
