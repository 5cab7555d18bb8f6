// A recording to pass on: as one HTML file that needs no server, or in a link.

/** What the file contains, each after what it needs. */
const MODULES = ["page/format.js", "page/dom.js", "page/instances.js", "page/api.js",
  "stage/state.js", "stage/story.js", "stage/draw.js", "stage/live.js", "stage/share.js", "stage/stage.js"];
const SHEETS = ["style/base.css", "style/stage.css"];
/** Longer links are cut by what passes them on. */
const LONGEST_LINK = 32_000;

async function read(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.text();
}

/** One page with these recordings, the first of them first. */
export async function asPage(recordings) {
  const sources = await Promise.all(MODULES.map((name) => read(`static/${name}`)));
  const sheets = await Promise.all(SHEETS.map((name) => read(`static/${name}`)));
  const index = new DOMParser().parseFromString(await read("static/index.html"), "text/html");
  // one script cannot import: the modules follow each other, and no name occurs in two of them
  const script = sources.join("\n").replace(/^import [^;]*;$/gm, "").replace(/^export /gm, "").replaceAll("</script", "<\\/script");
  const data = JSON.stringify(recordings).replaceAll("<", "\\u003c");
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A recorded flash sale</title>
<style>${sheets.join("\n")}</style>
<header class="top"><h1>A recorded flash sale</h1><p class="aside">Made by the demo of flash-sale (<code>make demo</code>), at <a href="${location.origin}">${location.host}</a> while that runs.</p></header>
<main>${index.getElementById("stage").outerHTML}</main>
<script type="application/json" id="recordings">${data}</script>
<script type="module">${script}
new Stage(JSON.parse(byId("recordings").textContent));
</script>
</html>
`;
}

export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/html" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const through = (blob, stream) => new Response(blob.stream().pipeThrough(stream));

/** A link to this page with the recording in it, or null if it is too long. */
export async function asLink(recording) {
  const packed = await through(new Blob([JSON.stringify(recording)]), new CompressionStream("deflate-raw")).arrayBuffer();
  const text = btoa(Array.from(new Uint8Array(packed), (byte) => String.fromCharCode(byte)).join(""));
  const link = `${location.href.split("#")[0]}#replay=${text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
  return link.length > LONGEST_LINK ? null : link;
}

/** The recording in the link of this page, or null. */
export async function fromLink() {
  const [, text] = location.hash.match(/^#replay=([\w-]+)$/) ?? [];
  if (!text) return null;
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
    return await through(new Blob([bytes]), new DecompressionStream("deflate-raw")).json();
  } catch {
    return null;
  }
}
