//! Safeguards of the server, of the inventory and of the sale that a fault suite or the simulator switches off, to show the harm
//! that each one prevents. Without `--cfg fenced_lock_chaos` each is a constant. **Never build a service for a real sale with
//! it.** The package `lab` removes other safeguards: it plugs in another writer or guard.

use std::sync::atomic::{AtomicBool, Ordering};

macro_rules! safeguards {
    ($($(#[doc = $doc:literal])* $safeguard:ident = $name:literal,)*) => {
        $($(#[doc = $doc])* pub static $safeguard: Safeguard = Safeguard(AtomicBool::new(true));)*

        /// All safeguards, with their names.
        pub static ALL: &[(&str, &Safeguard)] = &[$(($name, &$safeguard)),*];
    };
}

safeguards! {
    /// The bounds on the size of a request and on the time that it takes to arrive.
    LIMITS = "limits",
    /// The inventory follows the redirections of a Redis Cluster, and asks for the map of the slots again.
    REDIRECTS = "redirects",
    /// An instance with a silent store gives the lock up, and makes no claim before the store answers.
    GIVE_WAY = "give-way",
    /// If an attempt of an order got no answer, the order is answered as unknown, whatever fails later.
    UNKNOWN_ANSWER = "unknown-answer",
    /// The same if the store refuses a later attempt.
    UNKNOWN_KEPT = "unknown-kept",
    /// An order that was sent under several tokens keeps the first one, so that no later sale carries it out.
    FIRST_TOKEN = "first-token",
    /// Such an order also keeps the last token: under it an attempt may still arrive.
    LAST_TOKEN = "last-token",
    /// An answer that an earlier attempt may still change is replaced by one under a larger token.
    LARGER_TOKEN = "larger-token",
    /// A forwarded order is carried out in the tenure that it was sent to, or not at all.
    PEER_TENURE = "peer-tenure",
    /// A frame is taken once.
    PEER_ONCE = "peer-once",
    /// A frame is too late after some seconds.
    PEER_YOUNG = "peer-young",
    /// An operation waits behind an earlier one for the same order, from any source.
    PEER_IN_ORDER = "peer-in-order",
    /// After a silence under a token, nothing more goes to that token.
    PEER_SILENCE = "peer-silence",
    /// A sender waits for the holder's store as long as one attempt may take.
    PEER_PATIENCE = "peer-patience",
    /// An order that goes to the holder has the token of its first attempt without an answer, so that no later sale carries it
    /// out.
    PEER_FIRST_TOKEN = "peer-first-token",
    /// An instance remembers the data that the holder's store has acknowledged.
    PEER_WATERMARK = "peer-watermark",
    /// The holder's store is compared with the data that the senders remember.
    PEER_COMPARED = "peer-compared",
    /// Orders are put back in the order of their arrival.
    PUT_BACK_IN_ORDER = "put-back-in-order",
    /// An order waits while the same one is in a batch.
    IN_FLIGHT = "in-flight",
    /// A batch is sent again only after a failure that may pass.
    REPEAT_IF_IT_MAY_PASS = "repeat-if-it-may-pass",
    /// A batch is not sent again after a refusal.
    REPEAT_UNLESS_REFUSED = "repeat-unless-refused",
    /// A batch is not sent again after the time that an order may wait.
    REPEAT_IN_TIME = "repeat-in-time",
    /// A batch is not sent again to a silent store once the instance stops.
    REPEAT_UNLESS_ENDING = "repeat-unless-ending",
    /// A batch is not sent again after the end of the tenure if another instance waits.
    REPEAT_IN_TENURE = "repeat-in-tenure",
}

/// A switch that is on, unless the program was built with `--cfg fenced_lock_chaos` and has switched it off.
#[derive(Debug)]
pub struct Safeguard(AtomicBool);

impl Safeguard {
    pub(crate) fn is_on(&self) -> bool {
        !cfg!(fenced_lock_chaos) || self.0.load(Ordering::Relaxed)
    }

    /// Switches it on or off, in this whole process.
    #[cfg(fenced_lock_chaos)]
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}
