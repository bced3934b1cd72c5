// Inside a pair of tensors: where it differs, both values under one scale, histograms, scatter, the worst elements.

/** @typedef {{scale: number | string, f16: string}} Packed */
/** @typedef {{name: string, sentence: string, factor?: number, offset?: number, axis?: number, by?: number, indices?: number[], rows?: number[]}} KindOfDifference */
/**
 * @typedef {object} Picture
 * @property {number[]} shape
 * @property {string[]} dtypes
 * @property {number} rows the axis along the rows, -1 for none
 * @property {number} columns
 * @property {number[][]} ranges of every axis
 * @property {number[]} size how many blocks, down and across
 * @property {number} elements
 * @property {number} read how many of them were looked at
 * @property {Packed} max
 * @property {Packed} rms
 * @property {Packed} target
 * @property {Packed} golden
 * @property {{from: number, counts: number[][], zeros: number[], odd: number[]}} histogram
 * @property {{at: number[], exact: boolean, values: (number | string)[][]}} quantiles
 * @property {[number[], number | string, number | string, number | string][]} worst
 * @property {(number | string)[][]} points
 * @property {number | string | null} slope
 * @property {KindOfDifference[]} kinds
 * @property {string[]} [names] of the axes, where they are known
 * @property {Record<string, Packed[]>} [apart] summaries of each side alone, which tell no difference: max, rms, mean
 * @property {Picture[]} [views] over other axes, and of pieces, where nothing more can be read
 */
/** @typedef {{rows: number, columns: number, ranges: number[][]}} Wanted */
/** @typedef {(key: string, values?: Record<string, string | number>) => string} Say */

const tensorWords = {
  en: {
    difference: "|difference|", target: "target", golden: "golden", measure: "each cell shows the", max: "max", rms: "rms", rows: "rows: axis", columns: "columns: axis",
    axis: "axis {n}", all: "all", whole: "Whole tensor", histogram: "Magnitude of the values (powers of two)", scatter: "Target against golden", quantiles: "Quantiles", worst: "Worst elements",
    index: "index", off: "difference", zeros: "zeros", odd: "inf or NaN", sampled: "of a sample", block: "{rows} × {columns}: max {max}, rms {rms}, target {target}, golden {golden}",
    mean: "mean", least: "|difference| at least", largest: "Largest elements", apart: "From summaries of each run: the elements themselves were not kept, so their difference is not known, only that it is at least as large as shown. Record with task=\"tensor\" to see it.",
    blockApart: "{rows} × {columns}: {measure} of target {target}, of golden {golden}",
    batch: "batch", heads: "heads", tokens: "tokens", head_size: "head size", features: "features", experts: "experts", channels: "channels", height: "height", width: "width",
    elements: "{shape}, {n} elements, {dtypes}", read: "{n} of them read, at even distances: zoom in to see all", slope: "target = {n} × golden", none: "Equal: no element differs.", drag: "Drag over the picture to zoom.", shifted: "axis {axis} shifted by {by}", only: "indices of axis {axis} that differ",
  },
  zh: {
    difference: "|差异|", target: "待调试侧", golden: "标杆侧", measure: "块内", max: "最大值", rms: "均方根", rows: "行：轴", columns: "列：轴",
    axis: "轴 {n}", all: "全部", whole: "整个张量", histogram: "数值大小（2 的幂）", scatter: "待调试侧与标杆侧", quantiles: "分位数", worst: "差异最大的元素",
    index: "下标", off: "差异", zeros: "零", odd: "inf 或 NaN", sampled: "取样", block: "{rows} × {columns}：最大 {max}，均方根 {rms}，待调试侧 {target}，标杆侧 {golden}",
    mean: "均值", least: "|差异| 至少", largest: "绝对值最大的元素", apart: "来自两次运行各自的摘要：没有保存元素本身，无法得知其差异，只知道至少如图所示。使用 task=\"tensor\" 记录即可查看。",
    blockApart: "{rows} × {columns}：{measure}：待调试侧 {target}，标杆侧 {golden}",
    batch: "批次", heads: "注意力头", tokens: "词元", head_size: "头维度", features: "特征", experts: "专家", channels: "通道", height: "高", width: "宽",
    elements: "{shape}，{n} 个元素，{dtypes}", read: "均匀读取了其中 {n} 个：放大可查看全部", slope: "待调试侧 = {n} × 标杆侧", none: "相等：没有元素不同。", drag: "在图上拖动以放大。", shifted: "轴 {axis} 平移 {by}", only: "轴 {axis} 上不同的下标",
  },
};

/** Half floats, as shares of the scale. @param {Packed} packed @returns {Float64Array} */
export function unpack({ scale, f16 }) {
  const bytes = atob(f16);
  const top = Number(scale) || 0;
  return Float64Array.from({ length: bytes.length / 2 }, (_, at) => {
    const bits = bytes.charCodeAt(2 * at) | (bytes.charCodeAt(2 * at + 1) << 8);
    const [sign, exponent, rest] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    if (exponent === 31) return sign * Infinity;
    return sign * top * (exponent ? (1 + rest / 1024) * 2 ** (exponent - 15) : rest * 2 ** -24);
  });
}

/** @param {number | string | null} value */
function short(value) {
  const number = Number(value);
  if (!Number.isFinite(number)) return String(value);
  const size = Math.abs(number);
  return size !== 0 && (size >= 1e5 || size < 1e-3) ? number.toExponential(2) : String(Number(number.toPrecision(4)));
}

/** The indices of a range. @param {number[]} span */
function spanText([from, to]) {
  return to - from > 1 ? `${from}–${to - 1}` : String(from);
}

/** Light to dark, or blue over nothing to red. @param {number} share @param {boolean} dark @param {boolean} signed */
function shade(share, dark, signed) {
  const ends = signed
    ? share < 0 ? [38, 99, 217] : [200, 64, 28]
    : dark ? [255, 120, 90] : [176, 30, 20];
  const ground = dark ? [32, 38, 46] : [246, 248, 250];
  const depth = Math.min(1, Math.abs(share));
  return `rgb(${ground.map((part, at) => Math.round(part + (ends[at] - part) * depth)).join(" ")})`;
}

export class TensorView {
  /**
   * @param {Picture} picture
   * @param {{language: string, dark: () => boolean, ask?: (wanted: Wanted) => Promise<Picture>}} home ask: more can be read
   */
  constructor(picture, home) {
    this.whole = picture;
    this.picture = picture;
    this.home = home;
    this.measure = "max";
    const words = home.language === "zh" ? tensorWords.zh : tensorWords.en;
    /** @type {Say} */
    this.say = (key, values = {}) =>
      /** @type {Record<string, string>} */ (words)[key].replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
    this.element = this.make("div", "inside");
    this.hint = this.make("p", "inside-hint");
    this.hint.setAttribute("role", "status");
    this.turn = 0;
    this.draw();
  }

  /**
   * @template {keyof HTMLElementTagNameMap} K
   * @param {K} tag @param {string} [kind] @param {...(globalThis.Node | string)} children
   * @returns {HTMLElementTagNameMap[K]}
   */
  make(tag, kind = "", ...children) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.append(...children);
    return element;
  }

  draw() {
    const { picture, say } = this;
    const named = picture.shape.map((size, axis) => (this.#axis(axis) ? `${this.#axis(axis)} ${size}` : String(size)));
    const facts = { shape: `[${named.join(", ")}]`, n: picture.elements.toLocaleString("en"), dtypes: [...new Set(picture.dtypes)].join(" / ") };
    const read = picture.read < picture.elements ? `; ${say("read", { n: picture.read.toLocaleString("en") })}` : "";
    const kinds = this.whole.kinds.map(({ sentence }) => this.make("li", "", sentence));
    this.hint.textContent = this.home.ask ? say("drag") : "";
    const maps = picture.apart ? /** @type {const} */ (["least", "target", "golden"]) : /** @type {const} */ (["difference", "target", "golden"]);
    this.element.replaceChildren(
      this.make("p", "inside-facts", say("elements", facts), read),
      ...(kinds.length ? [this.make("ul", "inside-kinds", ...kinds)] : []),
      ...(picture.apart ? [this.make("p", "inside-legend", say("apart"))] : []),
      this.#controls(),
      this.make("div", "inside-maps", ...maps.map((part) => this.#map(part))),
      this.hint,
      this.make("div", "inside-maps", this.#histogram(), ...(picture.apart ? [] : [this.#scatter()])),
      this.make("div", "inside-maps", this.#quantiles(), this.#worst()),
    );
  }

  /** What an axis is, where that is known. @param {number} axis */
  #axis(axis) {
    const name = this.whole.names?.[axis];
    return name ? this.say(name) : "";
  }

  #controls() {
    const { picture, say } = this;
    const box = this.make("div", "inside-controls");
    /** @param {string} name @param {[string, string][]} options @param {string} now @param {(value: string) => void} choose */
    const select = (name, options, now, choose) => {
      const list = this.make("select");
      list.setAttribute("aria-label", name);
      for (const [value, text] of options) {
        const option = this.make("option", "", text);
        option.value = value;
        option.selected = value === now;
        list.append(option);
      }
      list.addEventListener("change", () => choose(list.value));
      box.append(this.make("label", "", name, " ", list));
    };
    const measures = picture.apart ? ["max", "rms", "mean"] : ["max", "rms"];
    select(say("measure"), measures.map((way) => [way, say(way)]), this.measure, (value) => {
      this.measure = value;
      this.draw();
    });
    const views = this.whole.views ?? [];
    if (!this.home.ask && !views.length) return box;
    const long = (/** @type {number} */ axis) => this.home.ask || views.some(({ rows, columns }) => axis === rows || axis === columns);
    const axes = /** @type {[string, string][]} */ (picture.shape.map((size, axis) => [String(axis), `${axis} (${this.#axis(axis) || size})`]));
    if (picture.shape.length > 1) {
      for (const way of /** @type {("rows" | "columns")[]} */ (["rows", "columns"])) {
        const other = picture[way === "rows" ? "columns" : "rows"];
        select(say(way), axes.filter(([axis]) => Number(axis) !== other && long(Number(axis))), String(picture[way]), (value) =>
          this.#ask({ [way]: Number(value), ranges: this.whole.ranges }));
      }
    }
    picture.shape.forEach((size, axis) => {
      if (axis === picture.rows || axis === picture.columns || size < 2) return;
      // Each index where more can be read, otherwise the pieces that there are, one axis at a time.
      const places = this.home.ask ? Array.from({ length: size }, (_, at) => [at, at + 1])
        : views.filter((view) => this.#same(view, picture) && view.ranges[axis][1] - view.ranges[axis][0] < size).map((view) => view.ranges[axis]);
      if (!places.length) return;
      const text = (/** @type {number} */ at) => (at < 0 ? say("all") : spanText(places[at]));
      const now = places.findIndex(([from, to]) => from === picture.ranges[axis][0] && to === picture.ranges[axis][1]);
      const name = this.#axis(axis) || say("axis", { n: axis });
      const slider = this.make("input");
      Object.assign(slider, { type: "range", min: "-1", max: String(places.length - 1), value: String(now) });
      slider.setAttribute("aria-label", name);
      slider.setAttribute("aria-valuetext", text(now));
      const told = this.make("output", "", text(now));
      slider.addEventListener("change", () => {
        const span = places[Number(slider.value)] ?? [0, size];
        const others = this.home.ask ? picture.ranges : this.whole.ranges;
        this.#ask({ ranges: others.map((known, place) => (place === axis ? span : known)) });
      });
      slider.addEventListener("input", () => {
        told.textContent = text(Number(slider.value));
        slider.setAttribute("aria-valuetext", told.textContent);
      });
      box.append(this.make("label", "", name, " ", slider, told));
    });
    if (picture !== this.whole) {
      const back = this.make("button", "", say("whole"));
      back.type = "button";
      back.addEventListener("click", () => {
        this.picture = this.whole;
        this.draw();
      });
      box.append(back);
    }
    return box;
  }

  /** Whether two pictures are over the same axes. @param {Wanted} one @param {Wanted} other */
  #same(one, other) {
    return one.rows === other.rows && one.columns === other.columns;
  }

  /** @param {Partial<Wanted>} change */
  #ask(change) {
    const { rows, columns, ranges } = this.picture;
    if (!this.home.ask) {
      const wanted = { rows, columns, ranges, ...change };
      const [low, high] = [wanted.rows, wanted.columns].sort((a, b) => a - b);
      const turned = { ...wanted, rows: low, columns: high }; // views have the later axis across
      const same = (/** @type {Picture} */ view) => String(view.ranges) === String(wanted.ranges) && (this.#same(view, wanted) || this.#same(view, turned));
      this.picture = [this.whole, ...(this.whole.views ?? [])].find(same) ?? this.whole;
      this.draw();
      return;
    }
    const turn = ++this.turn;
    void this.home.ask?.({ rows, columns, ranges, ...change }).then(
      (found) => {
        if (turn !== this.turn) return;
        this.picture = found;
        this.draw();
      },
      (error) => {
        this.hint.textContent = String(error.message ?? error);
      },
    );
  }

  /** @param {number} wide @param {number} high @param {string} name @param {(pen: CanvasRenderingContext2D) => void} paint */
  #canvas(wide, high, name, paint) {
    const canvas = this.make("canvas");
    const ratio = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: wide * ratio, height: high * ratio });
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", name);
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    paint(pen);
    return canvas;
  }

  get ink() {
    return this.home.dark() ? "#98a4b6" : "#5a6577";
  }

  /** The numbers of one of the pictures. @param {"difference" | "least" | "target" | "golden"} part */
  #values(part) {
    const { picture } = this;
    if (!picture.apart) return unpack(part === "difference" ? picture[this.measure === "max" ? "max" : "rms"] : picture[part === "golden" ? part : "target"]);
    const [target, golden] = picture.apart[this.measure].map(unpack);
    if (part !== "least") return part === "target" ? target : golden;
    // Of two maxima, or two rms, no more can be told; half floats cannot tell what is smaller than a thousandth.
    const top = [...target, ...golden].reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0);
    return target.map((value, at) => {
      const off = value === golden[at] ? 0 : Math.abs(value - golden[at]);
      return off < top / 1024 ? 0 : Number.isNaN(off) ? Infinity : off;
    });
  }

  /** One of the three pictures. @param {"difference" | "least" | "target" | "golden"} part */
  #map(part) {
    const { picture, say } = this;
    const [high, wide] = picture.size;
    const values = this.#values(part);
    const difference = part === "difference" || part === "least";
    const top = values.reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0);
    const scales = picture.apart ? picture.apart[this.measure] : [picture.target, picture.golden];
    const both = Math.max(...scales.map(({ scale }) => Number(scale) || 0));
    // Differences span decades: the colour is their logarithm, six decades deep.
    const share = (/** @type {number} */ value) =>
      !difference ? (both ? value / both : 0)
        : !Number.isFinite(value) ? 1 : value > 0 && top > 0 ? Math.max(0.06, 1 + Math.log10(value / top) / 6) : 0;
    // Two fit beside each other into the details of a report.
    const [width, height] = [220, Math.max(16, Math.min(220, Math.round((220 * high) / wide)))];
    const [x, y] = [width / wide, height / high];
    const dark = this.home.dark();
    const canvas = this.#canvas(width, height, say(part), (pen) => {
      values.forEach((value, at) => {
        pen.fillStyle = shade(share(value), dark, !difference);
        pen.fillRect((at % wide) * x, Math.floor(at / wide) * y, x + 0.5, y + 0.5);
      });
      if (difference) this.#kind(pen, width, height);
    });
    canvas.addEventListener("pointermove", (event) => this.#tell(event, x, y));
    if (this.home.ask) this.#zoom(canvas, x, y);
    const scale = difference ? `0 – ${short(top)}` : `±${short(both)}`;
    return this.make("figure", "", this.make("figcaption", "", `${say(part)} `, this.make("small", "", scale)), canvas);
  }

  /** The range of indices of an axis that some blocks cover. @param {number} axis @param {number} blocks @param {number} from @param {number} to */
  #span(axis, blocks, from, to) {
    if (axis < 0) return [0, 1];
    const [start, end] = this.picture.ranges[axis];
    const length = end - start;
    return [start + Math.ceil((from * length) / blocks), Math.max(start + Math.ceil((to * length) / blocks), start + Math.ceil((from * length) / blocks) + 1)];
  }

  /** @param {number} axis @param {string} text */
  #label(axis, text) {
    return axis >= 0 && this.#axis(axis) ? `${this.#axis(axis)} ${text}` : text;
  }

  /** @param {PointerEvent} event @param {number} x @param {number} y */
  #tell(event, x, y) {
    const { picture, say } = this;
    const [high, wide] = picture.size;
    const [column, row] = [Math.min(wide - 1, Math.floor(event.offsetX / x)), Math.min(high - 1, Math.floor(event.offsetY / y))];
    if (column < 0 || row < 0) return;
    const place = {
      rows: this.#label(picture.rows, spanText(this.#span(picture.rows, high, row, row + 1))),
      columns: this.#label(picture.columns, spanText(this.#span(picture.columns, wide, column, column + 1))),
    };
    const at = row * wide + column;
    if (picture.apart) {
      const [target, golden] = [this.#values("target"), this.#values("golden")].map((values) => short(values[at]));
      this.hint.textContent = say("blockApart", { ...place, measure: say(this.measure), target, golden });
      return;
    }
    const value = (/** @type {Packed} */ packed) => short(unpack(packed)[at]);
    this.hint.textContent = say("block", {
      ...place, max: value(picture.max), rms: value(picture.rms), target: value(picture.target), golden: value(picture.golden),
    });
  }

  /** @param {HTMLCanvasElement} canvas @param {number} x @param {number} y */
  #zoom(canvas, x, y) {
    const { picture } = this;
    const [high, wide] = picture.size;
    let start = [0, 0];
    canvas.classList.add("inside-zoom");
    canvas.addEventListener("pointerdown", (event) => {
      start = [event.offsetX, event.offsetY];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const clip = (/** @type {number} */ at, /** @type {number} */ most) => Math.min(most, Math.max(0, at));
      const [left, right] = [start[0], event.offsetX].sort((a, b) => a - b).map((at) => clip(at, wide * x) / x);
      const [top, bottom] = [start[1], event.offsetY].sort((a, b) => a - b).map((at) => clip(at, high * y) / y);
      if ((right - left) * x < 6 && (bottom - top) * y < 6) return;
      const ranges = picture.ranges.map((span) => span);
      ranges[picture.columns] = this.#span(picture.columns, wide, Math.floor(left), Math.ceil(right));
      if (picture.rows >= 0) ranges[picture.rows] = this.#span(picture.rows, high, Math.floor(top), Math.ceil(bottom));
      this.#ask({ ranges });
    });
  }

  /** The kind of difference on the picture: a shift as an arrow, single indices as marks. @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height */
  #kind(pen, width, height) {
    const { picture } = this;
    const kind = this.whole.kinds.find(({ axis }) => axis === picture.columns || axis === picture.rows);
    if (!kind || kind.axis === undefined) return;
    const across = kind.axis === picture.columns;
    const [start, end] = picture.ranges[kind.axis];
    const long = across ? width : height;
    const at = (/** @type {number} */ index) => ((index - start) / (end - start)) * long;
    pen.strokeStyle = pen.fillStyle = "#2563d9";
    pen.lineWidth = 2;
    for (const index of kind.indices ?? []) {
      if (index < start || index >= end) continue;
      if (across) pen.fillRect(at(index), 0, Math.max(2, at(start + 1)), 5);
      else pen.fillRect(0, at(index), 5, Math.max(2, at(start + 1)));
    }
    if (kind.by === undefined) return;
    const way = Math.sign(kind.by) || 1;
    const [from, to] = [long / 2 - way * 40, long / 2 + way * 40];
    pen.beginPath();
    const line = (/** @type {number} */ one, /** @type {number} */ other) => (across ? pen.lineTo(one, 12 + other) : pen.lineTo(12 + other, one));
    line(from, 0);
    line(to, 0);
    line(to - way * 8, -5);
    line(to, 0);
    line(to - way * 8, 5);
    pen.stroke();
    pen.fillText(this.say("shifted", { axis: kind.axis, by: kind.by }), across ? width / 2 - 40 : 20, across ? 30 : height / 2);
  }

  #histogram() {
    const { say, picture } = this;
    const { counts, from, zeros, odd } = picture.histogram;
    const bins = counts[0]?.length ?? 0;
    const most = Math.log10(1 + Math.max(1, ...counts.flat()));
    const [width, height, bottom] = [300, 150, 18];
    const colours = ["#2563d9", "#2f8f5b", "#c8401c"];
    const canvas = this.#canvas(width, height, say("histogram"), (pen) => {
      const x = (/** @type {number} */ bin) => 4 + (bin / Math.max(1, bins)) * (width - 8);
      counts.forEach((row, side) => {
        pen.strokeStyle = colours[side];
        pen.lineWidth = 1.6;
        pen.setLineDash(side === 2 ? [5, 4] : []); // what lies under it stays in sight
        pen.beginPath();
        row.forEach((count, bin) => {
          const y = height - bottom - (Math.log10(1 + count) / most) * (height - bottom - 6);
          pen.lineTo(x(bin), y);
          pen.lineTo(x(bin + 1), y);
        });
        pen.stroke();
      });
      pen.fillStyle = this.ink;
      for (const bin of [0, Math.floor(bins / 2), bins]) {
        pen.textAlign = bin === 0 ? "left" : bin === bins ? "right" : "center";
        pen.fillText(short(2 ** (from + bin - 1)), x(bin), height - 4);
      }
    });
    const names = ["target", "golden", "difference"].slice(0, counts.length).map((name, side) => {
      const more = [zeros[side] ? `${zeros[side].toLocaleString("en")} ${say("zeros")}` : "", odd[side] ? `${odd[side].toLocaleString("en")} ${say("odd")}` : ""];
      const entry = this.make("span", "", `${say(name)} ${more.filter(Boolean).join(", ")}`.trim());
      entry.style.borderLeft = `10px solid ${colours[side]}`;
      return entry;
    });
    return this.make("figure", "", this.make("figcaption", "", say("histogram")), canvas, this.make("p", "inside-legend", ...names));
  }

  #scatter() {
    const { say, picture } = this;
    const [target, golden] = picture.points.map((side) => side.map(Number));
    const worst = picture.worst.map(([, one, other]) => [Number(one), Number(other)]).filter((pair) => pair.every(Number.isFinite));
    const all = [...target, ...golden, ...worst.flat()];
    const most = all.reduce((top, value) => Math.max(top, Math.abs(value)), 0) || 1;
    const size = 200;
    const at = (/** @type {number} */ value) => size / 2 + (value / most) * (size / 2 - 8);
    const factor = this.picture.slope ?? this.whole.kinds.find((kind) => kind.factor !== undefined)?.factor ?? null;
    const offset = this.whole.kinds.find((kind) => kind.offset !== undefined)?.offset ?? 0;
    const canvas = this.#canvas(size, size, say("scatter"), (pen) => {
      /** @param {number} slope @param {number} plus @param {string} colour */
      const line = (slope, plus, colour) => {
        pen.strokeStyle = colour;
        pen.beginPath();
        pen.moveTo(at(-most), size - at(-most * slope + plus));
        pen.lineTo(at(most), size - at(most * slope + plus));
        pen.stroke();
      };
      pen.save();
      pen.beginPath();
      pen.rect(0, 0, size, size);
      pen.clip();
      line(0, 0, this.home.dark() ? "#2c343d" : "#dde2e8");
      line(1, 0, this.ink);
      pen.fillStyle = "#2563d9";
      target.forEach((value, place) => pen.fillRect(at(golden[place]) - 1, size - at(value) - 1, 2.4, 2.4));
      pen.fillStyle = "#c8401c";
      for (const [one, other] of worst) pen.fillRect(at(other) - 2, size - at(one) - 2, 4, 4);
      pen.lineWidth = 1.6;
      if (factor !== null || offset) line(Number(factor ?? 1), offset, "#c8401c");
      pen.restore();
    });
    const told = factor !== null ? [this.make("p", "inside-legend", say("slope", { n: short(factor) }))] : [];
    return this.make("figure", "", this.make("figcaption", "", say("scatter")), canvas, ...told);
  }

  /** @param {string} title @param {string[]} heads @param {string[][]} rows */
  #table(title, heads, rows) {
    const cells = (/** @type {string[]} */ texts, /** @type {"th" | "td"} */ tag) => {
      const line = this.make("tr", "", ...texts.map((text) => this.make(tag, "", text)));
      if (tag === "th") for (const cell of line.children) cell.setAttribute("scope", "col");
      return line;
    };
    const table = this.make("table", "inside-table", this.make("thead", "", cells(heads, "th")), this.make("tbody", "", ...rows.map((row) => cells(row, "td"))));
    return this.make("figure", "", this.make("figcaption", "", title), table);
  }

  #quantiles() {
    const { say, picture } = this;
    const { at, values, exact } = picture.quantiles;
    const rows = at.map((share, place) => [`${share * 100} %`, ...values.map((side) => short(side[place] ?? null))]);
    return this.#table(`${say("quantiles")}${exact ? "" : ` (${say("sampled")})`}`, ["", ...["target", "golden", "difference"].slice(0, values.length).map((side) => say(side))], rows);
  }

  #worst() {
    const { say, picture } = this;
    if (!picture.worst.length) return this.make("p", "inside-legend", say(picture.apart ? "zeros" : "none"));
    if (picture.apart) {
      const sides = picture.worst.map(([index, one, other]) => [`[${index.join(", ")}]`, ...[one, other].map((value) => (value === null ? "" : short(value)))]);
      return this.#table(say("largest"), [say("index"), say("target"), say("golden")], sides);
    }
    const rows = picture.worst.map(([index, one, other, off]) => [`[${index.join(", ")}]`, short(one), short(other), short(off)]);
    return this.#table(say("worst"), [say("index"), say("target"), say("golden"), say("off")], rows);
  }
}
