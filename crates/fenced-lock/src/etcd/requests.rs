//! The requests of the backend to etcd.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, ResponseHeader, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tokio::sync::watch;

use super::endpoints::Answer;
use super::failure::{code, header_of, is_refused_with};
use super::list::list;
use super::queue::NameQueue;
use super::{Etcd, keys};
use crate::chaos::Safeguard;
use crate::watched::{Key, Made};
use crate::{
    Backend, BackendError, BackendErrorKind, Claim, ClaimStatus, ClusterId, Lease, ObservedClaim,
    Promises, PutMode, QueueEntry, Released, Ticket, Token,
};

/// Where a claim stands after the transaction that puts it.
struct Put {
    /// The claim's token; `None` if the claim is not in the queue.
    token: Option<Token>,
    /// The first key under the lock's prefix, if the transaction read it and there is one.
    first: Option<Key>,
}

#[async_trait]
impl Backend for Etcd {
    type Token = Token;

    fn promises(&self) -> Promises {
        Promises::MOST
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        if self.options.user.is_none() {
            // this read shows whether etcd demands a user: leases it grants to everybody
            match self.endpoints.get(b"/", &GetOptions::new().with_keys_only()).await {
                // the user of the client's certificate may have the right to other keys
                Err(error) if is_refused_with(&error, code::PERMISSION_DENIED) => {}
                answer => drop(answer?),
            }
        }
        // whole seconds, rounded up: no lease may be shorter than the caller wants
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).map_err(BackendError::permanent)?;
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let granted = self.endpoints.ask(grant).await?.value;
        let ttl = u64::try_from(granted.ttl())
            .map_err(|_| BackendError::transient("a lease without a TTL"))?;
        let cluster = ClusterId(header_of(granted.header())?.cluster_id());
        self.queues.add_lease(granted.id());
        Ok(Lease { id: granted.id(), ttl: Duration::from_secs(ttl), cluster })
    }

    /// Opens a stream for each renewal. That costs no more than one standing stream, and so a late answer cannot be mistaken for
    /// the answer to a later renewal.
    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        let keep_alive = |mut client: Client| async move {
            match client.lease_keep_alive(lease.id).await {
                Ok(_renewed) => Ok(lease.ttl),
                // the client reports a lease that is gone as any other broken stream, so ask etcd
                Err(_) if is_gone(&mut client, lease.id).await => Ok(Duration::ZERO),
                Err(error) => Err(error),
            }
        };
        // short, so that there is time to ask another member before the session tries again
        let limit = if self.endpoints.are_several() { lease.ttl / 8 } else { lease.ttl / 4 };
        match self.endpoints.ask_within(limit, keep_alive).await? {
            Duration::ZERO => Err(BackendError::lease_gone()),
            ttl => Ok(ttl),
        }
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        self.queues.remove_lease(lease.id);
        let revoke = |mut client: Client| async move { client.lease_revoke(lease.id).await };
        match self.endpoints.ask(revoke).await {
            Err(error) if error.kind != BackendErrorKind::LeaseGone => Err(error),
            _ => Ok(()),
        }
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Result<Option<Ticket>, BackendError> {
        match mode {
            PutMode::AtEnd => self.put_claim(claim, None).await,
            PutMode::IfEmpty => self.put_claim_if_free(claim).await,
            PutMode::After(held) if !Safeguard::OwnerByClaim.is_on() => {
                // without that safeguard, the two claims share a key
                self.release(held).await?;
                self.put_claim(claim, None).await
            }
            PutMode::After(held) => self.put_claim(claim, Some(held)).await,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let key = claim.key();
        let delete = TxnOp::delete(key.as_str(), None);
        let txn = Txn::new().when([self.is_held(claim)]).and_then([delete]);
        let Answer { value: response, may_be_second } = self.endpoints.txn(&txn).await?;
        self.queues.with(&claim.name, |queue| queue.forget(key.as_bytes()));
        let may_be_done = may_be_second && Safeguard::UnknownRelease.is_on();
        Ok(match response.succeeded() {
            true => Released::Done,
            false if may_be_done => Released::Unknown,
            false => Released::Gone,
        })
    }

    /// Puts the same key again. The claim keeps its place, which is the key's `create_revision`.
    async fn ask_for_turn(&self, claim: &Claim) -> Result<(), BackendError> {
        let key = claim.key();
        let made_at = self.queues.with(&claim.name, |queue| queue.made_at(key.as_bytes()));
        let value = keys::value(claim, made_at.flatten().unwrap_or_else(SystemTime::now), false);
        let on_lease = PutOptions::new().with_lease(claim.lease);
        let condition = self.is_held(claim);
        let put = TxnOp::put(key, value, Some(on_lease));
        // a claim that is gone must not be put again
        self.endpoints.txn(&Txn::new().when([condition]).and_then([put])).await.map(drop)
    }

    fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        Some(self.queues.with_or_new(&name.into(), NameQueue::watch_holder))
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let (header, mut kvs) = list(&self.endpoints, name, &GetOptions::new()).await?;
        kvs.sort_by_key(KeyValue::create_revision);
        let prefix = keys::prefix(name);
        let claims = kvs.iter().filter(|kv| keys::is_claim(kv.key(), &prefix));
        Ok(claims.map(|kv| entry(&header, kv)).collect())
    }

    /// Reads the first key of the queue. Fails if etcd would refuse a claim.
    async fn probe(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
        let prefix = keys::prefix(name);
        let response = self.endpoints.txn(&probe(name, &prefix)).await?.value;
        let header = header_of(response.header())?;
        match found(&response).last() {
            Some(kv) if keys::is_claim(kv.key(), &prefix) => Ok(Some(entry(header, kv))),
            // the key belongs to a longer name, and so to another lock
            Some(_) => Ok(self.queue(name).await?.into_iter().next()),
            None => Ok(None),
        }
    }
}

impl Etcd {
    /// Puts `claim` into the queue, and takes `held` out in the same transaction. `None` if `held` is gone.
    async fn put_claim(
        &self,
        claim: &Claim,
        held: Option<&Claim>,
    ) -> Result<Option<Ticket>, BackendError> {
        let key = claim.key();
        let ticket = self.expect(claim, &key);
        // If the queue is watched, the watch shows who is first, as soon as this answer. Then the transaction does not read the
        // first key: etcd would pass over all keys that were deleted since its last compaction, and in a lock's queue they are
        // many. If the queue is not watched, that read grants an uncontended lock in one round trip.
        let is_watched =
            self.queues.with(&claim.name, |queue| queue.claims.is_current()) == Some(true);
        let mut conditions = vec![Compare::create_revision(key.as_str(), CompareOp::Equal, 0)];
        conditions.extend(held.map(|held| self.is_held(held)));
        let put = self.send_put(claim, &key, &conditions, held, !is_watched).await?;
        let Some(token) = put.token else {
            self.queues.with(&claim.name, |queue| queue.forget(key.as_bytes()));
            return Ok(None);
        };
        if let Some(held) = held {
            self.queues.with(&held.name, |queue| queue.forget(held.key().as_bytes()));
        }
        let is_granted = match put.first {
            Some(first) if keys::is_claim(&first, &keys::prefix(&claim.name)) => {
                *first == *key.as_bytes()
            }
            // the first key belongs to a lock with a longer name, so only the whole queue shows who is first; if it cannot be
            // read now, the watch will show it
            Some(_) => self.is_first(claim, &key).await.unwrap_or(false),
            None => false,
        };
        self.note_made(claim, &key, token, is_granted);
        Ok(Some(ticket))
    }

    /// Puts `claim` into the queue only if that is empty, so that a try blocks no other claim.
    async fn put_claim_if_free(&self, claim: &Claim) -> Result<Option<Ticket>, BackendError> {
        let (key, prefix) = (claim.key(), keys::prefix(&claim.name));
        let ticket = self.expect(claim, &key);
        let is_empty = Compare::create_revision(prefix.as_str(), CompareOp::Equal, 0).with_prefix();
        let put = self.send_put(claim, &key, &[is_empty], None, true).await?;
        if let Some(token) = put.token {
            self.note_made(claim, &key, token, true);
            return Ok(Some(ticket));
        }
        // a failure from here on is transient, since the claim may be in the queue
        let is_claimed = put.first.is_some_and(|first| keys::is_claim(&first, &prefix));
        if is_claimed
            || self.first_claim(&claim.name).await.map_err(BackendError::transient)?.is_some()
        {
            self.queues.with(&claim.name, |queue| queue.forget(key.as_bytes()));
            return Ok(None);
        }
        // the queue has only keys of locks with longer names
        let Some(ticket) = self.put_claim(claim, None).await? else { return Ok(None) };
        // this asks etcd, since the watch may not have shown the claim yet
        let is_granted = *ticket.status.borrow() != ClaimStatus::Waiting;
        if !is_granted && !self.is_first(claim, &key).await.map_err(BackendError::transient)? {
            self.release(claim).await.map_err(BackendError::transient)?;
            return Ok(None);
        }
        self.queues.with(&claim.name, |queue| queue.claims.granted(key.as_bytes()));
        Ok(Some(ticket))
    }

    /// Sends the transaction that puts a claim and deletes `held` if the conditions hold. Forgets the claim if etcd refuses the
    /// transaction.
    async fn send_put(
        &self,
        claim: &Claim,
        key: &str,
        conditions: &[Compare],
        held: Option<&Claim>,
        asks_first: bool,
    ) -> Result<Put, BackendError> {
        let first = asks_first.then(|| first_of(&claim.name));
        let delete = held.map(|held| TxnOp::delete(held.key(), None));
        let on_lease = PutOptions::new().with_lease(claim.lease);
        let value = keys::value(claim, SystemTime::now(), claim.standby.is_some());
        let put = TxnOp::put(key, value, Some(on_lease));
        // finds the claim if an earlier request, whose answer got lost, has put it
        let own = TxnOp::get(key, None);
        let changes: Vec<_> = delete.into_iter().chain([put]).chain(first.clone()).collect();
        let otherwise: Vec<_> = [own].into_iter().chain(first).collect();
        let txn = Txn::new().when(conditions).and_then(changes).or_else(otherwise);
        let answer = self.endpoints.txn(&txn).await;
        if answer.as_ref().is_err_and(|error| error.kind != BackendErrorKind::Transient) {
            self.queues.with(&claim.name, |queue| queue.forget(key.as_bytes()));
        }
        let response = answer?.value;
        let header = header_of(response.header())?;
        let found = found(&response);
        let own = found.iter().find(|kv| kv.key() == key.as_bytes());
        let revision = if response.succeeded() {
            Some(header.revision())
        } else {
            own.map(KeyValue::create_revision)
        };
        Ok(Put {
            token: revision.map(|revision| token(header, revision)),
            first: found.last().filter(|_| asks_first).map(|kv| kv.key().into()),
        })
    }

    /// Makes the claim known before its request is sent, and has its queue watched.
    fn expect(&self, claim: &Claim, key: &str) -> Ticket {
        self.queues.with_or_new(&claim.name, |queue| queue.used().expect(key.as_bytes()))
    }

    /// Notes that etcd has put a claim into the queue, and whether the claim is granted.
    fn note_made(&self, claim: &Claim, key: &str, token: Token, is_granted: bool) {
        let made = Made { place: token.revision(), change: token.revision(), token };
        self.queues.with(&claim.name, |queue| {
            queue.claims.made(key.as_bytes(), made);
            if is_granted {
                queue.claims.granted(key.as_bytes());
            }
        });
    }

    /// The condition that a key is still the claim that this process made: the same name alone does not show that.
    fn is_held(&self, claim: &Claim) -> Compare {
        let key = claim.key();
        let made = self.queues.with(&claim.name, |queue| queue.claims.how_made(key.as_bytes()));
        match made.flatten() {
            Some(made) => Compare::create_revision(key, CompareOp::Equal, made.place),
            // nobody knows the revision of a request that was given up; but the key is never used twice
            None => Compare::create_revision(key, CompareOp::Greater, 0),
        }
    }

    async fn is_first(&self, claim: &Claim, key: &str) -> Result<bool, BackendError> {
        let first = self.first_claim(&claim.name).await?;
        Ok(first.is_some_and(|first| *first == *key.as_bytes()))
    }

    /// The first claim in the queue.
    async fn first_claim(&self, name: &str) -> Result<Option<Key>, BackendError> {
        let (_, kvs) = list(&self.endpoints, name, &GetOptions::new().with_keys_only()).await?;
        let prefix = keys::prefix(name);
        let claims = kvs.iter().filter(|kv| keys::is_claim(kv.key(), &prefix));
        Ok(claims.min_by_key(|kv| kv.create_revision()).map(|kv| kv.key().into()))
    }
}

/// Whether etcd says that there is no such lease. A lease in its last second has a TTL of 0.
async fn is_gone(client: &mut Client, lease: i64) -> bool {
    client.lease_time_to_live(lease, None).await.is_ok_and(|answer| answer.ttl() < 0)
}

/// Reads the first key of the queue, in a transaction that would put `key` under a condition that is never true. So etcd refuses
/// the transaction if it would refuse a claim, for want of permission or of space.
fn probe(name: &str, key: &str) -> Txn {
    let never = Compare::create_revision(key, CompareOp::Less, 0);
    Txn::new().when([never]).and_then([TxnOp::put(key, "", None)]).or_else([first_of(name)])
}

/// Reads the first key of the queue.
fn first_of(name: &str) -> TxnOp {
    let options = GetOptions::new().with_prefix().with_limit(1);
    let options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
    TxnOp::get(keys::prefix(name), Some(options))
}

/// What the reads of a transaction found, in their order.
fn found(response: &TxnResponse) -> Vec<KeyValue> {
    let mut found = Vec::new();
    for answer in response.op_responses() {
        if let TxnOpResponse::Get(mut range) = answer {
            found.extend(range.take_kvs());
        }
    }
    found
}

fn token(header: &ResponseHeader, revision: i64) -> Token {
    Token::new(ClusterId(header.cluster_id()), revision)
}

fn entry(header: &ResponseHeader, kv: &KeyValue) -> QueueEntry {
    let key = String::from_utf8_lossy(kv.key()).into_owned();
    let mut entry = QueueEntry::new(kv.lease(), key);
    entry.token = Some(token(header, kv.create_revision()));
    if let Some(value) = keys::parse_value(kv.value()) {
        entry.label = Some(value.label);
        entry.age = Some(value.age);
        entry.note = value.note;
        entry.is_standby = value.is_standby;
    }
    entry
}

#[cfg(test)]
mod tests {
    use testkit::shared::shared_endpoint;
    use testkit::wait::eventually;

    use super::*;

    /// Goal: a lease in its last second is not taken for one that is gone. Method: etcd shows the same TTL after the question, so
    /// the lease was there.
    #[tokio::test]
    async fn a_lease_in_its_last_second_is_not_gone() {
        let client = Client::connect([shared_endpoint().await], None).await.expect("an etcd");
        let (mut asking, mut showing) = (client.clone(), client);
        let mut lease = 0;
        eventually("a question in the last second", async || {
            lease = asking.lease_grant(2, None).await.expect("a lease").id();
            let mut ttl =
                async || showing.lease_time_to_live(lease, None).await.expect("an answer").ttl();
            eventually("the last second", async || ttl().await <= 0).await;
            let is_gone = is_gone(&mut asking, lease).await;
            let is_shown = ttl().await == 0;
            assert!(!is_gone || !is_shown, "it is there");
            is_shown
        })
        .await;
        eventually("its end", async || is_gone(&mut asking, lease).await).await;
    }
}
