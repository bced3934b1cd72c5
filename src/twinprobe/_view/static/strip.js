// The whole run in one line: how large the error is along the execution. Click, or use the arrow keys, to go there.

import { shown, stepOf, strength, worst } from "./colors.js";
import { h, prepare } from "./dom.js";
import { t } from "./i18n.js";

/** @typedef {import("./api.js").StripData} StripData */
/** @typedef {{data: StripData, metric: string, color: string, above: number, bands: number}} Shown */

const smallest = 1e-6;

export class Strip {
  /** @param {(order: number) => void} go */
  constructor(go) {
    this.go = go;
    const start = { "aria-valuemin": "0", "aria-valuenow": "0" };
    this.canvas = h("canvas", { class: "strip-canvas", role: "slider", tabindex: "0", ...start });
    this.hint = h("div", { class: "strip-hint", role: "status" });
    this.element = h("div", { class: "strip" }, this.canvas, this.hint);
    /** @type {Shown | null} */
    this.shown = null;
    this.at = -1;
    /** @type {number | null} */
    this.selected = null;
    /** @type {number | null} */
    this.first = null;
    this.canvas.addEventListener("pointermove", (event) => this.#point(this.#bin(event)));
    this.canvas.addEventListener("pointerleave", () => this.#point(-1));
    this.canvas.addEventListener("click", (event) => this.#go(this.#bin(event)));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** @param {Shown | null} shown */
  show(shown) {
    this.shown = shown;
    this.canvas.setAttribute("aria-label", t("stripLabel"));
    this.canvas.setAttribute("aria-valuemax", String(Math.max(0, (shown?.data.order.length ?? 1) - 1)));
    this.#point(-1);
  }

  draw() {
    const { pen, width, height } = prepare(this.canvas);
    if (!this.shown || !width) return;
    const { data } = this.shown;
    const style = getComputedStyle(this.element);
    const colors = [0, 1, 2, 3, 4].map((step) => style.getPropertyValue(`--level-${step}`));
    const count = data.order.length;
    const wide = width / Math.max(1, count);
    pen.fillStyle = style.getPropertyValue("--grid");
    for (const share of [0.25, 0.5, 0.75]) pen.fillRect(0, Math.round(height * share), width, 1);
    for (let bin = 0; bin < count; bin += 1) {
      const [tall, step] = this.#bar(bin);
      const left = bin * wide;
      if (data.unmatched[bin] > 0) {
        pen.fillStyle = style.getPropertyValue("--grey");
        pen.fillRect(left, height - 4, Math.max(1, wide), 4 * data.unmatched[bin]);
      }
      if (tall <= 0) continue;
      pen.fillStyle = colors[step];
      const high = Math.max(2, tall * (height - 8));
      pen.fillRect(left, height - 4 - high, Math.max(1, wide - (wide > 4 ? 1 : 0)), high);
    }
    if (this.first !== null) this.#flag(pen, this.#x(this.first, width), height, colors[4]);
    if (this.selected !== null) line(pen, this.#x(this.selected, width), height, style.getPropertyValue("--accent"));
    if (this.at >= 0) {
      pen.fillStyle = style.getPropertyValue("--hover");
      pen.fillRect(this.at * wide, 0, Math.max(2, wide), height);
    }
  }

  /** Height, 0 to 1, and colour step of a piece. @param {number} bin @returns {[number, number]} */
  #bar(bin) {
    const { data, color, above, bands } = /** @type {Shown} */ (this.shown);
    const value = data.value?.[bin] ?? null;
    const level = data.level[bin];
    const step =
      color === "levels" || value === null
        ? level > 0
          ? stepOf(level, bands)
          : 0
        : Math.round(strength(value, above) * 4);
    if (value === null) return [level > 0 ? 0.3 + 0.175 * step : level === 0 ? 0.04 : 0, step];
    if (value >= worst) return [1, step];
    return [value <= smallest ? 0.02 : Math.min(1, 0.05 + (0.95 * Math.log10(value / smallest)) / 6), step];
  }

  /** @param {number} order @param {number} width */
  #x(order, width) {
    const { order: orders, length } = { order: this.shown?.data.order ?? [], length: this.shown?.data.nodes ?? 1 };
    const last = orders.at(-1) ?? 1;
    return length > 1 ? Math.min(width - 1, (order / Math.max(1, Math.max(last, length - 1))) * width) : 0;
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} height @param {string} color */
  #flag(pen, x, height, color) {
    line(pen, x, height, color);
    pen.beginPath();
    pen.moveTo(x, 1);
    pen.lineTo(x + 9, 5);
    pen.lineTo(x, 9);
    pen.fill();
  }

  /** @param {MouseEvent} event */
  #bin(event) {
    const box = this.canvas.getBoundingClientRect();
    const count = this.shown?.data.order.length ?? 0;
    return Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * count)));
  }

  /** @param {number} bin */
  #point(bin) {
    this.at = bin;
    const data = this.shown?.data;
    this.hint.textContent = "";
    if (data && bin >= 0 && bin < data.order.length) {
      const each = data.nodes / data.order.length;
      const value = data.value?.[bin];
      const text =
        value === null || value === undefined ? "–" : `${this.shown?.metric} ${shown(value, this.shown?.metric ?? "")}`;
      this.hint.textContent = t("stripHint", {
        from: Math.floor(bin * each) + 1,
        to: Math.ceil((bin + 1) * each),
        of: data.nodes,
        value: text,
      });
      this.canvas.setAttribute("aria-valuenow", String(bin));
      this.canvas.setAttribute("aria-valuetext", this.hint.textContent);
      this.hint.style.left = `${Math.min(0.85, Math.max(0.02, bin / data.order.length)) * 100}%`;
    }
    this.draw();
  }

  /** @param {number} bin */
  #go(bin) {
    const order = this.shown?.data.order[bin];
    if (order !== undefined) this.go(order);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const count = this.shown?.data.order.length ?? 0;
    const moves = /** @type {Record<string, number>} */ ({
      ArrowLeft: this.at - 1,
      ArrowRight: this.at + 1,
      Home: 0,
      End: count - 1,
      PageUp: this.at - 20,
      PageDown: this.at + 20,
    });
    if (event.key === "Enter") this.#go(this.at);
    else if (event.key in moves) this.#point(Math.min(count - 1, Math.max(0, moves[event.key])));
    else return;
    event.preventDefault();
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} height @param {string} color */
function line(pen, x, height, color) {
  pen.fillStyle = color;
  pen.fillRect(Math.round(x), 0, 2, height);
}
