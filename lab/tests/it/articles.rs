//! The locks of well-known articles: what goes wrong under each, and not under ours.

use lab::articles::{Server, shown, table};

/// Tells all stories of this server once.
async fn all_flaws_of(server: Server) {
    // a server that is not installed is named on stderr
    let Some(all) = shown(server, &[], 1).await.unwrap() else { return };
    let said = table(&all);
    assert!(!all.is_empty());
    for flaw in &all {
        assert_eq!(flaw.wrong(), [1, 0], "{}: {}\n{said}", flaw.lock, flaw.flaw);
    }
}

/// Goal: each flaw of the locks on Redis is shown by the article's lock, and not by ours.
#[tokio::test]
async fn redis() {
    all_flaws_of(Server::Redis).await;
}

/// Goal: so is each flaw of the lock on ZooKeeper.
#[tokio::test]
async fn zookeeper() {
    all_flaws_of(Server::ZooKeeper).await;
}

/// Goal: so is each flaw of the locks in a database.
#[tokio::test]
async fn database() {
    all_flaws_of(Server::Database).await;
}

/// Goal: so is each flaw of the locks on etcd.
#[tokio::test]
async fn etcd() {
    all_flaws_of(Server::Etcd).await;
}
