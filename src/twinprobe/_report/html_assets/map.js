"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MODE = 0, STEP = 1, RANK = 2, VERDICT = 3, ERRORS = 4, WARNINGS = 5, WORDS = 6;
  const SIZE = 12, GAP = 2, PER_LINE = 64, MOST_ROWS = 500;
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const number = (value) => value.toLocaleString("en");
  const place = (cell) => (cell[MODE] ? `${cell[MODE]}, ` : "") + `step ${cell[STEP]}, rank ${cell[RANK]}`;
  const colours = data.verdicts.map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`));

  byId("summary").textContent = (data.counts.failed ? `${number(data.cells.length - data.counts.failed)} of ` : "")
    + `${number(data.cells.length)} ranks and steps compared`
    + (data.finished ? "" : "; the command was interrupted, --resume goes on") + `; all rows: ${data.dataset}`;
  byId("runs").textContent = `${data.target} against ${data.golden}`;
  for (const text of data.findings) byId("findings").append(make("li", text));
  for (const text of data.notes) byId("notes").append(make("li", text));
  for (const name of data.verdicts) {
    const entry = make("span");
    entry.append(make("i", undefined, name), `${name}: ${number(data.counts[name])}`);
    byId("legend").append(entry);
  }

  const show = (cell) => {
    byId("details").textContent = `${place(cell)}: ${data.verdicts[cell[VERDICT]]}, ${number(cell[ERRORS])} errors, `
      + `${number(cell[WARNINGS])} warnings${cell[WORDS] ? `; ${cell[WORDS]}` : ""}`;
  };

  const draw = (title, cells) => {
    const canvas = make("canvas");
    const wide = Math.min(PER_LINE, cells.length), high = Math.ceil(cells.length / PER_LINE);
    const ratio = window.devicePixelRatio || 1, step = SIZE + GAP;
    canvas.width = wide * step * ratio;
    canvas.height = high * step * ratio;
    canvas.style.width = `${wide * step}px`;
    canvas.style.height = `${high * step}px`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}: the table below lists what differs`);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    cells.forEach((cell, at) => {
      pen.fillStyle = colours[cell[VERDICT]];
      pen.fillRect((at % PER_LINE) * step, Math.floor(at / PER_LINE) * step, SIZE, SIZE);
    });
    canvas.addEventListener("mousemove", (event) => {
      const cell = cells[Math.floor(event.offsetY / step) * PER_LINE + Math.floor(event.offsetX / step)];
      if (cell) show(cell);
    });
    byId("maps").append(make("h2", title), canvas);
  };

  const groups = new Map();
  for (const cell of data.cells) {
    const title = (cell[MODE] ? `${cell[MODE]}, ` : "") + `step ${cell[STEP]}`;
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title).push(cell);
  }
  for (const [title, cells] of groups) draw(`${title}: ranks ${cells[0][RANK]} to ${cells[cells.length - 1][RANK]}`, cells);

  const worst = data.cells.filter((cell) => cell[VERDICT] > 0)
    .sort((one, other) => other[VERDICT] - one[VERDICT] || one[STEP] - other[STEP] || other[ERRORS] - one[ERRORS]);
  byId("caption").textContent = worst.length > MOST_ROWS
    ? `The worst ${number(MOST_ROWS)} of ${number(worst.length)}` : `${number(worst.length)} that do not pass`;
  for (const cell of worst.slice(0, MOST_ROWS)) {
    const row = make("tr");
    for (const text of [cell[STEP], cell[RANK], data.verdicts[cell[VERDICT]], number(cell[ERRORS]), number(cell[WARNINGS]), cell[WORDS]]) {
      row.append(make("td", String(text)));
    }
    byId("rows").append(row);
  }
})();
