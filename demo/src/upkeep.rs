//! Watches the processes of a demo while it serves.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::future::join_all;
use testkit::OwnedDir;
use tokio::time::sleep;

use crate::cluster::{self, Cluster, Instance};

/// How long a killed instance stays away: longer than its lease lives, so that a viewer sees its claim expire
/// and the next one be served.
pub(super) const RESTART_PAUSE: Duration = Duration::from_secs(6);

const SIGKILL: i32 = 9;

/// Reports each process that ends, and restarts a killed instance after a while. Never returns: the user ends
/// the demo, even if all processes have ended.
pub(super) async fn look_after(
    cluster: &mut Cluster,
    report: impl Fn(&str, End<'_>),
) -> Infallible {
    let Cluster { instances, redis, etcd, lock, dir, program, .. } = cluster;
    let report = &report;
    let etcd = etcd.iter_mut().map(|etcd| ("etcd", etcd.child()));
    let servers = etcd.chain([("Redis", redis.child())]).chain(lock.children());
    let servers = servers.map(|(name, child)| async move {
        let status = child.wait().await;
        report(name, End::Ended(&status));
    });
    let instances = instances.iter_mut().map(|one| keep_alive(one, program, dir, report));
    tokio::join!(join_all(servers), join_all(instances));
    std::future::pending().await
}

/// News of a process.
#[derive(Clone, Copy)]
pub(super) enum End<'a> {
    /// It has ended.
    Ended(&'a io::Result<ExitStatus>),
    /// It was killed, and will be started again.
    Killed,
    /// It was started again.
    Back,
}

/// Restarts an instance until it ends in another way than by SIGKILL, which the page can send.
async fn keep_alive(
    instance: &mut Instance,
    program: &Path,
    dir: &OwnedDir,
    report: &impl Fn(&str, End<'_>),
) {
    let name = cluster::title(instance.port);
    loop {
        let status = tokio::select! {
            status = instance.child.wait() => status,
            () = instance.to_be_killed.notified() => instance.child.kill().await,
        };
        let signal = status.as_ref().ok().and_then(ExitStatusExt::signal);
        if signal != Some(SIGKILL) {
            return report(&name, End::Ended(&status));
        }
        report(&name, End::Killed);
        sleep(RESTART_PAUSE).await;
        if let Err(error) = instance.start_again(program, dir).await {
            return report(&name, End::Ended(&Err(io::Error::other(error))));
        }
        report(&name, End::Back);
    }
}
