// What each guard of the sale means for this page. The names are those of `demo serve --lock`.

/** A lock of the library: its name in a sentence, its name on a button, and where it is. */
const lock = (words, label, home) =>
  ({ words, label, home, noHolder: "not watched here", isUnwatched: true, hasLedger: true, hasTokens: true });

/** The locks that all instances share, in the order of the command line. */
export const LOCKS = {
  etcd: { words: "the etcd lock", label: "etcd lock", hasLedger: true, hasTokens: true },
  redis: lock("the lock in Redis", "Redis lock", "a Redis of its own"),
  redlock: lock("Redlock", "Redlock", "several Redis servers"),
  postgres: lock("the lock in PostgreSQL", "PostgreSQL lock", "PostgreSQL"),
  "postgres-advisory": lock("the advisory lock in PostgreSQL", "PostgreSQL advisory lock", "PostgreSQL"),
  zookeeper: lock("the lock in ZooKeeper", "ZooKeeper lock", "ZooKeeper"),
  file: lock("the lock in a file", "file lock", "a directory of this machine"),
};

/**
 * All guards. Without a watched queue in etcd, `noHolder` stands in the holder's place, and `isUnwatched` says that there is
 * a queue all the same.
 */
const GUARDS = {
  ...LOCKS,
  local: {
    words: "a lock in each process",
    label: "local lock",
    noHolder: "Each process has a lock of its own. It does not exclude the other processes.",
  },
  "no-lock": {
    words: "no lock",
    label: "no lock",
    noHolder: "There is no lock: all instances read and write at the same time.",
  },
  "batched-script": {
    words: "the store's script alone, in batches",
    noHolder: "There is no lock: the store runs each batch as one atomic script.",
    hasLedger: true,
  },
  "atomic-script": {
    words: "the store's script alone",
    label: "one step in the store",
    noHolder: "There is no lock: the store runs each order as one atomic script.",
    hasLedger: true,
  },
  "etcd-rpc": {
    words: "etcd's own Lock call",
    noHolder: "Each order takes etcd's own lock for itself.",
    isUnwatched: true,
  },
  "etcd-recipe": {
    words: "the etcd lock, taken for each order",
    noHolder: "Each order queues in etcd for itself.",
    isUnwatched: true,
    hasLedger: true,
    hasTokens: true,
  },
};

/** The guard of the newest message. */
export function guardOf(now) {
  return GUARDS[now?.guard] ?? GUARDS.etcd;
}

/** How a button names the guard `name`. */
export function labelOf(name) {
  return GUARDS[name]?.label ?? name;
}

/** What refuses a holder that has lost the lock. */
export const FENCES = { none: "none", lock: "the lock's", store: "the store's" };

/** The fence of a message or a run, where that of the demo is of this `kind`; nothing under a guard without tokens. */
export function fenceOf(run, isOn, kind) {
  return guardOf(run).hasTokens ? FENCES[isOn ? kind : "none"] : undefined;
}
