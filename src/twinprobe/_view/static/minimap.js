// The whole pane at a glance: one line of pixels per stretch of the graph, with the part in view marked.

import { h, prepare } from "./dom.js";
import { height, itemAt } from "./layout.js";

/** @typedef {import("./tree.js").Tree} Tree */
/** @typedef {import("./colors.js").Paint} Paint */
/** @typedef {import("./api.js").GraphNode} GraphNode */

export class Minimap {
  /** @param {(share: number) => void} go called with the place, 0 to 1, that shall be in the middle of the view */
  constructor(go) {
    this.canvas = h("canvas", { class: "minimap", "aria-hidden": "true" });
    const move = (/** @type {PointerEvent} */ event) => {
      const box = this.canvas.getBoundingClientRect();
      go(Math.min(1, Math.max(0, (event.clientY - box.top) / Math.max(1, this.#used))));
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) move(event);
    });
  }

  #used = 1;
  #key = "";
  /** @type {HTMLCanvasElement | null} */
  #picture = null;

  /**
   * @param {Tree} tree
   * @param {(node: GraphNode) => Paint} paint
   * @param {{from: number, to: number, selected: number | null, style: string, line: string}} view in shares of the height
   */
  draw(tree, paint, view) {
    const { pen, width, height: room } = prepare(this.canvas);
    const total = height(tree.root);
    this.#used = Math.min(room, total / 6);
    const key = `${tree.version}|${view.style}|${width}|${room}`;
    if (key !== this.#key || !this.#picture) {
      this.#key = key;
      this.#picture = this.#paint(tree, paint, width, total);
    }
    pen.drawImage(this.#picture, 0, 0, width, this.#used);
    pen.strokeStyle = view.line;
    pen.lineWidth = 1.5;
    const top = view.from * this.#used;
    const tall = Math.max(6, (Math.min(1, view.to) - view.from) * this.#used);
    pen.globalAlpha = 0.1;
    pen.fillStyle = view.line;
    pen.fillRect(0, top, width, tall);
    pen.globalAlpha = 1;
    pen.strokeRect(0.75, top + 0.75, width - 1.5, tall - 1.5);
    if (view.selected !== null) pen.fillRect(0, view.selected * this.#used - 1, width, 2);
  }

  /** @param {Tree} tree @param {(node: GraphNode) => Paint} paint @param {number} width @param {number} total */
  #paint(tree, paint, width, total) {
    const picture = document.createElement("canvas");
    const lines = Math.max(1, Math.round(this.#used));
    picture.width = Math.max(1, width);
    picture.height = lines;
    const pen = /** @type {CanvasRenderingContext2D} */ (picture.getContext("2d"));
    for (let line = 0; line < lines; line += 1) {
      const item = itemAt(tree.root, ((line + 0.5) / lines) * total);
      if (!item) continue;
      const look = paint(item.node);
      pen.fillStyle = look.look === "pass" || look.look === "none" ? look.edge : look.fill;
      pen.globalAlpha = item.open ? 0.4 : look.look === "pass" || look.look === "none" ? 0.8 : 1;
      const indent = Math.min(width / 2 - 4, 4 + item.depth * 2.5);
      pen.fillRect(indent, line, width - 2 * indent, 1);
    }
    return picture;
  }
}
