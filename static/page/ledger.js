// Whether the orders are written down. Under these guards they are not: the numbers are all that is known then.

const WITHOUT = new Set(["no-lock", "local", "etcd-rpc"]);

/** Whether this sale, as it is guarded now, has a ledger. */
export function keepsLedger(now) {
  return !WITHOUT.has(now?.guard);
}
