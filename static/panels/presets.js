// The runs that the page offers. Each is a whole sale, from its start to its verdict.

/** Stands for the lock that the demo was started with. */
export const LOCK = "etcd";
const USUAL = { stock: 300, requests: 500, guard: LOCK, fence: true, fault: null };

export const PRESETS = [
  {
    id: "lock",
    title: "Sell with the lock",
    text: "300 units, 500 buyers: 300 get a unit.",
    run: USUAL,
  },
  {
    id: "no-lock",
    title: "Sell without a lock",
    text: "The same buyers. How many get a unit?",
    run: { ...USUAL, guard: "no-lock" },
  },
  {
    id: "local",
    title: "A lock in each process",
    text: "Enough for one instance only.",
    run: { ...USUAL, guard: "local" },
  },
  {
    id: "pause",
    title: "Pause the holder",
    text: "It sleeps for some seconds, then writes. If it has lost the lock, the fence refuses.",
    run: { ...USUAL, fault: "pause" },
  },
  {
    id: "pause-no-fence",
    title: "Pause it, without the fence",
    text: "The store accepts a late write as well.",
    run: { ...USUAL, fault: "pause", fence: false },
  },
  {
    id: "kill",
    title: "Kill the holder",
    text: "When its claim has ended, another instance gets the lock.",
    run: { ...USUAL, fault: "kill" },
  },
];
