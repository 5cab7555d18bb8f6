//! The text of an accepted order, a fence, a token and a sale in the store.

use fenced_lock::{ClusterId, Token};

use super::{Accepted, Fence, InventoryError, OrderId, Quantity, User};

/// The text of a token, as in the fence's record. Empty without a token.
pub(super) fn token_text(token: Option<Token>) -> Result<String, InventoryError> {
    match token {
        None => Ok(String::new()),
        Some(token) if token.revision() > 0 => Ok(Fence::from(token).record()),
        Some(_) => Err(InventoryError::InvalidArgument("a token's revision is 1 or more")),
    }
}

impl Fence {
    /// Parses a fence's record.
    pub fn from_record(record: &str) -> Option<Self> {
        let (cluster, revision) = record.split_once(' ')?;
        let cluster = ClusterId(u64::from_str_radix(cluster, 16).ok()?);
        let revision = revision.parse().ok().filter(|revision| *revision > 0)?;
        Some(Self { cluster, revision })
    }

    /// The fence's record: the cluster in hexadecimal, a space, the revision in decimal.
    pub fn record(self) -> String {
        format!("{:x} {}", self.cluster.0, self.revision)
    }
}

impl Accepted {
    /// Parses the record of the order with this id.
    pub fn from_record(order: &str, record: &str) -> Option<Self> {
        let mut fields = record.splitn(6, '\t');
        let position = fields.next()?.parse().ok()?;
        let quantity = Quantity::new(fields.next()?.parse().ok()?).ok()?;
        let remaining = fields.next()?.parse().ok()?;
        let token = match fields.next()? {
            "" => None,
            text => Fence::from_record(text)
                .map(|fence| Some(Token::new(fence.cluster, fence.revision)))?,
        };
        let instance = fields.next()?.to_owned();
        let user = User::new(fields.next()?).ok()?;
        let order = OrderId::new(order).ok()?;
        Some(Self { position, order, quantity, user, remaining, instance, token })
    }

    /// The order's record, as the script writes it: position, quantity, remaining, token, instance and user, with
    /// tabs between them.
    pub fn record(&self) -> String {
        let Self { position, quantity, user, remaining, instance, token, .. } = self;
        let token = token.map(|token| Fence::from(token).record()).unwrap_or_default();
        let (quantity, user) = (quantity.get(), user.as_str());
        format!("{position}\t{quantity}\t{remaining}\t{token}\t{instance}\t{user}")
    }
}

/// When the sale of this name began.
pub(super) fn began(name: &str) -> Option<u64> {
    name.split(' ').nth(1)?.parse().ok()
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
            assert_eq!(Fence::from_record(&text), Some(token.into()), "{text}");
        }
        assert!(token_text(Some(Token::new(ClusterId(1), 0))).is_err());
        for text in ["", "1", "1 ", "1 -2", "1 0", "xyz 1", "1 2 3"] {
            assert_eq!(Fence::from_record(text), None, "{text}");
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
