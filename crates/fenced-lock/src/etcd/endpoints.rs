//! The members of the cluster, and which of them to ask.
//!
//! The client library can balance requests over several members. But it counts a member that refuses connections as ready, and
//! repeats no request: with one member of two away, every other request fails. This backend sends all requests to one member
//! while that member answers, and then to the next one. All its requests may be repeated, so it repeats at the next member those
//! that were not answered.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, GetResponse, Txn, TxnResponse};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::EtcdOptions;
use super::failure::{
    asks_to_authenticate, backend_error, distrusts, is_answer, may_be_done, says_auth_is_off,
};
use crate::shared::Shared;
use crate::{BackendError, BackendErrorKind};

/// How many requests may be under way at one member; further ones wait. The number is small, so that a slow member answers each
/// in time: a request that times out is sent again, and the member has done its first work in vain.
const MOST_UNDER_WAY: usize = 64;

/// How long a request stays under way at the most, whether or not its caller still waits for the answer.
const LONGEST_UNDER_WAY: Duration = Duration::from_secs(30);

/// The members, and the one to ask first.
pub(super) struct Endpoints {
    members: Vec<Member>,
    preferred: watch::Sender<usize>,
    options: EtcdOptions,
}

struct Member {
    url: String,
    /// The client, made for the first request, and the time at which its connection was made. With a user, this takes an answer
    /// of the member.
    client: Mutex<Option<(Client, Instant)>>,
    /// When the client last authenticated. etcd makes authentication slow on purpose.
    authenticated: Shared<Instant>,
    /// A place for each request.
    under_way: Arc<Semaphore>,
    /// How many requests the member has answered.
    answers: Arc<AtomicU64>,
}

/// The answer of a member.
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// Whether another member may have carried the request out before.
    pub(super) may_be_second: bool,
}

/// Why a member gave no usable answer.
struct Failure {
    error: BackendError,
    may_be_done: bool,
}

impl Member {
    /// Gives the client another connection if `is_old` is true for the time at which the present one was made. The client keeps
    /// its token: authentication takes more of a slow member's time than a renewal. Requests on the old connection go on.
    async fn reconnect(&self, is_old: impl Fn(Instant) -> bool) {
        let client = match &mut *self.client.lock() {
            Some((client, made_at)) if is_old(*made_at) => {
                *made_at = Instant::now();
                client.clone()
            }
            _ => return,
        };
        // both succeed while the client exists
        drop(client.remove_endpoint(&self.url).await);
        drop(client.add_endpoint(&self.url).await);
    }
}

impl Endpoints {
    pub(super) fn new(options: EtcdOptions) -> Self {
        let member = |url: &String| Member {
            url: url.clone(),
            client: Mutex::default(),
            authenticated: Shared::new(),
            under_way: Arc::new(Semaphore::new(MOST_UNDER_WAY)),
            answers: Arc::default(),
        };
        let members = options.endpoints.iter().map(member).collect();
        Self { members, preferred: watch::Sender::new(0), options }
    }

    pub(super) fn are_several(&self) -> bool {
        self.members.len() > 1
    }

    /// Asks the members, one after the other, until one answers; each at most for the request
    /// timeout, which begins when the request is sent.
    ///
    /// A request goes on in a task of its own when its caller does not wait for it any more. Dropping it would
    /// reset its stream, and HTTP/2 ends a connection, which all requests share, after a thousand answers to
    /// streams that were reset.
    pub(super) async fn ask<T: Send + 'static, F>(
        &self,
        request: impl Fn(Client) -> F,
    ) -> Result<Answer<T>, BackendError>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let request = &request;
        self.first_answer(|index| async move {
            let Some(place) = self.place_at(index).await else {
                let error = BackendError::transient("requests to this member are not answered");
                return Err(Failure { error, may_be_done: false });
            };
            let limit = self.options.request_timeout;
            let see_through = |client| {
                // a request is large, so it is made only once it has a place
                let (request, place) = (request(client), Arc::clone(&place));
                let answers = Arc::clone(&self.members[index].answers);
                let task = tokio::spawn(async move {
                    let answer = timeout(limit.max(LONGEST_UNDER_WAY), request).await;
                    drop(place);
                    let answer =
                        answer.unwrap_or_else(|elapsed| Err(Error::IoError(elapsed.into())));
                    if answer.as_ref().err().is_none_or(is_answer) {
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    answer
                });
                // the task goes on when its handle is dropped
                async { task.await.unwrap_or_else(|ended| Err(Error::IoError(ended.into()))) }
            };
            self.ask_member(index, limit, see_through).await
        })
        .await
    }

    /// As [`ask`](Self::ask), but asks each member at most for `limit`, does not wait for a place, and ends the request when its
    /// caller stops waiting. A connection without an answer is replaced: a router, such as a NAT, may have forgotten the
    /// connection without telling either side.
    pub(super) async fn ask_within<T, F: Future<Output = Result<T, Error>>>(
        &self,
        limit: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, BackendError> {
        let request = &request;
        let ask = |index| async move {
            let asked_at = Instant::now();
            let answer = self.ask_member(index, limit, request).await;
            if answer.is_err() && asked_at.elapsed() >= limit {
                // a younger connection may not be open yet
                self.members[index].reconnect(|made_at| made_at + limit <= asked_at).await;
            }
            answer
        };
        self.first_answer(ask).await.map(|answer| answer.value)
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

    /// Calls `ask` with the index of one member after the other until one answers, and has the next requests
    /// begin with that one.
    ///
    /// An error that leaves open whether any member has carried the request out is `Transient`.
    async fn first_answer<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        ask: impl Fn(usize) -> F,
    ) -> Result<Answer<T>, BackendError> {
        let (first, count) = (*self.preferred.borrow(), self.members.len());
        let mut may_be_second = false;
        let mut latest = None;
        for index in (first..first + count).map(|index| index % count) {
            match ask(index).await {
                Err(Failure { error, may_be_done })
                    if error.kind == BackendErrorKind::Transient || distrusts(&error) =>
                {
                    may_be_second |= may_be_done;
                    // waiting may help if it may help at one of the members
                    let is_transient = error.kind == BackendErrorKind::Transient;
                    latest = latest.filter(|_| !is_transient).or(Some(error));
                    // now, since the caller may give up before the next member has answered
                    self.prefer((index + 1) % count, |preferred| preferred == index);
                }
                answer => {
                    self.prefer(index, |preferred| preferred != index);
                    return match answer {
                        Ok(value) => Ok(Answer { value, may_be_second }),
                        Err(Failure { error, .. })
                            if may_be_second && error.kind != BackendErrorKind::LeaseGone =>
                        {
                            Err(BackendError::transient(error))
                        }
                        Err(Failure { error, .. }) => Err(error),
                    };
                }
            }
        }
        Err(latest.unwrap_or_else(|| BackendError::permanent("no endpoint")))
    }

    /// Prefers this member for the next requests if `instead` is true for the member that is preferred now.
    fn prefer(&self, index: usize, instead: impl Fn(usize) -> bool) {
        self.preferred.send_if_modified(|preferred| {
            let moves = instead(*preferred);
            if moves {
                *preferred = index;
            }
            moves
        });
    }

    /// Waits for a place for a request at this member. Returns `None` once another member is preferred, or this one has answered
    /// no request for a while.
    async fn place_at(&self, index: usize) -> Option<Arc<OwnedSemaphorePermit>> {
        let member = &self.members[index];
        let mut preferred = self.preferred.subscribe();
        let mut place = pin!(Arc::clone(&member.under_way).acquire_owned());
        loop {
            let answers = member.answers.load(Ordering::Relaxed);
            tokio::select! {
                biased;
                place = &mut place => return place.ok().map(Arc::new),
                _ = preferred.wait_for(|preferred| *preferred != index) => return None,
                () = sleep(self.options.request_timeout) => {
                    if member.answers.load(Ordering::Relaxed) == answers {
                        return None;
                    }
                }
            }
        }
    }

    /// Asks one member at most for `limit`. A request that is refused for its token is repeated once, after
    /// authenticating anew.
    async fn ask_member<T, F: Future<Output = Result<T, Error>>>(
        &self,
        index: usize,
        limit: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure> {
        let mut is_open = false;
        let answer = timeout(limit, async {
            let client = self.client(&self.members[index]).await?;
            let sent_at = Instant::now();
            is_open = true;
            let answer = match request(client.clone()).await {
                Err(error) if self.options.user.is_some() && asks_to_authenticate(&error) => {
                    // all requests that the member refuses at the same time share one authentication; boxed, as it is rare
                    let authenticate = Box::pin(self.authenticate(client.clone()));
                    let authenticated = &self.members[index].authenticated;
                    authenticated.get(|at| *at > sent_at, authenticate).await?;
                    Box::pin(request(client.clone())).await
                }
                answer => answer,
            };
            is_open = answer.as_ref().is_err_and(may_be_done);
            answer.map_err(backend_error)
        });
        let answer = answer.await.unwrap_or_else(|elapsed| Err(BackendError::transient(elapsed)));
        answer.map_err(|error| Failure { error, may_be_done: is_open })
    }

    /// Gets a token for all requests of this client. Returns the time at which the token came.
    async fn authenticate(&self, mut client: Client) -> Result<Instant, BackendError> {
        let Some(user) = &self.options.user else { return Ok(Instant::now()) };
        let credentials = user.credentials().await?;
        let updated = match client.update_user(Some(credentials)).await {
            Err(error) if says_auth_is_off(&error) => {
                tracing::warn!("etcd's authentication is switched off: its user is not checked");
                client.update_user(None).await
            }
            updated => updated,
        };
        updated.map(|()| Instant::now()).map_err(backend_error)
    }

    /// The client of one member. Callers that need it before it is made share one authentication and its outcome.
    async fn client(&self, member: &Member) -> Result<Client, BackendError> {
        let open = || member.client.lock().as_ref().map(|(client, _)| client.clone());
        let connect = async {
            let (url, options) = (member.url.clone(), self.options.connect_options());
            let client = Client::connect([url], Some(options)).await.map_err(backend_error)?;
            let authenticated_at = self.authenticate(client.clone()).await?;
            *member.client.lock() = Some((client, Instant::now()));
            Ok(authenticated_at)
        };
        if let Some(client) = open() {
            return Ok(client);
        }
        // boxed, as it is needed once
        member.authenticated.get(|_| open().is_some(), Box::pin(connect)).await?;
        open().ok_or_else(|| BackendError::transient("no client"))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;

    use super::*;

    /// Members that get no requests: those of the tests do not use the client.
    fn members(count: usize) -> Endpoints {
        let urls = (1..=count).map(|port| format!("http://127.0.0.1:{port}"));
        Endpoints::new(EtcdOptions::new(urls))
    }

    /// Goal: the wait for room does not count as a missing answer.
    /// Method: four times as many requests as there are places, each answered just in time.
    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_place_is_no_silence() {
        let members = members(1);
        let almost = members.options.request_timeout * 9 / 10;
        let asked = (0..4 * MOST_UNDER_WAY).map(|_| {
            members.ask(move |_| async move {
                sleep(almost).await;
                Ok(())
            })
        });
        for answer in join_all(asked).await {
            answer.expect("it was answered in time");
        }
    }

    /// Goal: a connection that leaves a renewal without an answer is given up, but not before it had the time to open.
    #[tokio::test(start_paused = true)]
    async fn a_young_connection_is_kept() {
        let (members, began_at) = (members(1), Instant::now());
        for made_after in [0, 2, 2, 4] {
            let silent = members.ask_within(Duration::from_secs(1), |_| pending::<Result<(), _>>());
            silent.await.expect_err("no answer");
            let client = members.members[0].client.lock();
            let made_at = client.as_ref().map(|(_, made_at)| *made_at);
            assert_eq!(made_at, Some(began_at + Duration::from_secs(made_after)));
        }
    }

    /// Goal: requests that wait for a place at a member that has fallen silent go to the next member with
    /// those that it left without an answer. If it is the only member, they fail.
    #[tokio::test(start_paused = true)]
    async fn no_request_waits_for_a_place_at_a_silent_member() {
        for (count, most_sent) in [(2, 3 * MOST_UNDER_WAY), (1, MOST_UNDER_WAY)] {
            let members = members(count);
            let (began_at, sent) = (Instant::now(), AtomicUsize::new(0));
            let asked = (0..2 * MOST_UNDER_WAY).map(|_| {
                members.ask(|_| {
                    let is_silent = sent.fetch_add(1, Ordering::Relaxed) < MOST_UNDER_WAY;
                    async move {
                        if is_silent {
                            std::future::pending::<()>().await;
                        }
                        Ok(())
                    }
                })
            });
            assert!(join_all(asked).await.iter().all(|answer| answer.is_ok() == (count == 2)));
            assert_eq!(began_at.elapsed(), members.options.request_timeout);
            assert_eq!(sent.into_inner(), most_sent);
        }
    }
}
