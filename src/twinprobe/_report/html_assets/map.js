"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MODE = 0, STEP = 1, RANK = 2, VERDICT = 3, ERRORS = 4, WARNINGS = 5, WORDS = 6, TIMES = 7;
  const LABEL = 64, TOP = 18, WORST = 6; // WORST: powers of ten of the noise at which the colours end
  const PER_LINE = Math.min(32, Math.max(8, 8 * Math.floor((innerWidth - LABEL - 60) / 160))); // ranks of a single step: whole eights
  const chinese = navigator.language.toLowerCase().startsWith("zh");
  const english = {
    ranks: "{n} ranks", steps: "{n} steps", places: "{n} results (ranks × steps)", compared: "{n} of {all} compared",
    interrupted: "the command was interrupted; --resume continues it", all_rows: "all rows: {where}", against: "{target} against {golden}",
    pass: "pass", warning: "warning", error: "error", failed: "not compared", noise: "worst error: 1 × noise", times: "10⁶ × noise",
    point: "Point at a square to see what it is. Arrow keys move.", calls: "calls", optimizer: "optimizer",
    point_open: "Point at a square to see what it is; click to open its report. Arrow keys move, Enter opens.",
    step: "step {n}", rank: "rank {n}", counts: "{errors} errors, {warnings} warnings", times_noise: "{n} times the noise", open: "report",
    began: "where the difference starts", map: "map of ranks and steps", differ: "what does not pass", column_steps: "steps", column_ranks: "ranks", column_places: "steps and ranks", column_parts: "result", at: "step {steps}: rank {ranks}",
    column_verdict: "verdict", column_count: "results", column_times: "worst, times noise", column_where: "where it starts", groups: "Findings: {n}; results that do not pass: {cells}",
    nothing: "Everything passes.", elsewhere: "differs, but the difference did not start here",
  };
  const words = chinese ? {
    ranks: "{n} 个 rank", steps: "{n} 个 step", places: "{n} 个结果（rank × step）", compared: "共 {all} 个，已比对 {n} 个",
    interrupted: "命令被中断，可用 --resume 继续", all_rows: "全部数据：{where}", against: "{target} 对比 {golden}",
    pass: "通过", warning: "告警", error: "错误", failed: "未比对", noise: "最大误差：1 × 噪声", times: "10⁶ × 噪声",
    point: "指向方块查看对应结果。方向键移动。", calls: "调用", optimizer: "优化器",
    point_open: "指向方块查看对应结果；点击打开其报告。方向键移动，Enter 打开。",
    step: "step {n}", rank: "rank {n}", counts: "{errors} 个错误，{warnings} 个告警", times_noise: "噪声的 {n} 倍", open: "报告",
    began: "差异的起点", map: "rank 与 step 分布图", differ: "未通过的结果", column_steps: "step", column_ranks: "rank", column_places: "step 与 rank", column_parts: "结果", at: "step {steps}：rank {ranks}",
    column_verdict: "结论", column_count: "个数", column_times: "最大噪声倍数", column_where: "起点", groups: "{n} 类发现，{cells} 个结果未通过",
    nothing: "全部通过。", elsewhere: "有差异，但起点不在此处",
  } : english;
  const say = (key, values = {}) => words[key].replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const number = (value) => value.toLocaleString("en");
  const brief = (value) => (value >= 1e5 || value < 0.01 ? value.toExponential(1) : String(+value.toPrecision(3)));
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const channels = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const mix = (one, other, share) => `rgb(${channels(one).map((part, at) => Math.round(part + (channels(other)[at] - part) * share)).join(" ")})`;

  // Green up to the noise, then through yellow to red; what has no number has the colour of its verdict.
  const fillOf = (cell) => {
    const verdict = data.verdicts[cell[VERDICT]];
    if (verdict === "pass" || verdict === "failed" || cell[TIMES] === null) return colour(verdict);
    const share = Math.min(1, Math.max(0, Math.log10(Math.max(cell[TIMES], 1)) / WORST));
    return share < 0.45 ? mix(colour("pass"), colour("warning"), Math.max(0.35, share / 0.45)) : mix(colour("warning"), colour("error"), (share - 0.45) / 0.55);
  };
  const rank = (n) => (data.parts.length ? say(data.parts[n]) : say("rank", { n }));
  const place = (cell) => [cell[MODE], data.noun !== "ranks" && say("step", { n: cell[STEP] }), data.noun !== "steps" && rank(cell[RANK])]
    .filter(Boolean).join(", ");

  if (chinese) document.documentElement.lang = "zh-CN";
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", say(element.dataset.label));
  byId("title").textContent = document.title.replace(/^TwinProbe: /, "");
  if (chinese) {
    const counts = ["error", "warning", "failed"].filter((name) => data.counts[name]).map((name) => `${say(name)} ${number(data.counts[name])}`);
    byId("title").textContent = `${say(data.noun, { n: number(data.cells.length) })}：${counts.join("，") || say("nothing")}`;
  }
  byId("summary").textContent = [
    data.counts.failed && say("compared", { n: number(data.cells.length - data.counts.failed), all: number(data.cells.length) }),
    !data.finished && say("interrupted"), data.dataset && say("all_rows", { where: data.dataset })].filter(Boolean).join("; ");
  byId("runs").textContent = say("against", data);
  const hint = say(data.reports.some(Boolean) ? "point_open" : "point");
  byId("details").textContent = hint;
  for (const text of data.findings) byId("findings").append(make("li", text));
  for (const text of data.notes) byId("notes").append(make("li", text));
  const scaled = data.cells.some((cell) => cell[TIMES] !== null);
  for (const name of data.verdicts) {
    const entry = make("span");
    // Where errors have a scale, its colours are those of the squares, whatever their verdict.
    if (!scaled || name === "pass" || name === "failed") entry.append(make("i", undefined, name));
    entry.append(`${say(name)}: ${number(data.counts[name])}`);
    byId("legend").append(entry);
  }
  if (scaled) {
    const scale = make("span");
    scale.append(say("noise"), make("i", undefined, "times"), say("times"));
    byId("legend").append(scale);
  }

  const show = (cell) => {
    const said = [data.verdicts[cell[VERDICT]] === "failed" ? say("failed") : say("counts", { errors: number(cell[ERRORS]), warnings: number(cell[WARNINGS]) }),
      cell[TIMES] !== null && say("times_noise", { n: brief(cell[TIMES]) }), cell[WORDS]].filter(Boolean).join("; ");
    byId("details").replaceChildren(`${place(cell)}: ${said}`);
    const link = data.reports[data.cells.indexOf(cell)];
    if (!link) return;
    const anchor = make("a", say("open"));
    anchor.href = link;
    byId("details").append(" ", anchor);
  };

  // One square a rank: steps below each other; the ranks of a single step in lines.
  const draw = (title, cells) => {
    const steps = [...new Set(cells.map((cell) => cell[STEP]))], ranks = [...new Set(cells.map((cell) => cell[RANK]))];
    const parts = data.parts.length > 0, lines = parts || steps.length > 1; // the parts of one run: a line each
    const numbers = parts ? steps : ranks; // above the columns
    const columns = lines ? numbers.length : Math.min(PER_LINE, cells.length);
    const high = parts ? ranks.length : lines ? steps.length : Math.ceil(cells.length / PER_LINE);
    const size = Math.max(lines ? 5 : 12, Math.min(24, Math.floor((Math.min(innerWidth, 1280) - LABEL - 60) / columns)));
    const spot = (cell, at) => (parts ? [steps.indexOf(cell[STEP]), ranks.indexOf(cell[RANK])]
      : lines ? [ranks.indexOf(cell[RANK]), steps.indexOf(cell[STEP])] : [at % PER_LINE, Math.floor(at / PER_LINE)]);
    const canvas = make("canvas"), ratio = window.devicePixelRatio || 1;
    const [width, height] = [LABEL + columns * size, TOP + high * size];
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${title || say("map")}. ${hint}`);
    const pen = canvas.getContext("2d");
    const spots = new Map(cells.map((cell, at) => [spot(cell, at).join(), cell]));
    let now = [0, 0];
    const paint = () => {
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      pen.fillStyle = colour("soft");
      const every = Math.ceil((8 * String(lines ? Math.max(...numbers) : `+${columns}`).length + 4) / size);
      if (lines) pen.fillText(parts ? "step" : "rank", 0, TOP / 2);
      for (let at = 0; at < columns; at += every) pen.fillText(String(lines ? numbers[at] : `+${at}`), LABEL + at * size + 2, TOP / 2);
      for (let at = 0; at < high; at += Math.ceil(13 / size)) {
        const first = cells[at * PER_LINE];
        pen.fillText(parts ? rank(ranks[at]) : lines ? say("step", { n: steps[at] }) : rank(first[RANK]), 0, TOP + at * size + size / 2);
      }
      cells.forEach((cell, at) => {
        const [x, y] = spot(cell, at);
        pen.fillStyle = fillOf(cell);
        pen.fillRect(LABEL + x * size + 1, TOP + y * size + 1, size - 2, size - 2);
      });
      if (document.activeElement !== canvas) return;
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(LABEL + now[0] * size + 1, TOP + now[1] * size + 1, size - 2, size - 2);
    };
    const at = (event) => [Math.floor((event.offsetX - LABEL) / size), Math.floor((event.offsetY - TOP) / size)];
    const open = (cell) => {
      const link = cell && data.reports[data.cells.indexOf(cell)];
      if (link) location.href = link;
    };
    canvas.addEventListener("mousemove", (event) => {
      const cell = spots.get(at(event).join());
      if (cell) show(cell);
    });
    canvas.addEventListener("click", (event) => open(spots.get(at(event).join())));
    canvas.addEventListener("focus", paint);
    canvas.addEventListener("blur", paint);
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Enter") open(spots.get(now.join()));
      else if (move && spots.has([now[0] + move[0], now[1] + move[1]].join())) now = [now[0] + move[0], now[1] + move[1]];
      else return;
      event.preventDefault();
      show(spots.get(now.join()));
      paint();
    });
    const box = make("div", undefined, "scroll");
    box.append(canvas);
    if (title) byId("maps").append(make("h2", title));
    byId("maps").append(box);
    paint();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  };

  const modes = new Map();
  for (const cell of data.cells) {
    if (!modes.has(cell[MODE])) modes.set(cell[MODE], []);
    modes.get(cell[MODE]).push(cell);
  }
  for (const [mode, cells] of modes) draw(mode, cells);

  // Ranks with the same finding are one line.
  const bad = data.cells.filter((cell) => cell[VERDICT] > 0).length;
  byId("caption").textContent = bad ? say("groups", { n: number(data.groups.length), cells: number(bad) }) : say("nothing");
  const heads = bad ? ["verdict", "count", data.parts.length ? "parts" : data.noun, "times", "where"] : [];
  for (const name of heads) {
    const head = make("th", say(`column_${name}`));
    head.scope = "col";
    byId("heads").append(head);
  }
  const named = ([steps, ranks]) => (data.noun === "steps" ? steps
    : data.parts.length ? [data.noun === "places" && say("step", { n: steps }), ranks.split("-").map((n) => rank(n)).join(", ")].filter(Boolean).join(", ")
      : data.noun === "ranks" ? ranks : say("at", { steps, ranks }));
  for (const [verdict, places, where, count, worst] of data.groups) {
    const row = make("tr"), mark = make("td");
    const square = make("i");
    square.style.background = fillOf(data.cells[worst]);
    mark.append(square, say(verdict));
    const times = data.cells[worst][TIMES];
    const cells = { verdict: mark, count: make("td", number(count)), [heads[2]]: make("td", places.map(named).join("; ")),
      times: make("td", times === null ? "" : brief(times)), where: make("td", where || say("elsewhere")) };
    for (const name of [heads[2], "times"]) cells[name].dataset.name = say(`column_${name}`);
    if (data.reports[worst]) {
      const anchor = make("a", say("open"));
      anchor.href = data.reports[worst];
      cells.where.append(" ", anchor);
    }
    for (const name of heads) row.append(cells[name]);
    byId("rows").append(row);
  }
})();
