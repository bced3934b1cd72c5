// Data flow between siblings: a short arrow to the next one, an arc at the right for those further away.

import { height, inset, offsetOf, row } from "./layout.js";

/** @typedef {import("./layout.js").Placed} Placed */
/** @typedef {import("./layout.js").Item} Item */
/** @typedef {{zoom: number, left: number, top: number, full: number, view: number}} Window */

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Placed[]} shown
 * @param {Window} window what part of the graph the pane shows
 * @param {{plain: string, strong: string}} colors
 * @param {string} selected
 */
export function drawEdges(pen, shown, window, colors, selected) {
  for (const { item, top, depth } of shown) {
    if (!item?.open || !item.edges) continue;
    const right = window.full - inset * (depth + 1);
    const middle = window.full / 2;
    for (const [from, to] of item.edges) {
      const start = top + offsetOf(item, from);
      const end = top + offsetOf(item, to);
      if (end < window.top || start > window.top + window.view / window.zoom) continue;
      const strong = [from, to].some((index) => item.kids[index]?.node.name === selected && selected);
      pen.strokeStyle = strong ? colors.strong : colors.plain;
      pen.fillStyle = pen.strokeStyle;
      pen.lineWidth = strong ? 1.8 : 1.2;
      const y = (/** @type {number} */ at) => (at - window.top) * window.zoom;
      const x = (/** @type {number} */ at) => at * window.zoom - window.left;
      const giver = item.kids[from];
      if (to === from + 1) arrow(pen, x(middle), y(start + (giver ? height(giver) : row)), y(end), window.zoom);
      else arc(pen, x(right), y(start + row / 2), y(end + row / 2), window.zoom, to - from);
    }
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} from @param {number} to @param {number} zoom */
function arrow(pen, x, from, to, zoom) {
  pen.beginPath();
  pen.moveTo(x, from);
  pen.lineTo(x, to - 4 * zoom);
  pen.stroke();
  head(pen, x, to, 0, zoom);
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {number} x
 * @param {number} from
 * @param {number} to
 * @param {number} zoom
 * @param {number} span how many siblings further down
 */
function arc(pen, x, from, to, zoom, span) {
  const reach = (6 + Math.min(9, Math.log2(span) * 3)) * zoom;
  const bend = Math.min(14 * zoom, (to - from) / 2);
  pen.beginPath();
  pen.moveTo(x, from);
  pen.bezierCurveTo(x + reach, from, x + reach, from, x + reach, from + bend);
  pen.lineTo(x + reach, to - bend);
  pen.bezierCurveTo(x + reach, to, x + reach, to, x + 4 * zoom, to);
  pen.stroke();
  head(pen, x, to, Math.PI / 2, zoom);
}

/** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y @param {number} turn @param {number} zoom */
function head(pen, x, y, turn, zoom) {
  pen.save();
  pen.translate(x, y);
  pen.rotate(turn);
  pen.beginPath();
  pen.moveTo(0, 0);
  pen.lineTo(-3 * zoom, -5 * zoom);
  pen.lineTo(3 * zoom, -5 * zoom);
  pen.fill();
  pen.restore();
}
