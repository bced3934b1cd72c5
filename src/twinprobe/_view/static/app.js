// The page as a whole: keeps the state, asks the server, and tells every part what to show.

import { AskError } from "./api.js";
import { Blocker } from "./blocker.js";
import { Hands, nodeChoices } from "./byhand.js";
import { painter } from "./colors.js";
import { Details } from "./details.js";
import { copyText } from "./dom.js";
import { GrowthView } from "./growth.js";
import { Heat } from "./heat.js";
import { browserLanguage, setLanguage, t } from "./i18n.js";
import { listNodes } from "./lists.js";
import { Navigator, otherSide } from "./navigator.js";
import { Pane } from "./pane.js";
import { Panel } from "./panel.js";
import { openHelp, openMenu, runKey, splitter, toast } from "./popups.js";
import { shell } from "./shell.js";
import { fromAddress, narrow, place, stopOf, toAddress } from "./state.js";
import { Strip } from "./strip.js";
import { Toolbar } from "./toolbar.js";

/** @typedef {import("./api.js").Api} Api */
/** @typedef {import("./api.js").Opened} Opened */
/** @typedef {import("./api.js").Side} Side */
/** @typedef {import("./layout.js").Item} Item */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Home} Home */

/** @type {Side[]} */
const sides = ["target", "golden"];
export class App {
  /** @param {Api} api @param {Home} home */
  constructor(api, home) {
    this.api = api;
    this.home = home;
    /** @type {State} */
    this.state = fromAddress(home.read());
    /** @type {Opened | null} */
    this.opened = null;
    /** @type {import("./api.js").FileInfo[]} */
    this.files = [];
    /** @type {import("./api.js").First | null | undefined} */
    this.first = undefined;
    /** @type {Record<Side, import("./api.js").Counts> | null} */
    this.counts = null;
    this.place = { at: 0, of: 0 };
    this.turn = 0;
    this.stop = "";
    /** @type {Side} */
    this.focused = "target";
    this.panes = { target: this.#pane("target"), golden: this.#pane("golden") };
    this.walk = new Navigator(
      api,
      this.panes,
      (side, item) => this.#selected(side, item),
    );
    this.strip = new Strip((order) => this.#guard(this.walk.goTo("target", { order })));
    this.growth = new GrowthView((order) => this.#guard(this.walk.goTo("target", { order })));
    this.heat = new Heat((step, rank) => {
      void this.#heat(false);
      this.set({ step, rank });
    });
    this.details = new Details({
      jump: (rank, node) => this.#jump(rank, node),
      close: () => this.set({ details: false }),
      go: (side, name) => this.#guard(this.walk.goTo(side, { name })),
      inside: (argument, wanted, chosen) => this.#inside(argument, wanted, chosen),
      now: () => ({ argument: this.state.inside, language: this.state.lang, live: this.api.live }),
    });
    this.hands = new Hands(api, {
      place: () => ({ file: this.state.file, step: this.state.step, rank: this.state.rank }),
      go: (side, name) => this.#guard(this.walk.goTo(side, { name })),
      changed: async () => {
        this.panel.refresh();
        Object.assign(this.state, this.#opened());
        await this.#open(++this.turn);
      },
      show: () => this.#show(),
    });
    this.panel = this.#lists();
    this.toolbar = this.#tools();
    this.blocker = new Blocker(() => this.#guard(this.#load()));
    this.root = shell(
      this,
      splitter("vertical", t("panel"), (by) => this.#widen(by)),
      [this.blocker.element, splitter("horizontal", t("details"), (by) => this.#resize(by)), this.details.element],
    );
    this.root.addEventListener("zoom", (event) => this.#zoom(/** @type {CustomEvent<number>} */ (event).detail));
    document.addEventListener("keydown", (event) => this.#key(event));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#show());
  }

  /** @param {Side} side @returns {Pane} */
  #pane(side) {
    return new Pane(side, {
      select: (item, alone) => {
        this.focused = side;
        this.walk.select(side, item, { alone });
      },
      toggle: (item) => this.#guard(this.walk.toggle(side, item).then(() => this.#remember())),
      need: (parent, index) => this.#guard(this.walk.need(side, parent, index)),
      needEdges: (parent) => this.#guard(this.walk.needEdges(side, parent)),
      menu: (item, x, y) => this.#menu(side, item, x, y),
      moved: () => this.#remember(),
      focused: () => {
        this.focused = side;
      },
    });
  }

  /** @returns {Panel} */
  #lists() {
    return new Panel({
      go: (side, node) => this.#guard(this.walk.goTo(side, { name: node.name })),
      set: (patch) => this.set(patch),
      list: (kind, side, offset, limit) => listNodes(this.api, this.#context(), this.state, kind, side, offset, limit),
      byHand: () => this.hands.panel(this.panes.target.cursor?.node, this.panes.golden.cursor?.node, this.state.file),
      canMatch: this.api.live,
    });
  }

  /** @returns {Toolbar} */
  #tools() {
    return new Toolbar({
      set: (patch) => this.set(patch),
      search: (text) => this.#search(text),
      hit: (by) => this.#guard(this.#hit(by)),
      first: () => this.#goFirst(),
      step: (back) => this.#guard(this.#step(back)),
      heat: () => this.#guard(this.#heat(this.heat.element.hidden)),
      growth: () => {
        this.set({ growth: !this.state.growth });
        this.#guard(this.#grow());
      },
      help: openHelp,
      window: this.home.ownWindow,
      link: () => {
        this.#write();
        void copyText(this.home.link()).then(() => toast(t("linkDone")));
      },
    });
  }

  /** Show what the address says. */
  async start() {
    if (!this.state.lang) this.state.lang = browserLanguage();
    document.body.replaceChildren(this.root);
    this.#show();
    await this.#guard(this.#load());
  }

  /** Show another address, after "back", "forward" or a change by hand. @param {string} address */
  async follow(address) {
    clearTimeout(this.later);
    clearTimeout(this.typing);
    const wanted = fromAddress(address);
    const { opened } = this;
    const another = !opened || narrow.some((key) => wanted[key] !== this.state[key]);
    Object.assign(this.state, wanted, { lang: wanted.lang || this.state.lang });
    this.stop = stopOf(this.state);
    this.toolbar.search.value = wanted.q;
    if (another) await this.#guard(this.#open(++this.turn));
    else await this.#guard(this.#place(wanted, { ...opened, first: null }, this.turn));
    this.#show();
  }

  async #load() {
    const turn = ++this.turn;
    const files = await this.api.ask("files");
    this.files = files.files;
    this.#show();
    await this.#open(turn);
  }

  /** Open the graph that the state names; what is not needed for the first picture comes after it. @param {number} turn */
  async #open(turn) {
    this.first = undefined;
    this.counts = null;
    this.place = { at: 0, of: 0 };
    const wanted = { ...this.state };
    const opened = /** @type {Opened} */ (
      await this.api.ask("open", { ...this.#context(), metric: this.state.color === "levels" ? "" : this.state.color })
    );
    if (turn !== this.turn) return;
    this.opened = opened;
    Object.assign(this.state, { file: opened.file, step: opened.step, rank: opened.rank });
    if (!opened.metrics.includes(this.state.color)) this.state.color = "levels";
    this.blocker.hide();
    this.details.tooltips = opened.tooltips;
    this.details.empty();
    this.walk.show(opened, this.#context());
    this.state.node = wanted.node; // an answer about the graph before may have moved it meanwhile
    this.#show();
    await this.#place(wanted, opened, turn);
    if (turn !== this.turn) return;
    this.#remember();
    await this.#after(turn);
  }

  /** Unfold what a link names, or go to where the runs part. @param {State} wanted @param {Opened} opened @param {number} turn */
  async #place(wanted, opened, turn) {
    if (wanted.openTarget.length || wanted.openGolden.length) {
      await this.walk.restore(wanted.openTarget, wanted.openGolden);
    }
    if (wanted.node) await this.walk.goTo(wanted.side, { name: wanted.node }).catch(() => undefined);
    else if (opened.first && this.state.color === "levels") await this.walk.goTo("target", { name: opened.first.name });
    if (turn !== this.turn) return;
    if (opened.first) this.first = opened.first;
    requestAnimationFrame(() => {
      const [tx, ty, gx, gy] = wanted.scroll;
      if (wanted.scroll.length !== 4) return;
      this.panes.target.scroller.scrollTo(tx, ty);
      this.panes.golden.scroller.scrollTo(gx, gy);
    });
  }

  /** Everything that may come after the first picture. @param {number} turn */
  async #after(turn) {
    this.#show();
    const context = this.#context();
    if (this.opened?.compared && (this.first === undefined || this.state.color !== "levels")) {
      const { first } = await this.api.ask("first", context);
      if (turn !== this.turn) return;
      this.first = first;
      if (first && !this.state.node) await this.walk.goTo("target", { name: first.name });
    }
    this.#show();
    const [counts, strip, made] = await Promise.all([
      this.api.ask("counts", context),
      this.opened?.compared ? this.#strip() : null,
      this.opened?.compared ? this.api.ask("matches", context) : null,
    ]);
    if (turn !== this.turn) return;
    this.counts = counts;
    this.hands.made = made;
    this.place.of = this.opened?.compared ? counts.target.suspicious : counts.target.nodes;
    this.strip.show(strip);
    this.#show();
    await this.#grow();
  }

  async #strip() {
    const opened = /** @type {Opened} */ (this.opened);
    const metric = this.#metric();
    const data = await this.api.ask("strip", { ...this.#context(), bins: 700 });
    return { data, metric, color: this.state.color, above: this.state.above, bands: opened.bands.length };
  }

  async #grow() {
    const { turn } = this;
    const found = this.state.growth && this.opened?.knowsMore ? await this.api.ask("growth", this.#context()) : null;
    if (found && turn === this.turn) this.growth.show(found);
  }

  /** The metric whose values are shown. */
  #metric() {
    return this.state.color === "levels" ? (this.opened?.metrics[0] ?? "") : this.state.color;
  }

  #context() {
    const { file, step, rank, micro, color, above } = this.state;
    return { file, step, rank, micro, metric: this.#metric(), above: color === "levels" ? null : above };
  }

  /** Change the state and show it. @param {Partial<State>} patch */
  set(patch) {
    const changes = (/** @type {keyof State} */ key) => key in patch && patch[key] !== this.state[key];
    const [another, elsewhere, anotherFile] = [narrow.some(changes), place.some(changes), changes("file")];
    Object.assign(this.state, patch);
    if (anotherFile) Object.assign(this.state, { step: null, rank: null, micro: null, levels: [], overflow: [] });
    if (elsewhere) Object.assign(this.state, { node: patch.node ?? "", openTarget: [], openGolden: [], scroll: [] });
    if (another && !elsewhere) Object.assign(this.state, this.#opened());
    if (another) this.#guard(this.#open(++this.turn).then(() => this.#remember()));
    this.#show();
    this.#remember();
  }

  #dark() {
    const { theme } = this.state;
    return theme ? theme === "dark" : (this.home.dark() ?? window.matchMedia("(prefers-color-scheme: dark)").matches);
  }

  #show() {
    const { state, opened } = this;
    const dark = this.#dark();
    setLanguage(state.lang);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.growth.element.hidden = !state.growth;
    this.root.classList.toggle("no-panel", !state.panel);
    this.root.classList.toggle("no-details", !state.details || !state.node);
    this.root.style.setProperty("--tall", `${state.tall}px`);
    this.root.style.setProperty("--wide", `${state.wide}px`);
    this.toolbar.show(state, opened, this.files, dark);
    if (!opened) return;
    this.root.classList.toggle("single", !opened.compared);
    const paint = painter({
      bands: opened.bands,
      compared: opened.compared,
      color: state.color,
      above: state.above,
      dark,
    });
    const act = { fit: () => this.#fit(), zoom: (/** @type {number} */ by) => this.#zoom(by) };
    for (const side of sides) {
      const pane = this.panes[side];
      Object.assign(pane, {
        paint,
        metric: this.#metric(),
        style: `${dark}|${state.color}|${state.above}|${state.lang}`,
      });
      if (pane.zoom !== state.zoom) pane.setZoom(state.zoom);
      pane.speak(t(opened.compared ? side : "single"), act);
    }
    this.panel.list.paint = paint;
    this.panel.show(state, opened, this.counts);
    this.strip.first = this.first?.order ?? null;
    this.strip.element.hidden = !opened.compared;
    this.strip.draw();
    this.toolbar.sentence(state, opened, this.first, this.place);
  }

  /** @param {Side} side @param {Item} item */
  #selected(side, item) {
    const before = this.state.node;
    Object.assign(this.state, { node: item.node.name, side });
    if (!before) this.root.classList.toggle("no-details", !this.state.details);
    this.strip.selected =
      side === "target" ? item.node.order : (this.walk.trees.target?.get(item.node.match ?? "")?.node.order ?? null);
    this.strip.draw();
    if (this.state.tab === "byHand") this.#show();
    this.#remember();
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.#guard(this.#detail(side, item)), 60);
  }

  /** @param {Side} side @param {Item} item */
  async #detail(side, item) {
    const turn = this.turn;
    const detail = await this.api.ask("node", { ...this.walk.context, side, name: item.node.name });
    if (turn === this.turn && this.panes[side].cursor === item)
      this.details.show({ target: null, golden: null, ...detail }, this.opened?.compared ?? false);
  }

  /** @param {string} argument @param {import("./tensor.js").Wanted} [wanted] @param {boolean} [chosen] */
  #inside(argument, wanted, chosen) {
    if (chosen) this.set({ inside: argument });
    const ranges = wanted?.ranges.map((span) => span.join("-")).join(",");
    const part = wanted ? { rows: wanted.rows < 0 ? null : wanted.rows, columns: wanted.columns, ranges } : {};
    return this.api.ask("inside", { ...this.walk.context, name: this.panes.target.cursor?.node.name, argument, ...part });
  }

  #goFirst() {
    if (this.first) this.#guard(this.walk.goTo("target", { name: this.first.name }));
  }

  /** @param {boolean} back */
  async #step(back) {
    const from = this.panes.target.cursor?.node.order;
    const found = await this.api.ask("step", { ...this.walk.context, from, back });
    this.place = { at: found.at, of: found.of };
    if (found.node) await this.walk.goTo("target", { name: found.node.name });
    this.#show();
  }

  /** @param {string} text */
  #search(text) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.set({ q: text, tab: text ? "found" : this.state.tab, panel: true }), 180);
  }

  /** Go to a hit of the search, which may not have been sent yet. @param {number} by */
  async #hit(by) {
    clearTimeout(this.typing);
    this.set({ q: this.toolbar.search.value, tab: "found", panel: true });
    await this.panel.settled();
    if (!by) this.panel.list.cursor = -1;
    await this.panel.list.walk(by);
  }

  /** @param {number} rank @param {string} node */
  #jump(rank, node) {
    if (rank === this.state.rank) this.#guard(this.walk.goTo("target", { name: node }));
    else this.set({ rank, node, side: "target" });
  }

  /** @param {boolean} open */
  async #heat(open) {
    this.heat.element.hidden = !open;
    const { opened, turn } = this;
    if (!open || !opened) return;
    await this.heat.fill(opened, () => (turn === this.turn ? this.api.ask("heat", this.#context()) : null));
  }

  /** @param {Side} side @param {Item} item @param {number} x @param {number} y */
  #menu(side, item, x, y) {
    const mate = this.panes[otherSide(side)].cursor?.node;
    const acts = {
      toggle: () => this.#guard(this.walk.toggle(side, item)),
      partner: () => this.#partner(side),
      change: (/** @type {Record<string, unknown>} */ change) => void this.hands.change(change),
    };
    openMenu(nodeChoices(side, item.node, mate, this.opened?.compared ?? false, acts), x, y);
  }

  /** @param {Side} side */
  #partner(side) {
    const match = this.panes[side].cursor?.node.match;
    const other = otherSide(side);
    if (!match || !this.opened?.compared) return;
    this.#guard(this.walk.goTo(other, { name: match }).then(() => this.panes[other].scroller.focus()));
  }

  /** @param {number} by */
  #zoom(by) {
    this.set({ zoom: Number(Math.min(3, Math.max(0.2, this.state.zoom * by)).toFixed(3)) });
  }

  /** @param {number} by */
  #resize(by) {
    this.set({ tall: Math.round(Math.min(window.innerHeight - 300, Math.max(80, this.state.tall + by))) });
  }

  /** @param {number} by */
  #widen(by) {
    this.set({ wide: Math.round(Math.min(window.innerWidth - 400, Math.max(220, this.state.wide + by))) });
  }

  #fit() {
    const shown = sides.filter((side) => this.walk.trees[side]);
    this.set({ zoom: Number(Math.min(...shown.map((side) => this.panes[side].fitting())).toFixed(3)) });
    for (const side of shown) {
      this.panes[side].shift = 0;
      this.panes[side].scroller.scrollTo(0, 0);
    }
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === "Escape") {
      if (!this.heat.element.hidden) void this.#heat(false);
      else if (event.target === this.toolbar.search) this.panes[this.focused].scroller.focus();
    }
    const pan = (/** @type {number} */ by) => sides.forEach((side) => this.panes[side].pan(by));
    runKey(event, {
      w: () => this.#zoom(1.2),
      s: () => this.#zoom(1 / 1.2),
      a: () => pan(-60),
      d: () => pan(60),
      f: () => this.#fit(),
      n: () => this.#guard(this.#step(false)),
      p: () => this.#guard(this.#step(true)),
      m: () => this.#partner(this.focused),
      i: () => this.set({ details: !this.state.details }),
      "/": () => this.toolbar.search.focus(),
      "?": openHelp,
    });
  }

  #opened() {
    return {
      openTarget: this.walk.trees.target?.openOrders().slice(0, 300) ?? [],
      openGolden: this.walk.trees.golden?.openOrders().slice(0, 300) ?? [],
    };
  }

  #remember() {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.#write(), 250);
  }

  #write() {
    if (!this.opened) return;
    const scroll = sides
      .flatMap((side) => [this.panes[side].scroller.scrollLeft, this.panes[side].scroller.scrollTop])
      .map(Math.round);
    Object.assign(this.state, this.#opened(), { scroll });
    const stop = stopOf(this.state);
    this.home.write(toAddress(this.state), this.stop !== "" && stop !== this.stop);
    this.stop = this.state.node ? stop : ""; // where no node is selected yet, one is on its way
  }

  /** What goes wrong is said in place of the graphs, with a way to try again. @param {Promise<unknown>} work */
  async #guard(work) {
    const { turn } = this;
    try {
      await work;
    } catch (error) {
      if (turn !== this.turn) return; // it was about a graph that is no longer shown
      this.blocker.fail(
        error instanceof Error ? error.message : String(error),
        error instanceof AskError ? error.hint : "",
      );
    }
  }

  /** @param {number} done */
  indexing(done) {
    this.blocker.wait(t("indexing", { done: Math.round(done * 100) }), done);
  }
}
