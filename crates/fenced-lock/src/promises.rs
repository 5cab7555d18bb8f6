//! The promises of a lock service.

use std::fmt::Debug;

/// The type that a grant carries: a [`Token`](super::Token), or [`Unfenced`] for a lock without tokens. A function that takes a
/// [`Guard`](super::Guard) takes only one with a token: a guard of a lock without tokens does not compile there.
pub trait GrantToken: Copy + Debug + PartialEq + Send + Sync + 'static {}

impl<T: Copy + Debug + PartialEq + Send + Sync + 'static> GrantToken for T {}

/// The mark of a lock whose grants carry no fencing token. A holder that is paused beyond its lease can then write beside its
/// successor, and nothing refuses the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfenced;

/// The promises of a [`Backend`](super::Backend). The contract suite shows that the backend keeps each promise, and that it
/// promises as much as it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promises {
    /// In which order waiters are served.
    pub order: Order,
    /// How a waiter learns of its grant.
    pub wake: Wake,
    /// Whether tokens keep growing.
    pub token: TokenLife,
    /// How the hold of a dead process ends.
    pub ends: Ends,
    /// How a holder learns that its claim was removed while its lease lives.
    pub loss: Loss,
    /// Whether every claim in a queue can be seen, in order; otherwise only the holder can.
    pub shows_waiters: bool,
    /// Whether the backend tells claims that [stand by](super::Mutex::standby) from others. If not, such a claim asks for a
    /// turn from the start, as any other.
    pub standby: bool,
}

impl Promises {
    /// The most that a lock promises.
    pub(crate) const MOST: Self = Self {
        order: Order::Fifo,
        wake: Wake::Pushed,
        token: TokenLife::Durable,
        ends: Ends::Lease(Clock::Monotonic),
        loss: Loss::Pushed,
        shows_waiters: true,
        standby: true,
    };

    /// The least that a lock promises; a backend adds its further promises:
    ///
    /// ```
    /// use fenced_lock::{Order, Promises};
    ///
    /// let mut promises = Promises::LEAST;
    /// promises.order = Order::Fifo;
    /// ```
    pub const LEAST: Self = Self {
        order: Order::Unordered,
        wake: Wake::Polled,
        token: TokenLife::None,
        ends: Ends::Lease(Clock::Wall),
        loss: Loss::Never,
        shows_waiters: false,
        standby: false,
    };
}

/// In which order waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// In the order in which the service put their claims into the queue.
    Fifo,
    /// In the order in which the server got them, except that a waiter that loses its connection starts anew.
    Arrival,
    /// The waiter that asks at the right moment is served.
    Unordered,
}

/// How a waiter learns of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// The service sends a message.
    Pushed,
    /// The service answers the waiter's request when it is granted.
    ServerWait,
    /// The waiter asks again and again.
    Polled,
}

/// Whether a later grant has a larger token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenLife {
    /// Always, also after the service has failed over or restarted. A service that may have failed over to a lagging copy changes
    /// the [`ClusterId`](crate::ClusterId).
    Durable,
    /// Until the service loses data that it had not yet stored or copied.
    Volatile,
    /// There is no token.
    None,
}

/// How the hold of a dead process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ends {
    /// The end of its lease, as measured by this clock.
    Lease(Clock),
    /// The end of the process, at once. A process that is stopped keeps its holds and its places in the queues.
    Process,
}

/// The clock that measures a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// A monotonic clock: nobody can set it.
    Monotonic,
    /// The wall clock of the service: leases end early if somebody sets it forward.
    Wall,
}

/// How a holder learns that its claim was removed while its lease lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The service sends a message.
    Pushed,
    /// The next renewal of the lease shows it.
    AtRenewal,
    /// The holder learns of it only when it releases the lock.
    Never,
}
