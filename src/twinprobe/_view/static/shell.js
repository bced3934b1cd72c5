// The frame of the page: what stands above, beside and below what.

import { h } from "./dom.js";

/** @typedef {{element: HTMLElement}} Part */
/**
 * @typedef {object} Parts
 * @property {{bar: HTMLElement, banner: HTMLElement}} toolbar
 * @property {Part} strip
 * @property {Part} heat
 * @property {Part} growth
 * @property {Part} panel
 * @property {{target: Part, golden: Part}} panes
 */

/**
 * @param {Parts} parts
 * @param {HTMLElement} beside the line between the lists and the graphs
 * @param {HTMLElement[]} below what comes under the graphs
 */
export function shell({ toolbar, strip, heat, growth, panel, panes }, beside, below) {
  const graphs = h("div", { class: "graphs" }, panes.target.element, panes.golden.element);
  const work = h("div", { class: "work" }, graphs, ...below);
  const main = h("main", { class: "main" }, panel.element, beside, work);
  return h("div", { class: "page" }, toolbar.bar, toolbar.banner, strip.element, growth.element, heat.element, main);
}
