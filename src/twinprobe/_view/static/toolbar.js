// The top of the page: which graph, search, colours, and the sentence about the first divergence.

import { shown } from "./colors.js";
import { h, icon, iconButton } from "./dom.js";
import { sentence } from "./details.js";
import { t } from "./i18n.js";
import { label, parse } from "./labels.js";
import { shorten } from "./names.js";

/** @typedef {import("./api.js").Opened} Opened */
/** @typedef {import("./api.js").FileInfo} FileInfo */
/** @typedef {import("./api.js").First} First */
/** @typedef {import("./state.js").State} State */
/**
 * @typedef {object} ToolbarEvents
 * @property {(patch: Partial<State>) => void} set
 * @property {(text: string) => void} search
 * @property {(by: number) => void} hit go to the first hit of the search (0), the next or the one before
 * @property {() => void} first
 * @property {(back: boolean) => void} step
 * @property {() => void} heat
 * @property {() => void} growth
 * @property {() => void} help
 * @property {() => void} link
 * @property {(() => void) | null} window
 */

export class Toolbar {
  /** @param {ToolbarEvents} events */
  constructor(events) {
    this.events = events;
    this.bar = h("header", { class: "topbar" });
    this.banner = h("div", { class: "banner", role: "status" });
    this.search = h("input", { type: "search", class: "search-input", spellcheck: "false", autocomplete: "off" });
    this.search.addEventListener("input", () => this.events.search(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      const by = { Enter: 0, ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by === undefined || !this.search.value) return;
      event.preventDefault();
      this.events.hit(by);
    });
    this.key = "";
  }

  /** @param {State} state @param {Opened | null} opened @param {FileInfo[]} files @param {boolean} dark */
  show(state, opened, files, dark) {
    const { set } = this.events;
    const key = JSON.stringify([
      state.file,
      state.step,
      state.rank,
      state.micro,
      state.color,
      state.above,
      state.lang,
      state.panel,
      files,
      dark,
      opened?.file,
      opened?.step,
      opened?.rank,
      opened?.metrics,
      opened?.steps,
      opened?.ranks,
    ]);
    if (document.activeElement !== this.search) this.search.value = state.q;
    if (key === this.key) return;
    this.key = key;
    this.search.placeholder = t("search");
    this.search.setAttribute("aria-label", t("search"));
    const heat = opened && opened.compared && opened.steps.length * opened.ranks.length > 1;
    this.bar.replaceChildren(
      ...keep([
        h("span", { class: "brand" }, logo(), h("span", {}, t("title"))),
        iconButton("panel", t("panel"), () => set({ panel: !state.panel }), { "aria-pressed": String(state.panel) }),
        field(
          t("file"),
          choice(
            files.map((file) => [file.id, shorten(file.id, 44)]),
            opened?.file ?? state.file,
            (file) => set({ file }),
            t("file"),
          ),
          files.length < 2,
        ),
        opened &&
          field(
            t("step"),
            choice(numbered(opened.steps), String(opened.step), (step) => set({ step: Number(step) }), t("step")),
            opened.steps.length < 2,
          ),
        opened &&
          field(
            t("rank"),
            choice(numbered(opened.ranks), String(opened.rank), (rank) => set({ rank: Number(rank) }), t("rank")),
            opened.ranks.length < 2,
          ),
        opened &&
          opened.microSteps > 1 &&
          field(
            t("micro"),
            choice(
              [["", t("all")], ...numbered([...Array(opened.microSteps).keys()])],
              state.micro === null ? "" : String(state.micro),
              (micro) => set({ micro: micro === "" ? null : Number(micro) }),
              t("micro"),
            ),
          ),
        heat &&
          h(
            "button",
            { type: "button", class: "text-button", onclick: () => this.events.heat() },
            icon("grid"),
            t("heat"),
          ),
        opened?.knowsMore &&
          h("button", { type: "button", class: "text-button growth-button", onclick: () => this.events.growth() }, icon("up"), t("growth")),
        h("span", { class: "spring" }),
        h("label", { class: "search" }, icon("search"), this.search, h("kbd", {}, "/")),
        opened?.compared && this.#colors(state, opened),
        h("span", { class: "spring small" }),
        iconButton("link", t("link"), () => this.events.link()),
        this.events.window && iconButton("fit", t("ownWindow"), this.events.window),
        iconButton(dark ? "sun" : "moon", t("theme"), () => set({ theme: dark ? "light" : "dark" })),
        h(
          "button",
          {
            type: "button",
            class: "text-button language",
            onclick: () => set({ lang: state.lang === "zh" ? "en" : "zh" }),
          },
          t("language"),
        ),
        iconButton("help", t("help"), () => this.events.help()),
      ]),
    );
  }

  /** @param {State} state @param {Opened} opened */
  #colors(state, opened) {
    const { set } = this.events;
    const options = /** @type {[string, string][]} */ ([
      ["levels", t("levels")],
      ...opened.metrics.map((metric) => [metric, metric === "error" ? t("ownError") : metric]),
    ]);
    const limit = h("input", {
      type: "number",
      min: "0",
      step: "any",
      value: state.above,
      class: "limit",
      "aria-label": t("limitLabel"),
      title: t("limitLabel"),
    });
    limit.addEventListener("change", () => Number(limit.value) >= 0 && set({ above: Number(limit.value) }));
    return h(
      "span",
      { class: "coloring" },
      field(
        t("color"),
        choice(options, state.color, (color) => set({ color, levels: [] }), t("color")),
      ),
      state.color !== "levels" && h("span", { class: "above" }, t("above")),
      state.color !== "levels" && limit,
    );
  }

  /**
   * @param {State} state
   * @param {Opened} opened
   * @param {First | null | undefined} first undefined while it is looked for
   * @param {{at: number, of: number}} place
   */
  sentence(state, opened, first, place) {
    if (!opened.compared) {
      this.banner.className = "banner calm";
      this.banner.replaceChildren(h("span", {}, t("oneGraph", { n: place.of })));
      return;
    }
    this.banner.className = `banner ${first ? "found" : "calm"}`;
    const steps = h(
      "span",
      { class: "steps" },
      place.of
        ? h("span", { class: "quiet" }, place.at ? t("of", place) : t("suspiciousCount", { n: place.of }))
        : null,
      iconButton("up", t("previous"), () => this.events.step(true), { disabled: !place.of }),
      iconButton("down", t("next"), () => this.events.step(false), { disabled: !place.of }),
    );
    if (!first) {
      this.banner.replaceChildren(h("span", { class: "said" }, t(first === undefined ? "looking" : "nothing")), steps);
      return;
    }
    const named = label(first.name);
    const told = state.lang !== "zh" && first.sentence;
    const words = told || sentence(first);
    const within =
      first.parent && parse(first.parent).cls && !parse(first.name).cls ? `${label(first.parent).own} › ` : "";
    const whose = told && (told.startsWith(first.name) || told.startsWith(named.own)) ? "" : `${within}${named.text}: `;
    const at = whose ? -1 : words.indexOf(":");
    const bold = whose || words.slice(0, at + 1);
    this.banner.replaceChildren(
      h(
        "button",
        { type: "button", class: "first-button", title: first.name, onclick: () => this.events.first() },
        icon("flag"),
        t("first"),
      ),
      h(
        "span",
        { class: "said", title: [first.name, words, first.stack].filter(Boolean).join("\n") },
        h("b", {}, bold),
        words.slice(at + 1),
        first.stack && h("span", { class: "quiet" }, ` · ${first.stack.replace(/^File (.+?), line (\d+), in ([^,]+),\s*/, "$1:$2, in $3: ")}`),
      ),
      first.error !== null && !told ? h("span", { class: "quiet" }, shown(first.error, "error")) : "",
      steps,
    );
  }
}

/** @param {(globalThis.Node | string | false | null | undefined)[]} parts @returns {(globalThis.Node | string)[]} */
function keep(parts) {
  return /** @type {(globalThis.Node | string)[]} */ (parts.filter(Boolean));
}

/** @param {number[]} numbers @returns {[string, string][]} */
function numbered(numbers) {
  return numbers.map((number) => [String(number), String(number)]);
}

/** @param {string} name @param {HTMLElement} control @param {boolean} [single] */
function field(name, control, single = false) {
  return h("label", { class: `field${single ? " single" : ""}` }, h("span", {}, name), control);
}

/** @param {[string, string][]} options @param {string} now @param {(value: string) => void} choose @param {string} name */
function choice(options, now, choose, name) {
  const select = h(
    "select",
    { "aria-label": name, onchange: () => choose(select.value) },
    ...options.map(([value, text]) => h("option", { value, selected: value === now }, text)),
  );
  return select;
}

function logo() {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "logo");
  svg.setAttribute("aria-hidden", "true");
  for (const [d, part] of [
    ["M12 21V14C12 10 5 10 5 3", "one"],
    ["M12 14c0-4 7-4 7-11", "two"],
  ]) {
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", d);
    path.setAttribute("class", part);
    svg.append(path);
  }
  return svg;
}
