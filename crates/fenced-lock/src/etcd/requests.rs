//! The requests that change or read a queue.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, LeaseGrantResponse, PutOptions,
    ResponseHeader, Txn, TxnOp, TxnResponse,
};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::endpoints::Answer;
use super::failure::{claim_gone, code, is_refused_with, malformed, names_no_user};
use super::queue::Key;
use super::queues::KeptBy;
use super::ranges::{Ranges, first_of, list, whole_first_of};
use super::{EtcdBackend, keys, token};
use crate::chaos::Defence;
use crate::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, ClusterId, Lease, QueueEntry, Released,
    Ticket,
};

/// How many claims go over to another lease at a time.
const MOST_MOVES: usize = 64;

/// How many keys a try looks at if the queue is not empty: any claim among them decides.
const SOME: i64 = 16;

impl EtcdBackend {
    /// Tells early what every claim would be told: that etcd asks for a user and there is none, or that
    /// the user may do nothing.
    async fn check_user(&self) -> Result<(), BackendError> {
        let Some(user) = &self.options.user else {
            let any = GetOptions::new().with_keys_only().with_limit(1);
            return match self.endpoints.get(b"/", &any).await {
                Err(error) if names_no_user(&error) => {
                    let what = "etcd's authentication is switched on, and no user was given";
                    Err(BackendError::new(BackendErrorKind::Permanent, what))
                }
                Err(error) if error.kind == BackendErrorKind::Transient => Err(error),
                // a refusal of this key tells nothing of others
                _ => Ok(()),
            };
        };
        let name = user.name().to_owned();
        let ask = |mut client: Client| {
            let name = name.clone();
            async move { client.user_get(name).await }
        };
        match self.endpoints.ask(ask).await {
            Ok(answer) if answer.value.roles().is_empty() => tracing::warn!(
                user = name,
                "etcd will refuse every lock: its user has no role; `etcdctl user grant-role` gives one"
            ),
            Err(error) if error.kind == BackendErrorKind::Transient => return Err(error),
            _ => {}
        }
        Ok(())
    }

    pub(super) async fn grant_lease(&self, ttl: Duration) -> Result<Lease, BackendError> {
        self.check_user().await?;
        let (granted, ttl) = self.ask_for_lease(ttl).await?;
        let header = granted.header().ok_or_else(|| malformed("an answer without a header"))?;
        self.queues.add_lease(granted.id(), ttl);
        Ok(Lease { id: granted.id(), ttl, cluster: ClusterId(header.cluster_id()) })
    }

    async fn ask_for_lease(
        &self,
        ttl: Duration,
    ) -> Result<(LeaseGrantResponse, Duration), BackendError> {
        // whole seconds, rounded up: a lease that is shorter than asked for would surprise
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1))
            .map_err(|error| BackendError::new(BackendErrorKind::Permanent, error))?;
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let granted = self.endpoints.ask(grant).await?.value;
        let ttl = u64::try_from(granted.ttl()).map_err(|_| malformed("a lease without a TTL"))?;
        Ok((granted, Duration::from_secs(ttl)))
    }

    /// Renews the lease on which the session's claims hang. From 3.5.30 on etcd refuses that, and new keys on the
    /// lease, for the sake of one key on it that the user may not write any more: then those that
    /// it may go over to another lease, and the one that it may not ends with the old lease.
    pub(super) async fn renew_lease(&self, lease: Lease) -> Result<Duration, BackendError> {
        let mut kept_by = self.queues.kept_by(lease.id);
        let renewed = Lease { id: kept_by.lease, ..lease };
        let lives_for = match self.keep_alives.renew(&self.endpoints, renewed).await {
            Err(error) if is_refused_with(&error, code::PERMISSION_DENIED) => {
                tracing::warn!(lease = lease.id, "may not renew a lease: taking another one");
                kept_by = self.replace_lease(lease.id, kept_by).await?;
                kept_by.ttl
            }
            renewed => renewed?,
        };
        if !kept_by.has_all {
            let moves = self.queues.own_of(lease.id).into_iter();
            let moves = moves.map(async |(name, key)| self.keep(&name, &key, kept_by.lease).await);
            stream::iter(moves).buffer_unordered(MOST_MOVES).try_collect::<()>().await?;
            self.queues.set_kept_by(lease.id, KeptBy { has_all: true, ..kept_by });
        }
        Ok(lives_for)
    }

    /// Has another lease keep the claims of the session with the lease `id` instead of `old`.
    async fn replace_lease(&self, id: i64, old: KeptBy) -> Result<KeptBy, BackendError> {
        let _turn = self.replacing.lock().await;
        if self.queues.kept_by(id).lease != old.lease {
            let what = "another lease has taken the place of this one";
            return Err(BackendError::new(BackendErrorKind::Transient, what));
        }
        let (granted, ttl) = self.ask_for_lease(old.ttl).await?;
        let kept_by = KeptBy { lease: granted.id(), ttl, has_all: false };
        self.queues.set_kept_by(id, kept_by);
        Ok(kept_by)
    }

    /// Asks for a claim; once more, on another lease, if etcd refused it for the sake of the lease alone: see
    /// [`renew_lease`](Self::renew_lease), which then has the other claims follow.
    pub(super) async fn on_some_lease<T, F: Future<Output = Result<T, BackendError>>>(
        &self,
        claim: &Claim,
        ask: impl Fn() -> F,
    ) -> Result<T, BackendError> {
        let kept_by = self.queues.kept_by(claim.lease);
        match ask().await {
            Err(error) if is_refused_with(&error, code::PERMISSION_DENIED) => {
                if self.endpoints.txn(&probe(&claim.name, &claim.key())).await.is_err() {
                    return Err(error);
                }
                self.replace_lease(claim.lease, kept_by).await?;
                ask().await
            }
            answer => answer,
        }
    }

    /// Has a claim hang on this lease, if it is there. One that the user may not write is given up.
    async fn keep(&self, name: &str, key: &Key, lease: i64) -> Result<(), BackendError> {
        let exists = Compare::create_revision(&**key, CompareOp::Greater, 0);
        let options = PutOptions::new().with_lease(lease).with_ignore_value();
        let txn = Txn::new().when([exists]).and_then([TxnOp::put(&**key, "", Some(options))]);
        match self.endpoints.txn(&txn).await {
            Err(error) if is_refused_with(&error, code::PERMISSION_DENIED) => {
                self.queues.with(name, |queue| queue.forget(key));
                Ok(())
            }
            kept => kept.map(drop),
        }
    }

    pub(super) async fn revoke_lease(&self, lease: Lease) -> Result<(), BackendError> {
        let id = self.queues.kept_by(lease.id).lease;
        self.keep_alives.forget(id);
        self.queues.remove_lease(lease.id);
        let revoke = |mut client: Client| async move { client.lease_revoke(id).await };
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
    ) -> Result<Ticket, BackendError> {
        let key = claim.key();
        let status = self.expect(claim, &key);
        let mut conditions = vec![Compare::create_revision(key.as_str(), CompareOp::Equal, 0)];
        let mut changes = Vec::new();
        if let Some(held) = held {
            conditions.push(self.is_held(held));
            changes.push(TxnOp::delete(held.key(), None));
        }
        let lease = self.queues.kept_by(claim.lease).lease;
        changes.push(put(claim, &key, lease));
        // what was there already, from a request whose answer got lost; or nothing, if the claim that
        // was to be handed over is gone
        let mut otherwise = vec![TxnOp::get(key.as_str(), None)];
        // not where the watch tells, which comes as soon as the answer: to find the first key, etcd passes
        // over all that were deleted since it was last compacted, and in a lock's queue those are many
        let is_watched = self.queues.with(&claim.name, |queue| queue.is_current()) == Some(true);
        if !is_watched {
            changes.push(first_of(&claim.name));
            otherwise.push(first_of(&claim.name));
        }
        let txn = Txn::new().when(conditions).and_then(changes).or_else(otherwise);
        let response = self.ask_for_ticket(claim, &key, &txn).await?;
        let answers = Ranges::of(&response);
        let Some((revision, lease)) = created_at(&response, &answers, &key, lease) else {
            self.queues.with(&claim.name, |queue| queue.released(&key));
            return Err(claim_gone());
        };
        self.keep_on_lease(claim, &key, lease).await?;
        if let Some(held) = held {
            self.queues.with(&held.name, |queue| queue.released(&held.key()));
        }
        let is_granted = !is_watched && self.is_first(claim, &key, &answers).await;
        self.queues.with(&claim.name, |queue| queue.enqueued(&key, revision, is_granted));
        Ok(Ticket { token: token(response.header(), revision)?, status })
    }

    /// As [`put_claim`](Self::put_claim) with `held`, in two steps: for claims that share a key.
    pub(super) async fn release_and_queue(
        &self,
        held: &Claim,
        next: &Claim,
    ) -> Result<Ticket, BackendError> {
        if self.delete_claim(held).await? == Released::Gone {
            return Err(claim_gone());
        }
        self.put_claim(next, None).await
    }

    /// Puts `claim` into the queue only if that is empty, so that a try stands in nobody's way.
    pub(super) async fn put_claim_if_free(
        &self,
        claim: &Claim,
    ) -> Result<Option<Ticket>, BackendError> {
        let key = claim.key();
        let prefix = keys::prefix(&claim.name);
        let is_empty = Compare::create_revision(prefix.as_str(), CompareOp::Equal, 0).with_prefix();
        let some = GetOptions::new().with_prefix().with_keys_only().with_limit(SOME);
        let lease = self.queues.kept_by(claim.lease).lease;
        let txn = Txn::new()
            .when([is_empty])
            .and_then([put(claim, &key, lease)])
            .or_else([TxnOp::get(prefix.as_str(), Some(some))]);
        let status = self.expect(claim, &key);
        let response = self.ask_for_ticket(claim, &key, &txn).await?;
        let answers = Ranges::of(&response);
        if let Some((revision, lease)) = created_at(&response, &answers, &key, lease) {
            self.keep_on_lease(claim, &key, lease).await?;
            self.queues.with(&claim.name, |queue| queue.enqueued(&key, revision, true));
            return Ok(Some(Ticket { token: token(response.header(), revision)?, status }));
        }
        let is_claimed = answers.all().any(|kv| keys::is_claim(kv.key(), &prefix))
            || answers.are_more() && self.first_claim(&claim.name).await?.is_some();
        if is_claimed {
            self.queues.with(&claim.name, |queue| queue.released(&key));
            return Ok(None);
        }
        // only keys of locks with longer names were there
        let ticket = self.put_claim(claim, None).await?;
        // etcd is asked, since the watch may not have told of the claim yet
        if *ticket.status.borrow() == ClaimStatus::Waiting {
            // whatever it is, the claim may still be there
            let left = |error| BackendError::new(BackendErrorKind::Transient, error);
            let first = self.first_claim(&claim.name).await.map_err(left)?;
            if first.is_none_or(|first| *first != *key.as_bytes()) {
                self.delete_claim(claim).await.map_err(left)?;
                return Ok(None);
            }
            let revision = ticket.token.revision();
            self.queues.with(&claim.name, |queue| queue.enqueued(&key, revision, true));
        }
        Ok(Some(ticket))
    }

    /// Sends a transaction that puts a claim, which is forgotten if etcd refuses that.
    async fn ask_for_ticket(
        &self,
        claim: &Claim,
        key: &str,
        txn: &Txn,
    ) -> Result<TxnResponse, BackendError> {
        let answer = self.endpoints.txn(txn).await;
        if answer.as_ref().is_err_and(|error| error.kind != BackendErrorKind::Transient) {
            self.queues.with(&claim.name, |queue| queue.released(key));
        }
        answer.map(|answer| answer.value)
    }

    /// Has a claim that hangs on `lease` hang on that of its session: another one may have taken its place
    /// since the request was sent.
    async fn keep_on_lease(
        &self,
        claim: &Claim,
        key: &str,
        lease: i64,
    ) -> Result<(), BackendError> {
        let current = self.queues.kept_by(claim.lease).lease;
        if lease == current {
            return Ok(());
        }
        self.keep(&claim.name, &key.as_bytes().into(), current).await
    }

    /// Makes the claim known before its request is sent, and has its queue watched.
    fn expect(&self, claim: &Claim, key: &str) -> tokio::sync::watch::Receiver<ClaimStatus> {
        let (status, is_new_name) = self.queues.with_or_new(&claim.name, |queue| queue.expect(key));
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
                let first = self.first_claim(&claim.name).await.unwrap_or_default();
                first.is_some_and(|first| *first == *key.as_bytes())
            }
            None => false,
        }
    }

    /// The first claim in the queue.
    async fn first_claim(&self, name: &str) -> Result<Option<Key>, BackendError> {
        let (_, kvs) = list(&self.endpoints, name, &GetOptions::new().with_keys_only()).await?;
        let prefix = keys::prefix(name);
        let claims = kvs.iter().filter(|kv| keys::is_claim(kv.key(), &prefix));
        Ok(claims.min_by_key(|kv| kv.create_revision()).map(|kv| kv.key().into()))
    }

    /// Deletes the claim.
    pub(super) async fn delete_claim(&self, claim: &Claim) -> Result<Released, BackendError> {
        let key = claim.key();
        let delete = TxnOp::delete(key.as_str(), None);
        let txn = Txn::new().when([self.is_held(claim)]).and_then([delete]);
        let Answer { value: response, may_be_second } = self.endpoints.txn(&txn).await?;
        self.queues.with(&claim.name, |queue| queue.released(&key));
        Ok(match response.succeeded() {
            true => Released::Done,
            false if may_be_second && Defence::UnknownRelease.is_on() => Released::Unknown,
            false => Released::Gone,
        })
    }

    pub(super) async fn read_queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let (header, mut kvs) = list(&self.endpoints, name, &GetOptions::new()).await?;
        kvs.sort_by_key(KeyValue::create_revision);
        let prefix = keys::prefix(name);
        let claims = kvs.iter().filter(|kv| keys::is_claim(kv.key(), &prefix));
        claims.map(|kv| entry(&header, kv)).collect()
    }

    /// Reads the first key of the queue, where a claim would not be refused.
    pub(super) async fn probe_queue(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
        let prefix = keys::prefix(name);
        let response = self.endpoints.txn(&probe(name, &prefix)).await?.value;
        let header = response.header().ok_or_else(|| malformed("an answer without a header"))?;
        match Ranges::of(&response).last() {
            Some(kv) if keys::is_claim(kv.key(), &prefix) => entry(header, kv).map(Some),
            // a key of a longer name: its lock is another one
            Some(_) => Ok(self.read_queue(name).await?.into_iter().next()),
            None => Ok(None),
        }
    }
}

/// Reads the first key of the queue, in a transaction that would put `key` if a condition held that never
/// does: etcd refuses it where it would refuse a claim, for want of permission or of space.
fn probe(name: &str, key: &str) -> Txn {
    let never = Compare::create_revision(key, CompareOp::Less, 0);
    Txn::new().when([never]).and_then([TxnOp::put(key, "", None)]).or_else([whole_first_of(name)])
}

fn put(claim: &Claim, key: &str, lease: i64) -> TxnOp {
    TxnOp::put(key, keys::value(claim), Some(PutOptions::new().with_lease(lease)))
}

/// The revision at which a transaction put the key on this lease; or at which it found that it was put,
/// and on which lease.
fn created_at(
    response: &TxnResponse,
    answers: &Ranges,
    key: &str,
    lease: i64,
) -> Option<(i64, i64)> {
    if response.succeeded() {
        return response.header().map(|header| (header.revision(), lease));
    }
    answers.find(key).map(|own| (own.create_revision(), own.lease()))
}

fn entry(header: &ResponseHeader, kv: &KeyValue) -> Result<QueueEntry, BackendError> {
    let (label, age) = keys::parse_value(kv.value()).unzip();
    Ok(QueueEntry {
        token: token(Some(header), kv.create_revision())?,
        lease: kv.lease(),
        key: String::from_utf8_lossy(kv.key()).into_owned(),
        label,
        age,
    })
}
