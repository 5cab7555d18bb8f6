//! The locks of well-known articles: what goes wrong under each, and not under ours.

use lab::articles::{shown, table};
use testkit::{OwnedDir, PrivateZooKeeper};

const FENCED: &str = "1 of 1 sold: two holders at once, and the fence refuses one";

/// Tells the stories of the locks whose names begin with `locks`; there must be `count` of them. Under our lock a story must end
/// with one unit sold, except for the flaws in `otherwise`, which name their ends.
async fn all_flaws_of(locks: &str, count: usize, otherwise: &[(&str, &str)]) {
    let dir = OwnedDir::create().unwrap();
    let all = shown(&dir, |lock| lock.name().starts_with(locks), 1).await.unwrap();
    let said = table(&all);
    assert_eq!(all.len(), count, "{said}");
    for flaw in &all {
        let [[article, ours]] = &*flaw.trials else { panic!("one trial") };
        assert!(article.is_wrong(), "{:?}: {}\n{said}", flaw.lock, flaw.flaw);
        let ending = otherwise.iter().find(|(what, _)| *what == flaw.flaw);
        let ending = ending.map_or("1 of 1 sold", |(_, ending)| ending);
        assert_eq!(ours.to_string(), ending, "{:?}: {}", flaw.lock, flaw.flaw);
    }
}

/// Goal: each flaw of the locks on Redis harms a sale under the article's lock, and none under ours, which stops after a
/// failover.
#[tokio::test]
async fn redis() {
    let stopped = "2 of 3 sold, and nobody can buy: \
                   the fence refuses the new cluster until an operator decides";
    let otherwise = [
        ("the holder is paused past the TTL", FENCED),
        ("a replica takes over before it has the lock", stopped),
    ];
    all_flaws_of("redis", 6, &otherwise).await;
}

/// Goal: the same for Redlock; and with the store's fence nothing is oversold under ours.
#[tokio::test]
async fn redlock() {
    let otherwise = [
        ("the holder is paused past the TTL", FENCED),
        ("the clock of a node jumps", FENCED),
        ("a node without persistence is started again", FENCED),
    ];
    all_flaws_of("redlock", 3, &otherwise).await;
}

/// Goal: the same for the lock on ZooKeeper.
#[tokio::test]
async fn zookeeper() {
    let otherwise = [("the session is lost, and the holder is not told", FENCED)];
    let count = if PrivateZooKeeper::can_test() { 2 } else { 0 };
    all_flaws_of("zookeeper", count, &otherwise).await;
}

/// Goal: the same for the locks in a database.
#[tokio::test]
async fn database() {
    let count = if testkit::postgres::can_test() { 4 } else { 0 };
    all_flaws_of("database", count, &[]).await;
}

/// Goal: the same for the locks on etcd.
#[tokio::test]
async fn etcd() {
    all_flaws_of("etcd", 3, &[]).await;
}
