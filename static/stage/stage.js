// The stage: replays a recorded sale, asks for a guess before, and has the demo run the sale of a chapter.

import { NO_ANSWER, call, isRunning } from "../page/api.js";
import { byId, children, list, say, setCell, setData, setText } from "../page/dom.js";
import { count, duration, sentence } from "../page/format.js";
import { looks } from "../page/instances.js";
import { film, holder, mostSold, prepare, state } from "./state.js";
import { Brush, draw, grid, layout, unitAt } from "./draw.js";
import { Live } from "./live.js";
import { CHAPTERS, DRAWING, OWN, chapterOf, isStoryOfSleep, liveText, moment, scenes, shopName, soldTo, sleepOf, sourceOf, words } from "./story.js";
import { asLink, asPage, download, fromLink } from "./share.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const LOOK_MS = 250;
/** Half of the least time between two events, in microseconds: the moment of a position is not exact. */
const NEAR = 0.005;
/** The unit whose owners are listed where none has several. */
const USUAL_UNIT = 6;
/** What the stage shows of a chapter without a recording. */
const NOTHING = prepare({ guard: null, fence: null, fault: null, stock: 300, buyers: 500, shops: ["", ""], took_us: 0, sample: null, events: [] });

export class Stage {
  #brush = new Brush(byId("scene"), () => this.#request());
  /** The recordings of this tab, by the id of their chapter. */
  #kept = new Map([["two", DRAWING]]);
  /** By the id of their chapter: what the reader has guessed; null if nothing. */
  #guesses = new Map();
  /** Whether the question of the chapter is open. */
  #isAsking = false;
  #shown = NOTHING;
  #chapter = CHAPTERS[0];
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
  /** How long the lease of the key lasts in the next run, in milliseconds; a recording has its own. */
  #lease = 3000;
  #isStarted = false;
  /** While a run of this page takes place. */
  #isBusy = false;
  /** What is known of it. */
  #live = null;
  /** The runs whose recordings are here, or need not be. */
  #seen = new Set();

  /** Without `recordings` it shows those of a demo. */
  constructor(recordings = null) {
    const clicks = {
      play: () => this.#play(!this.#isPlaying),
      back: () => this.#step(-1),
      forward: () => this.#step(1),
      next: () => this.#choose(this.#next()),
      guess: ({ target }) => target.matches("button") && this.#answer(target.value || null),
      again: () => this.#again(),
      "run-sleep": () => this.#again(),
      checks: ({ target }) => this.#choose(CHAPTERS.find(({ id }) => id === (target.checked ? "checked" : "asleep"))),
      scene: ({ offsetX, offsetY }) => this.#pick(unitAt(this.#layout(), offsetX, offsetY)),
      save: () => this.#save(),
      copy: () => this.#copy(),
    };
    for (const chapter of CHAPTERS) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "chapter", id: `chapter-${chapter.id}`, textContent: chapter.title, ariaPressed: "false" });
      setData(button, "number", chapter.number);
      byId("chapters").appendChild(document.createElement("li")).append(button);
      clicks[button.id] = () => this.#choose(chapter);
    }
    for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", (event) => event.currentTarget.ariaDisabled !== "true" && act(event));
    byId("scrub").addEventListener("input", ({ target }) => this.#seek(target.value / 1000));
    byId("speed").addEventListener("change", () => this.#request());
    byId("sleep").addEventListener("input", () => this.#showSleep());
    byId("unit").addEventListener("input", ({ target }) => this.#pick(target.valueAsNumber));
    byId("events-details").addEventListener("toggle", () => this.#showEvents());
    document.addEventListener("keydown", (event) => this.#press(event));
    this.#showShops();
    if (recordings) {
      for (const recording of recordings) this.#keep(recording);
      for (const { id } of CHAPTERS) byId(`chapter-${id}`).parentElement.hidden = !this.#kept.has(id);
      for (const id of ["save", "copy", "again"]) byId(id).hidden = true;
      this.#isStarted = true;
      this.#open(recordings[0], chapterOf(recordings[0]));
      return;
    }
    addEventListener("hashchange", () => this.#follow());
    this.#follow();
  }

  /** Shows the recording in the link of this page; without one, the first chapter. */
  async #follow() {
    const recording = await fromLink();
    if (this.#isBusy || (!recording && !this.#shown.isLinked)) return;
    this.#start();
    if (recording) this.#open(this.#keep({ ...recording, isLinked: true }), chapterOf(recording));
    else this.#open(DRAWING, CHAPTERS[0]);
  }

  /** Takes in the state of the page: whether there is a demo, and whether a run is over. */
  show({ now, link }) {
    this.#demo = now?.demo ?? null;
    if (this.#demo) this.#start();
    byId("stage").hidden = !this.#isStarted;
    // the last run can be had without a stream of events
    if (!this.#demo && (now || link.state !== "lost" || this.#seen.size > 0)) return;
    const run = this.#demo?.run;
    if (this.#demo) this.#showUp();
    this.#setLease(now?.lock?.ttl_ms ?? this.#lease);
    this.#live?.see(now.lock);
    const id = run?.id ?? "";
    if (this.#isBusy || isRunning(run) || this.#seen.has(id)) return;
    this.#seen.add(id);
    this.#take();
  }

  #setLease(lease) {
    if (lease === this.#lease) return;
    this.#lease = lease;
    // beyond the lease
    byId("sleep").value = Math.min(byId("sleep").max, Math.ceil((2 * lease) / 1000 + 2));
    this.#showSleep();
    this.#request();
  }

  /** Begins with the first chapter. */
  #start() {
    if (this.#isStarted) return;
    this.#isStarted = true;
    this.#open(DRAWING, CHAPTERS[0]);
    this.#takeShipped();
  }

  /** Recordings of long runs come with the page. */
  async #takeShipped() {
    const shipped = await call("GET", "static/stage/recorded.json").catch(() => []);
    for (const recording of shipped) if (!this.#kept.has(chapterOf(recording).id)) this.#keep(recording);
  }

  /** Takes the recording of a run that this page has not started. What is shown stays. */
  async #take() {
    const recording = await call("GET", "demo/run/replay").catch(() => null);
    if (!recording) return;
    this.#start();
    // somebody's short sleep does not tell the story
    if (!isStoryOfSleep(chapterOf(recording))) this.#keep(recording);
  }

  #keep(recording) {
    this.#kept.set(chapterOf(recording).id, recording);
    return recording;
  }

  #open(recording, chapter, isPlaying = true) {
    byId("stage").hidden = false;
    this.#shown = recording === NOTHING ? NOTHING : prepare(recording);
    this.#chapter = chapter;
    this.#isAsking = false;
    this.#film = film(recording === NOTHING ? [{ at: 0, seconds: 1, text: "The sale starts." }] : scenes(this.#shown, chapter), this.#shown.end);
    byId("unit").max = this.#shown.stock;
    say({ people: recording.sample ? "buyers drawn here" : "buyers", "stage-error": "", source: recording === NOTHING ? "Not run yet" : sourceOf(recording) });
    this.#pick(mostSold(this.#shown.final)?.unit ?? Math.min(USUAL_UNIT, this.#shown.stock));
    byId("scrub").max = Math.round(this.#film.length * 1000);
    byId("sleeping").hidden = !this.#demo || !isStoryOfSleep(chapter);
    byId("again").hidden = !this.#demo || (!chapter.run && chapter !== OWN) || isStoryOfSleep(chapter);
    byId("home").hidden = !recording.isLinked;
    // one story with two endings, once the second was asked for
    byId("check").hidden = !this.#guesses.has("checked") && chapter.id !== "checked";
    byId("checks").checked = chapter.id === "checked";
    this.#showSleep();
    const strip = byId("chapters");
    for (const { id } of CHAPTERS) {
      const button = byId(`chapter-${id}`);
      button.ariaPressed = id === chapter.id;
      if (id === chapter.id) strip.scrollLeft = button.offsetLeft - (strip.clientWidth - button.offsetWidth) / 2;
    }
    this.#showShops();
    this.#showEvents();
    this.#position = 0;
    this.#play(isPlaying);
  }

  /** How long the holder sleeps in the next run, beside its lease. */
  #showSleep() {
    const { value, max } = byId("sleep");
    const lease = this.#lease;
    say({ "sleep-text": `${value} s`, "lease-text": `lease: ${duration(lease)}` });
    byId("sleep").ariaValueText = `${value} s, with a lease of ${duration(lease)}`;
    byId("sleeping").style.setProperty("--lease", lease / 1000 / max);
  }

  #next() {
    const next = CHAPTERS[CHAPTERS.findIndex(({ id }) => id === this.#chapter.id) + 1];
    return next && byId(`chapter-${next.id}`).checkVisibility() ? next : null;
  }

  /** Goes to a chapter; the first time, with its question. */
  #choose(chapter) {
    if (this.#isBusy) return this.#refuse();
    const recording = this.#kept.get(chapter.id);
    // what was clicked may hide
    if (document.activeElement?.matches("#next, #guess *")) byId("sentence").focus();
    if (chapter.question && !this.#guesses.has(chapter.id)) {
      this.#open(recording ?? NOTHING, chapter, false);
      this.#isAsking = true;
    } else if (recording) this.#open(recording, chapter);
    else this.#run(chapter);
  }

  #answer(guess) {
    this.#guesses.set(this.#chapter.id, guess);
    this.#choose(this.#chapter);
  }

  #again() {
    const { stock, buyers, guard, fence, fault } = this.#shown;
    const sale = this.#chapter.run ?? { stock, requests: buyers, guard, fence, fault };
    this.#guesses.set(this.#chapter.id, this.#guesses.get(this.#chapter.id) ?? null);
    this.#run(this.#chapter, sale);
  }

  #refuse() {
    say({ "stage-error": "A sale takes place: it ends in some seconds." });
    byId("checks").checked = this.#chapter.id === "checked";
  }

  /** Has the demo run the sale of a chapter. */
  async #run(chapter, sale = chapter.run) {
    this.#open(this.#kept.get(chapter.id) ?? NOTHING, chapter, false);
    const sleep = isStoryOfSleep(chapter) ? { sleep_seconds: byId("sleep").valueAsNumber } : {};
    await this.watch(call("POST", "demo/run", { ...sale, ...sleep }), chapter);
  }

  /** Shows a run that this page has started, while it takes place, and then its recording. */
  async watch(started, chapter = null) {
    this.#setBusy(true);
    try {
      let run = await started;
      const { id } = run;
      this.#seen.add(id);
      this.#live = new Live(run, this.#lease);
      this.#position = 0;
      this.#play(true);
      while (run.id === id && isRunning(run)) {
        await new Promise((done) => setTimeout(done, LOOK_MS));
        run = await call("GET", "demo/run");
        this.#live.hear(run);
      }
      if (run.state === "failed") throw new Error(run.error);
      const recording = await call("GET", "demo/run/replay");
      if (recording?.run !== id) throw new Error("Another sale was run meanwhile.");
      const told = chapterOf(recording);
      if (chapter && told.id !== chapter.id) throw new Error("Only one shop was up, so this sale shows nothing. Run it again when all are.");
      this.#setBusy(false);
      this.#open(this.#keep(recording), told);
      // up to here it was shown live
      const [sleep] = this.#shown.final.sleeps;
      if (sleep?.to) this.#position = this.#film.positionOf(sleep.to);
    } catch (error) {
      this.#fail(error);
    }
  }

  #fail(error) {
    this.#setBusy(false);
    this.#open(this.#kept.get(this.#chapter.id) ?? NOTHING, this.#chapter, false);
    this.#isAsking = this.#shown === NOTHING && Boolean(this.#chapter.question);
    say({ "stage-error": `${this.#shown === NOTHING ? "There is no recording." : "Not run."} ${sentence(error.message)}` });
  }

  #setBusy(isBusy) {
    this.#isBusy = isBusy;
    if (!isBusy) this.#live = null;
    setData(byId("stage"), "busy", isBusy);
    for (const id of ["play", "back", "forward", "again", "run-sleep"]) byId(id).ariaDisabled = isBusy;
    byId("scrub").disabled = isBusy;
    say({ "stage-error": "" });
  }

  #now() {
    return this.#film.timeAt(this.#position) + NEAR;
  }

  #play(isPlaying) {
    if (this.#isAsking && isPlaying) return this.#answer(null);
    if (isPlaying && this.#position >= this.#film.length) this.#position = 0;
    this.#isPlaying = isPlaying;
    this.#isStill &&= !isPlaying;
    this.#tick = null;
    say({ play: isPlaying ? "❚❚" : "▶" });
    byId("play").ariaLabel = isPlaying ? "Pause the replay" : "Play";
    this.#request();
  }

  #seek(position) {
    if (this.#isAsking || this.#isBusy) return this.#request();
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
    if (this.#isBusy) return;
    const isHere = target === document.body || byId("stage").contains(target);
    if (!isHere || altKey || ctrlKey || metaKey || byId("stage").hidden || target.matches("select, input[type=number], #sleep")) return;
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
    if (this.#live) return this.#showLive();
    const moved = calm.matches ? 1 : Math.min(0.1, since / 1000);
    const slower = Number(byId("speed").value);
    // the last scene may take no time of its own
    const isTimed = slower > 0 && this.#now() < this.#shown.end;
    const next = isTimed ? this.#film.positionOf(this.#now() + (moved * 1e6) / slower) : this.#position + moved;
    this.#position = Math.min(this.#film.length, Math.max(this.#position, next));
    if (this.#position === this.#film.length) this.#play(false);
  }

  /** What is known of the run that takes place. */
  #showLive() {
    const live = this.#live;
    this.#shown = live.recording();
    const now = state(this.#shown.events, live.position * 1e6);
    const length = this.#shown.end / 1e6;
    this.#film = film([{ at: 0, seconds: length, text: liveText(this.#shown, now, live.isOver) }], this.#shown.end);
    this.#position = Math.min(length, calm.matches ? Math.floor(live.position) : live.position);
    byId("scrub").max = Math.round(length * 1000);
    say({ source: sourceOf(this.#shown) });
  }

  #layout() {
    const { clientWidth: width, clientHeight: height } = byId("scene");
    const { stock, shops } = this.#shown;
    return layout({ width, height, stock, shops: shops.length, dots: this.#dots(), lanes: this.#hasNumbers() });
  }

  #dots() {
    return this.#shown.dots ?? (this.#shown.final.buyers.size || this.#shown.buyers);
  }

  /** The tokens come with the chapter that explains them. */
  #hasNumbers() {
    return this.#chapter.id !== "shared" && this.#shown.final.tenures.length > 0;
  }

  #show() {
    const recording = this.#shown;
    const { events, final, end } = recording;
    const t = Math.min(this.#now(), end);
    const now = state(events, t);
    const places = this.#layout();
    draw(this.#brush, places, {
      now, recording, key: holder(now), film: this.#film, position: this.#position, isStill: this.#isStill || calm.matches,
      dots: this.#dots(), chosen: this.#chosen, hasNumbers: this.#hasNumbers(), lease: recording.lease_ms ?? this.#lease,
    });
    [...byId("shops").children].forEach((shop, index) => {
      const { x, y } = places.shops[index];
      shop.style.translate = `${Math.round(x + 8)}px ${Math.round(y + 6)}px`;
    });
    this.#tell(mostSold(final) ? "bad" : "good");
    const scrub = byId("scrub");
    scrub.value = Math.round(this.#position * 1000);
    // each change would be read out
    scrub.ariaValueText = this.#isPlaying ? "playing" : `${moment(t)}${now.event ? `, ${words(now.event)}` : ""}, step ${now.step} of ${events.length}`;
    say({ clock: `${moment(t)} of ${moment(end)}${this.#pace()}`, got: count(now.sold), "units-sold": count(now.units.size), doubled: count(now.doubled) });
    setData(byId("doubled"), "tone", now.doubled > 0 && "bad");
    this.#showOwners(now);
    this.#markEvent(now.step);
  }

  /** How the film runs, where the visitor has not chosen a speed. */
  #pace() {
    const { seconds, took } = this.#film.sceneAt(this.#position);
    const slower = (seconds * 1e6) / took;
    const isTold = byId("speed").value === "0" && this.#isPlaying && slower >= 1.5 && slower < 1e5;
    return isTold ? `, ${count(slower)} times slower` : "";
  }

  /** The sentence of this scene, or the question before; at the end of the last one, what comes next. */
  #tell(tone) {
    const { text, isEnding } = this.#film.sceneAt(this.#position);
    const { question, id } = this.#chapter;
    const next = isEnding && this.#next();
    const guess = isEnding && this.#guesses.get(id);
    const asked = typeof question === "function" ? question(sleepOf(this.#shown) ?? `${byId("sleep").value} s`, duration(this.#shown.lease_ms ?? this.#lease)) : question;
    say({ sentence: this.#isAsking ? asked : text, guessed: guess ? `Your guess: ${guess}.` : "" });
    setData(byId("told"), "tone", isEnding && tone);
    byId("guess").hidden = !this.#isAsking;
    byId("next").hidden = !next || this.#isBusy;
    if (next) say({ next: `${next.ask} →` });
  }

  #showShops() {
    // the shops of a drawing or of a saved recording can be neither paused nor killed
    byId("shops").inert = !this.#demo || !this.#shown.shops[0];
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

  /** Lists the owners of a unit; of none, if there is no such unit. */
  #pick(unit) {
    this.#chosen = Number.isInteger(unit) && unit >= 1 && unit <= this.#shown.stock ? unit : null;
    if (this.#chosen && byId("unit").valueAsNumber !== unit) byId("unit").value = unit;
    this.#request();
  }

  #showOwners(now) {
    const { isLive, stock, run } = this.#shown;
    const owners = (!isLive && now.units.get(this.#chosen)) || [];
    say({ owned: isLive ? "Known when the run is over." : this.#chosen ? soldTo(this.#shown, now, this.#chosen) : `The units are 1 to ${count(stock)}.` });
    const lens = byId("lens");
    const key = `${run} ${this.#chosen} ${owners.length} ${lens.clientHeight}`;
    if (lens.dataset.key === key) return;
    setData(lens, "key", key);
    setData(lens, "tone", owners.length > 1 && "bad");
    lens.style.setProperty("--size", `${grid({ w: lens.clientWidth - 8, h: lens.clientHeight - 8 }, owners.length, 100).size}px`);
    list(lens, [owners.map(({ shop }) => looks(shop))]);
    list(byId("owners"), owners.map(({ buyer, shop, number, heard }) => [looks(shop),
      `buyer ${count(buyer + 1)}, ${shopName(shop)}${number !== null && this.#hasNumbers() ? `, token ${count(number)}` : ""}`, moment(heard)]));
  }

  #showEvents() {
    const events = byId("events-details").open && !this.#shown.isLive ? this.#shown.events : [];
    list(byId("events"), events.map((event, index) => [count(index + 1), moment(event[0]), words(event)]));
    this.#request();
  }

  /** Marks the last event in the table, and keeps it in sight there. */
  #markEvent(step) {
    const row = byId("events").children[step - 1];
    const marked = byId("events").querySelector("[aria-current]");
    if (row === marked) return;
    marked?.removeAttribute("aria-current");
    if (!row) return;
    row.setAttribute("aria-current", "step");
    const box = row.closest(".events");
    box.scrollTop = row.offsetTop - box.clientHeight / 2;
  }

  /** What was recorded, without what was derived from it, and first the one that is shown. */
  #recordings() {
    return [...this.#kept.values()].sort((one, other) => (other.run === this.#shown.run) - (one.run === this.#shown.run));
  }

  async #save() {
    const page = await asPage(this.#recordings()).catch(() => null);
    if (page) download("flash-sale-replay.html", page);
    say({ "stage-error": page ? "" : NO_ANSWER });
  }

  async #copy() {
    const [shown] = this.#recordings();
    const link = await asLink(shown);
    const copied = link && await navigator.clipboard.writeText(link).then(() => true, () => false);
    if (link && !copied) history.replaceState(null, "", link);
    say({ copied: !link ? "Too large for a link: save it instead." : copied ? "Copied." : "The address of this page now has it." });
  }
}
