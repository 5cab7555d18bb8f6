//! The requests that change or read a queue.

use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, LeaseGrantOptions, PutOptions,
    SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::failure::{gone, malformed, within};
use super::standing_watch::{delete_if_exists, list_options};
use super::{EtcdBackend, keys, token};
use crate::lock::{BackendError, BackendErrorKind, Claim, ClusterId, Lease, Place, QueueEntry};

impl EtcdBackend {
    pub(super) async fn grant_lease(&self, ttl: Duration) -> Result<Lease, BackendError> {
        // whole seconds, rounded up: a lease that is shorter than asked for would surprise
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1))
            .map_err(|error| BackendError::new(BackendErrorKind::Permanent, error))?;
        let mut client = self.client().await?;
        let options = LeaseGrantOptions::new();
        let granted = within(self.limit(), client.lease_grant(seconds, Some(options))).await?;
        let ttl = u64::try_from(granted.ttl()).map_err(|_| malformed("a lease without a TTL"))?;
        let header = granted.header().ok_or_else(|| malformed("an answer without a header"))?;
        self.queues.add_lease(granted.id());
        Ok(Lease {
            id: granted.id(),
            ttl: Duration::from_secs(ttl),
            cluster: ClusterId(header.cluster_id()),
        })
    }

    pub(super) async fn revoke_lease(&self, lease: Lease) -> Result<(), BackendError> {
        self.keep_alives.forget(lease.id);
        let mut client = self.client().await?;
        let revoked = within(self.limit(), client.lease_revoke(lease.id)).await;
        self.queues.remove_lease(lease.id);
        match revoked {
            Err(error) if error.kind != BackendErrorKind::Gone => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts `claim` into the queue if it is not there yet, and takes `held` out, in one transaction
    /// that may be repeated. It reads the first key as well, so that an uncontended lock costs one
    /// round trip.
    pub(super) async fn put_claim(
        &self,
        claim: &Claim,
        held: Option<&Claim>,
    ) -> Result<Place, BackendError> {
        let connection = self.connection().await?;
        let key = claim.key();
        let (status, is_new_name) =
            self.queues.with_or_new(&claim.name, |queue| queue.expect(key.clone()));
        if is_new_name {
            // an error means that the backend's thread has ended, which the request will tell
            drop(connection.new_names.send(claim.name.clone()));
        }
        let mut client = connection.client.clone();
        let request = client.txn(self.put_if_absent(claim, &key, held));
        let response = within(self.limit(), request).await?;
        let answers = Ranges::of(&response);
        let own = answers.find(&key).map(KeyValue::create_revision);
        let revision = own.ok_or_else(|| gone("the claim that was to be handed over is gone"))?;
        if let Some(held) = held {
            self.queues.with(&held.name, |queue| queue.released(&held.key()));
        }
        let is_first = self.is_first(claim, &key, &answers).await;
        self.queues.with(&claim.name, |queue| queue.enqueued(&key, revision, is_first));
        Ok(Place { token: token(response.header(), revision)?, status })
    }

    fn put_if_absent(&self, claim: &Claim, key: &str, held: Option<&Claim>) -> Txn {
        let mut conditions = vec![Compare::create_revision(key, CompareOp::Equal, 0)];
        let mut changes = Vec::new();
        if let Some(held) = held {
            conditions.push(self.is_held(held));
            changes.push(TxnOp::delete(held.key(), None));
        }
        changes.push(TxnOp::put(
            key,
            keys::value(claim),
            Some(PutOptions::new().with_lease(claim.lease)),
        ));
        let reads = [TxnOp::get(key, None), first_of(&claim.name)];
        changes.extend(reads.clone());
        // what was there already, from a request whose answer got lost; or nothing, if the claim that
        // was to be handed over is gone
        Txn::new().when(conditions).and_then(changes).or_else(reads)
    }

    /// The condition that a claim is still the one that was made, and not merely of the same name.
    fn is_held(&self, claim: &Claim) -> Compare {
        let key = claim.key();
        match self.queues.with(&claim.name, |queue| queue.revision_of(&key)).flatten() {
            Some(revision) => Compare::create_revision(key, CompareOp::Equal, revision),
            None => Compare::create_revision(key, CompareOp::Greater, 0),
        }
    }

    /// Whether the claim is the first in its queue.
    async fn is_first(&self, claim: &Claim, key: &str, answers: &Ranges) -> bool {
        let prefix = keys::prefix(&claim.name);
        match answers.last() {
            Some(first) if keys::is_claim(first.key(), &prefix) => first.key() == key.as_bytes(),
            // a key of a lock with a longer name stands first: only the whole queue can tell. If it
            // cannot be read now, the watch will.
            Some(_) => {
                let queue = self.read_queue(&claim.name).await.unwrap_or_default();
                queue.first().is_some_and(|first| first.key == key)
            }
            None => false,
        }
    }

    pub(super) async fn delete_claim(&self, claim: &Claim) -> Result<(), BackendError> {
        let mut client = self.client().await?;
        let key = claim.key();
        let known = self.queues.with(&claim.name, |queue| queue.revision_of(&key)).flatten();
        let delete = match known {
            Some(_) => {
                Txn::new().when([self.is_held(claim)]).and_then([TxnOp::delete(key.clone(), None)])
            }
            None => delete_if_exists(&key),
        };
        within(self.limit(), client.txn(delete)).await?;
        self.queues.with(&claim.name, |queue| queue.released(&key));
        Ok(())
    }

    pub(super) async fn read_queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let mut client = self.client().await?;
        let prefix = keys::prefix(name);
        let request = client.get(prefix.clone(), Some(list_options()));
        let response = within(self.limit(), request).await?;
        let claims = response.kvs().iter().filter(|kv| keys::is_claim(kv.key(), &prefix));
        let entry = |kv: &KeyValue| {
            let (label, age) = keys::parse_value(kv.value()).unzip();
            Ok(QueueEntry {
                token: token(response.header(), kv.create_revision())?,
                lease: kv.lease(),
                key: String::from_utf8_lossy(kv.key()).into_owned(),
                label,
                age,
            })
        };
        claims.map(entry).collect()
    }
}

fn first_of(name: &str) -> TxnOp {
    let first = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1)
        .with_keys_only();
    TxnOp::get(keys::prefix(name), Some(first))
}

/// What the reads of a transaction found.
struct Ranges(Vec<GetResponse>);

impl Ranges {
    fn of(response: &TxnResponse) -> Self {
        let ranges = response.op_responses().into_iter().filter_map(|answer| match answer {
            TxnOpResponse::Get(range) => Some(range),
            _ => None,
        });
        Self(ranges.collect())
    }

    fn find(&self, key: &str) -> Option<&KeyValue> {
        self.0.iter().flat_map(GetResponse::kvs).find(|kv| kv.key() == key.as_bytes())
    }

    fn last(&self) -> Option<&KeyValue> {
        self.0.last().and_then(|range| range.kvs().first())
    }
}
