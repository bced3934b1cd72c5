// All that is known of one row, both sides next to each other.

const PAIRED = [["name", "NPU Name", "Bench Name"], ["dtype", "NPU Dtype", "Bench Dtype"], ["shape", "NPU Tensor Shape", "Bench Tensor Shape"],
  ["requires grad", "NPU Requires_grad", "Bench Requires_grad"], ["max", "NPU max", "Bench max"], ["min", "NPU min", "Bench min"],
  ["mean", "NPU mean", "Bench mean"], ["l2norm", "NPU l2norm", "Bench l2norm"], ["checksum", "NPU MD5", "BENCH MD5"]];
const SHOWN_APART = new Set(["Result", "Reason", "NPU_Stack_Info", "Origin", ...PAIRED.flatMap(([, target, golden]) => [target, golden])]);
const FRAME = /^File (.*), line (\d+), in (.*?), ?\s*([^]*)$/;

class Details {
  constructor(table, onClose) {
    Object.assign(this, { table, onClose, row: -1 });
    this.element = byId("details");
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
  }

  get open() {
    return !this.element.hidden;
  }

  show(row) {
    this.row = row;
    const { table } = this;
    const close = make("button", { type: "button", "aria-label": "Close the details", onclick: () => this.close() }, "Close");
    const title = make("div", {}, make("p", { class: "name" }, foreign(table.text("NPU Name", row))));
    const facts = make("p", { class: "hint" }, `row ${table.number(row).toLocaleString("en")} `);
    const origin = table.text("Origin", row);
    if (origin) facts.append("· " + visible(origin));
    const verdict = make("p", { class: "why" }, verdictLabel(table.text("Result", row)), " ", foreign(table.text("Reason", row)));
    const sides = PAIRED.filter(([, target]) => table.byName.has(target));
    const rows = sides.map(([name, target, golden]) => [name, table.text(target, row), table.text(golden, row)])
      .filter(([name, target, golden]) => name !== "name" || target !== golden);
    const others = table.columns.filter((column) => !SHOWN_APART.has(column.name)).map((column) => [column.name, column.text(row)]);
    others.unshift(others.pop()); // the relative error, the last column, tells most
    this.element.replaceChildren(
      make("div", { class: "head" }, title, close), facts, verdict,
      make("h3", {}, "Both sides"), valueTable(make("table", { class: "values" }), ["", "target", "golden"], rows),
      make("h3", {}, "Measured"), valueTable(make("table", { class: "values single" }), null, others),
      ...this.stack(table.stack(row)));
    this.element.hidden = false;
    this.element.scrollTop = 0;
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
    return [make("h3", {}, "Call stack, innermost first"), list];
  }

  close() {
    if (!this.open) return;
    this.element.hidden = true;
    this.onClose();
  }
}

// A frame is a text as Python writes it, with its quotes.
function unquoted(text) {
  if (!/^(['"])[^]*\1$/.test(text)) return text;
  const letters = { n: "\n", t: "\t", r: "\r" };
  return text.slice(1, -1).replace(/\\([^])/g, (_, letter) => letters[letter] || letter);
}
