//! The `arena` command: every lock, the same buyers, the same faults.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, ValueEnum};
use fenced_lock::{
    Backend, EtcdBackend, EtcdOptions as LockOptions, GrantToken, Promises, QueueView, Session,
    SessionOptions,
};
use flash_sale::error_chain::ErrorChain;
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::ports::free_ports;
use testkit::{EtcdOptions, OwnedDir, RedisOptions, probe};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::articles;
use crate::baselines::{Fence, LockMode};
use crate::bench::markdown::{figure, rows};
use crate::cluster::{self, Cluster, Spec};
use crate::error::LabError;
use crate::locks::{AnyLock, LockServers};

/// The TTL of the sessions in a sale: short, since a takeover waits for it.
const TTL: &str = "3s";

/// How long one run may take.
const LONGEST_RUN: Duration = Duration::from_mins(2);

/// How often a run is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a claim may take to get into a queue that cannot be seen.
const UNSEEN: Duration = Duration::from_millis(50);

/// Compares locks: handovers, fairness, a sale under each, and what a kill and a pause of the holder do.
///
/// Starts private servers and instances on this machine, prints a table, and writes results.json and
/// tables.md. Leaves nothing behind.
///
/// Exit status: 0 measured, 2 could not run.
#[derive(Clone, Debug, Args)]
pub struct ArenaOptions {
    /// Only these locks, separated by commas [default: all whose servers are installed].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub locks: Vec<LockMode>,

    /// Only these measures, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<Measure>,

    /// Only the flaws of these articles' locks, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(articles::names()))]
    pub articles: Vec<String>,

    /// Trials of each fault, 1 to 10000 [default: 20, or 1 with --short].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=10_000))]
    pub trials: Option<u32>,

    /// Everything once with small numbers: a smoke test.
    #[arg(long)]
    pub short: bool,

    /// Directory for results.json and tables.md; created if missing.
    #[arg(long, default_value = "target/arena", value_name = "DIR")]
    pub out: PathBuf,
}

/// A measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Two sessions take turns: the time from the release that is sent to the next grant.
    Handovers,
    /// Waiters that queued one after the other: how many are served before one that came earlier.
    Fairness,
    /// 500 buyers at once for 300 units, at two instances.
    Burst,
    /// The holder is killed between reading and writing.
    Kill,
    /// The holder is paused for longer than its lease between reading and writing.
    Pause,
    /// What goes wrong under the locks of well-known articles, and not under ours. Not with --locks alone.
    Flaws,
}

/// What was measured of one lock.
#[derive(Debug, Serialize)]
struct Figures {
    lock: &'static str,
    promises: String,
    handover_p50_ms: Option<f64>,
    handover_p99_ms: Option<f64>,
    waiters: usize,
    overtaken: Option<usize>,
    burst_ms: Option<f64>,
    /// From the first order to the last answer, in the slowest trial.
    sale_with_kill_ms: Option<f64>,
    sale_with_pause_ms: Option<f64>,
    /// What was oversold under a pause, without a fence, and with the lock's and the store's.
    paused: Vec<Paused>,
    /// Runs that failed where they must not.
    faults: Vec<String>,
}

/// Trials with a paused holder under one fence.
#[derive(Debug, Serialize)]
struct Paused {
    fence: &'static str,
    trials: u32,
    oversold: u32,
    most_units: u64,
}

/// Measures, prints and writes the results.
pub async fn run(options: ArenaOptions) -> ExitCode {
    match measure(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab arena: {}", ErrorChain(&error));
            ExitCode::from(2)
        }
    }
}

async fn measure(options: &ArenaOptions) -> Result<(), LabError> {
    std::fs::create_dir_all(&options.out)
        .map_err(LabError::system("the directory for the results cannot be made"))?;
    let dir =
        OwnedDir::create().map_err(LabError::system("no temporary directory could be made"))?;
    let chosen = match options.locks.as_slice() {
        _ if options.only == [Measure::Flaws] => Vec::new(),
        [] => LockMode::SHARED.to_vec(),
        chosen => chosen.to_vec(),
    };
    let mut all = Vec::new();
    for lock in chosen {
        if let Some(missing) = LockServers::missing(lock) {
            eprintln!("{}: left out, since {missing} is not installed", lock.name());
            continue;
        }
        all.push(Arena { options, lock, dir: &dir }.figures().await?);
        // after each lock, so that an interrupted run leaves what it has
        write(options, &all).map_err(LabError::system("the results cannot be written"))?;
    }
    dir.remove().await.map_err(LabError::system("the temporary directory cannot be removed"))?;
    let is_all = options.only.is_empty() && options.locks.is_empty();
    if is_all || options.only.contains(&Measure::Flaws) {
        let trials = options.trials.unwrap_or(if options.short { 1 } else { 3 });
        articles::measure(&options.articles, trials, &options.out).await?;
        if all.is_empty() {
            return Ok(());
        }
    }
    print!("{}", tables(&all));
    println!("results.json and tables.md are in {}", options.out.display());
    Ok(())
}

/// One lock, and what is measured of it.
struct Arena<'a> {
    options: &'a ArenaOptions,
    lock: LockMode,
    dir: &'a OwnedDir,
}

impl Arena<'_> {
    fn wants(&self, measure: Measure) -> bool {
        self.options.only.is_empty() || self.options.only.contains(&measure)
    }

    fn trials(&self) -> u32 {
        self.options.trials.unwrap_or(if self.options.short { 1 } else { 20 })
    }

    fn say(&self, what: &str) {
        eprintln!("{}: {what}", self.lock.name());
    }

    async fn figures(&self) -> Result<Figures, LabError> {
        self.say("starting its servers");
        let etcd = (EtcdOptions::default(), self.lock.etcd_members());
        let mut cluster = Cluster::open(self.dir, etcd.1, etcd.0, RedisOptions::default()).await?;
        cluster.lock = LockServers::start(self.lock, &cluster.dir).await?;
        let mut figures = match (self.client(&cluster)?, self.client(&cluster)?) {
            (AnyLock::Fenced(one), AnyLock::Fenced(other)) => {
                self.of_the_lock([one, other]).await?
            }
            (AnyLock::Unfenced(one), AnyLock::Unfenced(other)) => {
                self.of_the_lock([one, other]).await?
            }
            _ => unreachable!("both are clients of one lock"),
        };
        for fence in [None, Some(Fence::Store)] {
            if fence.is_none() || self.wants(Measure::Pause) {
                self.start_instances(&mut cluster, fence).await?;
                self.sell(&mut cluster, fence, &mut figures).await?;
                let stopped = cluster.stop_instances().await;
                stopped.map_err(LabError::system("an instance does not stop"))?;
                // the next fence is of another cluster, which the stock would refuse
                let emptied = probe::redis(cluster.redis.port(), "FLUSHALL").await;
                emptied.map_err(LabError::system("Redis cannot be emptied"))?;
            }
        }
        cluster.stop().await.map_err(LabError::system("a server does not stop"))?;
        cluster.remove().await.map_err(LabError::system("a directory cannot be removed"))?;
        Ok(figures)
    }

    /// A client of the lock, as a process of its own would have one.
    fn client(&self, cluster: &Cluster) -> Result<AnyLock, LabError> {
        let lock = match cluster.etcd.first() {
            Some(etcd) => EtcdBackend::new(LockOptions::new([etcd.endpoint()]))
                .map(|etcd| AnyLock::Fenced(Arc::new(etcd))),
            None => AnyLock::at(self.lock, &cluster.lock.addresses()),
        };
        lock.map_err(|error| LabError::Lock(error.into()))
    }

    /// Measures the lock by itself.
    async fn of_the_lock<T: GrantToken>(
        &self,
        clients: [Arc<dyn Backend<Token = T>>; 2],
    ) -> Result<Figures, LabError> {
        let promises = clients[0].promises();
        let mut figures = Figures {
            lock: self.lock.name(),
            promises: in_words(promises),
            handover_p50_ms: None,
            handover_p99_ms: None,
            waiters: if self.options.short { 10 } else { 100 },
            overtaken: None,
            burst_ms: None,
            sale_with_kill_ms: None,
            sale_with_pause_ms: None,
            paused: Vec::new(),
            faults: Vec::new(),
        };
        let mut sessions = Vec::new();
        for client in clients {
            let options = SessionOptions::new(Duration::from_secs(30));
            sessions.push(Session::open(client, options).await?);
        }
        if self.wants(Measure::Handovers) {
            self.say("handovers");
            let turns = if self.options.short { 20 } else { 500 };
            let mut millis = take_turns(&sessions, turns).await?;
            millis.sort_by(f64::total_cmp);
            let at = |share: usize| millis.get(millis.len() * share / 100).copied();
            (figures.handover_p50_ms, figures.handover_p99_ms) = (at(50), at(99));
        }
        if self.wants(Measure::Fairness) {
            self.say("fairness");
            let is_seen = promises.queue == QueueView::Whole;
            figures.overtaken = Some(overtaken(&sessions, figures.waiters, is_seen).await?);
        }
        for session in sessions {
            session.close().await?;
        }
        Ok(figures)
    }

    async fn start_instances(
        &self,
        cluster: &mut Cluster,
        fence: Option<Fence>,
    ) -> Result<(), LabError> {
        let ports: [u16; 2] = free_ports().map_err(LabError::system("no port is free"))?;
        let urls = ports.map(cluster::url).join(",");
        let mut flags = vec!["--instances", &urls, "--lock-ttl", TTL];
        if let Some(fence) = fence {
            flags.extend(["--fence", fence.name()]);
        }
        let flags: Vec<_> = flags.into_iter().map(str::to_owned).collect();
        let spec = Spec { lock: self.lock, instances: 2, flags: &flags, ..Spec::default() };
        for port in ports {
            cluster.start(port, spec).await?;
        }
        for instance in &mut cluster.instances {
            instance.until_ready().await?;
        }
        Ok(())
    }

    /// Measures sales under the lock with this fence, and without one.
    async fn sell(
        &self,
        cluster: &mut Cluster,
        fence: Option<Fence>,
        figures: &mut Figures,
    ) -> Result<(), LabError> {
        let name = self.lock.name();
        let fence_name = self.lock.fence(fence).name();
        if fence.is_none() && self.wants(Measure::Burst) {
            self.say("500 buyers for 300 units");
            let wanted = json!({"stock": 300, "requests": 500, "guard": name, "fence": true});
            let run = self.run(cluster, &wanted).await?;
            note_fault(figures, &run);
            figures.burst_ms = run["elapsed_ms"].as_f64();
        }
        if fence.is_none() && self.wants(Measure::Kill) {
            for trial in 1..=self.trials() {
                self.say(&format!("the holder is killed, {trial} of {}", self.trials()));
                let wanted = json!({"stock": 60, "requests": 100, "guard": name, "fence": true, "fault": "kill"});
                let run = self.run(cluster, &wanted).await?;
                note_fault(figures, &run);
                slowest(&mut figures.sale_with_kill_ms, &run);
                self.revive(cluster).await?;
            }
        }
        if self.wants(Measure::Pause) {
            // a lock without tokens has the store's fence by default: that is measured once
            let is_repeated = figures.paused.iter().any(|paused| paused.fence == fence_name);
            let fences = match fence {
                None => vec![(true, fence_name), (false, "none")],
                Some(_) if is_repeated => Vec::new(),
                Some(_) => vec![(true, fence_name)],
            };
            for (is_fenced, fence) in fences {
                let mut paused = Paused { fence, trials: 0, oversold: 0, most_units: 0 };
                for trial in 1..=self.trials() {
                    self.say(&format!(
                        "the holder is paused, fence: {fence}, {trial} of {}",
                        self.trials()
                    ));
                    let wanted = json!({"stock": 60, "requests": 100, "guard": name, "fence": is_fenced, "fault": "pause"});
                    let run = self.run(cluster, &wanted).await?;
                    let units = run["verdict"]["oversold"].as_u64().unwrap_or(0);
                    paused.trials += 1;
                    paused.oversold += u32::from(units > 0);
                    paused.most_units = paused.most_units.max(units);
                    if is_fenced {
                        note_fault(figures, &run);
                        slowest(&mut figures.sale_with_pause_ms, &run);
                    }
                }
                figures.paused.push(paused);
            }
        }
        Ok(())
    }

    /// Carries out a run from the first instance, and returns it with its verdict.
    async fn run(&self, cluster: &Cluster, wanted: &Value) -> Result<Value, LabError> {
        let port = cluster.instances[0].port;
        let no_run = LabError::system("a run cannot be started or looked at");
        let ended = async {
            let (status, answer) =
                probe::http(Method::POST, port, "/demo/run", wanted.to_string()).await?;
            if status != StatusCode::ACCEPTED {
                return Err(io::Error::other(answer));
            }
            loop {
                let (_, answer) =
                    probe::http(Method::GET, port, "/demo/run", String::new()).await?;
                let run: Value = serde_json::from_str(&answer)?;
                if run["state"] == "done" || run["state"] == "failed" {
                    return Ok(run);
                }
                sleep(LOOK_EVERY).await;
            }
        };
        let ended = timeout(LONGEST_RUN, ended).await;
        ended.unwrap_or_else(|elapsed| Err(elapsed.into())).map_err(no_run)
    }

    /// Starts the second instance again, which was killed.
    async fn revive(&self, cluster: &mut Cluster) -> Result<(), LabError> {
        let Cluster { instances, program, dir, .. } = cluster;
        let ended = instances[1].child.wait().await;
        ended.map_err(LabError::system("an instance does not end"))?;
        instances[1].start_again(program, dir).await?;
        instances[1].until_ready().await
    }
}

/// A run that did not end well, though the lock and the fence were there.
fn note_fault(figures: &mut Figures, run: &Value) {
    if run["verdict"]["pass"] != true {
        let what = run["verdict"]["text"].as_str().or(run["error"].as_str());
        figures.faults.push(what.unwrap_or("a run without a verdict").to_owned());
    }
}

fn slowest(longest: &mut Option<f64>, run: &Value) {
    let millis = run["elapsed_ms"].as_f64().unwrap_or_default();
    *longest = Some(longest.map_or(millis, |longest| longest.max(millis)));
}

/// Two sessions take turns. Returns the time of each handover in milliseconds.
async fn take_turns<T: GrantToken>(
    sessions: &[Session<T>],
    turns: usize,
) -> Result<Vec<f64>, LabError> {
    // who released last, and when
    let released = Arc::new(Mutex::new((0, None::<Instant>)));
    let mut takers = JoinSet::new();
    for (taker, session) in sessions.iter().enumerate() {
        let (mutex, released) = (session.mutex("arena-turns")?, Arc::clone(&released));
        takers.spawn(async move {
            let mut millis = Vec::new();
            for _ in 0..turns {
                let guard = mutex.lock().await?;
                let granted_at = Instant::now();
                let last = *released.lock().unwrap_or_else(PoisonError::into_inner);
                if let (from, Some(released_at)) = last
                    && from != taker
                {
                    millis.push((granted_at - released_at).as_secs_f64() * 1e3);
                }
                *released.lock().unwrap_or_else(PoisonError::into_inner) =
                    (taker, Some(Instant::now()));
                guard.unlock().await?;
            }
            Ok::<_, LabError>(millis)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = takers.join_next().await {
        all.extend(ended.map_err(|error| LabError::System {
            what: "a session ended early",
            source: error.into(),
        })??);
    }
    Ok(all)
}

/// How many of these waiters, which come one after the other, are served after one that came later.
async fn overtaken<T: GrantToken>(
    sessions: &[Session<T>],
    count: usize,
    is_seen: bool,
) -> Result<usize, LabError> {
    const NAME: &str = "arena-fairness";
    let holder = sessions[0].mutex(NAME)?.lock().await?;
    let looking = sessions[0].mutex(NAME)?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for number in 0..count {
        let mutex = sessions[number % sessions.len()].mutex(NAME)?;
        let served = Arc::clone(&served);
        waiters.spawn(async move {
            let guard = mutex.lock().await?;
            served.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            guard.unlock().await
        });
        if is_seen {
            while looking.queue().await?.len() < number + 2 {
                sleep(Duration::from_millis(1)).await;
            }
        } else {
            sleep(UNSEEN).await;
        }
    }
    holder.unlock().await?;
    while let Some(ended) = waiters.join_next().await {
        ended.map_err(|error| LabError::System {
            what: "a waiter ended early",
            source: error.into(),
        })??;
    }
    let served = served.lock().unwrap_or_else(PoisonError::into_inner);
    let is_late =
        |(place, number): (usize, &usize)| served[..place].iter().any(|other| other > number);
    Ok(served.iter().enumerate().filter(|served| is_late(*served)).count())
}

fn in_words(Promises { order, wake, token, ends, loss, .. }: Promises) -> String {
    let token = match token {
        fenced_lock::TokenLife::None => "no token".to_owned(),
        life => format!("{life:?} token"),
    };
    format!("{order:?}, {wake:?}, {token}, ends with {ends:?}, loss {loss:?}")
}

fn tables(all: &[Figures]) -> String {
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), figure);
    let seconds = |millis: Option<f64>| or_dash(millis.map(|millis| millis / 1e3));
    let mut text = String::from("## Locks\n\n");
    // writing to a string cannot fail
    let _ = writeln!(
        text,
        "{}",
        rows(
            ["lock", "promises"],
            all.iter().map(|one| [one.lock.to_owned(), one.promises.clone()])
        )
    );
    text += "## Speed and fairness\n\n";
    let head = [
        "lock",
        "handover p50 ms",
        "p99 ms",
        "overtaken",
        "500 buyers, 300 units: ms",
        "sale with a kill, s",
        "with a pause, s",
    ];
    let speed = all.iter().map(|one| {
        [
            one.lock.to_owned(),
            or_dash(one.handover_p50_ms),
            or_dash(one.handover_p99_ms),
            one.overtaken.map_or("-".to_owned(), |count| format!("{count} of {}", one.waiters)),
            or_dash(one.burst_ms),
            seconds(one.sale_with_kill_ms),
            seconds(one.sale_with_pause_ms),
        ]
    });
    let _ = writeln!(text, "{}", rows(head, speed));
    text += "## Oversold while the holder is paused\n\n";
    let head = [
        "lock",
        "fence",
        "trials",
        "oversold in",
        "most units",
        "share of pauses that oversell, at 95 %",
    ];
    let paused = all.iter().flat_map(|one| {
        one.paused.iter().map(|paused| {
            [
                one.lock.to_owned(),
                paused.fence.to_owned(),
                paused.trials.to_string(),
                paused.oversold.to_string(),
                paused.most_units.to_string(),
                bound(paused),
            ]
        })
    });
    let _ = writeln!(text, "{}", rows(head, paused));
    for one in all {
        for fault in &one.faults {
            let _ = writeln!(text, "FAULT under {}: {fault}", one.lock);
        }
    }
    text
}

/// What the trials say: none of n is no proof, but at most 3/n (the rule of three).
fn bound(Paused { trials, oversold, .. }: &Paused) -> String {
    if *oversold > 0 {
        return format!("{oversold} of {trials}");
    }
    format!("at most {}", figure((3.0 / f64::from(*trials)).min(1.0)))
}

fn write(options: &ArenaOptions, all: &[Figures]) -> io::Result<()> {
    std::fs::write(options.out.join("tables.md"), tables(all))?;
    std::fs::write(options.out.join("results.json"), serde_json::to_vec_pretty(all)?)
}
