// One graph: a tree of boxes of which only those in view exist, drawn over a canvas with the data flow.

import { boxContent, makeBox, tooltip } from "./box.js";
import { h, iconButton, prepare, seen } from "./dom.js";
import { drawEdges } from "./edges.js";
import { t } from "./i18n.js";
import { label } from "./labels.js";
import { above, below, fullWidth, height, inset, row, topOf, visible } from "./layout.js";
import { Minimap } from "./minimap.js";
import { shorten } from "./names.js";

/** @typedef {import("./api.js").Side} Side */
/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./colors.js").Paint} Paint */
/** @typedef {import("./layout.js").Item} Item */
/** @typedef {import("./layout.js").Placed} Placed */
/** @typedef {import("./tree.js").Tree} Tree */
/**
 * @typedef {object} PaneEvents
 * @property {(item: Item, alone: boolean) => void} select alone: without the partner on the other side
 * @property {(item: Item) => void} toggle
 * @property {(parent: Item, index: number) => void} need a child that is not loaded came into view
 * @property {(parent: Item) => void} needEdges
 * @property {(item: Item, x: number, y: number) => void} menu
 * @property {() => void} moved
 * @property {() => void} focused
 */

const margin = 16;
const spare = 400;

export class Pane {
  layer = h("div", { class: "layer", role: "presentation" });
  sizer = h("div", { class: "sizer", role: "presentation" }, this.layer);
  scroller = h("div", { class: "scroller", role: "tree", tabindex: "0" }, this.sizer);
  canvas = h("canvas", { class: "edges", "aria-hidden": "true" });
  minimap = new Minimap((share) => {
    this.scroller.scrollTop = share * this.#tall() - this.scroller.clientHeight / 2;
  });
  title = h("span", { class: "pane-title" });
  trail = h("span", { class: "trail" });
  tools = h("span", { class: "pane-tools" });
  element = h(
    "section",
    { class: "pane" },
    h("div", { class: "pane-bar" }, this.title, this.trail, this.tools),
    h("div", { class: "stage" }, this.scroller, this.canvas, this.minimap.canvas),
  );

  /**
   * @param {Side} side
   * @param {PaneEvents} events
   */
  constructor(side, events) {
    this.side = side;
    this.events = events;
    /** @type {Tree | null} */
    this.tree = null;
    /** @type {Item | null} */
    this.cursor = null;
    this.mate = "";
    this.zoom = 1;
    this.metric = "";
    this.style = "";
    this.full = 0;
    this.left = 0;
    this.shift = 0; // how far it was moved over the edge
    /** @type {(node: GraphNode) => Paint} */
    this.paint = () => ({ look: "none", fill: "", edge: "", mark: "" });
    /** @type {Map<string, HTMLElement>} */
    this.boxes = new Map();
    /** @type {WeakMap<HTMLElement, Item>} */
    this.owners = new WeakMap();
    this.pending = false;
    this.element.classList.add(`pane-${side}`);
    this.scroller.dataset.side = side;
    this.#listen();
  }

  #listen() {
    this.scroller.addEventListener(
      "scroll",
      () => {
        this.draw();
        this.events.moved();
      },
      { passive: true },
    );
    this.scroller.addEventListener("focus", () => this.events.focused());
    this.scroller.addEventListener("keydown", (event) => this.#key(event));
    this.scroller.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.layer.addEventListener("click", (event) => this.#click(event));
    this.layer.addEventListener("dblclick", (event) => {
      const item = this.#owner(event);
      if (item && !(/** @type {Element} */ (event.target).closest(".twist"))) this.events.toggle(item);
    });
    this.scroller.addEventListener("contextmenu", (event) => this.#menu(event));
    let tall = 0;
    new ResizeObserver(() => {
      // What one looks at stays in view when another part of the page takes some of the room.
      const seenBefore = this.cursor && this.viewTop(this.cursor) >= 0 && this.viewTop(this.cursor) < tall;
      if (this.cursor && seenBefore && this.scroller.clientHeight < tall) this.reveal(this.cursor);
      tall = this.scroller.clientHeight;
      this.draw();
    }).observe(this.scroller);
  }

  /** Words that depend on the language. @param {string} title @param {{fit: () => void, zoom: (by: number) => void}} act */
  speak(title, act) {
    this.title.textContent = title;
    this.scroller.setAttribute("aria-label", title);
    this.tools.replaceChildren(
      iconButton("minus", t("zoomOut"), () => act.zoom(1 / 1.2)),
      iconButton("plus", t("zoomIn"), () => act.zoom(1.2)),
      iconButton("fit", t("fit"), () => act.fit()),
    );
    this.draw();
  }

  /** @param {Tree | null} tree */
  show(tree) {
    this.tree = tree;
    this.cursor = tree ? tree.root : null;
    this.shift = 0;
    for (const box of this.boxes.values()) box.remove();
    this.boxes.clear();
    this.draw();
  }

  /** Draw soon: once a frame at most. */
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.tree && this.element.isConnected) this.#draw(this.tree);
    });
  }

  /**
   * Bring an item into view, at a height of the view if one is given, and make it the current one.
   * @param {Item} item
   * @param {number} [at] in pixels from the top of the view
   */
  reveal(item, at) {
    this.#measure();
    const room = this.scroller.clientHeight;
    const top = topOf(item) * this.zoom + margin;
    const now = top - this.scroller.scrollTop;
    if (at !== undefined) this.scroller.scrollTop = top - at;
    else if (now < 8 || now + row * this.zoom > room - 8) this.scroller.scrollTop = top - room * 0.38;
    // Boxes lie inside each other around one middle: there the innermost one is whole on the narrowest screen.
    const { scrollLeft, scrollWidth, clientWidth } = this.scroller;
    const left = this.left + item.depth * inset * this.zoom - scrollLeft;
    const wide = (this.full - 2 * inset * item.depth) * this.zoom;
    if (left < 0 || left + wide > clientWidth) this.scroller.scrollLeft = (scrollWidth - clientWidth) / 2;
    this.draw();
  }

  /** Height of an item in the view. @param {Item} item */
  viewTop(item) {
    return topOf(item) * this.zoom + margin - this.scroller.scrollTop;
  }

  /** @param {number} zoom */
  setZoom(zoom) {
    const middle = this.scroller.clientHeight / 2;
    const place = (this.scroller.scrollTop + middle - margin) / this.zoom;
    this.zoom = zoom;
    this.#measure();
    this.scroller.scrollTop = place * zoom + margin - middle;
    this.draw();
  }

  /** Move sideways: by scrolling where there is more to see, else over the edge. @param {number} by in pixels */
  pan(by) {
    const { scrollLeft, scrollWidth, clientWidth } = this.scroller;
    const more = by < 0 ? scrollLeft : scrollWidth - clientWidth - scrollLeft;
    const shift = this.shift - by;
    if (this.shift * by <= 0 && more >= 1) this.scroller.scrollBy({ left: by });
    else if (Math.abs(shift) <= clientWidth / 2) this.shift = shift;
    this.draw();
  }

  /** The zoom at which everything that is open can be seen, within reason. */
  fitting() {
    if (!this.tree) return 1;
    const wide = (this.scroller.clientWidth - 2 * margin) / fullWidth(this.tree.deepest, 0);
    const tall = (this.scroller.clientHeight - 2 * margin) / height(this.tree.root);
    return Math.min(1.25, Math.max(0.3, Math.min(wide, tall)));
  }

  #tall() {
    return this.tree ? height(this.tree.root) * this.zoom + 2 * margin : 0;
  }

  #measure() {
    if (!this.tree) return;
    const room = this.scroller.clientWidth - 2 * margin;
    this.full = fullWidth(this.tree.deepest, room / this.zoom);
    const wide = this.full * this.zoom;
    this.sizer.style.height = `${this.#tall()}px`;
    this.sizer.style.width = `${Math.max(wide + 2 * margin, this.scroller.clientWidth)}px`;
    this.left = Math.max(margin, (this.scroller.clientWidth - wide) / 2) + this.shift;
    this.layer.style.transform = `translate(${this.left}px, ${margin}px) scale(${this.zoom})`;
  }

  /** @param {Tree} tree */
  #draw(tree) {
    this.#measure();
    const view = this.scroller.clientHeight;
    const from = (this.scroller.scrollTop - margin) / this.zoom;
    const placed = visible(tree.root, from - spare / 2, from + view / this.zoom + spare / 2);
    const used = new Set();
    for (const place of placed) {
      const key = place.item ? place.item.node.name : `${place.parent?.node.name}#${place.index}`;
      used.add(key);
      let box = this.boxes.get(key);
      if (!box) {
        box = makeBox();
        this.boxes.set(key, box);
        this.layer.append(box);
      }
      if (place.item) this.#fill(box, place, place.item);
      else this.#placeholder(box, place);
    }
    for (const [key, box] of this.boxes) {
      if (used.has(key)) continue;
      box.remove();
      this.boxes.delete(key);
    }
    this.#flow(placed, from, view);
    this.#map(tree, from, view);
    const cursor = this.cursor ? this.boxes.get(this.cursor.node.name) : null;
    if (cursor) this.scroller.setAttribute("aria-activedescendant", cursor.id);
    else this.scroller.removeAttribute("aria-activedescendant");
    this.trail.textContent = seen(this.#path(tree, from));
    for (const { item } of placed) if (item?.open && item.edges === null) this.events.needEdges(item);
  }

  /** @param {HTMLElement} box @param {Placed} place */
  #position(box, place) {
    box.style.top = `${place.top}px`;
    box.style.left = `${place.depth * inset}px`;
    box.style.width = `${this.full - 2 * inset * place.depth}px`;
    box.style.height = `${place.height}px`;
  }

  /** @param {HTMLElement} box @param {Placed} place */
  #placeholder(box, place) {
    this.#position(box, place);
    box.className = "box waiting";
    if (place.parent) this.events.need(place.parent, place.index);
  }

  /** @param {HTMLElement} box @param {Placed} place @param {Item} item */
  #fill(box, place, item) {
    this.#position(box, place);
    const { node } = item;
    const look = this.paint(node);
    const current = item === this.cursor;
    const mate = this.mate === node.name;
    const { value, manual, match } = node;
    const content = [look.look, look.fill, this.full, this.style, value, manual, match].join("|");
    const state = [content, item.open, current, mate].join("|");
    if (box.dataset.state === state) return;
    box.dataset.state = state;
    this.owners.set(box, item);
    box.id = `${this.side}-${node.order}`;
    const signs = { open: item.open, current, mate, api: node.type === "1" };
    box.className = ["box", look.look, ...Object.entries(signs).flatMap(([name, on]) => (on ? [name] : []))].join(" ");
    box.style.setProperty("--fill", look.fill);
    box.style.setProperty("--edge", look.edge);
    const set = (/** @type {string} */ key, /** @type {string | number | boolean} */ value) =>
      box.setAttribute(key, String(value));
    set("aria-level", item.depth + 1);
    set("aria-setsize", item.parent ? item.parent.kids.length : 1);
    set("aria-posinset", item.index + 1);
    set("aria-selected", current);
    if (node.kids) set("aria-expanded", item.open);
    const head = /** @type {HTMLElement} */ (box.firstElementChild);
    head.title = seen(tooltip(node));
    // A new content under the mouse would swallow the second half of a double click.
    if (head.dataset.content === content) return;
    head.dataset.content = content;
    const width = this.full - 2 * inset * place.depth;
    head.replaceChildren(...boxContent(node, item.parent?.node.name, look, width, this.metric));
  }

  /** @param {Placed[]} placed @param {number} from @param {number} view */
  #flow(placed, from, view) {
    const { pen } = prepare(this.canvas);
    const style = getComputedStyle(this.element);
    const window = { zoom: this.zoom, left: this.scroller.scrollLeft - this.left, top: from, full: this.full, view };
    const colors = { plain: style.getPropertyValue("--flow"), strong: style.getPropertyValue("--accent") };
    drawEdges(pen, placed, window, colors, this.cursor?.node.name ?? "");
  }

  /** @param {Tree} tree @param {number} from @param {number} view */
  #map(tree, from, view) {
    const total = height(tree.root);
    const line = getComputedStyle(this.element).getPropertyValue("--accent");
    const selected = this.cursor ? topOf(this.cursor) / total : null;
    this.minimap.draw(tree, this.paint, {
      from: Math.max(0, from / total),
      to: (from + view / this.zoom) / total,
      selected,
      style: this.style,
      line,
    });
  }

  /** Names of the boxes that the top of the view cuts. @param {Tree} tree @param {number} from */
  #path(tree, from) {
    const names = [];
    for (const { item, top, height: tall } of visible(tree.root, from, from)) {
      if (item?.open && top < from && top + tall > from) names.push(label(item.node.name, item.parent?.node.name).own);
    }
    return shorten(names.join(" › "), 60);
  }

  /** @param {Event} event */
  #owner(event) {
    const head = /** @type {Element} */ (event.target).closest(".head");
    return head ? this.owners.get(/** @type {HTMLElement} */ (head.parentElement)) : undefined;
  }

  /** @param {MouseEvent} event */
  #click(event) {
    const item = this.#owner(event);
    if (!item) return;
    this.events.select(item, event.ctrlKey || event.metaKey);
    if (/** @type {Element} */ (event.target).closest(".twist") && item.node.kids) this.events.toggle(item);
  }

  /** @param {MouseEvent} event */
  #menu(event) {
    const item = this.#owner(event) ?? (event.button === 2 ? undefined : this.cursor);
    if (!item) return;
    event.preventDefault();
    const box = this.boxes.get(item.node.name)?.getBoundingClientRect();
    this.events.menu(item, event.clientX || (box?.left ?? 0) + 40, event.clientY || (box?.top ?? 0) + row);
  }

  /** @param {WheelEvent} event */
  #wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.element.dispatchEvent(new CustomEvent("zoom", { bubbles: true, detail: event.deltaY < 0 ? 1.1 : 1 / 1.1 }));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (!this.cursor || event.ctrlKey || event.metaKey || event.altKey) return;
    const moved = this.#moved(event.key, this.cursor);
    if (moved === undefined) return;
    event.preventDefault();
    if (moved) {
      this.events.select(moved, false);
      this.reveal(moved);
    }
  }

  /** Where a key leads: an item, null for nowhere, undefined if the key means nothing here. @param {string} key @param {Item} item */
  #moved(key, item) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / (row * this.zoom)) - 2);
    if (key === "ArrowDown") return below(item);
    if (key === "ArrowUp") return above(item);
    if (key === "PageDown") return many(item, below, page);
    if (key === "PageUp") return many(item, above, page);
    if (key === "Home") return this.tree?.root ?? null;
    if (key === "End") return many(item, below, 100000);
    if (key === "ArrowLeft" && !item.open) return item.parent;
    if (key === "ArrowRight" && (item.open || !item.node.kids)) return item.kids[0] ?? null;
    if (key === "ArrowLeft" || key === "ArrowRight" || key === "Enter" || key === " ") {
      if (item.node.kids) this.events.toggle(item);
      return null;
    }
    return undefined;
  }
}

/** @param {Item} item @param {(item: Item) => Item | null} step @param {number} times */
function many(item, step, times) {
  let at = item;
  for (let count = 0; count < times; count += 1) {
    const next = step(at);
    if (!next) break;
    at = next;
  }
  return at;
}
