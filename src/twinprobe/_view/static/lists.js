// Lists of nodes beside the graphs, loaded a page at a time as they are scrolled.

import { word } from "./box.js";
import { shown } from "./colors.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";
import { label } from "./labels.js";
import { shorten } from "./names.js";

/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./api.js").Side} Side */
/** @typedef {import("./colors.js").Paint} Paint */
/** @typedef {(offset: number, limit: number) => Promise<{total: number, nodes: GraphNode[]}>} Loader */

const tall = 30;
const page = 200;

export class NodeList {
  /** @type {(GraphNode | undefined)[]} */
  nodes = [];
  /** @type {Set<number>} */
  asked = new Set();
  cursor = -1;
  turn = 0;

  /** @param {(node: GraphNode) => void} go */
  constructor(go) {
    this.go = go;
    this.inner = h("div", { class: "list-inner", role: "presentation" });
    this.element = h("div", { class: "list", role: "listbox", tabindex: "0" }, this.inner);
    /** @type {Loader} */
    this.load = async () => ({ total: 0, nodes: [] });
    /** @type {(node: GraphNode) => Paint} */
    this.paint = () => ({ look: "none", fill: "", edge: "", mark: "" });
    this.metric = "";
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("click", (event) => {
      const row = /** @type {Element} */ (event.target).closest("[data-at]");
      if (row) this.#choose(Number(row.getAttribute("data-at")));
    });
    this.element.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** @param {number} total */
  #reset(total) {
    this.nodes = new Array(total);
    this.asked = new Set();
    this.cursor = -1;
    this.turn += 1;
  }

  /** Show another list. @param {Loader} load @param {string} name */
  async show(load, name) {
    this.load = load;
    this.element.setAttribute("aria-label", name);
    this.#reset(0);
    const turn = this.turn;
    this.inner.replaceChildren(h("p", { class: "quiet" }, t("loading")));
    const first = await load(0, page);
    if (turn !== this.turn) return;
    this.#reset(first.total);
    this.asked.add(0);
    first.nodes.forEach((node, at) => (this.nodes[at] = node));
    this.element.scrollTop = 0;
    this.draw();
  }

  draw() {
    const total = this.nodes.length;
    this.inner.style.height = total ? `${total * tall}px` : "";
    if (!total) {
      this.inner.replaceChildren(h("p", { class: "quiet" }, t("none")));
      return;
    }
    const from = Math.max(0, Math.floor(this.element.scrollTop / tall) - 4);
    const to = Math.min(total, Math.ceil((this.element.scrollTop + this.element.clientHeight) / tall) + 4);
    const rows = [];
    for (let at = from; at < to; at += 1) rows.push(this.#row(at));
    this.inner.replaceChildren(...rows);
    this.element.setAttribute(
      "aria-activedescendant",
      this.cursor >= from && this.cursor < to ? `list-${this.cursor}` : "",
    );
  }

  /** @param {number} at */
  #row(at) {
    const node = this.nodes[at];
    if (!node) void this.#need(at);
    const look = node ? this.paint(node) : null;
    const name = node ? label(node.name) : null;
    const value = node?.value !== undefined && node.value > 0 ? shown(node.value, this.metric) : "";
    const room = Math.floor((this.element.clientWidth - 46) / 6.95) - value.length - (value ? 1 : 0);
    const row = h(
      "div",
      {
        class: `list-row${at === this.cursor ? " current" : ""}`,
        role: "option",
        id: `list-${at}`,
        "data-at": at,
        "aria-selected": String(at === this.cursor),
        "aria-setsize": this.nodes.length,
        "aria-posinset": at + 1,
        title: node?.name,
      },
      look &&
        h("span", { class: `mark ${look.look}`, role: "img", "aria-label": t(word(look.look)) }, look.mark || "·"),
      h("span", { class: "list-name" }, name ? shorten(name.text, room) : "…"),
      value && h("span", { class: "value" }, value),
    );
    row.style.top = `${at * tall}px`;
    return row;
  }

  /** @param {number} at */
  async #need(at) {
    const offset = Math.floor(at / page) * page;
    if (this.asked.has(offset)) return;
    this.asked.add(offset);
    const turn = this.turn;
    const more = await this.load(offset, page);
    if (turn !== this.turn) return;
    more.nodes.forEach((node, index) => (this.nodes[offset + index] = node));
    this.draw();
  }

  /** Go to the first entry, or so many further than the one that is chosen. @param {number} by */
  async walk(by) {
    const to = this.cursor < 0 ? (by < 0 ? this.nodes.length - 1 : 0) : this.cursor + by;
    if (!this.nodes.length) return;
    const at = (to + this.nodes.length) % this.nodes.length;
    if (!this.nodes[at]) await this.#need(at);
    this.element.scrollTop = Math.max(0, at * tall - this.element.clientHeight / 2);
    this.#choose(at);
  }

  /** @param {number} at */
  #choose(at) {
    this.cursor = at;
    const node = this.nodes[at];
    this.draw();
    if (node) this.go(node);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const move = /** @type {Record<string, number>} */ ({
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: 15,
      PageUp: -15,
      Home: -1e9,
      End: 1e9,
    })[event.key];
    if (event.key === "Enter" && this.cursor >= 0) this.#choose(this.cursor);
    else if (move && this.nodes.length) {
      this.cursor = Math.min(this.nodes.length - 1, Math.max(0, this.cursor + move));
      const top = this.cursor * tall;
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      if (top + tall > this.element.scrollTop + this.element.clientHeight)
        this.element.scrollTop = top + tall - this.element.clientHeight;
      this.draw();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/**
 * A page of one of the lists, with the filters that the user set.
 * @param {import("./api.js").Api} api
 * @param {import("./api.js").Arguments} context
 * @param {import("./state.js").State} state
 * @param {string} kind
 * @param {Side} side
 * @param {number} offset
 * @param {number} limit
 */
export async function listNodes(api, context, state, kind, side, offset, limit) {
  if (kind === "found") {
    const found = state.q ? await api.ask("search", { ...context, text: state.q }) : {};
    const nodes = found[side] ?? [];
    return { total: nodes.length, nodes: nodes.slice(offset, offset + limit) };
  }
  const { what } = state;
  const marks = kind === "unmatched" ? {} : { levels: state.levels.join(","), overflow: state.overflow.join(",") };
  const injected = kind === "suspicious" && state.injected;
  const shown = kind === "suspicious" && state.levels.length ? "all" : kind;
  const asked = { kind: shown, side, offset, limit, what, injected };
  return api.ask("list", { ...context, ...asked, ...marks });
}
