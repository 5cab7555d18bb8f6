//! A lock's queue, as its watch has shown it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::OnceCell;
use tokio_util::task::AbortOnDropHandle;

use super::layout::Node;
use crate::waiters::Waiters;
use crate::{Claim, ClaimStatus, Token};

/// The claims on one lock, and which of them are ours.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Set once the queue is watched and was read.
    pub(super) watched: Arc<OnceCell<()>>,
    /// Follows what happens in it.
    pub(super) task: Option<AbortOnDropHandle<()>>,
    /// In the order of their turns. Only what the watch shows changes it: a node that was just made is not the first
    /// before all that came earlier are here.
    nodes: Vec<Node>,
    /// Our claims, by the prefixes of their nodes.
    own: HashMap<String, Own>,
    /// Whether a claim came since the last look.
    was_used: bool,
}

/// A claim of this process.
#[derive(Debug)]
struct Own {
    claim: Claim,
    /// Its node and its token, once the server has answered.
    made: Option<(String, Token)>,
    /// Whether we have asked for its end.
    is_leaving: bool,
}

/// What a look at an unused queue says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Use {
    #[default]
    None,
    /// A claim waits in it.
    Waited,
    Other,
}

impl Queue {
    /// Makes a claim known before its request is sent; `true` if it was known: the request may have been carried out.
    pub(super) fn expect(&mut self, prefix: &str, claim: &Claim) -> bool {
        self.was_used = true;
        let own = Own { claim: claim.clone(), made: None, is_leaving: false };
        let known = self.own.contains_key(prefix);
        self.own.entry(prefix.to_owned()).or_insert(own);
        known
    }

    /// Notes that a claim was made.
    pub(super) fn made(
        &mut self,
        prefix: &str,
        node: String,
        token: Token,
        waiters: &Waiters<Token>,
    ) {
        // it is not there if the node was deleted meanwhile
        if let Some(own) = self.own.get_mut(prefix) {
            own.made = Some((node, token));
            self.settle(waiters);
        }
    }

    /// Whether a claim may be in the queue.
    pub(super) fn knows(&self, prefix: &str) -> bool {
        self.own.contains_key(prefix)
    }

    /// Notes that a claim is about to be deleted. Its node, if it was made.
    pub(super) fn leave(&mut self, prefix: &str) -> Option<String> {
        let own = self.own.get_mut(prefix)?;
        own.is_leaving = true;
        own.made.as_ref().map(|(node, _)| node.clone())
    }

    /// Forgets a claim, which is not in the queue any more.
    pub(super) fn forget(&mut self, prefix: &str, waiters: &Waiters<Token>) {
        if let Some(own) = self.own.remove(prefix) {
            waiters.note(&own.claim, ClaimStatus::Gone);
        }
    }

    /// Our claims that were made. A list that is asked for from now on shows them, or they are gone.
    pub(super) fn all_made(&self) -> Vec<String> {
        let made = self.own.iter().filter(|(_, own)| own.made.is_some());
        made.map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Takes over the nodes of a list. `made` is what [`all_made`](Self::all_made) said before it was asked for.
    pub(super) fn load(&mut self, nodes: Vec<Node>, made: &[String], waiters: &Waiters<Token>) {
        self.nodes = nodes;
        for prefix in made {
            if !self.nodes.iter().any(|node| node.prefix() == prefix) {
                self.forget(prefix, waiters);
            }
        }
        self.settle(waiters);
    }

    pub(super) fn created(&mut self, node: Node, waiters: &Waiters<Token>) {
        if let Err(place) = self.nodes.binary_search_by(|known| known.turn(&node)) {
            self.nodes.insert(place, node);
            self.settle(waiters);
        }
    }

    /// Takes a node out. `true` if the queue must be read again before anything is granted: a claim of ours that goes
    /// without our doing may have gone with the session, and the news of its other claims come one by one.
    #[must_use]
    pub(super) fn deleted(&mut self, node: &Node, waiters: &Waiters<Token>) -> bool {
        let was_taken = self.own.get(node.prefix()).is_some_and(|own| !own.is_leaving);
        if let Ok(place) = self.nodes.binary_search_by(|known| known.turn(node)) {
            self.nodes.remove(place);
        }
        self.forget(node.prefix(), waiters);
        if was_taken {
            self.nodes.clear();
        }
        self.settle(waiters);
        was_taken
    }

    /// Tells the first in the queue, if it is ours.
    fn settle(&self, waiters: &Waiters<Token>) {
        let first = self.nodes.first().and_then(|first| self.own.get(first.prefix()));
        if let Some(Own { claim, made: Some((_, token)), .. }) = first {
            waiters.note(claim, ClaimStatus::Granted(*token));
            waiters.note_contended(claim, self.nodes.len() > 1);
        }
    }

    /// Notes that the watch is interrupted: who waits is not known.
    pub(super) fn interrupted(&self, waiters: &Waiters<Token>) {
        for own in self.own.values() {
            waiters.note_contended(&own.claim, true);
        }
    }

    /// Notes that nothing can be known of it any more. Our claims are told that they are gone, but not forgotten: what
    /// there is of them must still be withdrawn.
    pub(super) fn end(&mut self, waiters: &Waiters<Token>) {
        self.watched = Arc::default();
        for own in self.own.values() {
            waiters.note(&own.claim, ClaimStatus::Gone);
        }
    }

    /// Whether it was used since the last look.
    pub(super) fn look(&mut self) -> Use {
        let was_used = std::mem::take(&mut self.was_used);
        let first = self.nodes.first().map(Node::prefix);
        if self.own.keys().any(|prefix| Some(prefix.as_str()) != first) {
            Use::Waited
        } else if was_used || !self.own.is_empty() {
            Use::Other
        } else {
            Use::None
        }
    }

    pub(super) fn count_own(&self) -> usize {
        self.own.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterId, Ticket};

    const TOKEN: Token = Token::new(ClusterId(1), 7);

    fn node(name: &str) -> Node {
        Node::new(name).expect("it has a number")
    }

    fn claim() -> Claim {
        Claim { name: "a".into(), lease: 1, number: 1, label: "".into() }
    }

    /// A claim that was made, as far as its answer says.
    fn made(queue: &mut Queue, waiters: &Waiters<Token>) -> Ticket {
        let ticket = waiters.expect(&claim());
        assert!(!queue.expect("_c_1-lock-", &claim()));
        queue.made("_c_1-lock-", "_c_1-lock-0000000005".to_owned(), TOKEN, waiters);
        ticket
    }

    /// Goal: a claim is granted only once the watch has shown it: news of an earlier claim may be on the way when the
    /// answer comes.
    #[test]
    fn an_answer_grants_nothing() {
        let (mut queue, waiters) = (Queue::default(), Waiters::new());
        let ticket = made(&mut queue, &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        queue.created(node("x-9-0000000004"), &waiters);
        queue.created(node("_c_1-lock-0000000005"), &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        assert!(!queue.deleted(&node("x-9-0000000004"), &waiters));
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Granted(TOKEN));
        assert!(queue.deleted(&node("_c_1-lock-0000000005"), &waiters));
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone);
    }

    /// Goal: when a claim goes without our doing, the next of ours is granted only after the queue was read again: it
    /// may have gone with the same session.
    #[test]
    fn the_end_of_a_session_grants_nothing() {
        for is_leaving in [false, true] {
            let (mut queue, waiters) = (Queue::default(), Waiters::new());
            let _held = made(&mut queue, &waiters);
            queue.created(node("_c_1-lock-0000000005"), &waiters);
            let next = Claim { number: 2, ..claim() };
            let ticket = waiters.expect(&next);
            queue.expect("_c_2-lock-", &next);
            queue.created(node("_c_2-lock-0000000006"), &waiters);
            if is_leaving {
                queue.leave("_c_1-lock-");
            }
            assert_eq!(queue.deleted(&node("_c_1-lock-0000000005"), &waiters), !is_leaving);
            queue.made("_c_2-lock-", "_c_2-lock-0000000006".to_owned(), TOKEN, &waiters);
            let is_granted = *ticket.status.borrow() == ClaimStatus::Granted(TOKEN);
            assert_eq!(is_granted, is_leaving);
            queue.load(vec![node("_c_2-lock-0000000006")], &queue.all_made(), &waiters);
            assert_eq!(*ticket.status.borrow(), ClaimStatus::Granted(TOKEN));
        }
    }

    /// Goal: a list that was asked for before a claim was made does not end it; a later one without it does.
    #[test]
    fn an_old_list_ends_nothing() {
        let (mut queue, waiters) = (Queue::default(), Waiters::new());
        let before = queue.all_made();
        let ticket = made(&mut queue, &waiters);
        queue.load(Vec::new(), &before, &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        let before = queue.all_made();
        queue.load(Vec::new(), &before, &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone);
        assert!(!queue.knows("_c_1-lock-"));
    }

    /// Goal: a queue is given up at the second look without a claim of ours, and read again while one waits.
    #[test]
    fn an_unused_queue_is_given_up() {
        let (mut queue, waiters) = (Queue::default(), Waiters::new());
        let _ticket = made(&mut queue, &waiters);
        assert_eq!(queue.look(), Use::Waited);
        queue.created(node("_c_1-lock-0000000005"), &waiters);
        assert_eq!(queue.look(), Use::Other, "it holds");
        assert!(queue.expect("_c_1-lock-", &claim()), "a repetition");
        queue.forget("_c_1-lock-", &waiters);
        assert_eq!(queue.look(), Use::Other, "it was used");
        assert_eq!(queue.look(), Use::None);
    }
}
