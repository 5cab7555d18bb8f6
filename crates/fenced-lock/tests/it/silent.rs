//! Servers that accept connections and stay silent, or drop the packets of new ones.

use std::sync::Arc;

use fenced_lock::{
    EtcdBackend, EtcdOptions, GrantToken, PostgresOptions, RedisBackend, RedisOptions,
    RedlockBackend, Session, SessionOptions, ZooKeeperBackend, ZooKeeperOptions,
};
use testkit::shared::shared_endpoint;
use testkit::wait::within;
use testkit::{OwnedDir, PrivateRedis, RedisOptions as ServerOptions};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::lab::{HOUR, LONG, TTL};
use super::postgres::{KINDS, fresh_database};
use super::redlock::RedlockLab;
use super::zookeeper::ZooKeeperLab;

async fn works<T: GrantToken>(
    what: &str,
    session: impl Future<Output = Result<Session<T>, fenced_lock::LockError>>,
) {
    let session = within(what, session).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let guard = within(what, session.mutex("behind-silence").unwrap().lock()).await.unwrap();
    guard.unlock().await.unwrap();
}

/// Goal: a silent server does not keep a client from the servers listed after it, as in asyncpg#1155 and pgconn#125. Method: the
/// first of the addresses accepts connections that nobody reads, or drops the packets of new ones; each backend opens a session
/// at its first attempt, with its usual limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_hides_no_other() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(1).unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = timeout(TTL / 4, TcpStream::connect(full.local_addr().unwrap())).await
    {
        waiting.push(connected.unwrap());
        assert!(waiting.len() < 10, "its queue is full");
    }
    let redis = PrivateRedis::start(ServerOptions::default()).await.unwrap();
    let sentinel = async || redis.start_sentinel_in(&OwnedDir::create().unwrap()).await.unwrap();
    let sentinels = [sentinel().await, sentinel().await];
    let redlock = RedlockLab::shared().await;
    for silent in [silent.local_addr().unwrap(), full.local_addr().unwrap()] {
        if let Some(url) = fresh_database().await {
            let url = url.replace("127.0.0.1:", &format!("{silent},127.0.0.1:"));
            for kind in KINDS {
                works(&format!("{kind:?}"), kind.open(&PostgresOptions::new(&url), HOUR)).await;
            }
        }
        let at = EtcdOptions::new([format!("http://{silent}"), shared_endpoint().await]);
        let etcd = Arc::new(EtcdBackend::new(at).unwrap());
        works("etcd", Session::open(etcd, SessionOptions::new(LONG))).await;

        let [first, second] = sentinels.each_ref().map(PrivateRedis::port);
        let url = format!("redis-sentinel://{silent},127.0.0.1:{first},127.0.0.1:{second}#sale");
        let redis = Arc::new(RedisBackend::new(RedisOptions::new(url)).unwrap());
        works("Sentinel", Session::open(redis, SessionOptions::new(LONG))).await;

        let urls = redlock.urls();
        let nodes = [format!("redis://{silent}"), urls[0].clone(), urls[1].clone()];
        let nodes = Arc::new(RedlockBackend::new(nodes.map(RedisOptions::new)).unwrap());
        works("Redlock", Session::open(nodes, SessionOptions::new(LONG))).await;

        if let Some(lab) = ZooKeeperLab::shared().await {
            let servers = format!("{silent},{}", lab.options.servers);
            let servers = ZooKeeperBackend::new(ZooKeeperOptions::new(servers)).unwrap();
            works("ZooKeeper", Session::open(Arc::new(servers), SessionOptions::new(LONG))).await;
        }
    }
}
