//! The members of the cluster, and which of them to ask.
//!
//! The client library can balance over several members, but counts one that refuses connections as
//! ready, and repeats nothing: with one member of two away, every other request fails. Here all
//! requests go to one member for as long as it answers, and to the next one when it does not. Every
//! request of this backend may be repeated, so it is repeated there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, GetResponse, Txn, TxnResponse};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::EtcdOptions;
use super::failure::backend_error;
use crate::lock::{BackendError, BackendErrorKind};

/// The members, and the one that answered last.
pub(super) struct Endpoints {
    members: Vec<Member>,
    preferred: AtomicUsize,
    options: EtcdOptions,
    runtime: Handle,
}

struct Member {
    url: String,
    /// Made when first needed: with a user, that takes an answer from the member.
    client: OnceCell<Client>,
}

impl Endpoints {
    /// The connections' tasks will live on `runtime`.
    pub(super) fn new(options: EtcdOptions, runtime: Handle) -> Self {
        let member = |url: &String| Member { url: url.clone(), client: OnceCell::new() };
        let members = options.endpoints.iter().map(member).collect();
        Self { members, preferred: AtomicUsize::new(0), options, runtime }
    }

    pub(super) fn are_several(&self) -> bool {
        self.members.len() > 1
    }

    /// Asks the members, one after the other, until one answers; each at most for the request
    /// timeout.
    pub(super) async fn ask<T, F: Future<Output = Result<T, Error>>>(
        &self,
        mut request: impl FnMut(Client) -> F,
    ) -> Result<T, BackendError> {
        self.ask_within(self.options.request_timeout, |_, client| request(client)).await
    }

    pub(super) async fn txn(&self, txn: &Txn) -> Result<TxnResponse, BackendError> {
        let request = |mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        self.ask(request).await
    }

    pub(super) async fn get(
        &self,
        key: &[u8],
        options: &GetOptions,
    ) -> Result<GetResponse, BackendError> {
        let request = |mut client: Client| {
            let (key, options) = (key.to_vec(), options.clone());
            async move { client.get(key, Some(options)).await }
        };
        self.ask(request).await
    }

    /// As [`ask`](Self::ask), each at most for `limit`; the request is told which member it goes to.
    pub(super) async fn ask_within<T, F: Future<Output = Result<T, Error>>>(
        &self,
        limit: Duration,
        mut request: impl FnMut(usize, Client) -> F,
    ) -> Result<T, BackendError> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut latest = None;
        for attempt in 0..self.members.len() {
            let index = (first + attempt) % self.members.len();
            let answer = timeout(limit, async {
                let client = self.client(&self.members[index]).await?;
                request(index, client).await.map_err(backend_error)
            });
            let answer = answer.await.unwrap_or_else(|elapsed| {
                Err(BackendError::new(BackendErrorKind::Transient, elapsed))
            });
            match answer {
                Err(error) if error.kind == BackendErrorKind::Transient => {
                    latest = Some(error);
                    // at once, since the caller may give up before the next one has answered
                    let next = (index + 1) % self.members.len();
                    let relaxed = Ordering::Relaxed;
                    // fails if another request has moved on already
                    let _ = self.preferred.compare_exchange(index, next, relaxed, relaxed);
                }
                answer => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        // the next request begins with another one
        self.preferred.store((first + 1) % self.members.len(), Ordering::Relaxed);
        Err(latest.unwrap_or_else(|| BackendError::new(BackendErrorKind::Permanent, "no endpoint")))
    }

    /// A client of one member. It is made on the backend's own runtime, where its connection's tasks
    /// then live.
    async fn client(&self, member: &Member) -> Result<Client, BackendError> {
        let client = member.client.get_or_try_init(|| async {
            let (url, options) = (member.url.clone(), self.options.connect_options());
            let connecting =
                self.runtime.spawn(async move { Client::connect([url], Some(options)).await });
            match connecting.await {
                Ok(connected) => connected.map_err(backend_error),
                Err(ended) => Err(BackendError::new(BackendErrorKind::Permanent, ended)),
            }
        });
        client.await.cloned()
    }
}
