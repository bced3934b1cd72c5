// Puts the page together: what was found, the plot, the filters and the table.

const data = JSON.parse(byId("data").textContent);
const summary = data.summary;
const table = new Table(data.table);
const firstRow = summary.first ? table.rowAt(summary.first.order) : -1;
const state = { words: [], verdicts: new Set(VERDICTS), origin: "*" };
const count = (number) => number.toLocaleString("en");

// Loss, outputs, gradients, updates: do they agree, and by how much.
function showResults() {
  const lines = (summary.results || []).map((result) => {
    const size = result.worst ? `worst ${result.worst >= 1e-4 ? `${+(100 * result.worst).toPrecision(3)} %` : result.worst.toExponential(1)}, ${+result.worst_eps.toPrecision(3)} eps` : "equal";
    const plural = result.name === "loss" ? "s" : "";
    return make("li", { title: visible(result.where) }, mark(result.agrees ? "pass" : "error"),
      `${result.name} ${result.agrees ? `agree${plural}` : `differ${plural}`} (${size})`);
  });
  byId("results").append(...lines);
  byId("results").hidden = !lines.length;
}

function showFirst() {
  const panel = byId("first");
  const { first } = summary;
  if (!first) {
    const quiet = !summary.verdicts.error && !summary.verdicts.warning;
    panel.classList.add(quiet ? "good" : "mild");
    byId("first-kicker").textContent = "No divergence";
    const noise = !summary.unread && (summary.results || []).length;
    byId("first-title").textContent = quiet ? "The two runs agree" : noise ? "The two runs agree within noise" : "No output differs whose inputs agree";
    byId("first-sentence").textContent = quiet ? `All ${count(summary.rows)} rows pass.`
      : `The warnings and errors in the table say what was seen.${summary.unread ? ` ${count(summary.unread)} row${summary.unread === 1 ? "" : "s"} could not be read: there a difference may have gone unnoticed.` : ""}`;
    return;
  }
  const inside = first.module && !first.op.includes(first.module) ? `in ${first.module}` : "";
  byId("first-kicker").textContent = visible(["First divergence", inside, first.origin, `row ${count(first.order + 1)}`].filter(Boolean).join(" · "));
  byId("first-title").append(foreign(first.op));
  byId("first-sentence").append(foreign(first.sentence));
  if (first.stack_line) {
    byId("first-stack").append(foreign(first.stack_line));
    byId("first-stack").hidden = false;
  }
  const names = [...new Set([...Object.keys(first.target_values), ...Object.keys(first.golden_values)])];
  const values = names.map((name) => [name, first.target_values[name] ?? "–", first.golden_values[name] ?? "–"]);
  valueTable(byId("first-values"), ["", "target", "golden"], values).hidden = !names.length;
  byId("first-show").hidden = firstRow < 0;
  byId("first-show").addEventListener("click", () => jump(firstRow));
}

function showCounts() {
  const badges = [summary.mode, summary.rank, summary.target.framework === summary.golden.framework ? summary.target.framework
    : `${summary.target.framework} against ${summary.golden.framework}`];
  byId("badges").append(...badges.filter(Boolean).map((text) => make("span", { class: "badge" }, foreign(text))));
  const cards = VERDICTS.map((verdict) => {
    const amount = summary.verdicts[verdict] || 0;
    const label = { error: amount === 1 ? "error" : "errors", warning: amount === 1 ? "warning" : "warnings", pass: "pass" }[verdict];
    const card = make("button", { type: "button", class: `card ${amount ? verdict : "none"}`, title: "Show only these rows", onclick: () => only(verdict) });
    card.append(make("b", {}, count(amount)), make("span", {}, mark(verdict), label));
    return card;
  });
  const numbers = [["rows", summary.rows], ["matched", summary.matched], ["only in target", summary.target_only], ["only in golden", summary.golden_only]];
  if (summary.unread) numbers.push(["unreadable", summary.unread]);
  cards.push(...numbers.map(([label, amount]) => make("div", { class: amount ? "card" : "card none" }, make("b", {}, count(amount)), make("span", {}, label))));
  byId("cards").append(...cards);
  byId("legend").append(...VERDICTS.map((verdict) => make("span", {}, mark(verdict), verdict)));
  if (table.expected) byId("legend").append(make("span", {}, make("i", { class: "noise" }), "noise to be expected"));
}

function showRuns() {
  const facts = [["path", "path"], ["framework", "framework"], ["task", "task"], ["level", "level"], ["calls", "ops"], ["values", "rows"]];
  const text = (value) => (typeof value === "number" ? count(value) : value);
  const rows = facts.map(([name, key]) => [name, text(summary.target[key]), text(summary.golden[key])]);
  valueTable(byId("runs"), ["", "target", "golden"], rows, false);
  byId("notes").append(...summary.notes.map((note) => make("li", {}, foreign(note))));
}

function applyFilter() {
  const rows = table.filter(state);
  grid.show(rows);
  plot.show(rows);
  byId("count").textContent = rows.length === table.count ? `${count(rows.length)} rows` : `${count(rows.length)} of ${count(table.count)} rows`;
  for (const button of byId("verdicts").children) button.setAttribute("aria-pressed", String(state.verdicts.has(button.dataset.verdict)));
}

function clearFilter() {
  Object.assign(state, { words: [], verdicts: new Set(VERDICTS), origin: "*" });
  byId("search").value = "";
  byId("origin").value = "*";
  applyFilter();
}

function only(verdict) {
  clearFilter();
  state.verdicts = new Set([verdict]);
  applyFilter();
  byId("rows").scrollIntoView();
}

// Show a row in the table, whatever the filters are, with its details.
function jump(row) {
  if (!grid.select(row, { centre: true })) {
    clearFilter();
    grid.select(row, { centre: true });
  }
  details.show(row);
  byId("rows").scrollIntoView({ block: "nearest" });
  grid.select(row, { centre: true });
  byId("scroller").focus({ preventScroll: true });
}

function listen() {
  let timer = 0;
  byId("search").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      // Every word must occur somewhere in a row; words in quotes must occur together.
      state.words = (event.target.value.toLowerCase().match(/"[^"]+"|\S+/g) || []).map((word) => word.replace(/^"(.+)"$/, "$1"));
      applyFilter();
    }, 120);
  });
  byId("verdicts").append(...VERDICTS.map((verdict) => make("button", { type: "button", "data-verdict": verdict, "aria-pressed": "true", onclick: () => {
    if (!state.verdicts.delete(verdict)) state.verdicts.add(verdict);
    applyFilter();
  } }, mark(verdict), verdict)));
  byId("origin").addEventListener("change", (event) => {
    state.origin = event.target.value;
    applyFilter();
  });
  byId("clear").addEventListener("click", clearFilter);
  byId("columns").append(...grid.order.map((name) => {
    const box = make("input", { type: "checkbox", checked: grid.visible.has(name) });
    box.addEventListener("change", () => {
      if (!grid.visible.delete(name)) grid.visible.add(name);
      grid.header();
      grid.render(true);
    });
    return make("label", {}, box, visible(name));
  }));
  const chooser = byId("chooser");
  document.addEventListener("click", (event) => { if (!chooser.contains(event.target)) chooser.open = false; });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (chooser.open) chooser.open = false;
    else details.close();
  });
}

const details = new Details(table, () => byId("scroller").focus({ preventScroll: true }));
const grid = new Grid(table, (row, wanted) => { if (wanted || details.open) details.show(row); });
const plot = new Plot(table, firstRow, jump);
showResults();
showFirst();
showCounts();
showRuns();
listen();
applyFilter();
document.documentElement.dataset.ready = "yes";
