// Error along execution order: one point per row, logarithmic, with lanes for what a logarithm cannot show.

const INSET = { left: 66, right: 18, top: 10, bottom: 28 };
const LANE = 20;
const CLICK = 4; // pixels: a shorter drag is a click

class Plot {
  constructor(table, first, onPick, onZoom) {
    Object.assign(this, { table, first, onPick, onZoom, hovered: -1, shown: null, drag: null });
    this.box = byId("plot");
    this.canvas = byId("plot-points");
    this.overlay = byId("plot-hover");
    this.tip = byId("tip");
    this.range = [0, Math.max(table.count - 1, 1)];
    this.measure();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // The decades to show, which lanes are needed, and each row's place: a logarithm, or the name of a lane.
  measure() {
    const { error, verdict, count } = this.table;
    let [low, high] = [Infinity, -Infinity];
    const used = new Set();
    this.logs = new Float64Array(count);
    this.lanes = new Array(count).fill("");
    for (let row = 0; row < count; row++) {
      const value = error[row];
      this.logs[row] = Math.log10(value);
      if (value > 0 && Number.isFinite(value)) {
        low = Math.min(low, this.logs[row]);
        high = Math.max(high, this.logs[row]);
        continue;
      }
      this.lanes[row] = value === 0 ? "zero" : value === Infinity ? "infinite" : VERDICTS[verdict[row]] === "pass" ? "none" : "unknown";
      used.add(this.lanes[row]);
    }
    if (low > high) [low, high] = [-8, 0];
    this.decades = [Math.max(Math.floor(low), -20), Math.max(Math.ceil(high), Math.floor(low) + 2)];
    this.below = ["zero", "unknown"].filter((lane) => used.has(lane));
    this.above = used.has("infinite") ? ["infinite"] : [];
  }

  resize(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    Object.assign(this, { width, height });
    return context;
  }

  x(row) {
    const [from, to] = this.range;
    return INSET.left + ((row - from) / (to - from || 1)) * (this.width - INSET.left - INSET.right);
  }

  rowAtX(x) {
    const [from, to] = this.range;
    const share = (x - INSET.left) / (this.width - INSET.left - INSET.right);
    return Math.min(Math.max(from + share * (to - from), 0), this.table.count - 1);
  }

  y(row) {
    if (this.lanes[row]) return this.laneY(this.lanes[row]);
    return this.decadeY(Math.max(this.logs[row], this.decades[0]));
  }

  decadeY(decade) {
    const top = INSET.top + (this.above.length ? LANE + 12 : 6);
    const bottom = this.height - INSET.bottom - LANE * this.below.length - (this.below.length ? 10 : 4);
    return bottom - ((decade - this.decades[0]) / (this.decades[1] - this.decades[0])) * (bottom - top);
  }

  laneY(lane) {
    if (lane === "infinite") return INSET.top + LANE / 2;
    const place = this.below.indexOf(lane);
    return this.height - INSET.bottom - LANE * (this.below.length - place - 0.5);
  }

  draw() {
    const context = this.resize(this.canvas);
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries(["error-mark", "warning-mark", "pass-mark", "line", "soft", "ink", "panel", "error", "accent"]
      .map((name) => [name, style.getPropertyValue("--" + name).trim()]));
    this.font = `12px ${style.getPropertyValue("--sans")}`;
    this.axes(context);
    this.noise(context);
    const { count } = this.table;
    const [from, to] = [Math.max(0, Math.floor(this.range[0])), Math.min(count - 1, Math.ceil(this.range[1]))];
    const small = to - from > 4000;
    const strength = small ? { pass: 0.35, warning: 0.4, error: 0.7 } : { pass: 0.75, warning: 0.95, error: 0.95 };
    for (const verdict of ["pass", "warning", "error"]) {
      context.fillStyle = this.colours[verdict + "-mark"];
      for (let row = from; row <= to; row++) {
        if (VERDICTS[this.table.verdict[row]] !== verdict || this.lanes[row] === "none") continue;
        context.globalAlpha = this.shown && !this.shown[row] ? 0.08 : strength[verdict];
        this.point(context, verdict, this.x(row), this.y(row), small ? 0.6 : 1);
      }
    }
    context.globalAlpha = 1;
    this.firstMark(context);
    this.drawHover();
  }

  // The noise that is to be expected, as a band under the errors: one bar a pixel, the largest of its rows.
  noise(context) {
    const { expected, count } = this.table;
    if (!expected) return;
    const top = new Map();
    for (let row = Math.max(0, Math.floor(this.range[0])); row <= Math.min(count - 1, Math.ceil(this.range[1])); row++) {
      if (!(expected[row] > 0) || !Number.isFinite(expected[row])) continue;
      const x = Math.round(this.x(row));
      top.set(x, Math.max(top.get(x) ?? -Infinity, Math.log10(expected[row])));
    }
    const width = Math.max(1, Math.ceil(this.x(this.range[0] + 1) - this.x(this.range[0])));
    const bottom = this.decadeY(this.decades[0]);
    context.fillStyle = this.colours.accent;
    context.globalAlpha = 0.13;
    for (const [x, decade] of top) {
      const y = this.decadeY(Math.min(Math.max(decade, this.decades[0]), this.decades[1]));
      context.fillRect(x - width / 2, y, width, bottom - y);
    }
    context.globalAlpha = 1;
  }

  axes(context) {
    context.font = this.font;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.strokeStyle = this.colours.line;
    context.fillStyle = this.colours.soft;
    context.lineWidth = 1;
    const rule = (y, label) => {
      context.beginPath();
      context.moveTo(INSET.left, Math.round(y) + 0.5);
      context.lineTo(this.width - INSET.right, Math.round(y) + 0.5);
      context.stroke();
      context.fillText(label, INSET.left - 10, y);
    };
    const step = Math.max(1, Math.ceil((this.decades[1] - this.decades[0]) / 6));
    for (let decade = this.decades[1]; decade >= this.decades[0]; decade -= step) rule(this.decadeY(decade), this.decadeLabel(decade));
    for (const lane of [...this.above, ...this.below]) rule(this.laneY(lane), say({ zero: "equal", unknown: "no_value", infinite: "infinite" }[lane]));
    context.textAlign = "center";
    for (const row of this.ticks()) context.fillText((this.table.number(row)).toLocaleString("en"), this.x(row), this.height - INSET.bottom + 14);
    context.textAlign = "right";
    context.fillText(say("row_axis"), INSET.left - 10, this.height - INSET.bottom + 14);
  }

  decadeLabel(decade) {
    return decade >= -2 && decade <= 2 ? String(+(10 ** decade).toPrecision(1)) : "1e" + decade;
  }

  ticks() {
    const [from, to] = this.range;
    const rough = (to - from) / Math.min(8, Math.max(2, Math.floor(this.width / 90)));
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) || power);
    const rows = [];
    for (let row = Math.ceil((from + 1) / step) * step - 1; row <= to; row += step) if (row >= 0 && row < this.table.count) rows.push(row);
    return rows;
  }

  point(context, verdict, x, y, scale) {
    if (verdict === "pass") {
      if (scale < 1) return context.fillRect(x - 1, y - 1, 2, 2);
      context.beginPath();
      context.arc(x, y, 2.6, 0, 7);
    } else {
      const size = 5.2 * scale;
      context.beginPath();
      context.moveTo(x, y - size);
      context.lineTo(x + size, verdict === "error" ? y : y + size * 0.8);
      if (verdict === "error") context.lineTo(x, y + size);
      context.lineTo(x - size, verdict === "error" ? y : y + size * 0.8);
    }
    return context.fill();
  }

  firstMark(context) {
    if (this.first < 0 || this.first < this.range[0] || this.first > this.range[1]) return;
    const x = Math.round(this.x(this.first)) + 0.5;
    context.strokeStyle = context.fillStyle = this.colours.error;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(x, INSET.top);
    context.lineTo(x, this.height - INSET.bottom);
    context.stroke();
    context.setLineDash([]);
    context.font = this.font.replace("12px", "600 12px");
    const onRight = x < this.width - 150;
    context.textAlign = onRight ? "left" : "right";
    const label = say("first_mark");
    const [left, top] = [onRight ? x + 6 : x - 6, INSET.top + 8];
    const width = context.measureText(label).width;
    context.fillStyle = this.colours.panel;
    context.globalAlpha = 0.85;
    context.fillRect(onRight ? left - 2 : left - width - 2, top - 9, width + 4, 18);
    context.globalAlpha = 1;
    context.fillStyle = this.colours.error;
    context.fillText(label, left, top);
  }

  drawHover() {
    const context = this.resize(this.overlay);
    if (this.drag && Math.abs(this.drag.to - this.drag.from) > CLICK) {
      context.globalAlpha = 0.15;
      context.fillStyle = this.colours.accent;
      context.fillRect(this.drag.from, INSET.top, this.drag.to - this.drag.from, this.height - INSET.top - INSET.bottom);
    }
    this.tip.hidden = this.hovered < 0;
    if (this.hovered < 0) return;
    const [x, y] = [this.x(this.hovered), this.y(this.hovered)];
    context.globalAlpha = 1;
    context.strokeStyle = this.colours.ink;
    context.lineWidth = 1.6;
    context.beginPath();
    context.arc(x, y, 8, 0, 7);
    context.stroke();
    this.fillTip(x, y);
  }

  fillTip(x, y) {
    const row = this.hovered;
    const error = this.table.text("Relative Error", row);
    const facts = [VERDICTS[this.table.verdict[row]], this.table.text("Origin", row), error && say("relative_error", { n: brief(error) })];
    const title = make("b");
    title.append(foreign(this.table.text("NPU Name", row)));
    this.tip.replaceChildren(title, visible(facts.filter(Boolean).join(", ")), make("br"), foreign(this.table.text("Reason", row)));
    const [width, height] = [this.tip.offsetWidth, this.tip.offsetHeight];
    this.tip.style.left = Math.min(Math.max(x - width / 2, 0), this.width - width) + "px";
    this.tip.style.top = (y - height - 14 > -40 ? y - height - 14 : y + 16) + "px";
  }

  nearest(x, y) {
    const reach = ((this.range[1] - this.range[0]) / (this.width || 1)) * 14 + 1;
    const middle = this.rowAtX(x);
    let [best, distance] = [-1, 500];
    for (let row = Math.max(0, Math.floor(middle - reach)); row <= Math.min(this.table.count - 1, Math.ceil(middle + reach)); row++) {
      if (this.lanes[row] === "none" || (this.shown && !this.shown[row])) continue;
      // Of points that lie together the worse verdict is the one that was meant.
      const away = (this.x(row) - x) ** 2 + (this.y(row) - y) ** 2 + this.table.verdict[row] * 6;
      if (away < distance) [best, distance] = [row, away];
    }
    return best;
  }

  hover(row) {
    this.hovered = row;
    this.drawHover();
  }

  show(rows) {
    this.shown = rows.length === this.table.count ? null : new Uint8Array(this.table.count);
    if (this.shown) for (const row of rows) this.shown[row] = 1;
    this.draw();
  }

  zoom(from, to) {
    this.range = [from, to];
    byId("zoom-reset").hidden = !this.zoomed;
    this.draw();
    this.onZoom();
  }

  whole() {
    this.zoom(0, Math.max(this.table.count - 1, 1));
  }

  get zoomed() {
    return this.range[0] > 0 || this.range[1] < this.table.count - 1;
  }

  walk(step) {
    let row = this.hovered < 0 ? Math.max(this.first, Math.ceil(this.range[0])) : this.hovered + step;
    while (row >= 0 && row < this.table.count && (this.lanes[row] === "none" || (this.shown && !this.shown[row]))) row += step;
    if (row >= this.range[0] && row <= this.range[1]) this.hover(row);
  }

  listen() {
    const at = (event) => [event.clientX - this.box.getBoundingClientRect().left, event.clientY - this.box.getBoundingClientRect().top];
    this.box.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      if (this.drag) this.drag.to = x;
      this.hover(this.nearest(x, y));
    });
    this.box.addEventListener("pointerdown", (event) => {
      this.drag = { from: at(event)[0], to: at(event)[0] };
      this.box.setPointerCapture(event.pointerId);
    });
    this.box.addEventListener("pointerup", (event) => {
      const drag = this.drag;
      this.drag = null;
      if (drag && Math.abs(drag.to - drag.from) > CLICK) {
        const [from, to] = [this.rowAtX(Math.min(drag.from, drag.to)), this.rowAtX(Math.max(drag.from, drag.to))];
        if (to - from >= 2) this.zoom(from, to);
      } else {
        const row = this.nearest(...at(event));
        if (row >= 0) this.onPick(row);
      }
    });
    this.box.addEventListener("pointerleave", () => this.hover(-1));
    this.box.addEventListener("blur", () => this.hover(-1));
    this.box.addEventListener("dblclick", () => this.whole());
    byId("zoom-reset").addEventListener("click", () => this.whole());
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") this.walk(1);
      else if (event.key === "ArrowLeft") this.walk(-1);
      else if (event.key === "Enter" && this.hovered >= 0) this.onPick(this.hovered);
      else if (event.key === "Escape") this.whole();
      else return;
      event.preventDefault();
    });
  }
}
