// What is loaded of one graph: items with some of their children, opened or closed.

import { height, row } from "./layout.js";

/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./api.js").Page} Page */
/** @typedef {import("./layout.js").Item} Item */

export class Tree {
  /** @param {GraphNode} root */
  constructor(root) {
    /** @type {Map<string, Item>} */
    this.items = new Map();
    this.root = this.#item(root, null, 0);
    this.deepest = 0;
    this.version = 0;
  }

  /**
   * Take in a page of children; their parent must be known.
   * @param {Page} page
   * @param {{open?: boolean}} [options]
   */
  add(page, { open = true } = {}) {
    const parent = this.items.get(page.parent);
    if (!parent) return;
    if (parent.kids.length !== page.total) parent.kids.length = page.total;
    page.nodes.forEach((node, at) => {
      const place = page.offset + at;
      if (place >= parent.kids.length) return;
      const known = this.items.get(node.name);
      if (known && known.parent === parent) {
        known.node = node;
        known.index = place;
        parent.kids[place] = known;
      } else if (!known) {
        parent.kids[place] = this.#item(node, parent, place);
      }
    });
    if (open && page.total) this.setOpen(parent, true);
    this.version += 1;
  }

  /**
   * @param {Item} item
   * @param {boolean} open
   */
  setOpen(item, open) {
    if (item.open === open) return;
    item.open = open && item.kids.length > 0;
    this.#grow(item);
    this.deepest = deepest(this.root, 0);
    this.version += 1;
  }

  /** @param {string} name */
  get(name) {
    return this.items.get(name);
  }

  /** Places in the order of all nodes that are open, to be put into a link. */
  openOrders() {
    /** @type {number[]} */
    const found = [];
    walkOpen(this.root, (item) => found.push(item.node.order));
    return found;
  }

  /**
   * @param {GraphNode} node
   * @param {Item | null} parent
   * @param {number} index
   * @returns {Item}
   */
  #item(node, parent, index) {
    const depth = parent ? parent.depth + 1 : 0;
    /** @type {Item} */
    const item = {
      node,
      parent,
      index,
      depth,
      open: false,
      kids: [],
      openKids: [],
      extras: [],
      edges: null,
      asked: new Set(),
    };
    this.items.set(node.name, item);
    return item;
  }

  /** @param {Item} item its height changed: bring the sums of all that contain it up to date */
  #grow(item) {
    for (let at = /** @type {Item | null} */ (item); at; at = at.parent) {
      const parent = at.parent;
      if (!parent) break;
      const place = parent.openKids.findIndex((kid) => kid.index >= /** @type {Item} */ (at).index);
      const there = place >= 0 && parent.openKids[place] === at;
      if (at.open && !there) parent.openKids.splice(place < 0 ? parent.openKids.length : place, 0, at);
      if (!at.open && there) parent.openKids.splice(place, 1);
      let sum = 0;
      parent.extras = parent.openKids.map((kid) => (sum += height(kid) - row));
    }
  }
}

/** @param {Item} item @param {number} depth @returns {number} */
function deepest(item, depth) {
  if (!item.open) return depth;
  return item.openKids.reduce((most, kid) => Math.max(most, deepest(kid, depth + 1)), depth + 1);
}

/** @param {Item} item @param {(item: Item) => void} visit */
function walkOpen(item, visit) {
  if (!item.open) return;
  visit(item);
  for (const kid of item.openKids) walkOpen(kid, visit);
}
