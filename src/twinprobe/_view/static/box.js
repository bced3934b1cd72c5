// What stands in a box: opener, mark, name, value and signs.

import { shown } from "./colors.js";
import { h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { label } from "./labels.js";
import { shorten } from "./names.js";

/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./colors.js").Paint} Paint */

let letter = 0;

export function makeBox() {
  return h("div", { role: "treeitem", class: "box" }, h("div", { class: "head" }));
}

/**
 * @param {GraphNode} node
 * @param {string | undefined} parent
 * @param {Paint} look
 * @param {number} width of the box
 * @param {string} metric
 */
export function boxContent(node, parent, look, width, metric) {
  const named = label(node.name, parent);
  const value =
    node.value !== undefined && node.match !== undefined && look.look !== "none" && node.value > 0
      ? shown(node.value, metric)
      : "";
  const extras = [node.overflow && "!", node.comm && "⇄", node.manual && "✎"].filter(Boolean).join(" ");
  const right = `${value}${extras}${node.kids ?? ""}`.length + (value ? 2 : 0) + (extras ? 2 : 0);
  const room = Math.floor((width - (node.kids ? 78 : 62)) / letterWidth()) - right - named.direction.length - 2;
  const rest = shorten(named.rest, Math.max(8, room - Math.min(named.own.length, Math.ceil(room * 0.6))));
  const own = shorten(named.own, Math.max(8, room - rest.length));
  return [
    node.kids ? h("span", { class: "twist" }, icon("chevron")) : h("span", { class: "twist leaf" }),
    h("span", { class: "mark", role: "img", "aria-label": t(word(look.look)) }, look.mark),
    h(
      "span",
      { class: "name" },
      h("b", {}, own),
      named.direction && h("i", { class: named.direction }, `.${named.direction}`),
      rest && h("span", {}, `.${rest}`),
    ),
    value && h("span", { class: "value" }, value),
    extras && h("span", { class: "extras" }, extras),
    node.kids || node.more
      ? h(
          "span",
          { class: "kids", title: node.more ? t("leftOut", { n: node.more }) : t("children", { n: node.kids ?? 0 }) },
          `${node.kids}${node.more ? ` (+${node.more})` : ""}`,
        )
      : "",
  ].filter(Boolean);
}

/** @param {import("./colors.js").Look} look @returns {import("./i18n.js").Word} */
export function word(look) {
  if (look === "unmatched") return "unmatchedNode";
  return look === "none" ? "noData" : look;
}

/** @param {GraphNode} node */
export function tooltip(node) {
  const lines = [node.name];
  if (node.match && node.match !== node.name) lines.push(`↔ ${node.match}`);
  if (node.by) lines.push(t("matchedBy", { by: node.by }));
  if (node.overflow) lines.push(t("overflowLevel", { level: node.overflow }));
  if (node.comm) lines.push(t("comm"));
  if (node.manual) lines.push(t("manual"));
  return lines.join("\n");
}

function letterWidth() {
  if (!letter) {
    const probe = h("span", { class: "name offscreen" }, "0".repeat(100));
    document.body.append(probe);
    letter = Math.max(4, probe.getBoundingClientRect().width / 100);
    probe.remove();
  }
  return letter;
}
