//! A server with a replica, and a failover by hand.

use std::io;

use super::proxy::Proxy;
use super::server::{Kind, Private, ServerError};

/// A kind of server that can follow another one.
#[allow(async_fn_in_trait, reason = "for the servers of this crate")]
pub trait Follow: Kind {
    /// A server does not answer, or refuses.
    type Error;

    /// The address of the primary for clients that connect to `port` instead, such as a proxy's.
    fn url_at(primary: &Private<Self>, port: u16) -> String;

    /// Waits until the replica has all that the primary has now.
    async fn until_caught_up(
        replica: &Private<Self>,
        primary: &Private<Self>,
    ) -> Result<(), Self::Error>;

    /// Makes a replica a primary, and waits until it takes writes.
    async fn promote(replica: &Private<Self>) -> Result<(), Self::Error>;
}

/// A primary, a replica that follows it, and the address of the primary for its clients. Not for secured servers.
#[derive(Debug)]
pub struct Replicated<K> {
    /// The primary, until [`fail_over`](Self::fail_over).
    pub primary: Private<K>,
    /// The replica, until [`fail_over`](Self::fail_over).
    pub replica: Private<K>,
    /// The address for clients.
    pub address: Proxy,
    /// The address for the replica.
    replication: Proxy,
}

impl<K: Follow> Replicated<K> {
    /// `replica_of` starts the replica of the primary at the given port.
    pub(crate) async fn of(
        primary: Private<K>,
        replica_of: impl AsyncFnOnce(&Private<K>, u16) -> Result<Private<K>, ServerError>,
    ) -> Result<Self, ServerError> {
        let no_proxy = ServerError::system(K::NAME);
        let address = Proxy::to(primary.port()).await.map_err(&no_proxy)?;
        let replication = Proxy::to(primary.port()).await.map_err(&no_proxy)?;
        let replica = replica_of(&primary, replication.port()).await?;
        Ok(Self { primary, replica, address, replication })
    }

    /// The address for clients, also after a failover.
    pub fn url(&self) -> String {
        K::url_at(&self.primary, self.address.port())
    }

    /// Waits until the replica has all writes so far, and keeps further writes from it.
    ///
    /// # Errors
    /// When one of the two does not answer, or the replica does not catch up within
    /// [`START_TIMEOUT`](super::server::START_TIMEOUT).
    pub async fn hold_writes_back(&self) -> Result<(), K::Error> {
        K::until_caught_up(&self.replica, &self.primary).await?;
        self.replication.freeze();
        Ok(())
    }

    /// Promotes the replica, cuts the clients off, and leads them to the replica. The former primary may run on.
    ///
    /// # Errors
    /// When the replica does not answer.
    pub async fn fail_over(&self) -> Result<(), K::Error> {
        K::promote(&self.replica).await?;
        self.address.redirect_to(self.replica.port());
        self.address.cut();
        Ok(())
    }

    /// Stops both and removes their directories.
    ///
    /// # Errors
    /// When one does not end, or its directory cannot be removed.
    pub async fn stop(self) -> io::Result<()> {
        self.primary.stop().await.and(self.replica.stop().await)
    }
}
