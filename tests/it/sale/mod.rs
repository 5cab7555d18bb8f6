//! Goal: what the sale promises whatever guards it. Method: instances in this process, over a real
//! etcd and a real Redis.

mod peers;
