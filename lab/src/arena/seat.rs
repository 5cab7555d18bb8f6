//! A session of any lock, with or without tokens.

use std::any::Any;
use std::time::Duration;

use fenced_lock::{GrantToken, Guard, LockError, Session, SessionOptions, Token};
use futures_util::future::BoxFuture;

use super::set_nx::SetNx;
use crate::error::LabError;
use demo::baselines::LockMode;
use demo::locks::AnyLock;

/// A session.
pub(super) trait Seat: Send + Sync {
    /// Takes the lock of this name.
    fn take<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Box<dyn Held>, LockError>>;
    /// How many claims are in its queue.
    fn queue_length<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<usize, LockError>>;
    /// Whether it has ended.
    fn is_lost(&self) -> bool;
    /// Closes it.
    fn close(&self) -> BoxFuture<'_, Result<(), LockError>>;
}

/// A lock that is held.
pub(super) trait Held: Send {
    /// Whether the holder knows that it lost it.
    fn is_lost(&self) -> bool;
    /// The token of the grant, if it has one.
    fn token(&self) -> Option<Token>;
    /// Releases it.
    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), LockError>>;
}

impl<T: GrantToken> Seat for Session<T> {
    fn take<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Box<dyn Held>, LockError>> {
        Box::pin(async move {
            let guard = self.mutex(name)?.lock().await?;
            Ok(Box::new(guard) as Box<dyn Held>)
        })
    }

    fn queue_length<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<usize, LockError>> {
        Box::pin(async move { Ok(self.mutex(name)?.queue().await?.len()) })
    }

    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(Self::close(self))
    }
}

impl<T: GrantToken> Held for Guard<T> {
    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }

    fn token(&self) -> Option<Token> {
        (&Self::token(self) as &dyn Any).downcast_ref().copied()
    }

    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), LockError>> {
        Box::pin((*self).unlock())
    }
}

/// Opens a session of the lock at these addresses with this TTL.
pub(super) async fn open(
    lock: LockMode,
    addresses: &[String],
    ttl: Duration,
) -> Result<Box<dyn Seat>, LabError> {
    if lock == LockMode::RedisSetNx {
        return Ok(Box::new(SetNx::connect(&addresses.concat(), ttl).await?));
    }
    let options = SessionOptions::new(ttl);
    Ok(match AnyLock::at(lock, addresses).map_err(LockError::from)? {
        AnyLock::Fenced(lock) => Box::new(Session::open(lock, options).await?),
        AnyLock::Unfenced(lock) => Box::new(Session::open(lock, options).await?),
    })
}
