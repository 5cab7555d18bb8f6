//! How claims are written as nodes.
//!
//! A claim on the lock `NAME` is an ephemeral sequential node `ROOT/NAME/_c_<guid>-lock-<sequence>`, as Curator's
//! `InterProcessMutex` with the path `ROOT/NAME` writes it. The GUID consists of the session's id and the claim's number. So
//! each claim has its own, by which it can be found if the answer to its put was lost.

use std::fmt::Write as _;

use crate::Claim;

/// The text before the GUID, and the text after it.
const BEFORE: &str = "_c_";
const BEHIND: &str = "-lock-";

/// The name of the node that identifies the data. No lock's node has this name: see [`dir`].
pub(super) const EPOCH: &str = "%epoch";

/// Whether a node's name may contain this character. ZooKeeper, written in Java, encodes a character beyond the basic plane as
/// two surrogates, and allows neither of them.
fn is_allowed(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// Whether this is the path of a node below `/`.
pub(super) fn is_path(path: &str) -> bool {
    let is_node = |node| !matches!(node, "" | "." | "..") && node.chars().all(is_allowed);
    path.strip_prefix('/').is_some_and(|nodes| nodes.split('/').all(is_node))
}

/// The node of a lock, which contains its claims. Each name is one node, so `a/b` is not inside `a`: a slash, and each character
/// that ZooKeeper does not allow, is written as `%` and hexadecimal for each byte.
pub(super) fn dir(root: &str, name: &str) -> String {
    // ZooKeeper does not allow these two names
    let is_dots = name == "." || name == "..";
    let mut dir = format!("{root}/");
    for c in name.chars() {
        if is_allowed(c) && !matches!(c, '/' | '%') && !is_dots {
            dir.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            // writing to a string cannot fail
            let _ = write!(dir, "%{byte:02X}");
        }
    }
    dir
}

/// The name of a claim's node up to its sequence number.
pub(super) fn prefix(claim: &Claim) -> String {
    let digits = format!("{:016x}{:016x}", claim.lease, claim.number);
    let (lease, number) = digits.split_at(16);
    let (first, second) = lease.split_at(8);
    let (second, third) = second.split_at(4);
    let (fourth, fifth) = number.split_at(4);
    format!("{BEFORE}{first}-{second}-{third}-{fourth}-{fifth}{BEHIND}")
}

/// The lease and the number of the claim with this node, if this library may have made it.
pub(super) fn claim_of(node: &Node) -> Option<(i64, u64)> {
    let guid = node.prefix().strip_prefix(BEFORE)?.strip_suffix(BEHIND)?;
    let digits = guid.replace('-', "");
    let (lease, number) = digits.split_at_checked(16)?;
    let lease = u64::from_str_radix(lease, 16).ok()?.cast_signed();
    Some((lease, u64::from_str_radix(number, 16).ok()?))
}

/// A node in a lock's queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    prefix_length: usize,
    pub(super) sequence: i32,
}

impl Node {
    /// `None` for a node without a sequence number, which is no claim, and for a path. The text before the number does not
    /// matter, because other recipes have other prefixes.
    pub(super) fn new(name: &str) -> Option<Self> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (before, digits) = name.split_at(name.len() - digits.min(10));
        // the number has ten characters: leading zeros, or a sign after the counter has passed its maximum
        let is_negative = before.ends_with("--") && (digits.len() == 9 || !digits.starts_with('0'));
        if name.contains('/') || digits.len() != 10 && !is_negative {
            return None;
        }
        let prefix_length = before.len() - usize::from(is_negative);
        let sequence = name[prefix_length..].parse().ok()?;
        Some(Self { name: name.to_owned(), prefix_length, sequence })
    }

    pub(super) fn prefix(&self) -> &str {
        &self.name[..self.prefix_length]
    }
}

/// Sorts nodes by turn. The server's 32-bit counter wraps around, so the distance between two numbers decides: no queue is as
/// long as half the range.
pub(super) fn sort(nodes: &mut [Node]) {
    let any = nodes.first().map_or(0, |node| node.sequence);
    nodes.sort_unstable_by_key(|node| node.sequence.wrapping_sub(any));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: turns follow the sequence numbers, whatever the prefixes, also where the counter wraps around.
    #[test]
    fn turns_follow_the_sequence() {
        let turns = [
            &[
                "x-99-2147483646",
                "_c_ab-lock-2147483647",
                "_c_aa-lock--2147483648",
                "x-1--2147483647",
            ][..],
            &[
                "_c_aa-lock--000000001",
                "_c_aa-lock-0000000000",
                "_c_aa-__WRIT__0000000003",
                "x-1-0000000004",
            ],
        ];
        for turns in turns {
            let mut nodes: Vec<_> = turns.iter().rev().filter_map(|name| Node::new(name)).collect();
            sort(&mut nodes);
            assert!(nodes.iter().map(|node| &*node.name).eq(turns.iter().copied()), "{nodes:?}");
        }
        for other in ["", "b", "b%2F1", "lock-12", "-123456789", "3000000000", "a/x-0000000004"] {
            assert_eq!(Node::new(other), None);
        }
    }
}
