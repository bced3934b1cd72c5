// What opens above the page and what divides it: the menu of a node, the help, short messages, the splitter.

import { h, iconButton } from "./dom.js";
import { t } from "./i18n.js";

/** @typedef {{text: string, act: () => void, off?: boolean}} Choice */

/**
 * A menu at a place; Escape or a click elsewhere closes it and gives the focus back.
 * @param {Choice[]} choices
 * @param {number} x
 * @param {number} y
 */
export function openMenu(choices, x, y) {
  document.querySelector(".menu")?.remove();
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const close = () => {
    menu.remove();
    document.removeEventListener("pointerdown", outside, true);
    before?.focus();
  };
  const outside = (/** @type {Event} */ event) => {
    if (!menu.contains(/** @type {globalThis.Node} */ (event.target))) close();
  };
  const menu = h(
    "div",
    { class: "menu", role: "menu" },
    ...choices.map(({ text, act, off }) =>
      h(
        "button",
        {
          type: "button",
          role: "menuitem",
          disabled: off,
          onclick: () => {
            close();
            act();
          },
        },
        text,
      ),
    ),
  );
  menu.addEventListener("keydown", (event) => {
    const items = [...menu.querySelectorAll("button:not([disabled])")];
    const at = items.indexOf(/** @type {Element} */ (document.activeElement));
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp")
      /** @type {HTMLElement} */ (
        items[(at + (event.key === "ArrowDown" ? 1 : -1) + items.length) % items.length]
      ).focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.body.append(menu);
  const box = menu.getBoundingClientRect();
  menu.style.left = `${Math.min(x, window.innerWidth - box.width - 8)}px`;
  menu.style.top = `${Math.min(y, window.innerHeight - box.height - 8)}px`;
  document.addEventListener("pointerdown", outside, true);
  /** @type {HTMLElement | null} */ (menu.querySelector("button:not([disabled])"))?.focus();
}

/** The keys, in a dialog. */
export function openHelp() {
  const keys = /** @type {const} */ ([
    ["↑ ↓ PgUp PgDn Home End", "k_move"],
    ["← →", "k_open"],
    ["Enter", "k_enter"],
    ["N P", "k_next"],
    ["M", "k_partner"],
    ["W S", "k_zoom"],
    ["A D", "k_pan"],
    ["F", "k_fit"],
    ["/", "k_search"],
    ["I", "k_details"],
    ["Tab", "k_pane"],
    ["Shift F10", "k_menu"],
    ["?", "k_help"],
  ]);
  const dialog = h(
    "dialog",
    { class: "help", "aria-label": t("keys") },
    h(
      "header",
      {},
      h("h2", {}, t("keys")),
      iconButton("close", t("close"), () => dialog.close()),
    ),
    h(
      "dl",
      {},
      ...keys.flatMap(([key, word]) => [
        h("dt", {}, ...key.split(" ").map((one) => h("kbd", {}, one))),
        h("dd", {}, t(word)),
      ]),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** A short message that goes away. @param {string} text */
export function toast(text) {
  document.querySelector(".toast")?.remove();
  const element = h("div", { class: "toast", role: "status" }, text);
  document.body.append(element);
  setTimeout(() => element.remove(), 2200);
}

/**
 * A line between two parts that can be dragged or moved with the arrow keys.
 * @param {"horizontal" | "vertical"} way how the line runs
 * @param {string} name what it makes larger
 * @param {(by: number) => void} move called with pixels upwards, or to the right
 */
export function splitter(way, name, move) {
  const level = way === "horizontal";
  const element = h("div", {
    class: `splitter ${way}`,
    role: "separator",
    tabindex: "0",
    "aria-orientation": way,
    "aria-valuenow": "50",
    "aria-label": name,
  });
  const at = (/** @type {PointerEvent} */ event) => (level ? -event.clientY : event.clientX);
  let last = 0;
  element.addEventListener("pointerdown", (event) => {
    element.setPointerCapture(event.pointerId);
    last = at(event);
  });
  element.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    move(at(event) - last);
    last = at(event);
  });
  element.addEventListener("keydown", (event) => {
    const by = level ? { ArrowUp: 24, ArrowDown: -24 }[event.key] : { ArrowRight: 24, ArrowLeft: -24 }[event.key];
    if (!by) return;
    event.preventDefault();
    move(by);
  });
  return element;
}

/**
 * Do what a key stands for, unless something is being typed or a dialog is open.
 * @param {KeyboardEvent} event
 * @param {Record<string, () => void>} acts
 */
export function runKey(event, acts) {
  const at = /** @type {HTMLElement} */ (event.target);
  const act = acts[event.key.toLowerCase()];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || at.matches("input, select, textarea")) return;
  if (document.querySelector("dialog[open], .menu")) return;
  event.preventDefault();
  act();
}
