//! A correct sale in memory: the shop sells with it, and the checker's tests damage it.

use crate::checker::{
    Acknowledgement, Event, FinalOutcome, LedgerEntry, StockState, Units, u64_from,
};

pub(crate) struct Sale {
    /// The state and the terms at its beginning.
    pub(crate) before: StockState,
    pub(crate) ledger: Vec<LedgerEntry>,
    /// The instance that writes the entries.
    pub(crate) instance: String,
}

impl Sale {
    /// A new sale of `units` units, on the terms in `before`.
    pub(crate) fn new(units: i64, mut before: StockState) -> Self {
        (before.stock, before.initial) = (units, units);
        Self { before, ledger: Vec::new(), instance: "8080".to_owned() }
    }

    /// Takes an order. An accepted order gets its first answer again, until its units have come back.
    pub(crate) fn order(&mut self, order: &str, user: &str, quantity: u64) -> FinalOutcome {
        let mut entries = self.ledger.iter().filter(|entry| entry.order == order);
        if let Some(first) = entries.next() {
            return match entries.next_back().map(|end| end.event) {
                Some(end @ (Event::Cancelled | Event::Expired | Event::Returned)) => {
                    FinalOutcome::Over(end)
                }
                _ => again(first),
            };
        }
        let to_stock = Event::Reserved.to_stock(quantity);
        let of_user = self.ledger.iter().filter(|entry| entry.user == user);
        let has: i64 = of_user.map(|entry| -entry.event.to_stock(entry.quantity)).sum();
        if self.before.per_user.is_some_and(|limit| has - to_stock > limit.cast_signed()) {
            FinalOutcome::LimitReached
        } else if self.stock() + to_stock < 0 {
            let is_held = self.stock() + self.held().unwrap_or(0) + to_stock >= 0;
            if is_held { FinalOutcome::HeldOut } else { FinalOutcome::SoldOut }
        } else {
            FinalOutcome::Acknowledged(self.write(Event::Reserved, order, user, quantity))
        }
    }

    /// Confirms, cancels, ends or returns an order. For an unknown order there is no answer.
    pub(crate) fn change(&mut self, order: &str, event: Event) -> FinalOutcome {
        let is_final = |last: Event| last == Event::Confirmed && event == Event::Returned;
        match self.ledger.iter().rfind(|entry| entry.order == order).cloned() {
            Some(LedgerEntry { event: last, user, quantity, .. })
                if last == Event::Reserved || is_final(last) =>
            {
                FinalOutcome::Acknowledged(self.write(event, order, &user, quantity))
            }
            Some(end) if end.event == event => again(&end),
            Some(end) => FinalOutcome::Over(end.event),
            None => FinalOutcome::Unknown,
        }
    }

    /// Writes an entry, right or wrong. Each ten entries of one instance share a token.
    pub(crate) fn write(
        &mut self,
        event: Event,
        order: &str,
        user: &str,
        quantity: u64,
    ) -> Acknowledgement {
        let position = u64_from(self.ledger.len()) + 1;
        let last = self.ledger.last();
        let is_same = |last: &LedgerEntry| last.instance.as_ref() == Some(&self.instance);
        let goes_on = !self.ledger.len().is_multiple_of(10) && last.is_some_and(is_same);
        let token = last.and_then(|last| last.token).map(|last| last + i64::from(!goes_on));
        let entry = LedgerEntry {
            position,
            event,
            order: order.to_owned(),
            user: user.to_owned(),
            quantity,
            remaining: self.stock() + event.to_stock(quantity),
            instance: Some(self.instance.clone()),
            holder: None,
            token: token.or(Some(100)),
            change: None,
        };
        let answer = answer(&entry);
        self.ledger.push(entry);
        answer
    }

    pub(crate) fn stock(&self) -> i64 {
        self.ledger.last().map_or(self.before.stock, |last| last.remaining)
    }

    /// The number of held units, in a sale with holds.
    fn held(&self) -> Option<i64> {
        let units = |entry: &LedgerEntry| {
            let units = Event::Cancelled.to_stock(entry.quantity);
            match entry.event {
                Event::Reserved => units,
                Event::Confirmed | Event::Cancelled | Event::Expired => -units,
                Event::Returned | Event::Changed => 0,
            }
        };
        self.before.hold_seconds.map(|_| self.ledger.iter().map(units).sum())
    }

    pub(crate) fn state(&self) -> StockState {
        let (entries, stock) = (u64_from(self.ledger.len()), self.stock());
        let is_order = |entry: &&LedgerEntry| entry.event == Event::Reserved;
        let orders = u64_from(self.ledger.iter().filter(is_order).count());
        let is_end = |entry: &&LedgerEntry| {
            matches!(entry.event, Event::Confirmed | Event::Cancelled | Event::Expired)
        };
        let ended = u64_from(self.ledger.iter().filter(is_end).count());
        let lucky = self.before.initial - stock;
        let units = self.held().map(|held| {
            let [held, confirmed] = [held, lucky - held].map(|units| u64::try_from(units).ok());
            Units { held, confirmed }
        });
        StockState {
            units,
            stock,
            lucky,
            orders,
            entries: Some(entries),
            held: self.before.hold_seconds.map(|_| orders.saturating_sub(ended)),
            ..self.before.clone()
        }
    }
}

fn again(entry: &LedgerEntry) -> FinalOutcome {
    FinalOutcome::Acknowledged(Acknowledgement { replayed: true, ..answer(entry) })
}

fn answer(entry: &LedgerEntry) -> Acknowledgement {
    let LedgerEntry { remaining, token, position, .. } = *entry;
    let instance = entry.instance.clone().unwrap_or_default();
    Acknowledgement { remaining, instance, token, position: Some(position), replayed: false }
}
