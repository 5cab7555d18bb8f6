//! The locks of well-known articles: what goes wrong under each, and not under ours.

use lab::articles::{NotGranted, Redlock, Server, shown, table};
use testkit::{PrivateRedis, RedisOptions};

const FENCED: &str = "1 of 1 sold: two holders at once, and the fence refuses one";

/// Tells all stories of this server once. Under ours they end with one unit sold, except these, which end so.
async fn all_flaws_of(server: Server, otherwise: &[(&str, &str)]) {
    // a server that is not installed is named on stderr
    let Some(all) = shown(server, &[], 1).await.unwrap() else { return };
    let said = table(&all);
    assert!(!all.is_empty());
    for flaw in &all {
        let [[article, ours]] = &*flaw.trials else { panic!("one trial") };
        assert!(article.is_wrong(), "{}: {}\n{said}", flaw.lock, flaw.flaw);
        let ending = otherwise.iter().find(|(what, _)| *what == flaw.flaw);
        let ending = ending.map_or("1 of 1 sold", |(_, ending)| ending);
        assert_eq!(ours.to_string(), ending, "{}: {}", flaw.lock, flaw.flaw);
    }
}

/// Goal: each flaw of the locks on Redis is shown by the article's lock, and not by ours: after a failover our sale stops.
#[tokio::test]
async fn redis() {
    let stopped = "2 of 3 sold, and nobody can buy: \
                   the fence refuses the new cluster until an operator decides";
    let otherwise = [
        ("the holder is paused past the TTL", FENCED),
        ("a replica takes over before it has the lock", stopped),
        ("the clock of a node jumps", FENCED),
        ("a node without persistence is started again", FENCED),
    ];
    all_flaws_of(Server::Redis, &otherwise).await;
}

/// Goal: so is each flaw of the lock on ZooKeeper.
#[tokio::test]
async fn zookeeper() {
    let otherwise = [("the session is lost, and the holder is not told", FENCED)];
    all_flaws_of(Server::ZooKeeper, &otherwise).await;
}

/// Goal: so is each flaw of the locks in a database.
#[tokio::test]
async fn database() {
    all_flaws_of(Server::Database, &[]).await;
}

/// Goal: so is each flaw of the locks on etcd.
#[tokio::test]
async fn etcd() {
    all_flaws_of(Server::Etcd, &[]).await;
}

/// Goal: Redlock as redsync has it tells a lock that is taken from nodes that do not answer, and can be extended while
/// most nodes have it.
#[tokio::test]
async fn redlock_says_why_it_is_not_granted() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(PrivateRedis::start(RedisOptions::default()).await.unwrap());
    }
    let urls: Vec<_> = nodes.iter().map(PrivateRedis::url).collect();
    let mut one = Redlock::new(&urls, "a", Redlock::EXPIRY).unwrap();
    let mut other = Redlock::new(&urls, "a", Redlock::EXPIRY).unwrap();
    one.try_lock().await.unwrap();
    let granted_until = one.until().unwrap();
    let taken = other.try_lock().await.unwrap_err();
    assert!(matches!(&taken, NotGranted::Taken { nodes } if *nodes == [0, 1, 2]), "{taken}");
    assert!(one.extend().await && one.until().unwrap() > granted_until);
    assert!(!other.extend().await && other.until().is_none());
    assert!(one.unlock().await && one.until().is_none());

    one.try_lock().await.unwrap();
    for node in &mut nodes[1..] {
        node.kill().await.unwrap();
    }
    assert!(!one.extend().await && one.until().is_none());
    let failed = other.try_lock().await.unwrap_err();
    let NotGranted::Failed { errors } = &failed else { panic!("{failed}") };
    assert_eq!(errors.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [1, 2]);
}
