//! The requests that change or read a queue.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, ResponseHeader, Txn, TxnOp,
};

use super::failure::{claim_gone, malformed};
use super::ranges::{Ranges, first_of, list_options, member};
use super::{EtcdBackend, keys, token};
use crate::lock::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, ClusterId, Lease, Place, QueueEntry,
};

impl EtcdBackend {
    pub(super) async fn grant_lease(&self, ttl: Duration) -> Result<Lease, BackendError> {
        // whole seconds, rounded up: a lease that is shorter than asked for would surprise
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1))
            .map_err(|error| BackendError::new(BackendErrorKind::Permanent, error))?;
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let granted = self.endpoints.ask(grant).await?;
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
        self.queues.remove_lease(lease.id);
        let revoke = |mut client: Client| async move { client.lease_revoke(lease.id).await };
        match self.endpoints.ask(revoke).await {
            Err(error) if error.kind != BackendErrorKind::LeaseGone => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts `claim` into the queue if it is not there yet, and takes `held` out, in one transaction
    /// that may be repeated. While the watch is not up, it reads the first key as well, so that an
    /// uncontended lock costs one round trip from the first time on.
    pub(super) async fn put_claim(
        &self,
        claim: &Claim,
        held: Option<&Claim>,
    ) -> Result<Place, BackendError> {
        let key = claim.key();
        let status = self.expect(claim, &key);
        let mut conditions = vec![Compare::create_revision(key.as_str(), CompareOp::Equal, 0)];
        let mut changes = Vec::new();
        if let Some(held) = held {
            conditions.push(self.is_held(held));
            changes.push(TxnOp::delete(held.key(), None));
        }
        changes.push(put(claim, &key));
        let mut reads = vec![TxnOp::get(key.as_str(), None)];
        let asks_first = self.must_ask_first(&claim.name);
        if asks_first {
            reads.push(first_of(&claim.name));
        }
        changes.extend(reads.clone());
        // what was there already, from a request whose answer got lost; or nothing, if the claim that
        // was to be handed over is gone
        let txn = Txn::new().when(conditions).and_then(changes).or_else(reads);
        let response = self.endpoints.txn(&txn).await?;
        let answers = Ranges::of(&response);
        let own = answers.find(&key).map(KeyValue::create_revision);
        let revision = own.ok_or_else(claim_gone)?;
        if let Some(held) = held {
            self.queues.with(&held.name, |queue| queue.released(&held.key()));
        }
        let is_first = asks_first && self.is_first(claim, &key, &answers).await;
        self.queues.with(&claim.name, |queue| queue.enqueued(&key, revision, is_first));
        Ok(Place { token: token(response.header(), revision)?, status })
    }

    /// As [`put_claim`](Self::put_claim) with `held`, in two steps: for claims that share a key.
    pub(super) async fn release_and_queue(
        &self,
        held: &Claim,
        next: &Claim,
    ) -> Result<Place, BackendError> {
        if !self.delete_claim(held).await? {
            return Err(claim_gone());
        }
        self.put_claim(next, None).await
    }

    /// Puts `claim` into the queue only if that is empty, so that a try stands in nobody's way.
    pub(super) async fn put_claim_if_free(
        &self,
        claim: &Claim,
    ) -> Result<Option<Place>, BackendError> {
        let key = claim.key();
        let prefix = keys::prefix(&claim.name);
        let is_empty = Compare::create_revision(prefix.as_str(), CompareOp::Equal, 0).with_prefix();
        let whole = GetOptions::new().with_prefix().with_keys_only();
        let txn = Txn::new()
            .when([is_empty])
            .and_then([put(claim, &key), TxnOp::get(key.as_str(), None)])
            .or_else([TxnOp::get(prefix.as_str(), Some(whole))]);
        let status = self.expect(claim, &key);
        let response = self.endpoints.txn(&txn).await?;
        let answers = Ranges::of(&response);
        match answers.find(&key) {
            Some(own) => {
                let revision = own.create_revision();
                self.queues.with(&claim.name, |queue| queue.enqueued(&key, revision, true));
                Ok(Some(Place { token: token(response.header(), revision)?, status }))
            }
            None if answers.all().any(|kv| keys::is_claim(kv.key(), &prefix)) => {
                self.queues.with(&claim.name, |queue| queue.released(&key));
                Ok(None)
            }
            // only keys of locks with longer names are there
            None => {
                let place = self.put_claim(claim, None).await?;
                let waits = *place.status.borrow() == ClaimStatus::Waiting;
                if waits {
                    self.delete_claim(claim).await?;
                }
                Ok((!waits).then_some(place))
            }
        }
    }

    /// Makes the claim known before its request is sent, and has its queue watched.
    fn expect(&self, claim: &Claim, key: &str) -> tokio::sync::watch::Receiver<ClaimStatus> {
        let (status, is_new_name) =
            self.queues.with_or_new(&claim.name, |queue| queue.expect(key.to_owned()));
        if is_new_name {
            // an error means that the backend's thread has ended, which the request will tell
            drop(self.new_names.send(claim.name.clone()));
        }
        status
    }

    /// The condition that a claim is still the one that was made, and not merely of the same name.
    fn is_held(&self, claim: &Claim) -> Compare {
        let key = claim.key();
        match self.queues.with(&claim.name, |queue| queue.revision_of(&key)).flatten() {
            Some(revision) => Compare::create_revision(key, CompareOp::Equal, revision),
            // its request was given up; the key is never used twice
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

    /// Whether a transaction has to read who is first. Not where the watch tells, which comes as soon as
    /// the answer: to find the first key, etcd passes over all that were deleted since it was last
    /// compacted, and in a lock's queue those are many.
    fn must_ask_first(&self, name: &str) -> bool {
        !self.queues.with(name, |queue| queue.is_current()).unwrap_or(false)
    }

    /// Deletes the claim, and returns whether it was there. While the watch is not up, the same
    /// transaction reads who is first then, since that may be another claim of ours.
    pub(super) async fn delete_claim(&self, claim: &Claim) -> Result<bool, BackendError> {
        let key = claim.key();
        let asks_first = self.must_ask_first(&claim.name);
        let first = asks_first.then(|| first_of(&claim.name));
        let mut changes = vec![TxnOp::delete(key.as_str(), None)];
        changes.extend(first.clone());
        let otherwise: Vec<_> = first.into_iter().collect();
        let txn = Txn::new().when([self.is_held(claim)]).and_then(changes).or_else(otherwise);
        let response = self.endpoints.txn(&txn).await?;
        let first = Ranges::of(&response).last().filter(|_| asks_first).and_then(member);
        self.queues.with(&claim.name, |queue| {
            queue.released(&key);
            if let Some((first, revision)) = first {
                queue.is_first(&first, revision);
            }
        });
        Ok(response.succeeded())
    }

    pub(super) async fn read_queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let prefix = keys::prefix(name);
        let response = self.endpoints.get(&prefix, &list_options()).await?;
        let claims = response.kvs().iter().filter(|kv| keys::is_claim(kv.key(), &prefix));
        claims.map(|kv| entry(response.header(), kv)).collect()
    }

    /// Reads the first key of the queue, in a transaction that would put one if a condition held that never
    /// does: etcd refuses it where it would refuse a claim, for want of permission or of space.
    pub(super) async fn probe_queue(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
        let prefix = keys::prefix(name);
        let never = Compare::create_revision(prefix.as_str(), CompareOp::Less, 0);
        let first = TxnOp::get(prefix.as_str(), Some(list_options().with_limit(1)));
        let put = TxnOp::put(prefix.as_str(), "", None);
        let txn = Txn::new().when([never]).and_then([put]).or_else([first]);
        let response = self.endpoints.txn(&txn).await?;
        match Ranges::of(&response).last() {
            Some(kv) if keys::is_claim(kv.key(), &prefix) => entry(response.header(), kv).map(Some),
            // a key of a longer name: its lock is another one
            Some(_) => Ok(self.read_queue(name).await?.into_iter().next()),
            None => Ok(None),
        }
    }
}

fn put(claim: &Claim, key: &str) -> TxnOp {
    TxnOp::put(key, keys::value(claim), Some(PutOptions::new().with_lease(claim.lease)))
}

fn entry(header: Option<&ResponseHeader>, kv: &KeyValue) -> Result<QueueEntry, BackendError> {
    let (label, age) = keys::parse_value(kv.value()).unzip();
    Ok(QueueEntry {
        token: token(header, kv.create_revision())?,
        lease: kv.lease(),
        key: String::from_utf8_lossy(kv.key()).into_owned(),
        label,
        age,
    })
}
