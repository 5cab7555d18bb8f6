// What is wrong now. The sentences are the server's, except that about a lost connection.

import { byId, children, make, setData, setText } from "../page/dom.js";

/** Shown in other panels. */
const ELSEWHERE = new Set(["no-sale", "oversold", "unbalanced", "no-lock", "fence-off", "holder-silent"]);
const MOST_LINKS = 3;
const NO_ANSWER = "The instance does not answer, or has too many watchers. This page keeps trying.";

new ResizeObserver(([{ target }]) => {
  document.documentElement.style.setProperty("--troubles-height", `${target.offsetHeight}px`);
  setData(target, "scrolls", target.scrollHeight > target.clientHeight);
}).observe(byId("troubles"));

export function showTroubles(state) {
  const told = state.link.state === "live" ? state.now.troubles.filter(({ kind }) => !ELSEWHERE.has(kind)) : [];
  const troubles = [...connectionTrouble(state), ...told];
  const rows = children(byId("troubles"), troubles.length, makeRow);
  troubles.forEach((trouble, index) => {
    const [text, links] = rows[index].lastElementChild.children;
    setData(rows[index], "kind", trouble.kind);
    setText(text, trouble.text);
    setLinks(links, trouble.links ?? []);
  });
}

function connectionTrouble({ link, now }) {
  if (link.state !== "lost" || link.isUnsold) return [];
  if (!now) return [{ kind: "connection", text: NO_ANSWER }];
  const others = now.demo?.instances.filter((one) => !one.here && one.up) ?? [];
  const links = others.slice(0, MOST_LINKS).map((one) => (isReachable(one.url) ? one.url : one.instance));
  const elsewhere = links.length > 0 ? " The sale goes on at " : "";
  const text = `This page has lost its instance and keeps trying. The figures are the last known ones.${elsewhere}`;
  return [{ kind: "connection", text, links }];
}

/** Instances may know each other by names that this browser cannot resolve, such as those of containers. */
const isReachable = (url) => URL.canParse(url) && new URL(url).hostname === location.hostname;

/** Links to these pages. A name that is not a URL stays text. */
function setLinks(box, urls) {
  if (box.dataset.urls === urls.join(" ")) return;
  box.dataset.urls = urls.join(" ");
  const parts = urls.map((url) => {
    if (!/^https?:\/\//.test(url)) return url;
    const link = make("a", "", url);
    link.href = url;
    return link;
  });
  box.replaceChildren(...parts.flatMap((part, index) => (index === 0 ? [part] : [" ", part])));
}

function makeRow() {
  const row = make("p", "trouble");
  const sign = make("span", "trouble-sign");
  sign.setAttribute("aria-hidden", "true");
  sign.textContent = "✕";
  row.dataset.tone = "bad";
  const words = make("span", "trouble-text");
  words.append(make("span"), make("span"));
  row.append(sign, words);
  return row;
}
