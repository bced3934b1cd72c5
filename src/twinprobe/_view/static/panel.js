// The panel at the left: lists with their filters, matching by hand, and the legend.

import { shown, stepOf } from "./colors.js";
import { h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { NodeList } from "./lists.js";

/** @typedef {import("./api.js").Opened} Opened */
/** @typedef {import("./api.js").Counts} Counts */
/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./api.js").Side} Side */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./i18n.js").Word} Word */
/**
 * @typedef {object} PanelEvents
 * @property {(side: Side, node: GraphNode) => void} go
 * @property {(patch: Partial<State>) => void} set
 * @property {(kind: string, side: Side, offset: number, limit: number) => Promise<{total: number, nodes: GraphNode[]}>} list
 * @property {() => HTMLElement} byHand
 * @property {boolean} canMatch
 */

/** @type {[string, Word][]} */
const tabs = [
  ["suspicious", "suspicious"],
  ["unmatched", "unmatched"],
  ["matched", "matched"],
  ["found", "found"],
  ["byHand", "byHand"],
];

export class Panel {
  /** @param {PanelEvents} events */
  constructor(events) {
    this.events = events;
    this.tabs = h("div", { class: "tabs", role: "tablist" });
    this.filters = h("div", { class: "filters" });
    this.list = new NodeList((node) => events.go(this.side, node));
    this.hand = h("div", { class: "by-hand" });
    this.legend = h("div", { class: "legend", role: "group" });
    this.element = h("aside", { class: "panel" }, this.tabs, this.filters, this.list.element, this.hand, this.legend);
    /** @type {Side} */
    this.side = "target";
    this.key = "";
    this.searching = false;
    /** @type {Promise<void>} when the list that was asked for last is there */
    this.ready = Promise.resolve();
  }

  /** @param {State} state @param {Opened} opened @param {Record<Side, Counts> | null} counts */
  show(state, opened, counts) {
    const tab = opened.compared ? state.tab : "found";
    this.side = tab === "suspicious" || !opened.compared ? "target" : state.listSide;
    this.searching = Boolean(state.q);
    this.#tabs(tab, opened, counts);
    this.#filters(tab, state, opened, counts);
    this.#legend(state, opened);
    this.list.element.hidden = tab === "byHand";
    this.hand.hidden = tab !== "byHand";
    if (tab === "byHand") this.hand.replaceChildren(this.events.byHand());
    this.list.metric = state.color === "levels" ? (opened.metrics[0] ?? "") : state.color;
    const key = JSON.stringify([
      tab,
      this.side,
      state.levels,
      state.overflow,
      state.what,
      state.injected,
      state.q,
      state.file,
      state.step,
      state.rank,
      state.micro,
      state.color,
      state.above,
      state.lang,
      tab === "found" || counts !== null, // a search waits for no counts, and its mark stays when they come
    ]);
    if (tab !== "byHand" && key !== this.key && (counts || tab === "found")) {
      this.key = key;
      const { side } = this;
      this.ready = this.list.show((offset, limit) => this.events.list(tab, side, offset, limit), t(/** @type {Word} */ (tab)));
    }
  }

  /** Wait for the list; another may be asked for meanwhile. */
  async settled() {
    /** @type {Promise<void> | undefined} */
    let seen;
    while (seen !== this.ready) {
      seen = this.ready;
      await seen;
    }
  }

  /** Load the list again, because matches changed. */
  refresh() {
    this.key = "";
  }

  /** @param {string} tab @param {Opened} opened @param {Record<Side, Counts> | null} counts */
  #tabs(tab, opened, counts) {
    /** @type {Record<string, number | undefined>} */
    const number = {
      suspicious: counts?.target.suspicious,
      unmatched: counts && opened.compared ? counts.target.unmatched + counts.golden.unmatched : undefined,
    };
    const offered = tabs.filter(([id]) =>
      id === "found" ? tab === "found" || this.searching : opened.compared && (id !== "byHand" || this.events.canMatch),
    );
    this.tabs.replaceChildren(
      ...offered.map(([id, name]) => {
        const button = h(
          "button",
          {
            type: "button",
            role: "tab",
            "aria-selected": String(id === tab),
            tabindex: id === tab ? "0" : "-1",
            "data-tab": id,
            onclick: () => this.events.set({ tab: id }),
          },
          t(name),
          number[id] !== undefined && h("span", { class: "count" }, String(number[id])),
        );
        button.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!step) return;
          event.preventDefault();
          const at = (offered.findIndex(([other]) => other === id) + step + offered.length) % offered.length;
          this.events.set({ tab: offered[at][0] });
          /** @type {HTMLElement | null} */ (this.tabs.querySelector(`[data-tab="${offered[at][0]}"]`))?.focus();
        });
        return button;
      }),
    );
  }

  /** @param {string} tab @param {State} state @param {Opened} opened @param {Record<Side, Counts> | null} counts */
  #filters(tab, state, opened, counts) {
    const parts = [];
    if (opened.compared && ["unmatched", "matched", "found"].includes(tab)) {
      parts.push(
        segments(
          [
            ["target", t("target")],
            ["golden", t("golden")],
          ],
          this.side,
          (side) => this.events.set({ listSide: /** @type {Side} */ (side) }),
          tab === "unmatched" && counts ? [counts.target.unmatched, counts.golden.unmatched] : [],
        ),
      );
    }
    if (tab === "suspicious" || tab === "matched") {
      if (this.side === "target" && state.color === "levels") parts.push(this.#levels(state, opened, counts));
      if (opened.overflow && counts) parts.push(this.#overflow(state, counts[this.side]));
    }
    if (tab === "suspicious" && opened.knowsMore && counts?.target.injected !== undefined) {
      parts.push(
        h(
          "button",
          {
            type: "button",
            class: "chip",
            "aria-pressed": String(state.injected),
            onclick: () => this.events.set({ injected: !state.injected }),
          },
          t("injectedOnly"),
          h("span", { class: "count" }, String(counts.target.injected)),
        ),
      );
    }
    if (["suspicious", "unmatched", "matched"].includes(tab)) {
      const select = h(
        "select",
        {
          "aria-label": t("nodes"),
          onchange: (/** @type {Event} */ event) =>
            this.events.set({ what: /** @type {HTMLSelectElement} */ (event.target).value }),
        },
        ...[
          ["", t("everything")],
          ["modules", t("modules")],
          ["apis", t("apis")],
        ].map(([value, name]) => h("option", { value, selected: value === state.what }, name)),
      );
      parts.push(select);
    }
    this.filters.replaceChildren(...parts);
    this.filters.hidden = !parts.length;
  }

  /** @param {State} state @param {Opened} opened @param {Record<Side, Counts> | null} counts */
  #levels(state, opened, counts) {
    return h(
      "div",
      { class: "chips", role: "group", "aria-label": t("color") },
      ...opened.bands.map((_, level) => {
        const on = state.levels.includes(level);
        const levels = on ? state.levels.filter((other) => other !== level) : [...state.levels, level];
        return h(
          "button",
          { type: "button", class: "chip", "aria-pressed": String(on), onclick: () => this.events.set({ levels }) },
          swatch(stepOf(level, opened.bands.length)),
          bandName(opened, level),
          h("span", { class: "count" }, counts ? String(counts.target.levels[level]) : ""),
        );
      }),
    );
  }

  /** @param {State} state @param {Counts} counts */
  #overflow(state, counts) {
    return h(
      "div",
      { class: "chips", role: "group", "aria-label": t("overflow") },
      ...["medium", "high", "critical"].map((level) => {
        const on = state.overflow.includes(level);
        const overflow = on ? state.overflow.filter((other) => other !== level) : [...state.overflow, level];
        return h(
          "button",
          { type: "button", class: "chip", "aria-pressed": String(on), onclick: () => this.events.set({ overflow }) },
          `! ${level}`,
          h("span", { class: "count" }, String(counts.overflow[level] ?? 0)),
        );
      }),
    );
  }

  /** @param {State} state @param {Opened} opened */
  #legend(state, opened) {
    this.legend.hidden = !opened.compared;
    this.legend.setAttribute("aria-label", t("legend"));
    const rows = [];
    if (state.color === "levels") {
      opened.bands.forEach((_, level) =>
        rows.push(h("li", {}, swatch(stepOf(level, opened.bands.length)), bandName(opened, level))),
      );
    } else {
      const limit = state.above;
      rows.push(
        h(
          "li",
          { class: "ramp-row" },
          h("span", { class: "ramp" }),
          h("span", {}, `≤ ${shown(limit, state.color)}`),
          h("span", {}, `≥ ${shown(limit * 125, state.color)}`),
        ),
      );
    }
    rows.push(h("li", {}, h("span", { class: "swatch unmatched" }, "○"), t("unmatchedNode")));
    this.legend.replaceChildren(h("ul", {}, ...rows));
  }
}

/** @param {number} step */
function swatch(step) {
  return h("span", { class: `swatch step-${step}`, "aria-hidden": "true" }, ["●", "◔", "▲", "◮", "◆"][step]);
}

/** What a band is called: by the file, or by its range. @param {Opened} opened @param {number} level */
function bandName(opened, level) {
  const { label, low, high } = opened.bands[level];
  if (label === "pass" || label === "warning" || label === "error") return t(label);
  if (opened.bands.length === 2) return t(level ? "error" : "pass");
  return label || `${low}–${high}`;
}

/** @param {[string, string][]} options @param {string} now @param {(value: string) => void} choose @param {number[]} counts */
export function segments(options, now, choose, counts = []) {
  return h(
    "div",
    { class: "segments", role: "group" },
    ...options.map(([value, name], at) =>
      h(
        "button",
        { type: "button", "aria-pressed": String(value === now), onclick: () => choose(value) },
        name,
        counts[at] !== undefined && h("span", { class: "count" }, String(counts[at])),
      ),
    ),
  );
}

/** @param {string} text @param {Parameters<typeof icon>[0]} sign @param {() => void} act @param {Record<string, unknown>} [props] */
export function wideButton(text, sign, act, props = {}) {
  return h("button", { type: "button", class: "wide-button", onclick: act, ...props }, icon(sign), text);
}
