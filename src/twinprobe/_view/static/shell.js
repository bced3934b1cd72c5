// The frame of the page: what stands above, beside and below what.

import { h } from "./dom.js";

/** @typedef {{element: HTMLElement}} Part */
/**
 * @typedef {object} Parts
 * @property {{bar: HTMLElement, banner: HTMLElement}} toolbar
 * @property {Part} strip
 * @property {Part} heat
 * @property {Part} panel
 * @property {{target: Part, golden: Part}} panes
 */

/**
 * @param {Parts} parts
 * @param {HTMLElement[]} below what comes under the graphs
 */
export function shell({ toolbar, strip, heat, panel, panes }, below) {
  const graphs = h("div", { class: "graphs" }, panes.target.element, panes.golden.element);
  const main = h("div", { class: "main" }, panel.element, h("div", { class: "work" }, graphs, ...below));
  return h("div", { class: "page" }, toolbar.bar, toolbar.banner, strip.element, heat.element, main);
}
