//! Reading queues: what to ask for, and what the answers hold.

use etcd_client::{
    GetOptions, GetResponse, KeyValue, ResponseHeader, SortOrder, SortTarget, TxnOp, TxnOpResponse,
    TxnResponse,
};

use super::endpoints::Endpoints;
use super::failure::{code, is_refused_with, malformed};
use super::keys;
use super::queue::Key;
use crate::BackendError;

/// How many keys are read at once, at the most.
const PAGE: i64 = 2000;

/// Reads all keys of the queue of `name`, those of longer names included, in the order of the keys.
/// The header is that of the moment in which they were so.
pub(super) async fn list(
    endpoints: &Endpoints,
    name: &str,
    options: &GetOptions,
) -> Result<(ResponseHeader, Vec<KeyValue>), BackendError> {
    let mut page = PAGE;
    loop {
        match list_by(page, endpoints, name, options).await {
            // the page is larger than a message may be, or etcd was compacted between two pages: either
            // way smaller ones of a later moment do
            Err(error) if page > 1 && is_refused_with(&error, code::OUT_OF_RANGE) => page /= 2,
            result => return result,
        }
    }
}

async fn list_by(
    page: i64,
    endpoints: &Endpoints,
    name: &str,
    options: &GetOptions,
) -> Result<(ResponseHeader, Vec<KeyValue>), BackendError> {
    let mut from = keys::prefix(name).into_bytes();
    let mut options = options.clone().with_range(keys::end(name)).with_limit(page);
    let (mut header, mut all) = (None, Vec::new());
    loop {
        let mut response = endpoints.get(&from, &options).await?;
        let current =
            response.take_header().ok_or_else(|| malformed("an answer without a header"))?;
        let header = header.get_or_insert(current);
        all.extend(response.take_kvs());
        let Some(last) = all.last().filter(|_| response.more()) else {
            return Ok((header.clone(), all));
        };
        options = options.with_revision(header.revision());
        from = [last.key(), &[0]].concat();
    }
}

/// The first key of the queue, without its value.
pub(super) fn first_of(name: &str) -> TxnOp {
    TxnOp::get(keys::prefix(name), Some(first().with_keys_only()))
}

/// The first key of the queue, with its value.
pub(super) fn whole_first_of(name: &str) -> TxnOp {
    TxnOp::get(keys::prefix(name), Some(first()))
}

fn first() -> GetOptions {
    let options = GetOptions::new().with_prefix().with_limit(1);
    options.with_sort(SortTarget::Create, SortOrder::Ascend)
}

/// A key and the revision at which it was created.
pub(super) fn member(kv: &KeyValue) -> (Key, i64) {
    (kv.key().into(), kv.create_revision())
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

    /// Whether the last read left keys out.
    pub(super) fn are_more(&self) -> bool {
        self.0.last().is_some_and(GetResponse::more)
    }

    pub(super) fn find(&self, key: &str) -> Option<&KeyValue> {
        self.all().find(|kv| kv.key() == key.as_bytes())
    }

    pub(super) fn last(&self) -> Option<&KeyValue> {
        self.0.last().and_then(|range| range.kvs().first())
    }
}
