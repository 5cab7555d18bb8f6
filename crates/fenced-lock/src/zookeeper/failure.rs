//! What ZooKeeper's errors mean.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zookeeper_client::Error;

use crate::{BackendError, BackendErrorKind};

/// What a ZooKeeper answers, if only to refuse it.
pub(super) const WORD: &[u8] = b"srvr\r\n";

/// The beginning of a handshake that makes no sense. A server with TLS answers with an alert.
const BROKEN_HANDSHAKE: &[u8] = &[22, 3, 1, 0, 5, 0, 0, 0, 1, 0];
const ALERT: u8 = 21;

pub(super) fn backend_error(error: Error) -> BackendError {
    let kind = match error {
        // the client gives up a session when the servers have, and when it cannot connect any more
        Error::SessionExpired | Error::SessionMoved | Error::ClientClosed => {
            BackendErrorKind::LeaseGone
        }
        Error::QuotaExceeded | Error::Throttled | Error::NotReadOnly => BackendErrorKind::Refused,
        // an answer that makes no sense makes none the next time either
        Error::UnmarshalError { .. }
        | Error::UnexpectedError(_)
        | Error::NoAuth
        | Error::AuthFailed
        | Error::InvalidAcl
        | Error::BadArguments(_)
        | Error::NoChildrenForEphemerals
        | Error::MarshallingError => BackendErrorKind::Permanent,
        Error::Unimplemented => {
            let what = "the server is older than ZooKeeper 3.6";
            return BackendError::new(BackendErrorKind::Permanent, what);
        }
        _ => BackendErrorKind::Transient,
    };
    BackendError::new(kind, error)
}

pub(super) fn transient(what: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Transient, what)
}

pub(super) fn lease_gone() -> BackendError {
    BackendError::new(BackendErrorKind::LeaseGone, "the session has ended")
}

/// Sends a word and returns the beginning of the answer.
pub(super) async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    word: &[u8],
) -> io::Result<Vec<u8>> {
    stream.write_all(word).await?;
    stream.flush().await?;
    let mut answer = vec![0; 64];
    let length = stream.read(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

/// What a server answers without TLS; nothing if it does not.
pub(super) async fn ask_plainly(server: &str, word: &[u8], limit: Duration) -> Vec<u8> {
    let answer = async { ask(TcpStream::connect(server).await?, word).await };
    timeout(limit, answer).await.map_or(Vec::new(), Result::unwrap_or_default)
}

pub(super) fn is_of_zookeeper(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer).to_lowercase();
    answer.contains("zookeeper") || answer.starts_with("srvr")
}

/// That a server is one of another kind, if its answer to [`WORD`] says so.
pub(super) fn another_kind(server: &str, answer: &[u8]) -> Option<String> {
    let is_another = !answer.is_empty() && !is_of_zookeeper(answer);
    let answer = String::from_utf8_lossy(answer);
    is_another.then(|| format!("{server} is no ZooKeeper: it says {:?}", answer.trim_end()))
}

/// Why a server that is reached without TLS never opens a session, if it is such a one.
pub(super) async fn refusal(server: &str, limit: Duration) -> Option<String> {
    let answer = ask_plainly(server, WORD, limit).await;
    if !answer.is_empty() {
        return another_kind(server, &answer);
    }
    let answer = ask_plainly(server, BROKEN_HANDSHAKE, limit).await;
    (answer.first() == Some(&ALERT)).then(|| format!("{server} speaks TLS"))
}
