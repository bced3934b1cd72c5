// How the error grows: along the run with what noise explains under it, and layer by layer, one line for each.

import { shown } from "./colors.js";
import { h, prepare } from "./dom.js";
import { t } from "./i18n.js";

/** @typedef {{stack: string, numbers: number[], parts: string[], error: (number | null)[][], order: (number | null)[][], leaves: number | null}} Layers */
/** @typedef {{order: number[], error: number[], expected: (number | null)[], layers: Layers | null}} Way */
/** @typedef {{forward: Way, backward: Way}} Growth */
/** @typedef {{x: number, y: number, order: number, text: string}} Spot */

const inset = { left: 50, right: 10, top: 8, bottom: 16 };

export class GrowthView {
  /** @param {(order: number) => void} go */
  constructor(go) {
    this.go = go;
    this.hint = h("p", { class: "heat-hint", role: "status" });
    this.plots = h("div", { class: "growth-plots" });
    this.element = h("div", { class: "growth", hidden: true }, this.plots, this.hint);
    /** @type {Growth | null} */
    this.data = null;
  }

  /** @param {Growth} data */
  show(data) {
    this.data = data;
    this.hint.textContent = t("growthHint");
    const ways = /** @type {("forward" | "backward")[]} */ (["forward", "backward"]);
    const plots = ways.flatMap((way) => {
      const { order, layers } = data[way];
      const name = t(way === "forward" ? "forwardPass" : "backwardPass");
      return [
        order.length && this.#plot(name, (pen, width, height) => this.#run(pen, width, height, data[way])),
        layers && this.#plot(`${name}: ${t("layersOf", { stack: layers.stack })}`, (pen, width, height) => this.#layers(pen, width, height, layers)),
      ].filter(Boolean);
    });
    this.plots.replaceChildren(...(plots.length ? /** @type {HTMLElement[]} */ (plots) : [h("p", { class: "quiet" }, t("noGrowth"))]));
  }

  /** @param {string} title @param {(pen: CanvasRenderingContext2D, width: number, height: number) => Spot[]} paint */
  #plot(title, paint) {
    const canvas = h("canvas", { class: "growth-canvas", role: "application", tabindex: "0", "aria-label": `${title}. ${t("growthHint")}` });
    /** @type {Spot[]} */
    let spots = [];
    let at = -1;
    const draw = () => {
      const { pen, width, height } = prepare(canvas);
      if (!width) return;
      pen.font = "11px system-ui, sans-serif";
      spots = paint(pen, width, height);
      if (at < 0 || at >= spots.length) return;
      pen.strokeStyle = getComputedStyle(canvas).getPropertyValue("--text");
      pen.beginPath();
      pen.arc(spots[at].x, spots[at].y, 6, 0, 7);
      pen.stroke();
    };
    const point = (/** @type {number} */ place) => {
      at = Math.min(spots.length - 1, Math.max(0, place));
      this.hint.textContent = spots[at]?.text ?? "";
      draw();
    };
    const nearest = (/** @type {MouseEvent} */ event) => {
      const far = (/** @type {Spot} */ spot) => (spot.x - event.offsetX) ** 2 + (spot.y - event.offsetY) ** 2;
      return spots.reduce((best, spot, place) => (best < 0 || far(spot) < far(spots[best]) ? place : best), -1);
    };
    canvas.addEventListener("pointermove", (event) => point(nearest(event)));
    canvas.addEventListener("click", (event) => spots.length && this.go(spots[nearest(event)].order));
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) point(at + by);
      else if (event.key === "Enter" && spots[at]) this.go(spots[at].order);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(draw).observe(canvas);
    return h("figure", {}, h("figcaption", {}, title), canvas);
  }

  /** Decades on the left. @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {number[]} values */
  #scale(pen, width, height, values) {
    const logs = values.filter((value) => value > 0 && value < 1e30).map(Math.log10);
    const low = Math.floor(Math.min(...logs, -1));
    const high = Math.max(Math.ceil(Math.max(...logs, low + 1)), low + 1);
    const y = (/** @type {number} */ value) => {
      const share = value > 0 ? (Math.min(Math.log10(value), high) - low) / (high - low) : 0;
      return height - inset.bottom - Math.max(0, share) * (height - inset.top - inset.bottom);
    };
    const style = getComputedStyle(this.element);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let decade = low; decade <= high; decade += Math.max(1, Math.ceil((high - low) / 5))) {
      pen.fillStyle = style.getPropertyValue("--grid");
      pen.fillRect(inset.left, y(10 ** decade), width - inset.left - inset.right, 1);
      pen.fillStyle = style.getPropertyValue("--muted");
      pen.fillText(`1e${decade}`, inset.left - 6, y(10 ** decade));
    }
    return { y, style };
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {Way} way @returns {Spot[]} */
  #run(pen, width, height, { order, error, expected }) {
    const known = expected.filter((value) => value !== null);
    const { y, style } = this.#scale(pen, width, height, [...error, ...known]);
    const wide = (width - inset.left - inset.right) / Math.max(1, order.length);
    const x = (/** @type {number} */ place) => inset.left + (place + 0.5) * wide;
    pen.fillStyle = style.getPropertyValue("--hover");
    expected.forEach((value, place) => {
      if (value === null || value <= 0) return;
      pen.fillRect(x(place) - wide / 2, y(value), wide + 0.5, height - inset.bottom - y(value));
    });
    return error.map((value, place) => {
      const bound = expected[place];
      const beyond = bound !== null && value > bound;
      pen.fillStyle = style.getPropertyValue(beyond ? "--level-4" : "--accent");
      pen.fillRect(x(place) - 1.5, y(value) - 1.5, 3, 3);
      const text = t("growthPoint", { n: order[place], error: shown(value, "error"), expected: bound === null ? "–" : shown(bound, "error") });
      return { x: x(place), y: y(value), order: order[place], text };
    });
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {Layers} layers @returns {Spot[]} */
  #layers(pen, width, height, { numbers, parts, error, order, leaves }) {
    const { y, style } = this.#scale(pen, width, height, error.flat().map((value) => value ?? 0));
    const x = (/** @type {number} */ part) => inset.left + ((part + 0.5) / parts.length) * (width - inset.left - inset.right);
    /** @type {Spot[]} */
    const spots = [];
    error.forEach((line, at) => {
      pen.strokeStyle = style.getPropertyValue(at === leaves ? "--level-4" : "--flow");
      pen.lineWidth = at === leaves ? 2 : 1;
      pen.globalAlpha = at === leaves ? 1 : 0.6;
      pen.beginPath();
      line.forEach((value, part) => {
        if (value === null) return;
        pen.lineTo(x(part), y(value));
        const name = [numbers[at], parts[part]].filter((piece) => piece !== "").join(".");
        spots.push({ x: x(part), y: y(value), order: order[at][part] ?? 0, text: `${name}: ${shown(value, "error")}` });
      });
      pen.stroke();
    });
    pen.globalAlpha = 1;
    if (leaves !== null) {
      pen.fillStyle = style.getPropertyValue("--level-4");
      pen.textAlign = "left";
      pen.fillText(t("layer", { n: numbers[leaves] }), inset.left + 4, inset.top + 6);
    }
    return spots;
  }
}
