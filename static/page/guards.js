// The guards of a sale, by the names of `demo serve --lock`, in words for this page.

const WORDS = {
  etcd: "etcd lock",
  local: "a lock in each process",
  "no-lock": "no lock",
  "atomic-script": "one step in the store",
};

/** What a guard means for this page. */
export function guardOf(name) {
  return { words: WORDS[name] ?? name, /** The fence works under this guard. */ hasTokens: name === "etcd" };
}
