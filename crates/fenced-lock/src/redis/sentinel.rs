//! The primary that Redis Sentinel names.
//!
//! All sentinels are asked at once, and the primary is the one that most of them name: one may be cut off from the others
//! together with a former primary, and not learn of a failover. The client's own Sentinel client believes one of them.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{Client, ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisResult, cmd};
use tokio::time::timeout;

use super::connection::refusal;
use super::failure;
use crate::BackendError;

/// Where Redis is.
pub(super) struct Servers {
    /// The server, or its sentinels.
    pub(super) clients: Vec<Client>,
    /// What the sentinels call the primary.
    pub(super) primary: Option<String>,
}

impl Servers {
    /// The server, or the primary that most of the sentinels name that answer within this time.
    pub(super) async fn find(&self, within: Duration) -> Result<Client, BackendError> {
        let Some(name) = &self.primary else { return Ok(self.clients[0].clone()) };
        let question = async |sentinel| -> RedisResult<_> {
            timeout(within, ask(sentinel, name)).await.map_err(io::Error::from)?
        };
        let mut answers: FuturesUnordered<_> = self.clients.iter().map(question).collect();
        let (mut votes, mut errors) = (HashMap::new(), Vec::new());
        while votes.values().all(|votes| *votes <= self.clients.len() / 2)
            && let Some(answer) = answers.next().await
        {
            match answer {
                Ok(place) => *votes.entry(place).or_insert(0) += 1,
                Err(error) => errors.push(refusal(error)),
            }
        }
        // where as many name either, an open connection stays, and a new one waits until they agree
        let all: usize = votes.values().sum();
        let Some(((named, at), _)) = votes.into_iter().find(|(_, votes)| votes * 2 > all) else {
            return Err(failure("the sentinels name no primary", &errors));
        };
        let sentinel = self.clients[0].get_connection_info();
        let mut address = sentinel.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            &mut address
        {
            (*host, *port) = (named, at);
        }
        Client::open(sentinel.clone().set_addr(address)).map_err(refusal)
    }
}

/// Host and port of the primary. A sentinel gets user and password only if it asks for them: often it has none.
async fn ask(sentinel: &Client, name: &str) -> RedisResult<(String, u16)> {
    let sentinel = sentinel.get_connection_info();
    let ask = async |user: RedisConnectionInfo| -> RedisResult<Option<_>> {
        let client = Client::open(sentinel.clone().set_redis_settings(user))?;
        let mut sentinel = client.get_multiplexed_async_connection().await?;
        cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut sentinel).await
    };
    let mut answer = ask(RedisConnectionInfo::default()).await;
    if answer.as_ref().is_err_and(|error| error.code() == Some("NOAUTH")) {
        // it has no databases
        answer = ask(sentinel.redis_settings().clone().set_db(0)).await;
    }
    let what = "the sentinel knows no primary of this name";
    answer?.ok_or_else(|| (ErrorKind::InvalidClientConfig, what, name.to_owned()).into())
}
