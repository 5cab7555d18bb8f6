//! A lock's queue, as its watch has shown it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::OnceCell;
use tokio_util::task::AbortOnDropHandle;

use super::layout::{Id, Node, id};
use crate::waiters::Waiters;
use crate::{Claim, ClaimStatus, Token};

/// The claims on one lock, and which of them are ours.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Set once the queue is watched and was read: what follows it from then on.
    pub(super) watched: Arc<OnceCell<AbortOnDropHandle<()>>>,
    /// In the order of their turns. Only what the watch shows changes it: a node that was just made is not the first
    /// before all that came earlier are here.
    nodes: Vec<Node>,
    own: HashMap<Id, Own>,
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

impl Queue {
    /// Makes a claim known before its request is sent; `true` if it was known: the request may have been carried out.
    pub(super) fn expect(&mut self, claim: &Claim) -> bool {
        self.was_used = true;
        let known = self.knows(claim);
        let own = || Own { claim: claim.clone(), made: None, is_leaving: false };
        self.own.entry(id(claim)).or_insert_with(own);
        known
    }

    /// Notes that a claim was made.
    pub(super) fn made(&mut self, claim: &Claim, node: &(String, Token), waiters: &Waiters<Token>) {
        // it is not there if the node was deleted meanwhile
        if let Some(own) = self.own.get_mut(&id(claim)) {
            own.made = Some(node.clone());
            self.settle(waiters);
        }
    }

    /// Whether a claim may be in the queue.
    pub(super) fn knows(&self, claim: &Claim) -> bool {
        self.own.contains_key(&id(claim))
    }

    /// Notes that a claim is about to be deleted. Its node, if it was made.
    pub(super) fn leave(&mut self, claim: &Claim) -> Option<String> {
        let own = self.own.get_mut(&id(claim))?;
        own.is_leaving = true;
        own.made.as_ref().map(|(node, _)| node.clone())
    }

    /// Forgets a claim, which is not in the queue any more.
    pub(super) fn forget(&mut self, claim: Id, waiters: &Waiters<Token>) {
        if let Some(own) = self.own.remove(&claim) {
            waiters.note(&own.claim, ClaimStatus::Gone);
        }
    }

    /// Our claims that were made. A list that is asked for from now on shows them, or they are gone.
    pub(super) fn all_made(&self) -> Vec<Id> {
        self.own.iter().filter(|(_, own)| own.made.is_some()).map(|(id, _)| *id).collect()
    }

    /// Takes over the nodes of a list. `made` is what [`all_made`](Self::all_made) said before it was asked for.
    pub(super) fn load(&mut self, nodes: Vec<Node>, made: &[Id], waiters: &Waiters<Token>) {
        self.nodes = nodes;
        for claim in made {
            if !self.nodes.iter().any(|node| node.claim == Some(*claim)) {
                self.forget(*claim, waiters);
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
        if let Ok(place) = self.nodes.binary_search_by(|known| known.turn(node)) {
            self.nodes.remove(place);
        }
        let own = node.claim.and_then(|claim| self.own.remove(&claim));
        let was_taken = own.as_ref().is_some_and(|own| !own.is_leaving);
        if let Some(own) = own {
            waiters.note(&own.claim, ClaimStatus::Gone);
        }
        if was_taken {
            self.nodes.clear();
        }
        self.settle(waiters);
        was_taken
    }

    /// Tells the first in the queue, if it is ours.
    fn settle(&self, waiters: &Waiters<Token>) {
        let first = self.nodes.first().and_then(|first| self.own.get(&first.claim?));
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

    /// Whether it is not watched, and has no claim of ours.
    pub(super) fn is_unused(&self) -> bool {
        self.own.is_empty() && !self.watched.initialized()
    }

    /// Whether it was used since the last look.
    pub(super) fn take_use(&mut self) -> bool {
        std::mem::take(&mut self.was_used) || !self.own.is_empty()
    }

    /// Whether a claim of ours waits in it.
    pub(super) fn is_waited_in(&self) -> bool {
        let first = self.nodes.first().and_then(|first| first.claim);
        self.own.keys().any(|claim| Some(*claim) != first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::prefix;
    use super::*;
    use crate::{ClusterId, Ticket};

    const TOKEN: Token = Token::new(ClusterId(1), 7);

    fn claim(number: u64) -> Claim {
        Claim { name: "a".into(), lease: 1, number, label: "".into() }
    }

    /// The node of our claim of this number, with the same sequence number.
    fn node(number: u64) -> Node {
        Node::new(&format!("{}{number:010}", prefix(&claim(number)))).expect("it has a number")
    }

    fn foreign(sequence: u64) -> Node {
        Node::new(&format!("x-9-{sequence:010}")).expect("it has a number")
    }

    /// A claim that was made, as far as its answer says.
    fn made(queue: &mut Queue, number: u64, waiters: &Waiters<Token>) -> Ticket {
        let ticket = waiters.expect(&claim(number));
        assert!(!queue.expect(&claim(number)));
        queue.made(&claim(number), &(node(number).name, TOKEN), waiters);
        ticket
    }

    /// Goal: a claim is granted only once the watch has shown it: news of an earlier claim may be on the way when the
    /// answer comes.
    #[test]
    fn an_answer_grants_nothing() {
        let (mut queue, waiters) = (Queue::default(), Waiters::new());
        let ticket = made(&mut queue, 5, &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        queue.created(foreign(4), &waiters);
        queue.created(node(5), &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        assert!(!queue.deleted(&foreign(4), &waiters));
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Granted(TOKEN));
        assert!(queue.deleted(&node(5), &waiters));
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone);
    }

    /// Goal: when a claim goes without our doing, the next of ours is granted only after the queue was read again: it
    /// may have gone with the same session.
    #[test]
    fn the_end_of_a_session_grants_nothing() {
        for is_leaving in [false, true] {
            let (mut queue, waiters) = (Queue::default(), Waiters::new());
            let _held = made(&mut queue, 5, &waiters);
            queue.created(node(5), &waiters);
            let ticket = waiters.expect(&claim(6));
            queue.expect(&claim(6));
            queue.created(node(6), &waiters);
            if is_leaving {
                assert_eq!(queue.leave(&claim(5)), Some(node(5).name));
            }
            assert_eq!(queue.deleted(&node(5), &waiters), !is_leaving);
            queue.made(&claim(6), &(node(6).name, TOKEN), &waiters);
            let is_granted = *ticket.status.borrow() == ClaimStatus::Granted(TOKEN);
            assert_eq!(is_granted, is_leaving);
            queue.load(vec![node(6)], &queue.all_made(), &waiters);
            assert_eq!(*ticket.status.borrow(), ClaimStatus::Granted(TOKEN));
        }
    }

    /// Goal: a list that was asked for before a claim was made does not end it; a later one without it does.
    #[test]
    fn an_old_list_ends_nothing() {
        let (mut queue, waiters) = (Queue::default(), Waiters::new());
        let before = queue.all_made();
        let ticket = made(&mut queue, 5, &waiters);
        queue.load(Vec::new(), &before, &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        let before = queue.all_made();
        queue.load(Vec::new(), &before, &waiters);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone);
        assert!(!queue.knows(&claim(5)));
    }

    /// Goal: a queue is given up at the second look without a claim of ours, and read again while one waits.
    #[test]
    fn an_unused_queue_is_given_up() {
        let (mut queue, waiters) = (Queue::default(), Waiters::new());
        let _ticket = made(&mut queue, 5, &waiters);
        assert!(queue.take_use() && queue.is_waited_in());
        queue.created(node(5), &waiters);
        assert!(queue.take_use() && !queue.is_waited_in(), "it holds");
        assert!(queue.expect(&claim(5)), "a repetition");
        queue.forget(id(&claim(5)), &waiters);
        assert!(queue.take_use(), "it was used");
        assert!(!queue.take_use());
    }
}
