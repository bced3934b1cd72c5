// Ranks by steps: the worst level of every graph in the file, to find the one to look at.

import { stepOf } from "./colors.js";
import { h, prepare } from "./dom.js";
import { t } from "./i18n.js";

/** @typedef {import("./api.js").Cell} Cell */

export class Heat {
  /** @param {(step: number, rank: number) => void} go */
  constructor(go) {
    this.go = go;
    this.canvas = h("canvas", { class: "heat-canvas", tabindex: "0", role: "application" });
    this.hint = h("p", { class: "heat-hint", role: "status" });
    this.element = h("div", { class: "heat", hidden: true }, this.canvas, this.hint);
    /** @type {Cell[]} */
    this.cells = [];
    /** @type {number[]} */
    this.steps = [];
    /** @type {number[]} */
    this.ranks = [];
    this.now = [0, 0];
    this.at = [0, 0];
    this.bands = 3;
    this.canvas.addEventListener("click", (event) => {
      this.#point(event);
      this.#go();
    });
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /**
   * Show what is known so far until all is: the server reads a few graphs for each answer.
   * @param {import("./api.js").Opened} opened
   * @param {() => Promise<{cells: Cell[], complete: boolean}> | null} ask nothing, where another graph is shown meanwhile
   */
  async fill({ steps, ranks, step, rank, bands }, ask) {
    for (let more = true; more && !this.element.hidden; ) {
      const found = await ask();
      if (!found) return;
      this.show({ cells: found.cells, steps, ranks, step, rank, bands: bands.length });
      more = !found.complete;
    }
    this.canvas.focus();
  }

  /** @param {{cells: Cell[], steps: number[], ranks: number[], step: number, rank: number, bands: number}} what */
  show({ cells, steps, ranks, step, rank, bands }) {
    Object.assign(this, { cells, steps, ranks, bands });
    this.now = [steps.indexOf(step), ranks.indexOf(rank)];
    this.at = [...this.now];
    this.canvas.style.height = `${Math.min(320, Math.max(44, 22 * steps.length + 22))}px`;
    this.canvas.style.width = `${Math.min(900, Math.max(220, 24 * ranks.length + 60))}px`;
    this.canvas.setAttribute("aria-label", t("heatHint"));
    this.#tell();
  }

  #tell() {
    const cell = this.#cell(...this.at);
    const place = `step ${this.steps[this.at[0]]}, rank ${this.ranks[this.at[1]]}`;
    this.hint.textContent =
      cell && !cell.missing ? `${place}: ${t("suspiciousCount", { n: cell.suspicious ?? 0 })}` : `${place}: …`;
    this.draw();
  }

  /** @param {number[]} at */
  #cell(...at) {
    return this.cells.find((cell) => cell.step === this.steps[at[0]] && cell.rank === this.ranks[at[1]]);
  }

  draw() {
    if (this.element.hidden) return;
    const { pen, width, height } = prepare(this.canvas);
    const style = getComputedStyle(this.element);
    const [wide, tall] = [(width - 60) / this.ranks.length, (height - 22) / this.steps.length];
    pen.font = `11px ${style.fontFamily}`;
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.textBaseline = "middle";
    const every = Math.ceil(26 / wide);
    this.ranks.forEach((rank, at) => at % every === 0 && pen.fillText(String(rank), 60 + at * wide + wide / 2 - 4, 11));
    const rows = Math.ceil(14 / tall);
    this.steps.forEach((step, at) => at % rows === 0 && pen.fillText(`step ${step}`, 2, 22 + at * tall + tall / 2));
    for (const cell of this.cells) {
      const [x, y] = [60 + this.ranks.indexOf(cell.rank) * wide, 22 + this.steps.indexOf(cell.step) * tall];
      const bad = cell.level ?? 0;
      pen.fillStyle = style.getPropertyValue(
        cell.missing ? "--grey" : bad > 0 ? `--level-${stepOf(bad, this.bands)}` : "--level-0",
      );
      pen.fillRect(x + 1, y + 1, Math.max(1, wide - 2), Math.max(1, tall - 2));
    }
    pen.strokeStyle = style.getPropertyValue("--accent");
    pen.lineWidth = 2;
    for (const [at, dash] of /** @type {[number[], number[]][]} */ ([
      [this.now, []],
      [this.at, [3, 2]],
    ])) {
      pen.setLineDash(dash);
      pen.strokeRect(60 + at[1] * wide + 1, 22 + at[0] * tall + 1, wide - 2, tall - 2);
    }
  }

  /** @param {MouseEvent} event */
  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const within = (/** @type {number} */ share, /** @type {number} */ count) =>
      Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    this.at = [
      within((event.clientY - box.top - 22) / (box.height - 22), this.steps.length),
      within((event.clientX - box.left - 60) / (box.width - 60), this.ranks.length),
    ];
    this.#tell();
  }

  #go() {
    this.go(this.steps[this.at[0]], this.ranks[this.at[1]]);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const move = /** @type {Record<string, number[]>} */ ({
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    })[event.key];
    if (event.key === "Enter") this.#go();
    else if (move) {
      this.at = [
        Math.min(this.steps.length - 1, Math.max(0, this.at[0] + move[0])),
        Math.min(this.ranks.length - 1, Math.max(0, this.at[1] + move[1])),
      ];
      this.#tell();
    } else return;
    event.preventDefault();
  }
}
