//! Fencing tokens.

use std::fmt;

/// The identity of the cluster that numbered a [`Token`], so that a store can tell tokens of one
/// cluster from those of another: a new cluster behind an old address, say. A copy of a cluster has
/// the identity of the original, so a backup must be restored with revisions that are larger than any
/// before (`etcdutl snapshot restore --bump-revision`).
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

/// Only tokens of one cluster can be compared: between clusters, neither is the later.
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
