// Tables that can be sorted by a click on a column and copied as text.

import { copyText, h, iconButton } from "./dom.js";
import { t } from "./i18n.js";

/** @typedef {{text: string, under?: string, differs?: boolean, tone?: string}} Value a cell, the reference under the other */
/** @typedef {{title: string, hint?: string, number?: boolean}} Column */

/**
 * @param {Column[]} columns
 * @param {Value[][]} rows
 * @param {string} caption
 */
export function table(columns, rows, caption) {
  let order = rows.map((_, at) => at);
  let by = -1;
  let down = false;
  const body = h("tbody");
  const heads = columns.map((column, at) =>
    h(
      "th",
      { scope: "col", class: column.number && "number", "aria-sort": "none" },
      h(
        "button",
        { type: "button", title: column.hint || t("sortBy", { column: column.title }), onclick: () => sort(at) },
        column.title,
      ),
    ),
  );
  const fill = () =>
    body.replaceChildren(
      ...order.map((at) => h("tr", {}, ...rows[at].map((value, column) => cell(value, columns[column], column === 0)))),
    );
  /** @param {number} at */
  const sort = (at) => {
    down = by === at ? !down : Boolean(columns[at].number);
    by = at;
    order = rows.map((_, row) => row).sort((a, b) => compare(rows[a][at].text, rows[b][at].text) * (down ? -1 : 1));
    heads.forEach((head, column) =>
      head.setAttribute("aria-sort", column === by ? (down ? "descending" : "ascending") : "none"),
    );
    fill();
  };
  fill();
  const text = () =>
    [columns.map((column) => column.title), ...order.map((at) => rows[at].map(plain))]
      .map((line) => line.join("\t"))
      .join("\n");
  const copy = iconButton("copy", t("copyTable"), () => {
    void copyText(text());
    copy.classList.add("done");
    setTimeout(() => copy.classList.remove("done"), 900);
  });
  return h(
    "figure",
    { class: "table" },
    h("figcaption", {}, h("span", {}, caption), h("span", { class: "count" }, String(rows.length)), copy),
    h(
      "div",
      { class: "table-scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body),
    ),
  );
}

/** @param {Value} value @param {Column} column @param {boolean} first */
function cell(value, column, first) {
  const props = {
    class: [column.number && "number", value.differs && "differs", value.tone].filter(Boolean).join(" "),
    title: value.text.length > 40 ? value.text : null,
  };
  const content = [h("span", {}, value.text), value.under !== undefined && h("span", { class: "under" }, value.under)];
  return first ? h("th", { scope: "row", ...props }, ...content) : h("td", props, ...content);
}

/** @param {Value} value */
function plain(value) {
  const clean = (/** @type {string} */ text) => text.replace(/[\t\n\r]+/g, " ");
  return value.under === undefined ? clean(value.text) : `${clean(value.text)} | ${clean(value.under)}`;
}

/** Numbers by size, what is not a number after them, by letters. @param {string} a @param {string} b */
export function compare(a, b) {
  const [x, y] = [Number.parseFloat(a), Number.parseFloat(b)];
  if (Number.isNaN(x) || Number.isNaN(y))
    return Number(Number.isNaN(x)) - Number(Number.isNaN(y)) || a.localeCompare(b, "en", { numeric: true });
  return x - y;
}
