// The stage: replays a recorded sale, and has the demo run the sale of a chapter.

import { call } from "../page/api.js";
import { Surface } from "../page/canvas.js";
import { byId, children, make, setData, setShown, setText } from "../page/dom.js";
import { count, counted, duration, sentence } from "../page/format.js";
import { colour, sign } from "../page/instances.js";
import { film, holder, mostSold, prepare, state, stepFrom } from "./state.js";
import { FLIGHT, draw, layout, unitAt } from "./draw.js";
import { CHAPTERS, LOCK, OPENING, chapterOf, moment, scenes, shopName, words } from "./story.js";
import { asLink, asPage, download, fromLink } from "./share.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const RUNNING = new Set(["preparing", "firing", "checking"]);
const LOOK_MS = 250;
/** The unit whose owners are listed where none has several. */
const USUAL_UNIT = 6;
/** What the stage shows before there is a recording. */
const NOTHING = prepare({ guard: "", fence: false, fault: null, stock: 300, buyers: 500, shops: ["", ""], took_us: 0, sample: null, events: [] });

export class Stage {
  #surface = new Surface(byId("scene"));
  /** The recordings of this tab, by the id of their chapter. */
  #kept = new Map();
  #shown = NOTHING;
  #chapter = OPENING;
  #scenes = [];
  #film = film([{ at: 0, seconds: 1 }], 0);
  #ranks = new Map();
  /** In seconds of the film, and its exact moment after a step. */
  #position = 0;
  #stepped = null;
  #isPlaying = false;
  /** How far what is in flight has come since the film was stopped. */
  #settled = FLIGHT;
  #tick = null;
  #frame = null;
  #chosen = null;
  #demo = null;
  #isLive = false;
  #isBusy = false;
  /** The runs that were replayed here, or need not be. */
  #seen = new Set();

  /** Without `recordings` it shows those of a demo. */
  constructor(recordings = null) {
    CHAPTERS.forEach((chapter, index) => byId("chapters").append(this.#makeChapter(chapter, index)));
    this.#surface.onStale = () => this.#request();
    byId("play").addEventListener("click", () => this.#play(!this.#isPlaying));
    byId("back").addEventListener("click", () => this.#step(-1));
    byId("forward").addEventListener("click", () => this.#step(1));
    byId("scrub").addEventListener("input", ({ target }) => this.#seek(target.value / 1000));
    byId("speed").addEventListener("change", () => this.#request());
    byId("next").addEventListener("click", () => this.#choose(this.#next()));
    byId("again").addEventListener("click", () => this.#run(this.#chapter.run ? this.#chapter : CHAPTERS[2]));
    byId("checks").addEventListener("change", () => this.#choose(CHAPTERS.find(({ id }) => id === "asleep")));
    byId("unit").addEventListener("input", ({ target }) => this.#pick(Number(target.value)));
    byId("scene").addEventListener("click", ({ offsetX, offsetY }) => this.#pick(unitAt(this.#layout(), offsetX, offsetY)));
    byId("events-details").addEventListener("toggle", () => this.#showEvents());
    byId("save").addEventListener("click", () => this.#save());
    byId("copy").addEventListener("click", () => this.#copy());
    document.addEventListener("keydown", (event) => this.#press(event));
    this.#showShops();
    if (recordings) {
      for (const recording of recordings) this.#keep(recording);
      for (const { id } of CHAPTERS) setShown(byId(`chapter-${id}`).parentElement, this.#kept.has(id));
      for (const id of ["save", "copy", "again"]) setShown(byId(id), false);
      this.#open(recordings[0], chapterOf(recordings[0]));
    }
    fromLink().then((recording) => {
      if (!recording) return;
      this.#seen.add("");
      this.#open(this.#keep(recording), chapterOf(recording));
    });
  }

  /** Takes in the state of the page: whether there is a demo, and whether a run is over. */
  show({ now, link }) {
    this.#demo = now?.demo ?? null;
    this.#isLive = link.state === "live";
    setShown(byId("stage"), this.#demo !== null || this.#shown !== NOTHING);
    // the last run can be had without a stream of events
    if (!now && link.state === "lost" && this.#seen.size === 0) {
      this.#seen.add("");
      this.#take(true);
    }
    if (!this.#demo) return;
    for (const { id, run } of CHAPTERS) setData(byId(`chapter-${id}`), "off", !this.#demo.guards.includes(this.#guard(run)));
    this.#showUp();
    const { run } = this.#demo;
    const id = run?.id ?? "";
    if (this.#isBusy || RUNNING.has(run?.state) || this.#seen.has(id)) return;
    const isFirst = this.#seen.size === 0;
    this.#seen.add(id);
    this.#take(isFirst);
  }

  /** Replays the last run, if it was recorded and is not shown yet. */
  async #take(isFirst) {
    const recording = await call("GET", "demo/run/replay").catch(() => null);
    if (!recording && this.#shown === NOTHING) this.#say("No sale was recorded yet. Choose a chapter.");
    if (!recording || recording.run === this.#shown.run) return;
    const chapter = chapterOf(recording);
    this.#open(this.#keep(recording), isFirst && chapter.id === "shared" ? OPENING : chapter);
  }

  #keep(recording) {
    this.#kept.set(chapterOf(recording).id, recording);
    return recording;
  }

  /** The guard of a run in this demo. */
  #guard({ guard }) {
    return guard === LOCK ? this.#demo?.locks[0] : guard;
  }

  /** Replays a recording as this chapter. */
  #open(recording, chapter) {
    setShown(byId("stage"), true);
    this.#shown = prepare(recording);
    this.#chapter = chapter;
    this.#scenes = scenes(this.#shown, chapter);
    this.#film = { ...film(this.#scenes, this.#shown.end), marks: this.#scenes.slice(1).map(({ at }) => at) };
    this.#ranks = new Map([...this.#shown.final.buyers.keys()].map((buyer, rank) => [buyer, rank]));
    byId("unit").max = this.#shown.stock;
    this.#chosen = null;
    this.#pick(mostSold(this.#shown.final)?.unit ?? USUAL_UNIT);
    byId("scrub").max = Math.round(this.#film.length * 1000);
    setShown(byId("check"), chapter.id === "checked");
    byId("checks").checked = true;
    for (const { id } of CHAPTERS) {
      const button = byId(`chapter-${id}`);
      button.setAttribute("aria-pressed", String(id === chapter.id));
      const strip = byId("chapters");
      if (id === chapter.id) strip.scrollLeft = button.offsetLeft - (strip.clientWidth - button.offsetWidth) / 2;
    }
    this.#showShops();
    this.#showEvents();
    this.#position = 0;
    this.#play(true);
  }

  #makeChapter(chapter, index) {
    const row = make("li");
    const button = make("button", "chapter", chapter.title);
    Object.assign(button, { type: "button", id: `chapter-${chapter.id}` });
    setData(button, "number", chapter.id === "atomic" ? "?" : index + 1);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => this.#choose(chapter));
    row.append(button);
    return row;
  }

  #next() {
    const next = CHAPTERS[CHAPTERS.findIndex(({ id }) => id === this.#chapter.id) + 1];
    return next && byId(`chapter-${next.id}`).checkVisibility() ? next : null;
  }

  #choose(chapter) {
    const recording = this.#kept.get(chapter.id);
    if (recording && !this.#isBusy) this.#open(recording, chapter);
    else this.#run(chapter);
  }

  /** Has the demo run the sale of a chapter, and replays it. */
  async #run(chapter) {
    if (this.#isBusy) return;
    if (byId(`chapter-${chapter.id}`).dataset.off !== undefined) {
      this.#complain("This demo was started with another guard.");
      return;
    }
    this.#isBusy = true;
    this.#complain("");
    this.#seek(0);
    setShown(byId("next"), false);
    setData(byId("stage"), "busy", true);
    const { fault, stock, requests } = chapter.run;
    this.#say(`${count(requests)} people come for ${count(stock)} units, to the real shops. ${fault ? "One shop falls asleep for some seconds. " : ""}Recording.`);
    try {
      const { id } = await call("POST", "demo/run", { ...chapter.run, guard: this.#guard(chapter.run) });
      let run;
      do {
        await new Promise((done) => setTimeout(done, LOOK_MS));
        run = await call("GET", "demo/run");
        setText(byId("clock"), `recording, ${duration(run.elapsed_ms)}`);
      } while (run.id === id && RUNNING.has(run.state));
      if (run.state === "failed") throw new Error(sentence(run.error));
      const recording = await call("GET", "demo/run/replay");
      if (recording?.run !== id) throw new Error("This run was not recorded.");
      this.#seen.add(id);
      this.#kept.set(chapter.id, recording);
      this.#open(recording, chapter);
    } catch (error) {
      this.#complain(error.message);
      this.#request();
    } finally {
      this.#isBusy = false;
      setData(byId("stage"), "busy", false);
    }
  }

  // --- the film ---

  #now() {
    return this.#stepped ?? this.#film.timeAt(this.#position);
  }

  #play(isPlaying) {
    if (isPlaying && this.#position >= this.#film.length) this.#position = 0;
    if (isPlaying && !this.#isPlaying) this.#settled = 0;
    this.#isPlaying = isPlaying;
    this.#stepped = null;
    this.#tick = null;
    setText(byId("play"), isPlaying ? "❚❚" : "▶");
    byId("play").setAttribute("aria-label", isPlaying ? "Pause the replay" : "Play");
    this.#request();
  }

  /** Stops at another position. */
  #seek(position) {
    this.#play(false);
    this.#position = Math.min(this.#film.length, Math.max(0, position));
    this.#request();
  }

  /** Stops at the event before or after this moment. */
  #step(by) {
    const t = stepFrom(this.#shown, this.#now(), by);
    this.#seek(t === this.#shown.end ? this.#film.length : this.#film.positionOf(t));
    this.#stepped = t;
    this.#settled = FLIGHT;
  }

  #press(event) {
    const { key, target, altKey, ctrlKey, metaKey } = event;
    const isHere = target === document.body || byId("stage").contains(target);
    if (!isHere || altKey || ctrlKey || metaKey || byId("stage").hidden || target.matches("select, input[type=number]")) return;
    const isSlider = target.id === "scrub";
    if (key === " " && (isSlider || !target.matches("button, summary, input"))) this.#play(!this.#isPlaying);
    else if (key === "ArrowLeft" || (isSlider && key === "ArrowDown")) this.#step(-1);
    else if (key === "ArrowRight" || (isSlider && key === "ArrowUp")) this.#step(1);
    else return;
    event.preventDefault();
  }

  #request() {
    this.#frame ??= requestAnimationFrame((time) => {
      this.#frame = null;
      this.#advance(time);
      this.#show();
      if (this.#isPlaying || this.#settled < FLIGHT) this.#request();
    });
  }

  /** Moves on by the time since the last frame; with reduced motion in whole seconds, and without flight. */
  #advance(time) {
    const seconds = Math.min(0.1, (time - (this.#tick ?? time)) / 1000);
    if (calm.matches && this.#isPlaying && this.#tick !== null && time - this.#tick < 1000) return;
    this.#tick = time;
    if (!this.#isPlaying) {
      this.#settled = Math.min(FLIGHT, this.#settled + seconds);
      return;
    }
    const slower = Number(byId("speed").value);
    const moved = calm.matches ? 1 : seconds;
    const next = slower === 0 ? this.#position + moved : this.#film.positionOf(this.#now() + (moved * 1e6) / slower);
    // the last scene may take no time of its own
    this.#position = slower > 0 && this.#now() >= this.#shown.end ? this.#position + moved : Math.max(this.#position, next);
    if (this.#position >= this.#film.length) {
      this.#position = this.#film.length;
      this.#play(false);
    }
  }

  #layout() {
    const { clientWidth: width, clientHeight: height } = byId("scene");
    const { stock, shops, buyers, final } = this.#shown;
    return layout({ width, height, stock, shops: shops.length, dots: final.buyers.size || buyers, lanes: this.#hasNumbers() });
  }

  /** The numbers of the key come with the chapter that explains them. */
  #hasNumbers() {
    return this.#chapter !== OPENING && this.#shown.final.tenures.length > 0;
  }

  #show() {
    const recording = this.#shown;
    const t = this.#now();
    const now = state(recording.events, t);
    const isStill = calm.matches;
    const ahead = this.#position + this.#settled;
    const flown = (at) => (isStill ? 1 : Math.min(1, Math.max(0, (ahead - this.#film.positionOf(at)) / FLIGHT)));
    const places = this.#layout();
    draw(this.#surface, places, {
      now, flown, recording: recording === NOTHING ? null : recording, key: holder(now), ranks: this.#ranks,
      dots: recording.final.buyers.size || recording.buyers, chosen: this.#chosen, numbers: this.#hasNumbers(),
      gate: recording.fence && recording.final.sleeps.length > 0, lanes: this.#hasNumbers(), film: this.#film, position: this.#position,
    });
    this.#placeShops(places);
    if (recording === NOTHING) return;
    if (!this.#isBusy) this.#tell(this.#scenes[this.#film.sceneAt(this.#position)]);
    const scrub = byId("scrub");
    scrub.value = Math.round(this.#position * 1000);
    scrub.setAttribute("aria-valuetext", `${moment(t)}${now.event ? `, ${words(now.event)}` : ""}, step ${now.step} of ${recording.events.length}`);
    setText(byId("clock"), `${moment(t)} of ${moment(recording.end)}${this.#pace()}`);
    for (const [id, value] of [["got", now.sold], ["units-sold", now.units.size], ["doubled", now.doubled]]) setText(byId(id), count(value));
    setData(byId("doubled"), "tone", now.doubled > 0 && "bad");
    this.#showOwners(now);
  }

  /** How the film runs, where the visitor has not chosen a speed. */
  #pace() {
    const slower = this.#film.slowness(this.#position);
    if (byId("speed").value !== "0" || !this.#isPlaying || slower > 1e5) return "";
    return slower > 1 ? `, ${count(slower)} times slower` : `, ${count(1 / slower)} times faster`;
  }

  /** The sentence of this scene; at the end of the last one, what comes next. */
  #tell(scene) {
    const isEnding = scene === this.#scenes.at(-1);
    const next = isEnding && this.#next();
    this.#say(scene.text, isEnding ? (mostSold(this.#shown.final) ? "bad" : "good") : "");
    setShown(byId("next"), Boolean(next));
    if (next) setText(byId("next"), `${next.ask} →`);
  }

  #say(text, tone = "") {
    setText(byId("sentence"), text);
    setData(byId("told"), "tone", tone);
  }

  #complain(text) {
    setText(byId("stage-error"), text);
  }

  // --- shops, owners, events ---

  #showShops() {
    const rows = children(byId("shops"), this.#shown.shops.length, (index) => this.#makeShop(index));
    this.#shown.shops.forEach((name, index) => {
      const [mark, title, port] = rows[index].firstElementChild.children;
      this.#mark(mark, index);
      setText(title, `Shop ${String.fromCharCode(65 + index)}`);
      setText(port, name);
    });
  }

  /** Says of each shop whether its instance is up. */
  #showUp() {
    [...byId("shops").children].forEach((shop, index) => {
      const instance = this.#demo.instances.find((one) => one.instance === this.#shown.shops[index]);
      const note = !instance ? "" : !instance.up ? " is down" : instance.here ? " (this page)" : "";
      setText(shop.querySelector(".shop-port"), this.#shown.shops[index] + note);
      setData(shop, "down", instance && !instance.up);
    });
  }

  /** Gives an element the sign and the colour of a shop. */
  #mark(element, shop) {
    setText(element, sign(shop % 4));
    element.style.color = `var(${colour(shop % 4)})`;
  }

  #makeShop(index) {
    const shop = make("details", "shop");
    const summary = make("summary");
    summary.append(make("span", "shop-sign"), make("b"), make("span", "shop-port"));
    summary.firstElementChild.setAttribute("aria-hidden", "true");
    const menu = make("div", "shop-menu");
    const answer = make("p", "aside", "Instance of the demo, as it is now:");
    answer.role = "status";
    menu.append(answer);
    for (const [verb, path, effect] of [["Pause", "demo/pause", "will fall asleep at its next write with the key"], ["Kill", "demo/kill", "is killed"]]) {
      const button = make("button", "", verb);
      button.type = "button";
      button.addEventListener("click", async () => {
        const instance = this.#shown.shops[index];
        const done = call("POST", path, { instance }).then(() => `${instance} ${effect}.`);
        setText(answer, await done.catch((error) => error.message));
      });
      menu.append(button);
    }
    if (location.protocol === "file:") menu.replaceChildren(make("p", "aside", "Recorded. In a running demo, this shop can be paused and killed here."));
    shop.append(summary, menu);
    return shop;
  }

  #placeShops({ shops }) {
    [...byId("shops").children].forEach((element, index) => {
      const { x, y } = shops[index];
      element.style.translate = `${Math.round(x + 8)}px ${Math.round(y + 6)}px`;
    });
  }

  #pick(unit) {
    if (!Number.isInteger(unit) || unit < 1 || unit > this.#shown.stock) return;
    this.#chosen = unit;
    if (Number(byId("unit").value) !== unit) byId("unit").value = unit;
    this.#request();
  }

  #showOwners(now) {
    const owners = this.#chosen === null ? [] : now.units.get(this.#chosen) ?? [];
    const isNaive = ["no-lock", "local"].includes(this.#shown.guard);
    const read = this.#shown.stock - this.#chosen + 1;
    const none = this.#chosen === null ? "Click a square, or type a number." : "Nobody yet.";
    setText(byId("owned"), owners.length === 0 ? none : `Sold to ${counted(owners.length, "buyer")}.`
      + (isNaive ? ` Each time a shop read ${count(read)} and wrote ${count(read - 1)}.` : ""));
    const [lens, list] = [byId("lens"), byId("owners")];
    const key = `${this.#shown.run} ${this.#chosen} ${owners.length}`;
    if (list.dataset.key === key) return;
    setData(list, "key", key);
    setData(lens, "tone", owners.length > 1 && "bad");
    lens.style.setProperty("--size", `${Math.min(100, Math.sqrt((lens.clientWidth * lens.clientHeight) / Math.max(1, owners.length)) * 0.88)}px`);
    const signs = children(lens, owners.length, () => make("span"));
    owners.forEach(({ shop }, index) => this.#mark(signs[index], shop));
    const rows = children(list, owners.length, () => {
      const row = make("li");
      row.append(make("span", "shop-sign"), make("span"), make("span", "when"));
      return row;
    });
    owners.forEach(({ buyer, shop, number, heard }, index) => {
      const [mark, who, when] = rows[index].children;
      this.#mark(mark, shop);
      setText(who, `buyer ${count(buyer + 1)}, ${shopName(shop)}${number !== null && this.#hasNumbers() ? `, number ${count(number)}` : ""}`);
      setText(when, moment(heard));
    });
  }

  #showEvents() {
    const isOpen = byId("events-details").open;
    const rows = children(byId("events"), isOpen ? this.#shown.events.length : 0, () => {
      const row = make("tr");
      row.append(make("td", "n"), make("td", "n"), make("td"));
      return row;
    });
    if (!isOpen) return;
    this.#shown.events.forEach((event, index) => {
      [count(index + 1), moment(event[0]), words(event)].forEach((text, at) => setText(rows[index].children[at], text));
    });
  }

  // --- sharing ---

  /** What was recorded, without what was derived from it. */
  #original() {
    return [...this.#kept.values()].find(({ run }) => run === this.#shown.run);
  }

  async #save() {
    const first = this.#original();
    if (!first) return;
    const others = [...this.#kept.values()].filter((one) => one !== first);
    download("flash-sale-replay.html", await asPage([first, ...others]));
  }

  async #copy() {
    const link = this.#original() && await asLink(this.#original());
    const copied = link && await navigator.clipboard.writeText(link).then(() => true, () => false);
    if (link && !copied) location.hash = new URL(link).hash;
    setText(byId("copied"), !link ? "Too large for a link: save it instead." : copied ? "Copied." : "The address of this page now has it.");
  }
}
