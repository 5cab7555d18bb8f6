//! Watches the processes of a demo while it serves.

use std::convert::Infallible;
use std::fmt::Display;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::future::join_all;
use testkit::OwnedDir;
use testkit::cluster::{self, Cluster, Instance};
use tokio::time::sleep;

use super::screen::{YELLOW, paragraph};

/// How long a killed instance stays away: longer than its lease lives, so that a viewer sees the claim expire and the next claim
/// being served.
const RESTART_PAUSE: Duration = Duration::from_secs(6);

const SIGKILL: i32 = 9;

/// Reports each process that ends, and restarts a killed instance after a while. Never returns: only the user ends the demo, even
/// if all processes have ended.
pub(super) async fn supervise(cluster: &mut Cluster) -> Infallible {
    let Cluster { instances, redis, etcd, dir, program, .. } = cluster;
    let etcd = etcd.iter_mut().map(|etcd| ("etcd", etcd.child()));
    let servers = etcd.chain([("Redis", redis.child())]);
    let servers =
        servers.map(|(name, child)| async move { report(&ended(name, child.wait().await)) });
    let instances = instances.iter_mut().map(|one| keep_alive(one, program, dir));
    tokio::join!(join_all(servers), join_all(instances));
    std::future::pending().await
}

fn report(text: &str) {
    paragraph(YELLOW, "note  ", text);
}

fn ended<E: Display>(name: &str, status: Result<ExitStatus, E>) -> String {
    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    format!("{name} has ended ({how}); the demo goes on without it.")
}

/// Restarts an instance each time that SIGKILL, which the page can send, has ended it. Returns when it ends in another way.
async fn keep_alive(instance: &mut Instance, program: &Path, dir: &OwnedDir) {
    let name = cluster::title(instance.port);
    loop {
        let status = instance.child.wait().await;
        if status.as_ref().ok().and_then(ExitStatusExt::signal) != Some(SIGKILL) {
            return report(&ended(&name, status));
        }
        let pause = RESTART_PAUSE.as_secs();
        report(&format!("{name} has ended (it was killed); it is started again in {pause} s."));
        sleep(RESTART_PAUSE).await;
        if let Err(error) = instance.start_again(program, dir).await {
            return report(&ended(&name, Err(error)));
        }
        report(&format!("{name} answers again."));
    }
}
