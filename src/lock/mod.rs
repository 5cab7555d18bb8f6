//! A reentrant distributed lock with fencing tokens.

mod acquire;
mod backend;
mod claim;
mod error;
mod etcd;
mod guard;
mod hold;
mod keeper;
mod memory;
mod mutex;
mod owner;
mod renewal;
mod session;
mod token;
mod validity;

pub use backend::{Backend, BackendFuture};
pub use claim::{Claim, ClaimStatus, Lease, Place, QueueEntry};
pub use error::{BackendError, BackendErrorKind, LockError, LostReason};
pub use etcd::{EtcdBackend, EtcdOptions};
pub use guard::Guard;
pub use keeper::SessionKeeper;
pub use memory::MemoryBackend;
pub use mutex::{MAX_NAME_LENGTH_BYTES, Mutex};
pub use owner::Owner;
pub use session::{Session, SessionOptions};
pub use token::{ClusterId, Token};
