//! Clients of any lock, for the arena and as the buyers of the articles.

use std::any::Any;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use fenced_lock::{GrantToken, Guard, Mutex, Session, Token};
use testkit::Proxy;

/// A client that has a lock, or wants it.
#[async_trait]
pub(crate) trait Client: Send {
    /// Takes the lock, after waiting while another client has it. Returns the token of the grant, if it has one.
    async fn lock(&mut self) -> Result<Option<Token>>;

    /// Releases the lock, if this client believes that it has it.
    async fn unlock(&mut self) -> Result<()>;

    /// Whether the client knows that it has lost the lock.
    fn is_lost(&self) -> bool {
        false
    }

    /// How many claims are in the queue, if it can be seen.
    async fn queue_length(&mut self) -> Result<usize> {
        Ok(0)
    }

    /// Why the client is not granted the lock, as the servers show it.
    async fn why_locked(&mut self) -> Result<&'static str> {
        Ok("locked")
    }

    /// Whether the client has noticed that the servers do not answer. True for a client that repeats its requests.
    fn has_noticed_outage(&self) -> bool {
        true
    }
}

/// One process' session, shared by its clients: makes a client for the lock of a name.
pub(crate) type Clients = Box<dyn Fn(&str) -> Result<Box<dyn Client>>>;

pub(crate) fn clients_of<T: GrantToken>(session: Session<T>) -> Clients {
    Box::new(move |name| Ok(Box::new(Ours { mutex: session.mutex(name)?, guard: None })))
}

struct Ours<T: GrantToken> {
    mutex: Mutex<T>,
    guard: Option<Guard<T>>,
}

#[async_trait]
impl<T: GrantToken> Client for Ours<T> {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let guard = self.guard.insert(self.mutex.lock().await?);
        Ok((&guard.token() as &dyn Any).downcast_ref().copied())
    }

    async fn unlock(&mut self) -> Result<()> {
        if let Some(guard) = self.guard.take() {
            guard.unlock().await?;
        }
        Ok(())
    }

    fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    async fn queue_length(&mut self) -> Result<usize> {
        Ok(self.mutex.queue().await?.len())
    }
}

/// A proxy to each of these servers, and the proxies' addresses. A lock without servers has no proxies.
pub(crate) async fn proxies_to(servers: &[String]) -> Result<(Vec<Proxy>, Vec<String>)> {
    let (mut proxies, mut addresses) = (Vec::new(), Vec::new());
    for address in servers {
        let Some(port) = port_of(address) else {
            addresses.push(address.clone());
            continue;
        };
        let proxy = Proxy::to(port).await.context("a proxy has no port")?;
        addresses.push(address.replace(&format!(":{port}"), &format!(":{}", proxy.port())));
        proxies.push(proxy);
    }
    Ok((proxies, addresses))
}

fn port_of(address: &str) -> Option<u16> {
    let rest = address.rsplit_once(':')?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
