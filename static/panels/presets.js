// The things to try, from the ordinary to the worst. Each one is a whole sale, from its start to its verdict.

const USUAL = { stock: 300, requests: 500, guard: "etcd", fence: true, fault: null };

export const PRESETS = [
  {
    id: "lock",
    title: "Sell with the lock",
    text: "300 units, 500 buyers: 300 get one.",
    run: USUAL,
  },
  {
    id: "no-lock",
    title: "Sell without a lock",
    text: "The same buyers. How many get one?",
    run: { ...USUAL, guard: "no-lock" },
  },
  {
    id: "local",
    title: "A lock in each process",
    text: "Enough for one instance. There are more.",
    run: { ...USUAL, guard: "local" },
  },
  {
    id: "pause",
    title: "Pause the holder",
    text: "It sleeps through its lease, wakes up, and writes. The fence refuses.",
    run: { ...USUAL, fault: "pause" },
  },
  {
    id: "pause-no-fence",
    title: "Pause it, without the fence",
    text: "The same, but its late write is taken.",
    run: { ...USUAL, fault: "pause", fence: false },
  },
  {
    id: "kill",
    title: "Kill an instance",
    text: "In the middle of the sale. Its claim goes, the next one is served.",
    run: { ...USUAL, fault: "kill" },
  },
];
