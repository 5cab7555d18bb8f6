//! The store's own fence: a fencing token for a lock that has none.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, Claim, ClaimStatus, ClusterId, GrantToken, Lease, Promises, Ticket, Token, TokenLife,
};
use flash_sale::inventory::{Inventory, Item};
use tokio::sync::watch;
use tokio::time::sleep;

use super::decorated::{Decorated, Decoration};

/// The cluster of the tokens that the store itself numbers: `store` in ASCII.
pub const STORE: ClusterId = ClusterId(0x0073_746f_7265);

/// The pause before another attempt to open a tenure.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Increments the fence of an item, and returns it. It leaves the fence of another cluster unchanged, and that fence then
/// refuses the batches.
///
/// KEYS: the fence. ARGV: the cluster in hexadecimal.
const OPEN_TENURE: &str = "#!lua
local theirs, revision = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (%d+)$')
if theirs and theirs ~= ARGV[1] then return 1 end
local opened = string.format('%.0f', (tonumber(revision) or 0) + 1)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. opened)
return tonumber(opened)";

/// Any lock, with tokens that the store numbers: after each grant the holder opens a tenure at the store, which increments the
/// item's fence. The store refuses the earlier of two holders, even if the lock let both in. The lock is for order and speed, the
/// store for safety.
///
/// A holder that was paused after its grant may open its tenure later than its successor. Then the successor is refused and loses
/// its turn, but the writes of the two never interleave.
pub type StoreFence<T> = Decorated<T, StoreTokens>;

/// Makes the tokens of grants, by opening tenures at the store.
#[derive(Clone)]
pub struct StoreTokens {
    inventory: Inventory,
    /// The name of the default item's lock, with which the names of all other locks begin.
    lock_name: Arc<str>,
}

impl StoreTokens {
    /// The token of a tenure that begins now. It asks the store until the store answers.
    async fn open(&self, claim: &Claim) -> Token {
        let item = claim.name.strip_prefix(&*self.lock_name).unwrap_or_default();
        let item = item.trim_start_matches(':').parse().unwrap_or(Item::DEFAULT);
        let mut command = redis::cmd("EVAL");
        command.arg(OPEN_TENURE).arg(1).arg(item.key("fence")).arg(STORE.to_string());
        loop {
            match self.inventory.command(&command).await {
                Ok(revision) => return Token::new(STORE, revision),
                Err(error) => {
                    tracing::debug!(%claim, %error, "no tenure at the store: trying again");
                    sleep(AGAIN_AFTER).await;
                }
            }
        }
    }
}

impl<T: GrantToken> StoreFence<T> {
    /// `lock_name` is the name of the default item's lock.
    pub fn new(lock: Arc<dyn Backend<Token = T>>, inventory: Inventory, lock_name: &str) -> Self {
        Self::with(lock, StoreTokens { inventory, lock_name: lock_name.into() })
    }
}

impl<T: GrantToken> Decoration<T> for StoreTokens {
    /// A ticket that is granted once `lock`, the claim's ticket, is granted and the store has opened a tenure.
    fn ticket(&self, claim: &Claim, lock: Ticket<T>) -> Ticket {
        let Ticket { status: mut lock, contended, .. } = lock;
        let (publish, status) = watch::channel(ClaimStatus::Waiting);
        let (tokens, claim) = (self.clone(), claim.clone());
        tokio::spawn(async move {
            let follow = async {
                let settled = lock.wait_for(|status| *status != ClaimStatus::Waiting).await;
                if settled.is_ok_and(|status| *status != ClaimStatus::Gone) {
                    publish.send_replace(ClaimStatus::Granted(tokens.open(&claim).await));
                    // an error means that the lock forgot the claim
                    let _ = lock.wait_for(|status| *status == ClaimStatus::Gone).await;
                }
                publish.send_replace(ClaimStatus::Gone);
            };
            tokio::select! {
                () = follow => {}
                () = publish.closed() => {}
            }
        });
        Ticket { status, contended }
    }

    fn promises(&self, of_the_lock: Promises) -> Promises {
        let mut promises = of_the_lock;
        promises.token = TokenLife::Durable;
        promises
    }

    fn lease(&self, of_the_lock: Lease) -> Lease {
        Lease { cluster: STORE, ..of_the_lock }
    }
}
