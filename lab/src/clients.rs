//! Clients of a lock, whichever it is: those of the arena, and the buyers of the articles.

use std::any::Any;

use demo::locks::proxy_to;
use fenced_lock::{GrantToken, Guard, LockError, Mutex, Session, Token};
use futures_util::future::BoxFuture;
use testkit::Proxy;

use crate::error::LabError;

/// What a client does, once it is done.
pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, LabError>>;

/// One that has a lock, or wants it.
pub(crate) trait Client: Send {
    /// Takes the lock, waiting as long as another one has it. Returns the token of the grant, if it has one.
    fn lock(&mut self) -> Answer<'_, Option<Token>>;

    /// Releases the lock, as far as this client knows that it has it.
    fn unlock(&mut self) -> Answer<'_, ()>;

    /// Whether it knows that it lost the lock.
    fn is_lost(&self) -> bool {
        false
    }

    /// How many claims are in the queue, if it can be seen.
    fn queue_length(&mut self) -> Answer<'_, usize> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Why it is not granted the lock, by what the servers say.
    fn why_locked(&mut self) -> Answer<'_, &'static str> {
        Box::pin(std::future::ready(Ok("locked")))
    }

    /// Whether it has noticed that the servers do not answer, if it does not repeat its requests.
    fn has_noticed_outage(&self) -> bool {
        true
    }
}

/// A session, which the clients of one process share.
pub(crate) trait LockSession: Send + Sync {
    /// A client of the lock of this name.
    fn client(&self, name: &str) -> Result<Box<dyn Client>, LabError>;

    /// Whether it has ended.
    fn is_lost(&self) -> bool;

    fn close(&self) -> BoxFuture<'_, Result<(), LockError>>;
}

impl<T: GrantToken> LockSession for Session<T> {
    fn client(&self, name: &str) -> Result<Box<dyn Client>, LabError> {
        Ok(Box::new(Ours { mutex: self.mutex(name)?, guard: None }))
    }

    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(Self::close(self))
    }
}

/// A client of a lock of `fenced-lock`.
struct Ours<T: GrantToken> {
    mutex: Mutex<T>,
    guard: Option<Guard<T>>,
}

impl<T: GrantToken> Client for Ours<T> {
    fn lock(&mut self) -> Answer<'_, Option<Token>> {
        Box::pin(async {
            let guard = self.guard.insert(self.mutex.lock().await?);
            Ok((&guard.token() as &dyn Any).downcast_ref().copied())
        })
    }

    fn unlock(&mut self) -> Answer<'_, ()> {
        Box::pin(async {
            if let Some(guard) = self.guard.take() {
                guard.unlock().await?;
            }
            Ok(())
        })
    }

    fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    fn queue_length(&mut self) -> Answer<'_, usize> {
        Box::pin(async { Ok(self.mutex.queue().await?.len()) })
    }
}

/// A proxy to each of these servers, and the addresses through them. A lock without servers has no proxies.
pub(crate) async fn proxies_to(servers: &[String]) -> Result<(Vec<Proxy>, Vec<String>), LabError> {
    let (mut proxies, mut addresses) = (Vec::new(), Vec::new());
    for address in servers {
        let Some(port) = port_of(address) else {
            addresses.push(address.clone());
            continue;
        };
        let proxy = proxy_to(port).await?;
        addresses.push(address.replace(&format!(":{port}"), &format!(":{}", proxy.port())));
        proxies.push(proxy);
    }
    Ok((proxies, addresses))
}

fn port_of(address: &str) -> Option<u16> {
    let rest = address.rsplit_once(':')?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
