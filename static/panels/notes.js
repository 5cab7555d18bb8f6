// What happened, newest first, with the time of day.

import { byId, children, make, setData, setShown, setText } from "../page/dom.js";

const SHOWN = 8;
const QUIET = new Set(["sale-started", "guard", "store-back", "etcd-back", "instance-back", "link-back"]);
const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function showNotes({ now, allNotes }) {
  if (!now) return;
  const newest = allNotes.slice(-SHOWN).reverse();
  const rows = children(byId("notes"), newest.length, makeRow);
  newest.forEach((note, index) => {
    const [when, text] = rows[index].children;
    setText(when, time.format(note.at_ms));
    setText(text, note.text);
    setData(rows[index], "tone", QUIET.has(note.kind) ? "quiet" : "bad");
    setData(rows[index], "kind", note.kind);
  });
  setShown(byId("notes-none"), newest.length === 0);
  setText(byId("notes-none"), "Nothing unusual.");
}

function makeRow() {
  const row = make("li", "note-row");
  row.append(make("time", "note-time"), make("span", "note-text"));
  return row;
}
