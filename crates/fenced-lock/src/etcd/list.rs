//! Reading whole queues.

use etcd_client::{GetOptions, KeyValue, ResponseHeader};

use super::endpoints::Endpoints;
use super::failure::{code, header_of, is_refused_with};
use super::keys;
use crate::BackendError;
use crate::chaos::Safeguard;

/// How many keys are read at once, at the most.
const PAGE: i64 = 2000;

/// Reads all keys of the queue of `name`, those of longer names included, in the order of the keys.
/// The header is that of the moment in which they were so.
pub(super) async fn list(
    endpoints: &Endpoints,
    name: &str,
    options: &GetOptions,
) -> Result<(ResponseHeader, Vec<KeyValue>), BackendError> {
    // 0: all at once
    let mut page = if Safeguard::Pages.is_on() { PAGE } else { 0 };
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
        let current = header_of(response.header())?.clone();
        let header = header.get_or_insert(current);
        all.extend(response.take_kvs());
        let Some(last) = all.last().filter(|_| response.more()) else {
            return Ok((header.clone(), all));
        };
        options = options.with_revision(header.revision());
        from = [last.key(), &[0]].concat();
    }
}
