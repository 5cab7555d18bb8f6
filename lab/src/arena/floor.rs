//! The servers of a lock, the ways to them, and what they count.

use std::path::PathBuf;
use std::time::Duration;

use fenced_lock::{LockError, Promises};
use futures_util::future::join_all;
use hyper::Method;
use testkit::{OwnedDir, Proxy, probe};

use super::seat::{self, Seat};
use super::set_nx;
use crate::error::LabError;
use demo::baselines::LockMode;
use demo::locks::{AnyLock, LockServers, proxy_to};

/// The private servers of a lock.
pub(super) struct Floor {
    pub(super) lock: LockMode,
    pub(super) servers: LockServers,
    pub(super) dir: OwnedDir,
}

impl Floor {
    /// Starts them. `members` counts for etcd and ZooKeeper only.
    pub(super) async fn start(
        lock: LockMode,
        members: usize,
        parent: &OwnedDir,
    ) -> Result<Self, LabError> {
        let dir = OwnedDir::create_in(parent)
            .map_err(LabError::system("no temporary directory could be made"))?;
        let servers = LockServers::start_members(lock, members, &dir).await?;
        Ok(Self { lock, servers, dir })
    }

    /// A way of its own to each server, and where the ways begin. None for a lock without servers.
    pub(super) async fn ways(&self) -> Result<(Vec<Proxy>, Vec<String>), LabError> {
        let (mut proxies, mut addresses) = (Vec::new(), Vec::new());
        for address in self.servers.addresses() {
            let Some(port) = port_of(&address) else {
                addresses.push(address);
                continue;
            };
            let proxy = proxy_to(port).await?;
            addresses.push(address.replace(&format!(":{port}"), &format!(":{}", proxy.port())));
            proxies.push(proxy);
        }
        Ok((proxies, addresses))
    }

    /// A session, as a process of its own would have one.
    pub(super) async fn seat(
        &self,
        addresses: &[String],
        ttl: Duration,
    ) -> Result<Box<dyn Seat>, LabError> {
        seat::open(self.lock, addresses, ttl).await
    }

    /// What the lock promises.
    pub(super) fn promises(&self) -> Result<Promises, LabError> {
        if self.lock == LockMode::RedisSetNx {
            return Ok(set_nx::PROMISES);
        }
        let lock = AnyLock::at(self.lock, &self.servers.addresses()).map_err(LockError::from)?;
        Ok(lock.promises())
    }

    /// Makes the servers count requests, if they do not by themselves. Ends their connections.
    pub(super) async fn count_requests(&mut self) -> Result<(), LabError> {
        if let LockServers::Postgres(server) = &mut self.servers {
            let failed = LabError::system("PostgreSQL cannot count requests");
            let load = "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'";
            server.run(load).await.map_err(&failed)?;
            server.restart().await?;
            server.run("CREATE EXTENSION pg_stat_statements").await.map_err(failed)?;
        }
        Ok(())
    }

    /// How many requests the servers have got so far by their own counters; `None` without such a counter. It
    /// includes the questions that are asked here, the same number each time.
    ///
    /// - Redis: calls of scripts. Each request of these locks is one; the commands in them are not counted. The
    ///   plainest lock has `SET` as well.
    /// - etcd: messages from its clients, also those on open streams.
    /// - PostgreSQL: statements.
    /// - ZooKeeper: packets.
    pub(super) async fn requests(&self) -> Option<u64> {
        let mut sum = None;
        let mut add = |count: Option<u64>| {
            if let Some(count) = count {
                *sum.get_or_insert(0) += count;
            }
        };
        match &self.servers {
            LockServers::None(_) => {}
            LockServers::Etcd(members) => {
                for member in members {
                    let metrics = probe::http(Method::GET, member.port(), "/metrics", "").await;
                    let metrics = metrics.ok()?.1;
                    let lines = metrics.lines();
                    let lines = lines.filter(|line| line.starts_with("grpc_server_msg_received"));
                    // a number of Prometheus, maybe written as 1.5e+06
                    lines.for_each(|line| add(number(line.rsplit(' ').next())));
                }
            }
            LockServers::Redis(nodes) => {
                for node in nodes {
                    let info = probe::redis(node.port(), "INFO commandstats").await.ok()?;
                    let calls = |command: &str| {
                        let calls = info.split(&format!("cmdstat_{command}:calls=")).nth(1);
                        number(calls.unwrap_or("0").split([',', '\r', '\n']).next())
                    };
                    add(calls("evalsha"));
                    if self.lock == LockMode::RedisSetNx {
                        add(calls("set"));
                    }
                }
            }
            LockServers::Postgres(server) => {
                let calls = "SELECT sum(calls) FROM pg_stat_statements";
                add(number(Some(&server.run(calls).await.ok()?)));
            }
            LockServers::ZooKeeper(members) => {
                for member in members {
                    let state = probe::zookeeper(member.port(), "mntr").await.ok()?;
                    add(field(&state, "zk_packets_received"));
                }
            }
        }
        sum
    }

    /// Stops them and removes their files.
    pub(super) async fn stop(self) -> Result<(), LabError> {
        let Self { mut servers, dir, .. } = self;
        let stops = servers.children().into_iter().map(|(_, server)| server.stop());
        let stopped: Result<Vec<_>, _> = join_all(stops).await.into_iter().collect();
        stopped.map_err(LabError::system("a server does not stop"))?;
        let removed = servers.remove().await.and(dir.remove().await);
        removed.map_err(LabError::system("a directory cannot be removed"))
    }
}

/// The port in an address of a server.
fn port_of(address: &str) -> Option<u16> {
    let rest = address.rsplit_once(':')?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    number(text.lines().find_map(|line| line.strip_prefix(name)))
}

/// A count.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count is no fraction"
)]
fn number(text: Option<&str>) -> Option<u64> {
    text?.trim().parse::<f64>().ok().map(|count| count as u64)
}

/// The libraries that fake the wall clock of a program, for `LD_PRELOAD`; `None` if they are not installed. The
/// first one brings its own `malloc`: with jemalloc, as in Debian's Redis, libfaketime does not start.
pub(super) fn fake_clock() -> Option<String> {
    let dirs = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let both = |dir: PathBuf| {
        let all = [dir.join("libc_malloc_debug.so.0"), dir.join("faketime/libfaketime.so.1")];
        let is_there = all.iter().all(|library| library.is_file());
        is_there.then(|| all.map(|library| library.display().to_string()).join(":"))
    };
    dirs.map(both).find_map(|both| both)
}
