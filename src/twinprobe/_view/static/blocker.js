// What stands in place of the graphs when there are none to show: what is wrong, or how far the server is.

import { h } from "./dom.js";
import { t } from "./i18n.js";

export class Blocker {
  element = h("div", { class: "blocker", role: "alert", hidden: true });

  /** @param {() => void} retry */
  constructor(retry) {
    this.retry = retry;
  }

  hide() {
    this.element.hidden = true;
    this.element.replaceChildren();
  }

  /** @param {string} what @param {string} hint */
  fail(what, hint) {
    const again = () => {
      this.hide();
      this.retry();
    };
    const button = h("button", { type: "button", class: "wide-button primary", onclick: again }, t("retry"));
    const more = hint ? h("p", { class: "quiet" }, hint) : null;
    this.#show(h("h2", {}, t("error_title")), h("p", {}, what), more, button);
  }

  /** @param {string} what @param {number} done from 0 to 1 */
  wait(what, done) {
    this.#show(h("p", {}, what), h("progress", { value: done, max: 1 }));
  }

  /** @param {...(HTMLElement | null)} parts */
  #show(...parts) {
    this.element.hidden = false;
    this.element.replaceChildren(h("div", { class: "blocker-box" }, ...parts));
  }
}
