//! The text of an accepted order and of a token in the store.

use fenced_lock::{ClusterId, Token};

use super::{Accepted, Fence, InventoryError, OrderId, Quantity, User};

/// The text of a token, as in the fence: the cluster in hexadecimal, a space, the revision in decimal. Empty
/// without a token.
pub(super) fn token_text(token: Option<Token>) -> Result<String, InventoryError> {
    match token {
        None => Ok(String::new()),
        Some(token) if token.revision() > 0 => Ok(fence_text(token.into())),
        Some(_) => Err(InventoryError::InvalidArgument("a token's revision is 1 or more")),
    }
}

/// A fence in the same form.
pub(super) fn fence_text(fence: Fence) -> String {
    format!("{:x} {}", fence.cluster.0, fence.revision)
}

/// Parses what [`token_text`] wrote.
pub(super) fn parse_fence(text: &str) -> Option<Fence> {
    let (cluster, revision) = text.split_once(' ')?;
    let cluster = ClusterId(u64::from_str_radix(cluster, 16).ok()?);
    let revision = revision.parse().ok().filter(|revision| *revision > 0)?;
    Some(Fence { cluster, revision })
}

/// Parses the record of `order`.
pub(super) fn parse_record(order: &str, record: &str) -> Option<Accepted> {
    let mut fields = record.splitn(6, '\t');
    let position = fields.next()?.parse().ok()?;
    let quantity = Quantity::new(fields.next()?.parse().ok()?).ok()?;
    let remaining = fields.next()?.parse().ok()?;
    let token = match fields.next()? {
        "" => None,
        text => parse_fence(text).map(|fence| Some(Token::new(fence.cluster, fence.revision)))?,
    };
    let instance = fields.next()?.to_owned();
    let user = User::new(fields.next()?).ok()?;
    let order = OrderId::new(order).ok()?;
    Some(Accepted { position, order, quantity, user, remaining, instance, token })
}

/// The record of an order, as the script writes it.
pub(super) fn record_text(accepted: &Accepted) -> String {
    let Accepted { position, quantity, user, remaining, instance, token, .. } = accepted;
    let token = token.map(|token| fence_text(token.into())).unwrap_or_default();
    let (quantity, user) = (quantity.get(), user.as_str());
    format!("{position}\t{quantity}\t{remaining}\t{token}\t{instance}\t{user}")
}

/// The recorded name of an instance: a control character could end its field.
pub(super) fn instance_text(instance: &str) -> String {
    instance.replace(char::is_control, "?")
}

/// A whole number from 0, written as Redis writes it.
pub(super) fn parse_number(text: &str) -> Option<i64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_as_it_was_written() {
        for (cluster, revision) in [(0, 1), (u64::MAX, i64::MAX), (0xcafe, 42)] {
            let token = Token::new(ClusterId(cluster), revision);
            let text = token_text(Some(token)).expect("the revision is positive");
            assert_eq!(parse_fence(&text), Some(token.into()), "{text}");
        }
        assert!(token_text(Some(Token::new(ClusterId(1), 0))).is_err());
        for text in ["", "1", "1 ", "1 -2", "1 0", "xyz 1", "1 2 3"] {
            assert_eq!(parse_fence(text), None, "{text}");
        }
    }

    #[test]
    fn only_what_redis_writes_is_a_number() {
        assert_eq!(parse_number("300"), Some(300));
        for text in ["", "-", "-3", "+3", " 3", "3.0", "1e3", "99999999999999999999"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }
}
