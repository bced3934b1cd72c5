// Puts the page together: what was found, the plot, the filters and the table.

const data = JSON.parse(byId("data").textContent);
const summary = data.summary;
const table = new Table(data.table);
const firstRow = summary.first ? table.rowAt(summary.first.order) : -1;
const state = { text: "", words: [], verdicts: new Set(VERDICTS), origin: "*", lang: "" };
const count = (number) => number.toLocaleString("en");

// Loss, outputs, gradients, updates: do they agree, and by how much.
function showResults() {
  const lines = (summary.results || []).map((result) => {
    const share = result.worst >= 1e-4 ? `${+(100 * result.worst).toPrecision(3)} %` : result.worst?.toExponential(1);
    const size = result.worst ? say("worst", { share, eps: tidy(result.worst_eps, 3) }) : say("equal");
    const key = result.name === "loss" ? (result.agrees ? "one_agrees" : "one_differs") : result.agrees ? "agrees_with" : "differs_with";
    return make("li", { title: visible(result.where) }, mark(result.agrees ? "pass" : "error"), say(key, { what: say(result.name), size }));
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
    byId("first-kicker").textContent = say("no_divergence");
    const results = summary.results || [];
    const apart = results.some((result) => !result.agrees);
    const noise = !summary.unread && results.length;
    const alone = summary.target_only + summary.golden_only;
    byId("first-title").textContent = say(quiet ? "agree" : apart ? "apart" : noise ? "agree_noise" : "no_output");
    byId("first-sentence").textContent = quiet ? say("all_pass", { n: count(summary.rows) })
      : [say("say_what"), alone ? say("one_sided", { n: count(alone), all: count(summary.rows) }) : "", summary.unread ? say("unread", { n: count(summary.unread), rows: summary.unread === 1 ? "1 row" : `${count(summary.unread)} rows` }) : ""].filter(Boolean).join(" ");
    return;
  }
  const inside = first.module && !first.op.includes(first.module) ? say("inside", { module: first.module }) : "";
  byId("first-kicker").textContent = visible([say("first"), inside, say(first.origin), first.order < 0 ? "optimizer.json" : say("row", { n: count(first.order + 1) })].filter(Boolean).join(" · "));
  byId("first-title").append(foreign(first.op));
  byId("first-sentence").append(foreign(first.sentence));
  if (first.stack_line) {
    byId("first-stack").append(foreign(first.stack_line.replace(/^File (.+?), line (\d+), in ([^,]+),\s*/, "$1:$2, in $3: ")));
    byId("first-stack").hidden = false;
  }
  const names = [...new Set([...Object.keys(first.target_values), ...Object.keys(first.golden_values)])];
  const values = names.map((name) => [name, first.target_values[name] ?? "–", first.golden_values[name] ?? "–"]);
  valueTable(byId("first-values"), ["", say("target"), say("golden")], values).hidden = !names.length;
  byId("first-show").hidden = firstRow < 0;
  byId("first-show").addEventListener("click", () => jump(firstRow));
}

function showCounts() {
  const badges = [summary.mode, summary.rank, summary.target.framework === summary.golden.framework ? summary.target.framework
    : say("against", { target: summary.target.framework, golden: summary.golden.framework })];
  byId("badges").append(...badges.filter(Boolean).map((text) => make("span", { class: "badge" }, foreign(text))));
  const cards = VERDICTS.map((verdict) => {
    const amount = summary.verdicts[verdict] || 0;
    const label = say(verdict === "pass" || amount === 1 ? verdict : verdict + "s");
    const card = make("button", { type: "button", class: `card ${amount ? verdict : "none"}`, title: say("only_these"), onclick: () => only(verdict) });
    card.append(make("b", {}, count(amount)), make("span", {}, mark(verdict), label));
    return card;
  });
  const numbers = [["rows", summary.rows], ["matched", summary.matched], ["target_only", summary.target_only], ["golden_only", summary.golden_only]];
  if (summary.unread) numbers.push(["unreadable", summary.unread]);
  cards.push(...numbers.map(([label, amount]) => make("div", { class: amount ? "card" : "card none" }, make("b", {}, count(amount)), make("span", {}, say(label)))));
  byId("cards").append(...cards);
  byId("legend").append(...VERDICTS.map((verdict) => make("span", {}, mark(verdict), say(verdict))));
  if (table.expected) byId("legend").append(make("span", {}, make("i", { class: "noise" }), say("noise")));
}

function showRuns() {
  const facts = [["path", "path"], ["framework", "framework"], ["task", "task"], ["level", "level"], ["calls", "ops"], ["values", "rows"]];
  const text = (value) => (typeof value === "number" ? count(value) : value);
  const rows = facts.map(([name, key]) => [say(name), text(summary.target[key]), text(summary.golden[key])]);
  valueTable(byId("runs"), ["", say("target"), say("golden")], rows, false);
  byId("notes").append(...summary.notes.map((note) => make("li", {}, foreign(note))));
}

// Every word must occur somewhere in a row; words in quotes must occur together.
function searchFor(text) {
  state.text = text;
  state.words = (text.toLowerCase().match(/"[^"]+"|\S+/g) || []).map((word) => word.replace(/^"(.+)"$/, "$1"));
}

function applyFilter() {
  const rows = table.filter(state);
  grid.show(rows);
  plot.show(rows);
  byId("count").textContent = rows.length === table.count ? say("n_rows", { n: count(rows.length) })
    : say("n_of_rows", { n: count(rows.length), all: count(table.count) });
  for (const button of byId("verdicts").children) button.setAttribute("aria-pressed", String(state.verdicts.has(button.dataset.verdict)));
}

function clearFilter() {
  Object.assign(state, { text: "", words: [], verdicts: new Set(VERDICTS), origin: "*" });
  byId("search").value = "";
  byId("origin").value = "*";
  applyFilter();
}

function only(verdict) {
  clearFilter();
  state.verdicts = new Set([verdict]);
  applyFilter();
  remember(true);
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
  if (innerWidth < 900) byId("details").scrollIntoView({ block: "nearest" });
  byId("scroller").focus({ preventScroll: true });
  remember(true);
}

let following = false; // an address is being shown: nothing of it is a step of its own

function remember(step) {
  if (following) return;
  const row = details.open ? table.number(details.row) : null;
  const sort = grid.sorted.name === "#" && !grid.sorted.descending ? null : grid.sorted;
  address.write({ ...state, row, sort, zoom: plot.zoomed ? plot.range : null, wide: details.wide }, step);
}

// Show what an address says.
function follow(wanted) {
  following = true;
  Object.assign(state, { verdicts: wanted.verdicts, origin: wanted.origin, lang: wanted.lang });
  searchFor(wanted.text);
  byId("search").value = wanted.text;
  byId("origin").value = wanted.origin;
  applyFilter();
  if (wanted.sort && grid.order.includes(wanted.sort.name)) grid.sortBy(wanted.sort);
  else if (grid.sorted.name !== "#") grid.sortBy({ name: "#", descending: false });
  if (wanted.zoom && wanted.zoom[0] < wanted.zoom[1]) plot.zoom(...wanted.zoom);
  else if (plot.zoomed) plot.whole();
  if (wanted.wide) details.widen(wanted.wide);
  const row = wanted.row === null ? -1 : table.rowAt(wanted.row - 1);
  if (row < 0) details.close();
  else jump(row);
  following = false;
}

function listen() {
  let timer = 0;
  byId("search").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      searchFor(event.target.value);
      applyFilter();
      remember(false);
    }, 120);
  });
  // Enter goes to the first row that was found, the arrows to the others.
  byId("search").addEventListener("keydown", (event) => {
    const step = { Enter: 0, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    clearTimeout(timer);
    searchFor(event.target.value);
    applyFilter();
    if (!grid.rows.length) return;
    if (step === 0 || !grid.rows.includes(grid.selected)) grid.select(grid.rows[0]);
    else grid.move(step);
    details.show(grid.selected);
    remember(true);
  });
  byId("language").addEventListener("click", () => {
    state.lang = document.documentElement.lang === "en" ? "zh" : "en";
    remember(false);
    location.reload();
  });
  byId("verdicts").append(...VERDICTS.map((verdict) => make("button", { type: "button", "data-verdict": verdict, "aria-pressed": "true", onclick: () => {
    if (!state.verdicts.delete(verdict)) state.verdicts.add(verdict);
    applyFilter();
    remember(true);
  } }, mark(verdict), say(verdict))));
  byId("origin").addEventListener("change", (event) => {
    state.origin = event.target.value;
    applyFilter();
    remember(true);
  });
  byId("clear").addEventListener("click", () => {
    clearFilter();
    remember(true);
  });
  // The address holds what is shown, so a link within the page must not replace it.
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("scroller").focus();
  });
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

const address = new Address(follow);
speak(address.read().lang);
const details = new Details(table, () => {
  byId("scroller").focus({ preventScroll: true });
  remember(true);
}, () => remember(false));
const grid = new Grid(table, (row, wanted) => {
  if (!wanted && !details.open) return;
  details.show(row);
  remember(wanted);
}, () => remember(true));
const plot = new Plot(table, firstRow, jump, () => remember(true));
showResults();
showFirst();
showCounts();
showRuns();
listen();
follow(address.read());
document.documentElement.dataset.ready = "yes";
