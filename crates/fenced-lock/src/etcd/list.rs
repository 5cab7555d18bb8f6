//! Reading whole queues.

use etcd_client::{GetOptions, KeyValue, ResponseHeader};

use super::endpoints::Endpoints;
use super::failure::{code, header_of, is_refused_with};
use super::keys;
use crate::BackendError;
use crate::chaos::Safeguard;

/// The most keys that one request reads.
const PAGE: i64 = 2000;

/// Reads all keys of the queue of `name`, and those of longer names, in the order of the keys. The header has the revision at
/// which these were all keys.
pub(super) async fn list(
    endpoints: &Endpoints,
    name: &str,
    options: &GetOptions,
) -> Result<(ResponseHeader, Vec<KeyValue>), BackendError> {
    let options = options.clone().with_range(keys::end(name));
    // 0: all at once
    let mut page = if Safeguard::Pages.is_on() { PAGE } else { 0 };
    let (mut moment, mut all) = (None, Vec::<KeyValue>::new());
    loop {
        let mut options = options.clone().with_limit(page);
        let mut from = keys::prefix(name).into_bytes();
        if let (Some(last), Some(moment)) = (all.last(), &moment) {
            options = options.with_revision(ResponseHeader::revision(moment));
            from = [last.key(), &[0]].concat();
        }
        let mut response = match endpoints.get(&from, &options).await {
            // the page is larger than a message may be, or etcd was compacted between two pages: begin again, with smaller pages
            Err(error) if page > 1 && is_refused_with(&error, code::OUT_OF_RANGE) => {
                page /= 2;
                (moment, all) = (None, Vec::new());
                continue;
            }
            response => response?,
        };
        let current = header_of(response.header())?.clone();
        let moment = moment.get_or_insert(current);
        all.extend(response.take_kvs());
        if !response.more() {
            return Ok((moment.clone(), all));
        }
    }
}
