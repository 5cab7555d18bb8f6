// What each guard of the sale means for this page. The names are those of `demo serve --lock`.

/**
 * A lock of the library. `words` is its name in a sentence, `label` its name on a button. The other words say where it
 * is and what a claim is; `showWords` puts them in place of the words for etcd.
 */
const lock = (words, label, home, claim, rest) => ({
  words,
  label,
  home,
  claim,
  noHolder: "not watched here",
  isUnwatched: true,
  hasLedger: true,
  hasTokens: true,
  ...rest,
});

/** PostgreSQL's own locks. */
const own = {
  end: "A claim lasts as long as its connection. That ends at once when its instance dies, and with its lease when its "
    + "instance is paused. Then another instance gets the lock.",
};

/** What the tokens are where the store counts them. */
export const STORE_TOKEN = "With each grant the holder opens a tenure at the store, which counts: that number is its token.";

/** The locks that all instances share, in the order of the command line. */
export const LOCKS = {
  etcd: { words: "the etcd lock", label: "etcd lock", hasLedger: true, hasTokens: true },
  redis: lock("the lock in Redis", "Redis lock", "a Redis of its own", "writes an entry into Redis"),
  redlock: lock("Redlock", "Redlock", "several Redis servers", "writes a key into each of several Redis servers", {
    queue: "If that succeeds at more than half of them, it holds the lock. If not, it tries again a little later: there is no queue.",
    token: `The grants of Redlock have no numbers. ${STORE_TOKEN}`,
  }),
  postgres: lock("the lock in PostgreSQL", "PostgreSQL lock", "PostgreSQL", "writes a row into PostgreSQL"),
  "postgres-advisory": lock("the advisory lock in PostgreSQL", "PostgreSQL advisory lock", "PostgreSQL",
    "opens a connection to PostgreSQL and asks for the lock", { ...own, queue: "PostgreSQL serves the claims in the order of their arrival." }),
  zookeeper: lock("the lock in ZooKeeper", "ZooKeeper lock", "ZooKeeper", "makes a node in ZooKeeper"),
  file: lock("the lock in a file", "file lock", "a directory of this machine", "makes a file in a directory", {
    end: "There is none. A claim lasts as long as the process of its instance. A paused instance keeps the lock, and the others wait.",
  }),
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
