// The table: only the rows in view exist as elements, however many there are.

const ROW = 32; // pixels, as in the style sheet
const SPARE = 8; // rows kept ready above and below the view
const WIDTHS = { "#": 72, "Result": 104, "NPU Name": 500, "Bench Name": 500, "Reason": 380, "Err_message": 320, "NPU_Stack_Info": 320,
  "Data_name": 320, "Relative Error": 124, "Origin": 96, "NPU Dtype": 126, "Bench Dtype": 126, "NPU Tensor Shape": 150,
  "Bench Tensor Shape": 150, "Matched By": 110 };
const NARROW = { "#": 50, "Result": 106, "NPU Name": 204, "Bench Name": 204, "Reason": 260 };
const TEXTS = new Set(["Result", "NPU Name", "Bench Name", "Reason", "Err_message", "NPU_Stack_Info", "Data_name", "Origin", "NPU Dtype",
  "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape", "Matched By", "NPU Requires_grad", "Bench Requires_grad",
  "Requires_grad Consistent", "NPU MD5", "BENCH MD5"]);
const MONO = new Set(["NPU Name", "Bench Name", "NPU MD5", "BENCH MD5", "NPU Tensor Shape", "Bench Tensor Shape"]);
const NAMES = new Set(["NPU Name", "Bench Name"]);
const LETTER = 7.55; // pixels of a letter of a name
const USUAL = ["Result", "NPU Name", "Relative Error", "Reason", "Origin", "NPU Dtype", "NPU Tensor Shape", "NPU l2norm", "Bench l2norm",
  "NormRelativeErr", "Cosine", "MaxAbsErr", "One Thousandth Err Ratio", "NPU MD5", "BENCH MD5"];

// On a narrow screen a name leaves room for what is said about it.
function widthOf(name) {
  const narrow = innerWidth < 700;
  if (narrow && name in NARROW) return NARROW[name];
  return WIDTHS[name] || 138;
}

class Grid {
  constructor(table, onOpen, onSort) {
    Object.assign(this, { table, onOpen, onSort, rows: [], selected: -1, sorted: { name: "#", descending: false }, window: [0, 0] });
    this.box = byId("scroller");
    this.element = byId("table");
    this.head = this.element.tHead;
    this.body = this.element.tBodies[0];
    const names = table.columns.map((column) => column.name);
    this.order = ["#", ...USUAL.filter((name) => names.includes(name)), ...names.filter((name) => !USUAL.includes(name))];
    this.visible = new Set(["#", ...USUAL.filter((name) => names.includes(name))]);
    this.listen();
    this.header();
  }

  columns() {
    return this.order.filter((name) => this.visible.has(name));
  }

  header() {
    this.lead = widthOf("NPU Name");
    const cells = this.columns().map((name) => {
      const direction = this.sorted.name === name ? (this.sorted.descending ? "descending" : "ascending") : null;
      const arrow = direction && name !== "#" ? (this.sorted.descending ? " ↓" : " ↑") : "";
      const button = make("button", { type: "button", title: say("sort_by", { column: visible(name) }), onclick: () => this.sort(name) }, visible(name) + arrow);
      return make("th", { scope: "col", class: this.kind(name).replace("mono", ""), "aria-sort": direction && name !== "#" ? direction : null }, button);
    });
    this.head.replaceChildren(make("tr", {}, ...cells));
    this.element.querySelector("colgroup")?.remove();
    let total = 0;
    const widths = this.columns().map((name) => {
      const column = make("col");
      total += widthOf(name);
      column.style.width = widthOf(name) + "px";
      return column;
    });
    this.element.prepend(make("colgroup", {}, ...widths));
    this.element.style.width = total + "px";
    this.element.setAttribute("aria-colcount", String(widths.length));
  }

  kind(name) {
    if (name === "#") return "number dim";
    return [TEXTS.has(name) ? "" : "number", MONO.has(name) ? "mono" : "", name === "NPU Name" ? "lead" : ""].filter(Boolean).join(" ");
  }

  show(rows) {
    this.filtered = rows;
    this.arrange();
  }

  sort(name) {
    const again = this.sorted.name === name;
    this.sortBy(again && this.sorted.descending ? { name: "#", descending: false } : { name, descending: again });
    this.onSort();
  }

  sortBy(sorted) {
    this.sorted = sorted;
    this.header();
    this.arrange();
    this.box.scrollTop = 0;
  }

  arrange() {
    const { name, descending } = this.sorted;
    const column = this.table.byName.get(name);
    if (column) this.rows = sortedRows(this.filtered, column, descending, this.table.count);
    else this.rows = descending ? this.filtered.slice().reverse() : this.filtered;
    this.element.setAttribute("aria-rowcount", String(this.rows.length + 1));
    byId("empty").hidden = this.rows.length > 0;
    this.render(true);
  }

  // Called on every scroll: draws anew only when the view has left what was drawn.
  render(force = false) {
    const first = Math.floor(this.box.scrollTop / ROW);
    const last = first + Math.ceil(this.box.clientHeight / ROW);
    if (!force && first >= this.window[0] && last <= this.window[1]) return;
    const from = Math.max(0, first - SPARE);
    const to = Math.min(this.rows.length, last + SPARE);
    this.window = [from === 0 ? 0 : first - 2, to === this.rows.length ? Infinity : last + 2];
    const columns = this.columns();
    const lines = [this.space(from * ROW, columns.length)];
    for (let i = from; i < to; i++) lines.push(this.line(i, columns));
    lines.push(this.space((this.rows.length - to) * ROW, columns.length));
    this.body.replaceChildren(...lines);
    this.point();
  }

  space(height, span) {
    const cell = make("td", { colspan: String(span) });
    cell.style.height = Math.max(height, 0) + "px";
    return make("tr", { class: "space", "aria-hidden": "true" }, cell);
  }

  line(i, columns) {
    const row = this.rows[i];
    const verdict = VERDICTS[this.table.verdict[row]] || "";
    const cells = columns.map((name) => this.cell(name, row, verdict));
    return make("tr", { class: verdict, id: "row-" + row, "data-row": String(row), "aria-rowindex": String(i + 2),
      "aria-selected": String(row === this.selected) }, ...cells);
  }

  cell(name, row, verdict) {
    const cell = make("td", { class: this.kind(name) });
    if (name === "#") cell.textContent = this.table.number(row).toLocaleString("en");
    else if (name === "Result") cell.append(verdictLabel(verdict || this.table.text(name, row)));
    else {
      const text = this.table.text(name, row);
      if (NAMES.has(name)) cell.append(foreign(shorten(text, Math.floor((widthOf(name) - 20) / LETTER))));
      else cell.append(foreign(TEXTS.has(name) ? text.slice(0, 300) : brief(text)));
      if (text.length > 12) cell.title = visible(text.slice(0, 600));
    }
    return cell;
  }

  point() {
    const line = byId("row-" + this.selected);
    if (line) this.box.setAttribute("aria-activedescendant", line.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  // Select a row and bring it into view; says whether the filters let it through.
  select(row, { centre = false } = {}) {
    const place = this.rows.indexOf(row);
    if (place < 0) return false;
    this.selected = row;
    const room = this.box.clientHeight - ROW;
    const top = place * ROW;
    if (centre) this.box.scrollTop = top - room / 2;
    else if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top > this.box.scrollTop + room - ROW) this.box.scrollTop = top - room + ROW;
    this.render(true);
    return true;
  }

  move(step) {
    if (!this.rows.length) return;
    const place = this.rows.indexOf(this.selected);
    const next = place < 0 ? Math.floor(this.box.scrollTop / ROW) : Math.min(Math.max(place + step, 0), this.rows.length - 1);
    this.select(this.rows[next]);
    this.onOpen(this.rows[next], false);
  }

  listen() {
    let waiting = false;
    this.box.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; this.render(); });
    });
    new ResizeObserver(() => {
      if (widthOf("NPU Name") !== this.lead) this.header();
      this.render(true);
    }).observe(this.box);
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-row]");
      if (!line || String(getSelection())) return;
      this.select(Number(line.dataset.row));
      this.onOpen(this.selected, true);
    });
    const steps = { ArrowDown: () => 1, ArrowUp: () => -1, PageDown: (page) => page, PageUp: (page) => -page, Home: () => -Infinity, End: () => Infinity };
    this.box.addEventListener("keydown", (event) => {
      if (event.target !== this.box) return;
      const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 2);
      if (steps[event.key]) this.move(steps[event.key](page));
      else if ((event.key === "Enter" || event.key === " ") && this.selected >= 0) this.onOpen(this.selected, true);
      else return;
      event.preventDefault();
    });
  }
}
