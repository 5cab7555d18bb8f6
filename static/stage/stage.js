// The stage: replays a recorded sale, and has the demo run the sale of a chapter.

import { call, isRunning } from "../page/api.js";
import { byId, children, list, say, setCell, setData, setText } from "../page/dom.js";
import { count, duration, sentence } from "../page/format.js";
import { looks } from "../page/instances.js";
import { film, holder, mostSold, prepare, state } from "./state.js";
import { Brush, draw, grid, layout, unitAt } from "./draw.js";
import { CHAPTERS, OPENING, chapterOf, moment, scenes, shopName, soldTo, words } from "./story.js";
import { asLink, asPage, download, fromLink } from "./share.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const LOOK_MS = 250;
/** Half of the least time between two events, in microseconds: the moment of a position is not exact. */
const NEAR = 0.005;
/** The unit whose owners are listed where none has several. */
const USUAL_UNIT = 6;
/** What the stage shows before there is a recording. */
const NOTHING = prepare({ guard: null, fence: null, fault: null, stock: 300, buyers: 500, shops: ["", ""], took_us: 0, sample: null, events: [] });

export class Stage {
  #brush = new Brush(byId("scene"), () => this.#request());
  /** The recordings of this tab, by the id of their chapter. */
  #kept = new Map();
  #shown = NOTHING;
  #chapter = OPENING;
  #film = film([{ at: 0, seconds: 1, text: "" }], 0);
  /** In seconds of the film. */
  #position = 0;
  #isPlaying = false;
  /** Nothing is in flight after a jump to another moment. */
  #isStill = true;
  #tick = null;
  #frame = null;
  #chosen = null;
  #demo = null;
  #isBusy = false;
  /** The runs that were replayed here, or need not be. */
  #seen = new Set();

  /** Without `recordings` it shows those of a demo. */
  constructor(recordings = null) {
    for (const chapter of CHAPTERS) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "chapter", id: `chapter-${chapter.id}`, textContent: chapter.title, ariaPressed: "false" });
      setData(button, "number", chapter.number);
      byId("chapters").appendChild(document.createElement("li")).append(button);
    }
    const clicks = {
      play: () => this.#play(!this.#isPlaying),
      back: () => this.#step(-1),
      forward: () => this.#step(1),
      next: () => {
        // it hides while the next sale runs, and would lose the focus
        byId("sentence").focus();
        if (this.#shown === NOTHING) this.#again();
        else this.#choose(this.#next());
      },
      again: () => this.#again(),
      checks: ({ target }) => this.#choose(CHAPTERS.find(({ id }) => id === (target.checked ? "checked" : "asleep"))),
      scene: ({ offsetX, offsetY }) => this.#pick(unitAt(this.#layout(), offsetX, offsetY)),
      save: () => this.#save(),
      copy: () => this.#copy(),
    };
    for (const chapter of CHAPTERS) clicks[`chapter-${chapter.id}`] = () => this.#choose(chapter);
    for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
    byId("scrub").addEventListener("input", ({ target }) => this.#seek(target.value / 1000));
    byId("speed").addEventListener("change", () => this.#request());
    byId("unit").addEventListener("input", ({ target }) => this.#pick(target.valueAsNumber));
    byId("events-details").addEventListener("toggle", () => this.#showEvents());
    document.addEventListener("keydown", (event) => this.#press(event));
    this.#showShops();
    if (recordings) {
      for (const recording of recordings) this.#keep(recording);
      for (const { id } of CHAPTERS) byId(`chapter-${id}`).parentElement.hidden = !this.#kept.has(id);
      for (const id of ["save", "copy", "again"]) byId(id).hidden = true;
      // the shops of a recording can be neither paused nor killed
      byId("shops").inert = true;
      this.#open(recordings[0], chapterOf(recordings[0]));
    }
    addEventListener("hashchange", () => this.#follow());
    this.#follow();
  }

  async #follow() {
    const recording = await fromLink();
    if (!recording || this.#isBusy) return;
    this.#seen.add("");
    this.#open(this.#keep(recording), chapterOf(recording));
  }

  /** Takes in the state of the page: whether there is a demo, and whether a run is over. */
  show({ now, link }) {
    this.#demo = now?.demo ?? null;
    byId("stage").hidden = !this.#demo && this.#shown === NOTHING;
    // the last run can be had without a stream of events
    if (!this.#demo && (now || link.state !== "lost" || link.needsToken || this.#seen.size > 0)) return;
    const run = this.#demo?.run;
    if (this.#demo) this.#showUp();
    const id = run?.id ?? "";
    if (isRunning(run) && this.#shown === NOTHING && !this.#isBusy) this.#say("A sale is being recorded. It is shown here when it is over.");
    if (this.#isBusy || isRunning(run) || this.#seen.has(id)) return;
    const isFirst = this.#seen.size === 0;
    this.#seen.add(id);
    this.#take(isFirst);
  }

  async #take(isFirst) {
    const recording = await call("GET", "demo/run/replay").catch(() => null);
    if (!recording && this.#demo?.run?.state !== "done") this.#invite();
    if (!recording || recording.run === this.#shown.run) return;
    this.#open(this.#keep(recording), chapterOf(recording, isFirst));
  }

  /** Without a recording, one button makes one. A run starts a new sale, so it waits for a visitor. */
  #invite() {
    if (this.#shown !== NOTHING) return;
    this.#say("No sale was recorded yet.");
    byId("next").hidden = false;
    say({ next: "Run the first sale →" });
  }

  #keep(recording) {
    this.#kept.set(chapterOf(recording).id, recording);
    return recording;
  }

  #open(recording, chapter) {
    byId("stage").hidden = false;
    this.#shown = prepare(recording);
    this.#chapter = chapter;
    this.#film = film(scenes(this.#shown, chapter), this.#shown.end);
    byId("unit").max = this.#shown.stock;
    say({ people: recording.sample ? "people drawn here" : "people", "stage-error": "" });
    this.#chosen = null;
    this.#pick(mostSold(this.#shown.final)?.unit ?? USUAL_UNIT);
    byId("scrub").max = Math.round(this.#film.length * 1000);
    // one story with two endings, once the second was seen
    byId("check").hidden = !["asleep", "checked"].includes(chapter.id) || !this.#kept.has("checked") || !byId("chapter-asleep").checkVisibility();
    this.#showCheck();
    const strip = byId("chapters");
    for (const { id } of CHAPTERS) {
      const button = byId(`chapter-${id}`);
      button.ariaPressed = id === chapter.id;
      if (id === chapter.id) strip.scrollLeft = button.offsetLeft - (strip.clientWidth - button.offsetWidth) / 2;
    }
    this.#showShops();
    this.#showEvents();
    this.#position = 0;
    this.#play(true);
  }

  #showCheck() {
    byId("checks").checked = this.#chapter.id === "checked";
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

  #again() {
    const { stock, buyers, guard, fence, fault } = this.#shown;
    this.#run(this.#chapter, { stock, requests: buyers, guard, fence, fault });
  }

  /** Has the demo run the sale of a chapter, and replays it. */
  async #run(chapter, sale = chapter.run) {
    if (this.#isBusy) return;
    this.#isBusy = true;
    this.#seek(0);
    byId("next").hidden = true;
    setData(byId("stage"), "busy", true);
    const { fault, stock, requests } = sale;
    say({ "stage-error": "" });
    this.#say(`${count(requests)} people come for ${count(stock)} units, to the real shops. ${fault ? "One shop falls asleep for some seconds. " : ""}Recording.`);
    try {
      const { id } = await call("POST", "demo/run", sale);
      let run;
      do {
        await new Promise((done) => setTimeout(done, LOOK_MS));
        run = await call("GET", "demo/run");
        say({ clock: `recording, ${duration(run.elapsed_ms)}` });
      } while (run.id === id && isRunning(run));
      if (run.state === "failed") throw new Error(run.error);
      const recording = await call("GET", "demo/run/replay");
      if (recording?.run !== id) throw new Error("Another sale was run meanwhile.");
      this.#seen.add(id);
      this.#open(this.#keep(recording), chapter === OPENING ? chapterOf(recording, true) : chapter);
    } catch (error) {
      say({ "stage-error": `There is no recording. ${sentence(error.message)}` });
      this.#invite();
      this.#request();
    } finally {
      this.#isBusy = false;
      setData(byId("stage"), "busy", false);
      this.#showCheck();
    }
  }

  #now() {
    return this.#film.timeAt(this.#position) + NEAR;
  }

  #play(isPlaying) {
    if (isPlaying && this.#position >= this.#film.length) this.#position = 0;
    this.#isPlaying = isPlaying;
    this.#isStill &&= !isPlaying;
    this.#tick = null;
    say({ play: isPlaying ? "❚❚" : "▶" });
    byId("play").ariaLabel = isPlaying ? "Pause the replay" : "Play";
    this.#request();
  }

  #seek(position) {
    this.#play(false);
    this.#isStill = true;
    this.#position = Math.min(this.#film.length, Math.max(0, position));
  }

  /** Stops at the event before or after this moment; the start and the end are steps as well. */
  #step(by) {
    const { events } = this.#shown;
    const next = state(events, this.#now()).step + by;
    this.#seek(next <= 0 ? 0 : next > events.length ? this.#film.length : this.#film.positionOf(events[next - 1][0]));
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
      if (this.#isPlaying) this.#advance(time);
      this.#show();
      if (this.#isPlaying) this.#request();
    });
  }

  /** Moves on by the time since the last frame; with reduced motion in whole seconds. */
  #advance(time) {
    const since = time - (this.#tick ?? time);
    if (calm.matches && this.#tick !== null && since < 1000) return;
    this.#tick = time;
    const moved = calm.matches ? 1 : Math.min(0.1, since / 1000);
    const slower = Number(byId("speed").value);
    // the last scene may take no time of its own
    const isTimed = slower > 0 && this.#now() < this.#shown.end;
    const next = isTimed ? this.#film.positionOf(this.#now() + (moved * 1e6) / slower) : this.#position + moved;
    this.#position = Math.min(this.#film.length, Math.max(this.#position, next));
    if (this.#position === this.#film.length) this.#play(false);
  }

  #layout() {
    const { clientWidth: width, clientHeight: height } = byId("scene");
    const { stock, shops } = this.#shown;
    return layout({ width, height, stock, shops: shops.length, dots: this.#dots(), lanes: this.#hasNumbers() });
  }

  #dots() {
    return this.#shown.final.buyers.size || this.#shown.buyers;
  }

  /** The numbers of the key come with the chapter that explains them. */
  #hasNumbers() {
    return this.#chapter !== OPENING && this.#shown.final.tenures.length > 0;
  }

  #show() {
    const recording = this.#shown;
    const { events, final, end } = recording;
    const t = Math.min(this.#now(), end);
    const now = state(events, t);
    const places = this.#layout();
    draw(this.#brush, places, {
      now, recording, key: holder(now), film: this.#film, position: this.#position, isStill: this.#isStill || calm.matches,
      dots: this.#dots(), chosen: this.#chosen, hasNumbers: this.#hasNumbers(),
    });
    [...byId("shops").children].forEach((shop, index) => {
      const { x, y } = places.shops[index];
      shop.style.translate = `${Math.round(x + 8)}px ${Math.round(y + 6)}px`;
    });
    if (recording === NOTHING) return;
    if (!this.#isBusy) this.#tell(mostSold(final) ? "bad" : "good");
    const scrub = byId("scrub");
    scrub.value = Math.round(this.#position * 1000);
    // each change would be read out
    scrub.ariaValueText = this.#isPlaying ? "playing" : `${moment(t)}${now.event ? `, ${words(now.event)}` : ""}, step ${now.step} of ${events.length}`;
    say({ clock: `${moment(t)} of ${moment(end)}${this.#pace()}`, got: count(now.sold), "units-sold": count(now.units.size), doubled: count(now.doubled) });
    setData(byId("doubled"), "tone", now.doubled > 0 && "bad");
    this.#showOwners(now);
  }

  /** How the film runs, where the visitor has not chosen a speed. */
  #pace() {
    const { seconds, took } = this.#film.sceneAt(this.#position);
    const slower = (seconds * 1e6) / took;
    const isTold = byId("speed").value === "0" && this.#isPlaying && slower >= 1.5 && slower < 1e5;
    return isTold ? `, ${count(slower)} times slower` : "";
  }

  /** The sentence of this scene; at the end of the last one, what comes next. */
  #tell(tone) {
    const { text, isEnding } = this.#film.sceneAt(this.#position);
    const next = isEnding && this.#next();
    this.#say(text, isEnding && tone);
    byId("next").hidden = !next;
    if (next) say({ next: `${next.ask} →` });
  }

  #say(text, tone) {
    say({ sentence: text });
    setData(byId("told"), "tone", tone);
  }

  #showShops() {
    children(byId("shops"), this.#shown.shops.length, (index) => this.#makeShop(index));
    this.#showUp();
  }

  #showUp() {
    this.#shown.shops.forEach((name, index) => {
      const shop = byId("shops").children[index];
      const instance = this.#demo?.instances.find((one) => one.instance === name);
      setText(shop.querySelector(".shop-port"), name + (!instance ? "" : !instance.up ? " is down" : ""));
      setData(shop, "down", instance && !instance.up);
    });
  }

  #makeShop(index) {
    const shop = byId("shop").content.firstElementChild.cloneNode(true);
    const [sign, title] = shop.querySelector("summary").children;
    setCell(sign, looks(index));
    setText(title, `Shop ${String.fromCharCode(65 + index)}`);
    const answer = shop.querySelector("p");
    for (const button of shop.querySelectorAll("button")) {
      const { path, effect } = button.dataset;
      button.addEventListener("click", async () => {
        const instance = this.#shown.shops[index];
        const done = call("POST", path, { instance }).then(() => `${instance} ${effect}.`);
        setText(answer, await done.catch((error) => error.message));
      });
    }
    return shop;
  }

  #pick(unit) {
    if (!Number.isInteger(unit) || unit < 1 || unit > this.#shown.stock) return;
    this.#chosen = unit;
    if (byId("unit").valueAsNumber !== unit) byId("unit").value = unit;
    this.#request();
  }

  #showOwners(now) {
    const owners = now.units.get(this.#chosen) ?? [];
    say({ owned: soldTo(this.#shown, now, this.#chosen) });
    const lens = byId("lens");
    const key = `${this.#shown.run} ${this.#chosen} ${owners.length}`;
    if (lens.dataset.key === key) return;
    setData(lens, "key", key);
    setData(lens, "tone", owners.length > 1 && "bad");
    lens.style.setProperty("--size", `${grid({ w: lens.clientWidth - 8, h: lens.clientHeight - 8 }, owners.length, 100).size}px`);
    list(lens, [owners.map(({ shop }) => looks(shop))]);
    list(byId("owners"), owners.map(({ buyer, shop, number, heard }) => [looks(shop),
      `buyer ${count(buyer + 1)}, ${shopName(shop)}${number !== null && this.#hasNumbers() ? `, number ${count(number)}` : ""}`, moment(heard)]));
  }

  #showEvents() {
    const events = byId("events-details").open ? this.#shown.events : [];
    list(byId("events"), events.map((event, index) => [count(index + 1), moment(event[0]), words(event)]));
  }

  /** What was recorded, without what was derived from it, and first the one that is shown. */
  #recordings() {
    return [...this.#kept.values()].sort((one, other) => (other.run === this.#shown.run) - (one.run === this.#shown.run));
  }

  async #save() {
    if (this.#kept.size > 0) download("flash-sale-replay.html", await asPage(this.#recordings()));
  }

  async #copy() {
    const [shown] = this.#recordings();
    const link = shown && await asLink(shown);
    const copied = link && await navigator.clipboard.writeText(link).then(() => true, () => false);
    if (link && !copied) history.replaceState(null, "", link);
    say({ copied: !link ? "Too large for a link: save it instead." : copied ? "Copied." : "The address of this page now has it." });
  }
}
