//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

/// The identity of the cluster that numbered a [`Token`]. A store needs it to tell tokens of one cluster from those of another,
/// such as a new cluster behind an old address. etcd derives it from the peer URLs and `--initial-cluster-token`, so give each
/// new cluster its own such token. A copy of a cluster has the identity of the original, so a backup must be restored with larger
/// revisions than any before (`etcdutl snapshot restore --bump-revision`).
///
/// Its text is a number in hexadecimal, as `etcdctl` prints it. [`FromStr`] reads it, and with the feature `serde` it is stored
/// as this text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// A fencing token: a number that comes with every grant of a lock, larger for a later grant of the same cluster.
///
/// A holder that was paused does not know that its lease ran out and that another process holds the lock. Therefore every write
/// to the data that the lock protects carries the token, and the store refuses a token smaller than one that it has already seen.
/// The idea is from Burrows, "The Chubby lock service" (OSDI 2006, section 2.4, where it is called a sequencer); the name is
/// Kleppmann's, "How to do distributed locking" (2016).
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
/// **S3**: read the object with its `ETag`. If its metadata has a larger token, stop. Otherwise put the object with `If-Match` (a
/// new object: `If-None-Match: *`) and the token in its metadata. After status 412, read again.
///
/// **REST**: send both numbers in headers. The service makes the token with [`Token::new`], checks it in its own store,
/// and answers 409 if the store refuses it.
///
/// **Redis**: see `examples/fenced_redis.rs`.
///
/// # As text
///
/// `REVISION@CLUSTER`, since the numbers of two clusters cannot be compared. [`FromStr`] reads it back. With the feature `serde`,
/// a token is stored as this text, which no format rounds.
///
/// ```
/// use fenced_lock::{ClusterId, Token};
///
/// let token = Token::new(ClusterId(0xcdf8_1819), 17);
/// assert_eq!(token.to_string(), "17@cdf81819");
/// assert_eq!("17@cdf81819".parse(), Ok(token));
/// ```
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

    /// The cluster that numbered this token.
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
        write!(f, "{}@{}", self.revision, self.cluster)
    }
}

/// A text that should be a [`Token`] or [`ClusterId`] and is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no token or cluster")]
pub struct ParseTokenError(String);

impl FromStr for ClusterId {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        exactly(text, u64::from_str_radix(text, 16).ok().map(Self))
    }
}

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let read = text.split_once('@').and_then(|(revision, cluster)| {
            Some(Self::new(cluster.parse().ok()?, revision.parse().ok()?))
        });
        exactly(text, read)
    }
}

/// Returns `read` if its text is `text`, so that two tokens are equal if and only if their texts are.
fn exactly<T: fmt::Display>(text: &str, read: Option<T>) -> Result<T, ParseTokenError> {
    let read = read.filter(|read| read.to_string() == text);
    read.ok_or_else(|| ParseTokenError(text.to_owned()))
}

#[cfg(feature = "serde")]
macro_rules! as_text {
    ($($type:ty)*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

#[cfg(feature = "serde")]
as_text!(ClusterId Token);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a token that was stored as text is the same when it is read back, and no other text is one.
    #[test]
    fn a_token_is_read_back() {
        for (cluster, revision) in [(0, 0), (1, -1), (u64::MAX, i64::MAX), (0xabc, i64::MIN)] {
            let token = Token::new(ClusterId(cluster), revision);
            assert_eq!(token.to_string().parse(), Ok(token));
            assert_eq!(token.cluster().to_string().parse(), Ok(token.cluster()));
            #[cfg(feature = "serde")]
            {
                let json = serde_json::to_string(&(token, token.cluster())).expect("two texts");
                assert_eq!(json, format!("[\"{token}\",\"{}\"]", token.cluster()));
                assert_eq!(serde_json::from_str(&json).ok(), Some((token, token.cluster())));
                assert_eq!(serde_json::from_str::<Token>("17").ok(), None);
            }
        }
        for text in
            ["", "1", "@", "1@", "@1", "1@g", "+1@1", "01@1", "1@01", "1@A", "1@1 ", "1@1@1"]
        {
            assert_eq!(text.parse::<Token>(), Err(ParseTokenError(text.to_owned())));
        }
    }
}
