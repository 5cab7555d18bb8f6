//! What several areas need.

pub(crate) mod etcd;
pub(crate) mod store;
