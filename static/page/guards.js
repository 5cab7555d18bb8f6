// What each guard of the sale means for this page. The names are those of `lab serve --lock`.

/** A lock of the library on another service, whose queue no watch shows. */
const other = (words, label) => ({
  words,
  label,
  noHolder: "The claims of this lock are not watched here.",
  isUnwatched: true,
  hasLedger: true,
  hasTokens: true,
});

/**
 * `words` name it, and `label` on a button. Without a watched queue in etcd, `noHolder` stands in the holder's place, and
 * `isUnwatched` says that there is a queue all the same.
 */
const GUARDS = {
  etcd: { words: "the etcd lock", label: "etcd lock", hasLedger: true, hasTokens: true },
  redis: other("the lock in Redis", "Redis lock"),
  redlock: other("Redlock", "Redlock"),
  postgres: other("the lock in PostgreSQL", "PostgreSQL lock"),
  "postgres-advisory": other("the advisory lock in PostgreSQL", "PostgreSQL advisory lock"),
  "postgres-row": other("the row lock in PostgreSQL", "PostgreSQL row lock"),
  zookeeper: other("the lock in ZooKeeper", "ZooKeeper lock"),
  file: other("the lock in a file", "file lock"),
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
