// All that is known of one row, both sides next to each other.

const PAIRED = [["name", "NPU Name", "Bench Name"], ["dtype", "NPU Dtype", "Bench Dtype"], ["shape", "NPU Tensor Shape", "Bench Tensor Shape"],
  ["requires grad", "NPU Requires_grad", "Bench Requires_grad"], ["max", "NPU max", "Bench max"], ["min", "NPU min", "Bench min"],
  ["mean", "NPU mean", "Bench mean"], ["l2norm", "NPU l2norm", "Bench l2norm"], ["checksum", "NPU MD5", "BENCH MD5"]];
const SHOWN_APART = new Set(["Result", "Reason", "NPU_Stack_Info", "Origin", ...PAIRED.flatMap(([, target, golden]) => [target, golden])]);
const FRAME = /^File (.*), line (\d+), in (.*?), ?\s*([^]*)$/;

class Details {
  constructor(table, onClose, onWide) {
    Object.assign(this, { table, onClose, onWide, row: -1 });
    this.element = byId("details");
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    this.line = byId("splitter");
    this.wide = null;
    this.drag();
  }

  // The line between table and details can be dragged, or moved with the arrow keys.
  drag() {
    let last = 0;
    this.line.addEventListener("pointerdown", (event) => {
      this.line.setPointerCapture(event.pointerId);
      last = event.clientX;
    });
    this.line.addEventListener("pointermove", (event) => {
      if (!event.buttons) return;
      this.widen((this.wide ?? this.element.offsetWidth) + last - event.clientX);
      last = event.clientX;
    });
    this.line.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: 24, ArrowRight: -24 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.widen((this.wide ?? this.element.offsetWidth) + by);
    });
  }

  widen(pixels) {
    this.wide = pixels === null ? null : Math.round(Math.min(Math.max(pixels, 280), innerWidth - 320));
    this.element.style.flexBasis = this.wide === null ? "" : this.wide + "px";
    this.onWide();
  }

  get open() {
    return !this.element.hidden;
  }

  show(row) {
    this.row = row;
    const { table } = this;
    const close = make("button", { type: "button", "aria-label": say("close_details"), onclick: () => this.close() }, say("close"));
    const title = make("div", {}, make("p", { class: "name" }, foreign(table.text("NPU Name", row))));
    const facts = make("p", { class: "hint" }, say("row", { n: table.number(row).toLocaleString("en") }) + " ");
    const origin = table.text("Origin", row);
    if (origin) facts.append("· " + (origin === "injected" || origin === "inherited" ? say(origin) : visible(origin)));
    const verdict = make("p", { class: "why" }, verdictLabel(table.text("Result", row)), " ", foreign(table.text("Reason", row)));
    const sides = PAIRED.filter(([, target]) => table.byName.has(target));
    const rows = sides.map(([name, target, golden]) => [name, table.text(target, row), table.text(golden, row)])
      .filter(([name, target, golden]) => name !== "name" || target !== golden);
    const others = table.columns.filter((column) => !SHOWN_APART.has(column.name)).map((column) => [column.name, column.text(row)]);
    others.unshift(others.pop()); // the relative error, the last column, tells most
    this.element.replaceChildren(
      make("div", { class: "head" }, title, close), facts, verdict, ...this.inside(row),
      make("h3", {}, say("both")), valueTable(make("table", { class: "values" }), ["", say("target"), say("golden")], rows),
      make("h3", {}, say("measured")), valueTable(make("table", { class: "values single" }), null, others),
      ...this.stack(table.stack(row)));
    this.element.hidden = false;
    this.line.hidden = false;
    this.element.scrollTop = 0;
  }

  // What is inside the tensors of the rows that a reader looks at first.
  inside(row) {
    const picture = data.inside[String(row)];
    if (!picture) return [];
    const home = { language: document.documentElement.lang.slice(0, 2), dark: () => matchMedia("(prefers-color-scheme: dark)").matches };
    return [make("h3", {}, say("inside_title")), new TensorView(picture, home).element];
  }

  stack(lines) {
    if (!lines.length) return [];
    const list = make("ol", { class: "frames" });
    for (const frame of lines.map(unquoted)) {
      const parts = FRAME.exec(frame);
      if (!parts) {
        list.append(make("li", {}, foreign(frame)));
        continue;
      }
      const own = !/site-packages|dist-packages|[/\\]torch[/\\]|[/\\]mindspore[/\\]|importlib/.test(parts[1]);
      list.append(make("li", { class: own ? "own" : "" }, foreign(`${parts[1]}:${parts[2]} ${parts[3]}`, "where"), foreign(parts[4].trim())));
    }
    return [make("h3", {}, say("stack")), list];
  }

  close() {
    if (!this.open) return;
    this.element.hidden = true;
    this.line.hidden = true;
    this.row = -1;
    this.onClose();
  }
}

// A frame is a text as Python writes it, with its quotes.
function unquoted(text) {
  if (!/^(['"])[^]*\1$/.test(text)) return text;
  const letters = { n: "\n", t: "\t", r: "\r" };
  return text.slice(1, -1).replace(/\\([^])/g, (_, letter) => letters[letter] || letter);
}
