// How the page writes numbers and times.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** 1234567 as 1,234,567; a dash for what is not known. */
export function count(number) {
  return Number.isFinite(number) ? whole.format(number) : "–";
}

/** A length of time, from milliseconds: 0.4 ms, 12 ms, 3.2 s. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 10) return `${tenth.format(Math.max(0, ms))} ms`;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  return `${(ms < 100_000 ? tenth : whole).format(ms / 1000)} s`;
}

/** `1 unit`, `2 units`: a count with its noun. */
export function counted(number, noun, plural = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : plural}`;
}

/** With a capital at its start and a full stop at its end. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

/** A time of day. */
export const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });

/** A time of day, with the date if that is not today's. */
export function when(at) {
  const date = new Date(at);
  return (date.toDateString() === new Date().toDateString() ? clock : day).format(date);
}

/** A moment in local time, and in UTC. */
export function moments(at) {
  const date = new Date(at);
  return [day.format(date), date.toISOString().slice(0, 19).replace("T", " ")];
}
