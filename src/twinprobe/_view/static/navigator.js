// Moving through the graphs: opening nodes on both sides, going to a node, loading what comes into view.

import { Tree } from "./tree.js";

/** @typedef {import("./api.js").Api} Api */
/** @typedef {import("./api.js").Arguments} Arguments */
/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./api.js").Opened} Opened */
/** @typedef {import("./api.js").Page} Page */
/** @typedef {import("./api.js").Side} Side */
/** @typedef {import("./api.js").Unfolded} Unfolded */
/** @typedef {import("./layout.js").Item} Item */
/** @typedef {import("./pane.js").Pane} Pane */

const page = 200;

/** @param {Side} side @returns {Side} */
export function otherSide(side) {
  return side === "target" ? "golden" : "target";
}

export class Navigator {
  /**
   * @param {Api} api
   * @param {Record<Side, Pane>} panes
   * @param {(side: Side, item: Item) => void} selected
   */
  constructor(api, panes, selected) {
    this.api = api;
    this.panes = panes;
    this.selected = selected;
    /** @type {Arguments} which graph is shown; the page may be on its way to another one */
    this.context = {};
    /** @type {Record<Side, Tree | null>} */
    this.trees = { target: null, golden: null };
    /** @type {Set<Item>} on their way */
    this.opening = new Set();
  }

  /** @param {Opened} opened @param {Arguments} context the arguments that say which graph this is */
  show(opened, context) {
    this.context = context;
    for (const side of /** @type {Side[]} */ (["target", "golden"])) {
      const root = opened.roots[side];
      const tree = root ? new Tree(root) : null;
      this.trees[side] = tree;
      opened.pages[side]?.forEach((one) => tree?.add(one));
      this.panes[side].show(tree);
    }
  }

  /**
   * Ask about the graph that is shown; nothing comes back if another one has taken its place meanwhile.
   * @param {string} question
   * @param {Arguments} asked
   * @returns {Promise<any>}
   */
  async #ask(question, asked) {
    const shown = this.trees.target;
    const reply = await this.api.ask(question, { ...this.context, ...asked });
    return shown === this.trees.target ? reply : null;
  }

  /** @param {Side} side @param {Page[]} pages */
  #add(side, pages) {
    pages.forEach((one) => this.trees[side]?.add(one));
    this.panes[side].draw();
  }

  /** Open or close a node and its partner. @param {Side} side @param {Item} item */
  async toggle(side, item) {
    const other = otherSide(side);
    if (item.open) {
      this.trees[side]?.setOpen(item, false);
      const mate = item.node.match ? this.trees[other]?.get(item.node.match) : undefined;
      if (mate) this.trees[other]?.setOpen(mate, false);
      this.#follow(side, item);
      return;
    }
    if (this.opening.has(item)) return;
    this.opening.add(item);
    try {
      await Promise.all([this.#open(side, item), this.#openMate(other, item.node.match)]);
    } finally {
      this.opening.delete(item);
    }
    this.#follow(side, item);
  }

  /** @param {Side} side @param {Item} item */
  async #open(side, item) {
    if (!item.node.kids) return;
    if (item.kids.length) {
      this.trees[side]?.setOpen(item, true);
      return;
    }
    const found = await this.#ask("children", { side, parent: item.node.name, limit: page });
    if (found) this.#add(side, [found]);
  }

  /** @param {Side} side @param {string | undefined} name */
  async #openMate(side, name) {
    const tree = this.trees[side];
    if (!tree || !name) return;
    const known = tree.get(name);
    if (known) {
      for (let above = known.parent; above; above = above.parent) tree.setOpen(above, true);
      await this.#open(side, known);
    } else {
      const found = /** @type {Unfolded | null} */ (await this.#ask("unfold", { side, name, inside: true }));
      if (found) this.#add(side, found[side]);
    }
  }

  /**
   * Show a node, given by its name or its place, with all that contains it open on both sides.
   * @param {Side} side
   * @param {{name?: string, order?: number}} which
   */
  async goTo(side, which) {
    const found = /** @type {Unfolded | null} */ (await this.#ask("unfold", { side, ...which }));
    if (!found) return;
    this.#add("target", found.target);
    this.#add("golden", found.golden);
    const item = this.trees[side]?.get(found.node.name);
    if (!item) return;
    this.select(side, item);
    this.panes[side].reveal(item);
    this.#follow(side, item);
  }

  /**
   * Make an item the current one, and its partner that of the other side.
   * @param {Side} side
   * @param {Item} item
   * @param {{alone?: boolean}} [options]
   */
  select(side, item, { alone = false } = {}) {
    const other = otherSide(side);
    this.panes[side].cursor = item;
    this.panes[side].mate = "";
    const mate = item.node.match && !alone ? this.trees[other]?.get(item.node.match) : undefined;
    this.panes[other].mate = alone ? "" : (item.node.match ?? "");
    if (mate) this.panes[other].cursor = mate;
    this.panes[side].draw();
    this.#follow(side, item, alone);
    this.selected(side, item);
  }

  /** Bring the partner to the same height. @param {Side} side @param {Item} item @param {boolean} [alone] */
  #follow(side, item, alone = false) {
    const other = otherSide(side);
    const mate = item.node.match && !alone ? this.trees[other]?.get(item.node.match) : undefined;
    if (mate && inOpen(mate)) this.panes[other].reveal(mate, this.panes[side].viewTop(item));
    this.panes[side].draw();
    this.panes[other].draw();
  }

  /** Load the page of children around a place that came into view. @param {Side} side @param {Item} parent @param {number} index */
  async need(side, parent, index) {
    const offset = Math.floor(index / page) * page;
    if (parent.asked.has(offset)) return;
    parent.asked.add(offset);
    const found = await this.#ask("children", { side, parent: parent.node.name, offset, limit: page });
    if (found) {
      parent.edges = null;
      this.#add(side, [found]);
    }
  }

  /** Load the data flow between the children of an open node. @param {Side} side @param {Item} parent */
  async needEdges(side, parent) {
    parent.edges = [];
    const start = parent.kids.length <= 1000 ? 0 : Math.max(0, parent.kids.findIndex(Boolean));
    const found = await this.#ask("edges", { side, parent: parent.node.name, offset: start, limit: 1000 });
    if (!found) return;
    const places = new Map(parent.kids.flatMap((kid, at) => (kid ? [[kid.node.order, at]] : [])));
    parent.edges = found.edges
      .map((/** @type {number[]} */ [from, to]) => [places.get(from), places.get(to)])
      .filter((/** @type {(number | undefined)[]} */ edge) => edge.every((place) => place !== undefined));
    this.panes[side].draw();
  }

  /** Open what was open when a link was made. @param {number[]} target @param {number[]} golden */
  async restore(target, golden) {
    const found = await this.#ask("restore", { target: target.join(","), golden: golden.join(",") });
    if (!found) return;
    this.#add("target", found.target);
    this.#add("golden", found.golden);
  }
}

/** Whether all that contains an item is open. @param {Item} item */
function inOpen(item) {
  for (let above = item.parent; above; above = above.parent) if (!above.open) return false;
  return true;
}
