//! The watermark of each item: the data that the store acknowledged last. It shows an instance that the data is an older copy.
//!
//! A Redis that lost its last writes looks healthy: it restarted without them, a lagging replica was promoted, or a backup was
//! restored. Only an instance that remembers can tell. Every call carries the watermark of its item, and the script compares it
//! before it writes or answers: the fence, which never goes down; the sale; and the latest entry of the ledger that the store
//! acknowledged to this instance, which never changes. The entry is compared in the form in which the store wrote it, so a new
//! field makes no difference. This costs a few arguments in a command that is sent anyway.
//!
//! The first script that misses something records the loss in the store (key `doubt`), and from then on every instance
//! is refused. Until an instance that remembers sends a call, the others go on selling.
//!
//! A watermark contains acknowledged data, never data that was merely read: while replicas must confirm writes, a
//! failover may undo data that was read, and no buyer was promised it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;

use fenced_lock::Token;
use parking_lot::Mutex;

use super::stock::{parse_token, token_record};
use super::{Entry as LedgerEntry, InventoryError, Item};

/// The data that the store must still have of an item; empty if the store acknowledged none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watermark {
    fence: Option<Token>,
    /// The latest entry's place in the ledger.
    position: u64,
    /// The arguments of the scripts: the fence, the sale's name in the store, the latest entry's order, and the entry.
    arguments: [String; 4],
    /// Entries that the store acknowledged to other instances, or to this one before theirs, each behind its order's
    /// key. They are compared until the store has answered a call with them: the latest entry alone proves nothing about
    /// them, since it may have been written after they were lost.
    others: Vec<[String; 2]>,
}

/// Stands between compared entries. No key and no entry has it.
const SEPARATOR: &str = "\x1e";

/// The most entries of other instances that are compared.
const MOST_OTHERS: usize = 256;

/// An entry of the ledger that the store acknowledged.
pub(crate) struct Acknowledged {
    pub(super) position: u64,
    /// The order's key, or the field of the change.
    pub(super) key: String,
    /// The order's record or the change, as the store wrote it.
    pub(super) entry: String,
}

impl Watermark {
    /// The fence, the sale, and the latest entry.
    pub(super) fn arguments(&self) -> &[String; 4] {
        &self.arguments
    }

    /// The first four arguments of every script.
    pub(super) fn compared(&self) -> [Cow<'_, str>; 4] {
        std::array::from_fn(|at| {
            let mut text = Cow::from(&self.arguments[at]);
            for other in self.others.iter().filter(|_| at >= 2) {
                text += SEPARATOR;
                text += &*other[at - 2];
            }
            text
        })
    }

    /// Compares this entry, too, from now on.
    fn compare(&mut self, other: [String; 2]) {
        if !self.others.contains(&other) {
            self.others.truncate(MOST_OTHERS - 1);
            self.others.push(other);
        }
    }

    fn sale(&self) -> &str {
        &self.arguments[1]
    }

    /// Raises the watermark by an answer about the same sale. Answers may overtake each other: a watermark never goes down.
    fn raise(&mut self, fence: Option<Token>, latest: Option<Acknowledged>) {
        let is_new = |fence: &Token| {
            self.fence.is_none_or(|known| known.cluster() != fence.cluster() || known < *fence)
        };
        if let Some(fence) = fence.filter(is_new) {
            self.fence = Some(fence);
            self.arguments[0] = token_record(fence);
        }
        if let Some(latest) = latest.filter(|latest| latest.position > self.position) {
            self.position = latest.position;
            self.arguments[2] = latest.key;
            self.arguments[3] = latest.entry;
        }
    }
}

/// Whether a store with this entry also has the other one. It has if the entries are equal, or if the other one is an earlier
/// entry of the same tenure: the holder compared each entry with the one before. Another tenure may have begun after a loss.
fn covers(entry: &LedgerEntry, other: &LedgerEntry) -> bool {
    entry == other || entry.token() == other.token() && is_earlier(other, entry)
}

fn is_earlier(entry: &LedgerEntry, than: &LedgerEntry) -> bool {
    entry.position() < than.position()
}

/// Whether the sale of this name was begun on purpose after the other one: as `later` in `state.lua`.
fn is_later(sale: &str, than: &str) -> bool {
    let parts = |sale: &str| {
        let (how, rest) = sale.split_once(' ')?;
        let (at, token) = rest.split_once(' ').unwrap_or((rest, ""));
        Some((how == "found", at.parse::<u64>().ok()?, parse_token(token)))
    };
    match (parts(sale), parts(than)) {
        (Some(_), None) => than.is_empty(),
        (Some((false, at, token)), Some((_, other_at, other))) => {
            let by_token = token.zip(other).and_then(|(token, other)| token.partial_cmp(&other));
            by_token.filter(|order| order.is_ne()).map_or(at > other_at, std::cmp::Ordering::is_gt)
        }
        _ => false,
    }
}

/// The watermarks of one instance, by item. They outlive every connection.
#[derive(Debug, Default)]
pub(super) struct Watermarks(Mutex<HashMap<Item, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    watermark: Arc<Watermark>,
    /// Whether the latest answer said that the store was rolled back.
    is_rolled_back: bool,
    /// Whether the sale has holds, as last seen.
    has_holds: bool,
    /// Stock, lucky and open holds as last seen, for the metrics, which make no reads.
    level: Option<[i64; 3]>,
}

impl Watermarks {
    pub(super) fn of(&self, item: &Item) -> Arc<Watermark> {
        self.0.lock().get(item).map(|entry| Arc::clone(&entry.watermark)).unwrap_or_default()
    }

    /// Raises the watermark of `item` by the answer to a call that carried the watermark `sent`: to the fence, the
    /// sale, and the acknowledged entry with the largest position in the ledger.
    pub(super) fn raise(
        &self,
        item: &Item,
        sent: &Watermark,
        fence: Option<Token>,
        sale: &str,
        latest: Option<Acknowledged>,
    ) {
        let mut entries = self.0.lock();
        let entry = entries.entry(item.clone()).or_default();
        let known = Arc::make_mut(&mut entry.watermark);
        if sale != known.sale() {
            if known.sale() != sent.sale() {
                // two answers name two sales: the next answer shows which sale is later
                return;
            }
            // the store checked that this sale is later than the sale of `sent`
            let arguments = [String::new(), sale.to_owned(), String::new(), String::new()];
            *known = Watermark { arguments, ..Watermark::default() };
        }
        known.others.retain(|other| !sent.others.contains(other));
        known.raise(fence, latest);
    }

    /// Raises the watermark of `item` to another instance's, if that is higher or of a later sale. With
    /// `compares`, the next calls compare the other entry, too, unless it is covered.
    pub(super) fn learn(&self, item: &Item, arguments: [String; 4], compares: bool) {
        let [fence, sale, key, entry] = &arguments;
        let fence = parse_token(fence);
        let theirs = LedgerEntry::parse(key, entry);
        let position = theirs.as_ref().map(LedgerEntry::position);
        let mut entries = self.0.lock();
        let known = Arc::make_mut(&mut entries.entry(item.clone()).or_default().watermark);
        if *sale == known.sale() {
            let [_, _, key, entry] = arguments;
            if let Some(theirs) = theirs.filter(|_| compares) {
                let [_, _, own_key, own_entry] = &known.arguments;
                let own = LedgerEntry::parse(own_key, own_entry);
                if !own.as_ref().is_some_and(|own| covers(own, &theirs)) {
                    known.compare([key.clone(), entry.clone()]);
                }
                if own.is_some_and(|own| is_earlier(&own, &theirs) && !covers(&theirs, &own)) {
                    let [_, _, own_key, own_entry] = known.arguments.clone();
                    known.compare([own_key, own_entry]);
                }
            }
            known.raise(fence, position.map(|position| Acknowledged { position, key, entry }));
        } else if is_later(sale, known.sale()) {
            let position = position.unwrap_or(0);
            *known = Watermark { fence, position, arguments, others: Vec::new() };
        }
    }

    /// Notes the facts about `item` in an answer, and returns it. Logs one line when the store is first seen to be
    /// rolled back, and one when it is whole again.
    pub(super) fn note<T>(
        &self,
        item: &Item,
        answer: Result<T, InventoryError>,
    ) -> Result<T, InventoryError> {
        let mut entries = self.0.lock();
        match &answer {
            Err(InventoryError::RolledBack { what }) => {
                let entry = entries.entry(item.clone()).or_default();
                if !mem::replace(&mut entry.is_rolled_back, true) {
                    tracing::error!(
                        %item,
                        "the store was rolled back: {what}. This instance sells nothing of the item until the data is \
                         restored, a new sale starts, or an operator accepts the loss with `flash-sale recover store`"
                    );
                }
            }
            Ok(_) | Err(InventoryError::UnknownItem) => {
                let Some(entry) = entries.get_mut(item) else { return answer };
                if mem::take(&mut entry.is_rolled_back) {
                    tracing::warn!(%item, "the store has again all that it acknowledged, or a later sale");
                }
                if answer.is_err() {
                    entry.level = None;
                }
            }
            // an item with damaged data is known from now on
            Err(InventoryError::Damaged { .. }) => {
                entries.entry(item.clone()).or_default();
            }
            Err(_) => {}
        }
        answer
    }

    pub(super) fn note_holds(&self, item: &Item, has_holds: bool) {
        let mut entries = self.0.lock();
        if has_holds || entries.contains_key(item) {
            entries.entry(item.clone()).or_default().has_holds = has_holds;
        }
    }

    pub(super) fn note_level(&self, item: &Item, level: [i64; 3]) {
        self.0.lock().entry(item.clone()).or_default().level = Some(level);
    }

    pub(super) fn levels(&self) -> BTreeMap<Item, [i64; 3]> {
        let entries = self.0.lock();
        entries.iter().filter_map(|(item, entry)| Some((item.clone(), entry.level?))).collect()
    }

    pub(super) fn with_holds(&self) -> Vec<Item> {
        let entries = self.0.lock();
        entries.iter().filter(|(_, entry)| entry.has_holds).map(|(item, _)| item.clone()).collect()
    }

    /// Up to `most` known items: first those for which the store was rolled back, but at least one other.
    pub(super) fn items(&self, most: usize) -> Vec<Item> {
        let entries = self.0.lock();
        let (rolled_back, others): (Vec<_>, Vec<_>) =
            entries.iter().partition(|(_, entry)| entry.is_rolled_back);
        rolled_back
            .into_iter()
            .take(most - 1)
            .chain(others)
            .take(most)
            .map(|(item, _)| item.clone())
            .collect()
    }

    /// The number of items for which the store was rolled back.
    pub(super) fn rolled_back(&self) -> usize {
        self.0.lock().values().filter(|entry| entry.is_rolled_back).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fenced_lock::ClusterId;

    fn acknowledged(position: u64) -> Acknowledged {
        Acknowledged { position, key: format!("order-{position}"), entry: format!("at {position}") }
    }

    /// Goal: neither answers that overtake each other nor the answer to a call from before a new sale lower a watermark.
    #[test]
    fn a_watermark_never_goes_down() {
        let (watermarks, item) = (Watermarks::default(), Item::DEFAULT);
        let raise = |sent: &Watermark, sale, revision, position: Option<u64>| {
            let fence = Some(Token::new(ClusterId(1), revision));
            watermarks.raise(&item, sent, fence, sale, position.map(acknowledged));
        };
        let before = watermarks.of(&item);
        assert_eq!(*before.arguments(), ["", "", "", ""]);
        raise(&before, "first", 3, Some(5));
        raise(&before, "first", 2, Some(4));
        let first = watermarks.of(&item);
        assert_eq!(*first.arguments(), ["1 3", "first", "order-5", "at 5"]);

        raise(&first, "second", 9, None);
        assert_eq!(*watermarks.of(&item).arguments(), ["1 9", "second", "", ""]);
        raise(&before, "first", 3, Some(6));
        assert_eq!(*watermarks.of(&item).arguments(), ["1 9", "second", "", ""]);
    }

    /// Goal: the watermark of another instance counts if it is higher or of a later sale, never if it is lower. Its
    /// entry and the own one are compared until the store has answered for both, except for an earlier entry of the tenure of
    /// the latest one.
    #[test]
    fn a_watermark_learns_from_that_of_another_instance() {
        let entry = |position, fence: &str| format!("2\t{position}\t1\t9\t{fence}\tb\t1\t\t");
        let mark = |fence: &str, sale: &str, position: u64| {
            [fence.to_owned(), sale.to_owned(), "a".to_owned(), entry(position, fence)]
        };
        let (watermarks, item) = (Watermarks::default(), Item::DEFAULT);
        let nothing = || [const { String::new() }; 4];
        let (fence, old) = ("1 4", "started 5 1 3");
        for (learnt, then, compared) in [
            (nothing(), nothing(), 0),
            (mark("1 3", old, 2), mark("1 3", old, 2), 0),
            (mark("1 3", old, 1), mark("1 3", old, 2), 0),
            (mark(fence, old, 1), [fence.into(), old.into(), "a".into(), entry(2, "1 3")], 1),
            (mark(fence, old, 1), [fence.into(), old.into(), "a".into(), entry(2, "1 3")], 1),
            (mark(fence, old, 3), mark(fence, old, 3), 3),
            // not the same as the latest one
            ([fence.into(), old.into(), "b".into(), entry(3, fence)], mark(fence, old, 3), 4),
            (mark(fence, old, 4), mark(fence, old, 4), 5),
            (mark("1 2", "started 9 1 2", 5), mark(fence, old, 4), 5),
            (mark("1 9", "found 9", 5), mark(fence, old, 4), 5),
            (mark("1 9", "started 4 1 8", 1), mark("1 9", "started 4 1 8", 1), 0),
            (nothing(), mark("1 9", "started 4 1 8", 1), 0),
        ] {
            watermarks.learn(&item, learnt, true);
            let known = watermarks.of(&item);
            assert_eq!(*known.arguments(), then);
            let [_, _, keys, entries] = known.compared();
            for (text, own) in [(keys, &then[2]), (entries, &then[3])] {
                let (first, others) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
                let others = others.split(SEPARATOR).filter(|other| !other.is_empty());
                assert_eq!((first, others.count()), (&**own, compared), "{text:?}");
            }
        }
        let (sent, late) = (watermarks.of(&item), mark("1 8", "started 4 1 8", 2));
        watermarks.learn(&item, late.clone(), true);
        watermarks.raise(&item, &sent, None, "started 4 1 8", None);
        assert_eq!(watermarks.of(&item).others.len(), 2, "neither was sent");
        watermarks.raise(&item, &watermarks.of(&item), None, "started 4 1 8", None);
        assert!(watermarks.of(&item).others.is_empty());

        for number in 0..2 * MOST_OTHERS {
            let theirs = entry(1, &format!("1 {number}"));
            let [fence, sale, key] = ["1 9", "started 4 1 8", "c"].map(str::to_owned);
            watermarks.learn(&item, [fence, sale, key, theirs], true);
        }
        assert_eq!(watermarks.of(&item).others.len(), MOST_OTHERS);
        let later =
            [("started 5", "started 4"), ("started 4", "started 5"), ("started 4", "started 4")];
        assert_eq!(later.map(|(sale, than)| is_later(sale, than)), [true, false, false]);
    }

    /// Goal: what was last seen of an item is told until the item is gone; a check of a few items looks at those first for which
    /// the store was rolled back, and at another one.
    #[test]
    fn what_was_last_seen_of_items() {
        let watermarks = Watermarks::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| name.parse::<Item>().expect("a valid name"));
        watermarks.note_holds(&a, false);
        assert_eq!(watermarks.items(9), []);
        watermarks.note_holds(&a, true);
        watermarks.note_level(&b, [1, 2, 3]);
        assert_eq!(watermarks.with_holds(), [a]);
        assert_eq!(watermarks.levels(), BTreeMap::from([(b.clone(), [1, 2, 3])]));
        let rolled_back = || Err::<(), _>(InventoryError::RolledBack { what: String::new() });
        for item in [&b, &c, &c] {
            assert!(watermarks.note(item, rolled_back()).is_err());
        }
        assert_eq!(watermarks.rolled_back(), 2);
        assert!(watermarks.note(&b, Err::<(), _>(InventoryError::UnknownItem)).is_err());
        assert_eq!((watermarks.levels(), watermarks.rolled_back()), (BTreeMap::new(), 1));
        let few = [1, 2, 9].map(|most| watermarks.items(most));
        assert_eq!(few.each_ref().map(Vec::len), [1, 2, 3]);
        assert!(few[0][0] != c && few[1][0] == c && few[2][0] == c);
        assert!(watermarks.note(&c, Ok(())).is_ok());
        assert_eq!(watermarks.rolled_back(), 0);
    }
}
