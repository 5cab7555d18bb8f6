// The guards of a sale, by the names of `demo serve --lock`, in words for this page.

/** The locks that all instances share, in the order of the command line. */
const LOCKS = {
  etcd: "etcd lock",
  redis: "Redis lock",
  redlock: "Redlock",
  postgres: "PostgreSQL lock",
  "postgres-advisory": "PostgreSQL advisory lock",
  zookeeper: "ZooKeeper lock",
  file: "file lock",
};

const OTHERS = {
  local: "a lock in each process",
  "no-lock": "no lock",
  "batched-script": "one step in the store for each batch",
  "atomic-script": "one step in the store",
  "etcd-rpc": "etcd's own Lock call",
  "etcd-recipe": "etcd lock for each order",
};

const FOR_EACH_ORDER = ["etcd-rpc", "etcd-recipe"];

/** What a guard means for this page. The service alone has the etcd lock. */
export function guardOf(name = "etcd") {
  return {
    words: LOCKS[name] ?? OTHERS[name] ?? name,
    /** There is a queue for the lock, which nobody watches. */
    isUnwatched: (name in LOCKS && name !== "etcd") || FOR_EACH_ORDER.includes(name),
    /** The fence works under this guard. */
    hasTokens: name in LOCKS || name === "etcd-recipe",
  };
}
