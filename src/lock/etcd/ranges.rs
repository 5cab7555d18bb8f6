//! Reading queues: what to ask for, and what the answers hold.

use etcd_client::{
    GetOptions, GetResponse, KeyValue, SortOrder, SortTarget, TxnOp, TxnOpResponse, TxnResponse,
};

use super::keys;

/// All keys of a queue, the first one first.
pub(super) fn list_options() -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend)
}

/// The first key of the queue.
pub(super) fn first_of(name: &str) -> TxnOp {
    let first = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1)
        .with_keys_only();
    TxnOp::get(keys::prefix(name), Some(first))
}

/// A key and the revision at which it was created.
pub(super) fn member(kv: &KeyValue) -> Option<(String, i64)> {
    // a key that is no text was written by none of the libraries that queue here
    Some((kv.key_str().ok()?.to_owned(), kv.create_revision()))
}

/// What the reads of a transaction found.
pub(super) struct Ranges(Vec<GetResponse>);

impl Ranges {
    pub(super) fn of(response: &TxnResponse) -> Self {
        let ranges = response.op_responses().into_iter().filter_map(|answer| match answer {
            TxnOpResponse::Get(range) => Some(range),
            _ => None,
        });
        Self(ranges.collect())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &KeyValue> {
        self.0.iter().flat_map(GetResponse::kvs)
    }

    pub(super) fn find(&self, key: &str) -> Option<&KeyValue> {
        self.all().find(|kv| kv.key() == key.as_bytes())
    }

    pub(super) fn last(&self) -> Option<&KeyValue> {
        self.0.last().and_then(|range| range.kvs().first())
    }
}
