//! A lock's queue, as its watch has shown it.
//!
//! [`WatchedQueue`] tells the claims of this process where they stand. It needs a number for each change. ZooKeeper's events
//! have none, so they are numbered as they arrive. A claim whose put was answered gets the number of a change that the watch
//! has yet to show. So a list that was requested before the answer may lack the claim; if a later list lacks it, the claim is
//! gone. While a list is awaited, no event of the queue's own watch is applied, because the list may contain it already.

use std::sync::Arc;

use tokio::sync::OnceCell;
use tokio_util::task::AbortOnDropHandle;

use super::layout::{Node, prefix};
use crate::watched::{Event, Key, Made, WatchedQueue};
use crate::{Claim, Ticket, Token};

/// The claims on one lock.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Set once the queue is watched and was read: the task that follows the watch.
    pub(super) watched: Arc<OnceCell<AbortOnDropHandle<()>>>,
    /// Claims of this process are keyed by the prefixes of their nodes.
    pub(super) claims: WatchedQueue<()>,
    /// How many times events may have been missed. A list requested before the latest such time may lack a claim that no event
    /// will show.
    gaps: u64,
    /// The place of the node that was last looked at. The places of other nodes are counted from it.
    last_place: Option<i64>,
    /// Whether a claim was added since the last look.
    was_used: bool,
}

impl Queue {
    /// Adds a claim before its request is sent. Returns also whether the claim was here already: then an earlier request may
    /// have been carried out.
    pub(super) fn expect(&mut self, claim: &Claim) -> (Ticket, bool) {
        self.was_used = true;
        let prefix = prefix(claim);
        let was_known = self.claims.is_own(prefix.as_bytes());
        (self.claims.expect(prefix.as_bytes()), was_known)
    }

    /// Records that the claim's node exists.
    pub(super) fn made(&mut self, claim: &Claim, node: &Node, token: Token) {
        let made = Made { place: self.place(node), change: self.claims.latest_change() + 1, token };
        self.claims.made(prefix(claim).as_bytes(), made);
    }

    /// Records that a claim is about to be deleted. Returns its node if the node was made.
    pub(super) fn mark_gone(&mut self, claim: &Claim) -> Option<String> {
        let prefix = prefix(claim);
        self.claims.mark_gone(prefix.as_bytes());
        let made = self.claims.how_made(prefix.as_bytes())?;
        Some(format!("{prefix}{:010}", sequence_of(made.place)))
    }

    /// The latest change, and the number of gaps, for a list that is requested now.
    pub(super) fn asked(&self) -> (i64, u64) {
        (self.claims.latest_change(), self.gaps)
    }

    /// Loads a list; [`asked`](Self::asked) was called before it was requested. If events were missed since then, the list is
    /// ignored, and the queue is read again.
    pub(super) fn load(&mut self, nodes: &[Node], (latest, gaps): (i64, u64)) {
        if gaps != self.gaps {
            return;
        }
        let list = nodes.iter().map(|node| self.event(node, latest, true)).collect();
        // the list is never too old: no event is applied while it is awaited
        let _ = self.claims.load(list, latest, latest);
    }

    pub(super) fn created(&mut self, node: &Node) {
        let event = self.event(node, self.claims.latest_change() + 1, true);
        self.claims.apply(vec![event]);
    }

    /// Removes a node. Returns `true` if the queue must be read again before anything is granted: a claim of this process that
    /// vanishes without its doing may have ended with the session, whose other claims the servers report one by one.
    #[must_use]
    pub(super) fn deleted(&mut self, node: &Node) -> bool {
        let event = self.event(node, self.claims.latest_change() + 1, false);
        let key = Arc::clone(&event.key);
        let was_taken = self.claims.is_counted_on(&key);
        if was_taken {
            self.interrupted();
        } else {
            self.claims.apply(vec![event]);
        }
        if self.claims.is_own(&key) {
            self.claims.forget(&key);
        }
        was_taken
    }

    /// Records that events may have been missed: nothing is granted until the queue is read again.
    pub(super) fn interrupted(&mut self) {
        self.gaps += 1;
        self.claims.interrupted();
    }

    /// Records that the queue can no longer be followed. Tells this process' claims that they are gone, but does not forget
    /// them: existing nodes must still be deleted.
    pub(super) fn end(&mut self) {
        self.watched = Arc::default();
        for key in self.claims.own_keys() {
            self.claims.mark_gone(key);
        }
    }

    /// Whether nobody watches the queue and it has no claim of this process.
    pub(super) fn is_unused(&self) -> bool {
        self.claims.own_keys().next().is_none() && !self.watched.initialized()
    }

    /// Whether the queue was used since the last look.
    pub(super) fn take_use(&mut self) -> bool {
        std::mem::take(&mut self.was_used) || self.claims.own_keys().next().is_some()
    }

    /// The event for a node that appeared or vanished. Prefixes of other clients may repeat, so their nodes are keyed by whole
    /// names.
    fn event(&mut self, node: &Node, change: i64, is_there: bool) -> Event<()> {
        let (prefix, name) = (node.prefix().as_bytes(), node.name.as_bytes());
        let key = if self.claims.is_own(prefix) { Key::from(prefix) } else { Key::from(name) };
        Event { key, change, put: is_there.then_some((self.place(node), ())) }
    }

    /// Where a node stands. The servers' counter wraps around; places do not.
    fn place(&mut self, node: &Node) -> i64 {
        let last = self.last_place.unwrap_or_else(|| node.sequence.into());
        let place = last + i64::from(node.sequence.wrapping_sub(sequence_of(last)));
        *self.last_place.insert(place)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the servers' counter wraps around")]
fn sequence_of(place: i64) -> i32 {
    place as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClaimStatus, ClusterId};

    const TOKEN: Token = Token::new(ClusterId(1), 7);

    fn claim(number: u64) -> Claim {
        Claim::new("a", 1, number)
    }

    fn node(prefix: &str, sequence: i32) -> Node {
        Node::new(&format!("{prefix}{sequence:010}")).expect("it has a number")
    }

    /// A claim whose put was answered.
    fn made(queue: &mut Queue, number: u64, sequence: i32) -> (Ticket, Node) {
        let (ticket, was_known) = queue.expect(&claim(number));
        assert!(!was_known);
        let node = node(&prefix(&claim(number)), sequence);
        queue.made(&claim(number), &node, TOKEN);
        (ticket, node)
    }

    #[track_caller]
    fn assert_status(ticket: &Ticket, status: ClaimStatus) {
        assert_eq!(*ticket.status.borrow(), status);
    }

    /// Goal: when a claim of this process vanishes without its doing, its next claim is granted only after the queue was read
    /// again, because that claim may have ended with the same session.
    #[test]
    fn the_end_of_a_session_grants_nothing() {
        for is_leaving in [false, true] {
            let mut queue = Queue::default();
            queue.load(&[], queue.asked());
            let (_held, first) = made(&mut queue, 1, 5);
            queue.created(&first);
            let (ticket, next) = made(&mut queue, 2, 6);
            queue.created(&next);
            if is_leaving {
                assert_eq!(queue.mark_gone(&claim(1)).as_ref(), Some(&first.name));
            }
            assert_eq!(queue.deleted(&first), !is_leaving);
            let is_granted = *ticket.status.borrow() == ClaimStatus::Granted(TOKEN);
            assert_eq!(is_granted, is_leaving);
            queue.load(&[next], queue.asked());
            assert_status(&ticket, ClaimStatus::Granted(TOKEN));
        }
    }

    /// Goal: a list that was requested before a claim was made does not end the claim, but may show it; a later list without the
    /// claim ends it.
    #[test]
    fn an_old_list_ends_nothing() {
        let mut queue = Queue::default();
        let before = queue.asked();
        let (ticket, node) = made(&mut queue, 1, 5);
        queue.load(&[], before);
        assert_status(&ticket, ClaimStatus::Waiting);
        queue.load(&[node], before);
        assert_status(&ticket, ClaimStatus::Granted(TOKEN));
        queue.load(&[], queue.asked());
        assert_status(&ticket, ClaimStatus::Gone);
    }

    /// Goal: places keep growing where the servers' counter wraps around.
    #[test]
    fn places_go_on() {
        let mut queue = Queue::default();
        queue.load(&[node("x-", i32::MAX - 1), node("x-", i32::MAX)], queue.asked());
        let (ticket, ours) = made(&mut queue, 1, i32::MIN);
        queue.created(&ours);
        for sequence in [i32::MAX, i32::MAX - 1] {
            assert_status(&ticket, ClaimStatus::Waiting);
            assert!(!queue.deleted(&node("x-", sequence)));
        }
        assert_status(&ticket, ClaimStatus::Granted(TOKEN));
        assert_eq!(queue.mark_gone(&claim(1)), Some(ours.name));
    }

    /// Goal: a queue is given up at the second look without a claim of ours, and is read again while a claim waits.
    #[test]
    fn an_unused_queue_is_given_up() {
        let mut queue = Queue::default();
        queue.load(&[], queue.asked());
        let (_ticket, node) = made(&mut queue, 1, 5);
        assert!(queue.take_use() && queue.claims.is_waited_for());
        queue.created(&node);
        assert!(queue.take_use() && !queue.claims.is_waited_for(), "it holds");
        queue.claims.forget(prefix(&claim(1)).as_bytes());
        assert!(!queue.take_use());
    }
}
