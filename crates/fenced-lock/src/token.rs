//! Fencing tokens.

use std::fmt;

/// The identity of the cluster that numbered a [`Token`]. A store needs it to tell tokens of one cluster from those of another,
/// such as a new cluster behind an old address. etcd derives it from the peer URLs and `--initial-cluster-token`, so give each
/// new cluster its own such token. A copy of a cluster has the identity of the original, so a backup must be restored with larger
/// revisions than any before (`etcdutl snapshot restore --bump-revision`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    /// In hexadecimal, as `etcdctl` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// A fencing token: a number that comes with every grant of a lock, larger for a later grant of the
/// same cluster.
///
/// A holder that was paused does not know that its lease ran out and that another process holds the
/// lock by now. So every write to what the lock protects carries the token, and the store refuses a
/// token that is smaller than one it has already seen. The idea is from Burrows, "The Chubby lock
/// service" (OSDI 2006, section 2.4, there called a sequencer); the name is Kleppmann's, "How to do
/// distributed locking" (2016).
///
/// # How a store checks it
///
/// The store keeps the largest token, and compares it in one atomic step with the write. It refuses tokens of another
/// cluster until an operator has made sure that no process uses the old one, and deletes the stored token.
///
/// **SQL**: in each transaction that writes, before it reads. No row: roll back.
///
/// ```sql
/// -- CREATE TABLE fence (name text PRIMARY KEY, cluster text NOT NULL, revision bigint NOT NULL);
/// -- $1: the lock's name, $2: token.cluster().to_string(), $3: token.revision()
/// INSERT INTO fence VALUES ($1, $2, $3)
/// ON CONFLICT (name) DO UPDATE SET revision = excluded.revision
/// WHERE fence.cluster = excluded.cluster AND fence.revision <= excluded.revision
/// RETURNING revision;
/// ```
///
/// **S3**: read the object with its `ETag`. If its metadata has a larger token, stop. Else put it with `If-Match` (a new
/// object: `If-None-Match: *`) and the token in its metadata. After status 412, read again.
///
/// **REST**: send both numbers in headers. The service makes the token with [`Token::new`], checks it in its own store,
/// and answers 409 if the store refuses it.
///
/// **Redis**: see `examples/fenced_redis.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    cluster: ClusterId,
    revision: i64,
}

impl Token {
    /// The token of a grant at `revision` of `cluster`.
    pub const fn new(cluster: ClusterId, revision: i64) -> Self {
        Self { cluster, revision }
    }

    /// Which cluster numbered this token.
    pub const fn cluster(self) -> ClusterId {
        self.cluster
    }

    /// The number itself: with etcd, the `create_revision` of the claim's key.
    pub const fn revision(self) -> i64 {
        self.revision
    }
}

/// Tokens of different clusters cannot be compared: neither is later.
impl PartialOrd for Token {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self.cluster == other.cluster).then(|| self.revision.cmp(&other.revision))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.revision)
    }
}
