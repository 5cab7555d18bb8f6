//! The members of the cluster, and which of them to ask.
//!
//! The client library can balance over several members, but counts one that refuses connections as
//! ready, and repeats nothing: with one member of two away, every other request fails. Here all
//! requests go to one member for as long as it answers, and to the next one when it does not. Every
//! request of this backend may be repeated, so it is repeated there.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, GetResponse, Txn, TxnResponse};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OnceCell, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::EtcdOptions;
use super::failure::{asks_to_authenticate, backend_error, may_be_done, says_auth_is_off};
use crate::chaos::Defence;
use crate::{BackendError, BackendErrorKind};

/// How often a client authenticates at the most. etcd makes each authentication cost time on purpose.
const AUTHENTICATE_EVERY: Duration = Duration::from_millis(250);

/// How many requests may be under way at one member; further ones wait.
const MOST_UNDER_WAY: usize = 256;

/// How long a request stays under way at the most after its answer was not waited for any more.
const LONGEST_UNDER_WAY: Duration = Duration::from_secs(30);

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
    /// How often the client has authenticated, or tried to.
    authentications: AtomicU64,
    latest_authentication: Mutex<Option<(Instant, Result<(), BackendError>)>>,
    /// A place for each request.
    under_way: Arc<Semaphore>,
}

/// What a member answered.
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// Whether another member may have carried the request out before.
    pub(super) may_be_second: bool,
}

/// A request that goes on in a task of `runtime` when it is dropped before its end.
struct SeenThrough<'a, F: Future<Output: Send> + Send + 'static> {
    request: Option<Pin<Box<F>>>,
    runtime: &'a Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Future for SeenThrough<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let request = self.request.as_mut().expect("it is not polled after its end");
        let answer = ready!(request.as_mut().poll(context));
        self.request = None;
        Poll::Ready(answer)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for SeenThrough<'_, F> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.runtime.spawn(async move { timeout(LONGEST_UNDER_WAY, request).await });
        }
    }
}

/// What a request was sent with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// The member that it went to.
    pub(super) member: usize,
    authentications: u64,
}

impl Endpoints {
    /// The connections' tasks will live on `runtime`.
    pub(super) fn new(options: EtcdOptions, runtime: Handle) -> Self {
        let member = |url: &String| Member {
            url: url.clone(),
            client: OnceCell::new(),
            authentications: AtomicU64::new(0),
            latest_authentication: Mutex::new(None),
            under_way: Arc::new(Semaphore::new(MOST_UNDER_WAY)),
        };
        let members = options.endpoints.iter().map(member).collect();
        Self { members, preferred: AtomicUsize::new(0), options, runtime }
    }

    pub(super) fn are_several(&self) -> bool {
        self.members.len() > 1
    }

    /// Asks the members, one after the other, until one answers; each at most for the request
    /// timeout.
    pub(super) async fn ask<T: Send + 'static, F>(
        &self,
        request: impl Fn(Client) -> F,
    ) -> Result<Answer<T>, BackendError>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let request = &request;
        let see_through =
            |sent: Sent, client| self.see_through(sent.member, move || request(client));
        self.ask_within(self.options.request_timeout, see_through).await
    }

    /// Sees a request to its end, also when its answer is not waited for any more. Dropping it would
    /// reset its stream, and HTTP/2 ends a connection, which is everybody's, after a thousand answers
    /// to streams that were reset.
    ///
    /// A request is large, so it is made when there is a place for it.
    async fn see_through<F>(&self, member: usize, request: impl FnOnce() -> F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        if !Defence::SeeThrough.is_on() {
            return request().await;
        }
        // nobody closes the semaphore
        let place = Arc::clone(&self.members[member].under_way).acquire_owned().await.ok();
        let request = request();
        let request = Box::pin(async move {
            let answer = request.await;
            drop(place);
            answer
        });
        SeenThrough { request: Some(request), runtime: &self.runtime }.await
    }

    pub(super) async fn txn(&self, txn: &Txn) -> Result<Answer<TxnResponse>, BackendError> {
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
        self.ask(request).await.map(|answer| answer.value)
    }

    /// As [`ask`](Self::ask), each at most for `limit`; the request is told what it is sent with, and
    /// ends when it is not waited for any more. One that is refused for its token is repeated once,
    /// after authenticating anew.
    ///
    /// An error that leaves open whether any member has carried it out is `Transient`.
    pub(super) async fn ask_within<T, F: Future<Output = Result<T, Error>>>(
        &self,
        limit: Duration,
        mut request: impl FnMut(Sent, Client) -> F,
    ) -> Result<Answer<T>, BackendError> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut latest = None;
        let mut may_be_second = false;
        for attempt in 0..self.members.len() {
            let index = (first + attempt) % self.members.len();
            let mut is_open = false;
            let answer = timeout(limit, async {
                let client = self.client(&self.members[index]).await?;
                let sent = self.sent_to(index);
                is_open = true;
                let answer = match request(sent, client.clone()).await {
                    Err(error) if self.options.user.is_some() && asks_to_authenticate(&error) => {
                        // boxed, as it is rare
                        Box::pin(self.reauthenticate(sent)).await?;
                        Box::pin(request(self.sent_to(index), client.clone())).await
                    }
                    answer => answer,
                };
                answer.map_err(|error| {
                    is_open = may_be_done(&error);
                    backend_error(error)
                })
            });
            let answer = answer.await.unwrap_or_else(|elapsed| {
                Err(BackendError::new(BackendErrorKind::Transient, elapsed))
            });
            match answer {
                Err(error) if error.kind == BackendErrorKind::Transient => {
                    may_be_second |= is_open;
                    latest = Some(error);
                    // at once, since the caller may give up before the next one has answered
                    let next = (index + 1) % self.members.len();
                    let relaxed = Ordering::Relaxed;
                    // fails if another request has moved on already
                    let _ = self.preferred.compare_exchange(index, next, relaxed, relaxed);
                }
                Err(refused) if may_be_second && refused.kind != BackendErrorKind::LeaseGone => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Err(BackendError::new(BackendErrorKind::Transient, refused));
                }
                answer => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return answer.map(|value| Answer { value, may_be_second });
                }
            }
        }
        // the next request begins with another one
        self.preferred.store((first + 1) % self.members.len(), Ordering::Relaxed);
        Err(latest.unwrap_or_else(|| BackendError::new(BackendErrorKind::Permanent, "no endpoint")))
    }

    fn sent_to(&self, index: usize) -> Sent {
        let authentications = self.members[index].authentications.load(Ordering::Acquire);
        Sent { member: index, authentications }
    }

    /// Authenticates anew at the member that refused what was `sent`, unless that has happened since.
    /// All whom it refuses at the same time share one attempt and its outcome.
    pub(super) async fn reauthenticate(&self, sent: Sent) -> Result<(), BackendError> {
        let member = &self.members[sent.member];
        let client = self.client(member).await?.clone();
        let mut latest = member.latest_authentication.lock().await;
        if let Some((_, outcome)) = &*latest
            && member.authentications.load(Ordering::Acquire) != sent.authentications
        {
            return outcome.clone();
        }
        if let Some((ended_at, _)) = &*latest {
            sleep_until(*ended_at + AUTHENTICATE_EVERY).await;
        }
        let outcome = self.authenticate(client).await;
        *latest = Some((Instant::now(), outcome.clone()));
        member.authentications.fetch_add(1, Ordering::Release);
        outcome
    }

    /// Gets a token for all requests of this client.
    async fn authenticate(&self, mut client: Client) -> Result<(), BackendError> {
        let Some(user) = &self.options.user else { return Ok(()) };
        let credentials = user.credentials().await?;
        let updated = match client.update_user(Some(credentials)).await {
            Err(error) if says_auth_is_off(&error) => {
                tracing::warn!("etcd asks nobody who they are: its authentication is switched off");
                client.update_user(None).await
            }
            updated => updated,
        };
        updated.map_err(backend_error)
    }

    /// A client of one member.
    async fn client<'a>(&self, member: &'a Member) -> Result<&'a Client, BackendError> {
        // boxed, as it is needed once
        member.client.get_or_try_init(|| Box::pin(self.connect(member))).await
    }

    /// Makes a client on the backend's own runtime, where its connection's tasks then live.
    async fn connect(&self, member: &Member) -> Result<Client, BackendError> {
        let mut latest = member.latest_authentication.lock().await;
        // those who wait share the outcome of the attempt that they waited for
        if let Some((ended_at, Err(error))) = &*latest
            && ended_at.elapsed() < AUTHENTICATE_EVERY
        {
            return Err(error.clone());
        }
        let (url, options) = (member.url.clone(), self.options.connect_options());
        let connecting =
            self.runtime.spawn(async move { Client::connect([url], Some(options)).await });
        let client = match connecting.await {
            Ok(connected) => connected.map_err(backend_error)?,
            Err(ended) => return Err(BackendError::new(BackendErrorKind::Permanent, ended)),
        };
        let outcome = self.authenticate(client.clone()).await;
        *latest = Some((Instant::now(), outcome.clone()));
        outcome.map(|()| client)
    }
}
