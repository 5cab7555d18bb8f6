//! How claims are written as etcd keys.
//!
//! The claims on a lock `NAME` are keys under `NAME/`. Go's `concurrency.NewMutex(session, NAME)`, `etcdctl lock NAME` and the
//! server's `Lock` RPC put keys `NAME/<lease in hex>` there, so they and this library exclude each other.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Claim;
use crate::chaos::Safeguard;

/// The beginning of all keys of a lock. It ends in `/`, so the keys of `item-1` are none of `item-10`'s.
pub(super) fn prefix(name: &str) -> String {
    if !Safeguard::ExactPrefix.is_on() {
        return name.to_owned();
    }
    format!("{name}/")
}

/// The beginning of the keys that this library makes for claims on this lease. `prefix` is the lock's.
pub(super) fn begin(prefix: &str, lease: i64) -> Vec<u8> {
    format!("{prefix}{lease:x}-").into_bytes()
}

/// The first key behind those of the lock and of longer names.
pub(super) fn end(name: &str) -> Vec<u8> {
    let mut end = prefix(name).into_bytes();
    // the last byte can grow: no text has the largest byte
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Whether `key` is a claim on the lock whose keys begin with `prefix`: the keys of `a/b` begin with
/// `a/` too, but claim another lock.
pub(super) fn is_claim(key: &[u8], prefix: &str) -> bool {
    let rest = key.strip_prefix(prefix.as_bytes());
    rest.is_some_and(|rest| !rest.contains(&b'/') || !Safeguard::ExactPrefix.is_on())
}

/// The value of a claim's key: `MILLISECONDS LABEL`, the time since 1970 at which the claim was made, and who made it. The value
/// of a claim with a note begins with a `+`, and ends with a tab and `standby NOTE` or `asks NOTE`. Earlier versions of this
/// library ignore the `+` and take the rest for a part of the label. Only [`parse_value`] reads the value.
pub(super) fn value(claim: &Claim, made_at: SystemTime, is_standby: bool) -> String {
    let made_at = made_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let value = format!("{} {}", made_at.as_millis(), claim.label);
    match &claim.standby {
        Some(note) => format!("+{value}\t{} {note}", if is_standby { STANDBY } else { ASKS }),
        None => value,
    }
}

/// The word before a note: the claim stands by, or asks for a turn.
const STANDBY: &str = "standby";
const ASKS: &str = "asks";

/// The parts of the value of a claim's key.
pub(super) struct Value {
    /// Who made it.
    pub(super) label: String,
    /// How long ago it was made.
    pub(super) age: Duration,
    pub(super) note: Option<String>,
    pub(super) is_standby: bool,
}

/// The parts of this value. `None` for a claim of another library.
pub(super) fn parse_value(value: &[u8]) -> Option<Value> {
    let (made_at_ms, label) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let made_at = UNIX_EPOCH.checked_add(Duration::from_millis(made_at_ms.parse().ok()?))?;
    // zero if the maker's clock is ahead of this one
    let age = SystemTime::now().duration_since(made_at).unwrap_or_default();
    let marked = label.rsplit_once('\t').filter(|_| made_at_ms.starts_with('+'));
    let marked = marked.map(|(label, mark)| (label, mark.split_once(' ')));
    let (label, note, is_standby) = match marked {
        Some((label, Some((STANDBY, note)))) => (label, Some(note), true),
        Some((label, Some((ASKS, note)))) => (label, Some(note), false),
        _ => (label, None, false),
    };
    Some(Value { label: label.to_owned(), age, note: note.map(str::to_owned), is_standby })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a label and a note come back unchanged, also a label that looks like a note. An earlier version shows the label
    /// first, and its own labels are no notes.
    #[test]
    fn labels_and_notes_come_back() {
        let labels = ["", "app 1", "app\tstandby a:1", "tab\tin a label", "tab\t", "\t\t"];
        for label in labels {
            for (note, is_standby) in [(None, false), (Some("a:1"), true), (Some("a:1"), false)] {
                let standby = note.map(Into::into);
                let claim = Claim { label: label.into(), standby, ..Claim::new("a", 1, 1) };
                let value = value(&claim, SystemTime::now(), is_standby);
                assert!(value.split_once(' ').is_some_and(|(_, rest)| rest.starts_with(label)));
                let parsed = parse_value(value.as_bytes()).expect("it is one of ours");
                assert_eq!((&*parsed.label, parsed.note.as_deref()), (label, note));
                assert_eq!(parsed.is_standby, is_standby);
            }
        }
        for label in labels {
            let earlier = parse_value(format!("1 {label}").as_bytes()).expect("it is one of ours");
            assert_eq!((&*earlier.label, earlier.note, earlier.is_standby), (label, None, false));
        }
    }
}
