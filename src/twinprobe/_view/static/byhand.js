// Matching by hand: the pair that is selected, what was matched so far, files in and out, and the menu of a node.

import { copyText, download, h, iconButton } from "./dom.js";
import { t } from "./i18n.js";
import { label } from "./labels.js";
import { wideButton } from "./panel.js";
import { toast } from "./popups.js";

/** @typedef {import("./api.js").Api} Api */
/** @typedef {import("./api.js").Arguments} Arguments */
/** @typedef {import("./api.js").ByHand} ByHand */
/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./api.js").Side} Side */
/**
 * @typedef {object} HandEvents
 * @property {(target: string, golden: string, branch: boolean) => void} add
 * @property {(target: string, branch: boolean) => void} part
 * @property {(pairs: unknown) => void} take
 * @property {(side: Side, name: string) => void} go
 */

export class Hands {
  message = "";
  branch = true;
  /** @type {ByHand | null} what was matched so far */
  made = null;

  /**
   * @param {Api} api
   * @param {{place: () => Arguments, go: (side: Side, name: string) => void, changed: () => Promise<void>, show: () => void}} events
   */
  constructor(api, events) {
    this.api = api;
    this.events = events;
  }

  /** @param {GraphNode | undefined} target @param {GraphNode | undefined} golden @param {string} file */
  panel(target, golden, file) {
    const { made, message, branch } = this;
    const name = file.split("/").at(-1) ?? "";
    const flag = (/** @type {boolean} */ on) => (on ? "1" : "");
    const what = { target: target ?? null, golden: golden ?? null, made, message, name, branch };
    return byHandPanel(what, {
      add: (one, other, all) => this.change({ action: "add", target: one, golden: other, branch: flag(all) }),
      part: (one, all) => this.change({ action: "remove", target: one, branch: flag(all) }),
      take: (pairs) => this.change({ action: "import", pairs }),
      go: this.events.go,
      setBranch: (all) => {
        this.branch = all;
      },
    });
  }

  /** @param {Record<string, unknown>} change */
  async change(change) {
    try {
      const now = await this.api.change({ ...this.events.place(), ...change });
      const pairs = change.pairs && typeof change.pairs === "object" ? Object.keys(change.pairs).length : 0;
      this.message = pairs ? t("imported", { n: now.fitting, of: pairs }) : t(this.api.live ? "saved" : "readOnlyPage");
      await this.events.changed();
    } catch (error) {
      this.message = error instanceof Error ? error.message : String(error);
    }
    this.events.show();
  }
}

/**
 * @param {{target: GraphNode | null, golden: GraphNode | null, made: ByHand | null, message: string, name: string, branch: boolean}} what
 * @param {HandEvents & {setBranch: (branch: boolean) => void}} events
 */
function byHandPanel(what, events) {
  const { target, golden, made } = what;
  const box = h("input", {
    type: "checkbox",
    checked: what.branch,
    onchange: (/** @type {Event} */ event) => events.setBranch(/** @type {HTMLInputElement} */ (event.target).checked),
  });
  const file = h("input", {
    type: "file",
    accept: ".json,.config,application/json",
    class: "offscreen",
    tabindex: "-1",
    onchange: (/** @type {Event} */ event) => void read(/** @type {HTMLInputElement} */ (event.target), events.take),
  });
  const pairs = Object.entries(made?.matches ?? {});
  const ready = Boolean(target && golden && target.match !== golden.name);
  return h(
    "div",
    {},
    h("p", { class: "quiet" }, t("handHint")),
    h(
      "dl",
      { class: "pair" },
      h("dt", {}, t("target")),
      h("dd", { title: target?.name }, target ? label(target.name).text : "–"),
      h("dt", {}, t("golden")),
      h("dd", { title: golden?.name }, golden ? label(golden.name).text : "–"),
    ),
    h("label", { class: "check" }, box, t("withBranch")),
    wideButton(t("matchButton"), "link", () => target && golden && events.add(target.name, golden.name, what.branch), {
      disabled: !ready,
      class: "wide-button primary",
    }),
    wideButton(t("part"), "close", () => target && events.part(target.name, what.branch), { disabled: !target?.match }),
    h("p", { class: "message", role: "status" }, what.message),
    h(
      "ul",
      { class: "pairs" },
      ...pairs.slice(0, 500).map(([one, other]) =>
        h(
          "li",
          {},
          h(
            "button",
            { type: "button", class: "plain", title: `${one}\n↔ ${other}`, onclick: () => events.go("target", one) },
            label(one).text,
            h("span", { class: "under" }, `↔ ${label(other).text}`),
          ),
          iconButton("close", t("part"), () => events.part(one, false)),
        ),
      ),
    ),
    h(
      "div",
      { class: "stacked" },
      wideButton(t("exportYaml"), "download", () => download("layer_mapping.yaml", made?.yaml ?? ""), {
        disabled: !pairs.length,
      }),
      wideButton(
        t("exportJson"),
        "download",
        () => download(`${what.name}.matches.json`, JSON.stringify(made?.matches ?? {}, null, 1)),
        { disabled: !pairs.length },
      ),
      wideButton(t("importJson"), "upload", () => file.click()),
      file,
    ),
  );
}

/** @param {HTMLInputElement} input @param {(pairs: unknown) => void} take */
async function read(input, take) {
  const text = await input.files?.[0]?.text();
  input.value = "";
  try {
    take(JSON.parse(text ?? ""));
  } catch {
    take(null);
  }
}

/**
 * What the menu of a node offers.
 * @param {Side} side
 * @param {GraphNode} node
 * @param {GraphNode | undefined} mate the selected node of the other side
 * @param {boolean} compared
 * @param {{toggle: () => void, partner: () => void, change: (change: Record<string, unknown>) => void}} acts
 * @returns {import("./popups.js").Choice[]}
 */
export function nodeChoices(side, node, mate, compared, acts) {
  const [one, two] = side === "target" ? [node, mate] : [mate, node];
  const target = side === "target" ? node.name : node.match;
  const add = () => acts.change({ action: "add", target: one?.name, golden: two?.name, branch: "1" });
  const matching = [
    { text: t("partner"), act: acts.partner, off: !node.match },
    { text: t("matchThem"), act: add, off: !one || !two || one.match === two.name },
    { text: t("part"), act: () => acts.change({ action: "remove", target, branch: "" }), off: !node.match },
  ];
  return [
    { text: t("expand"), act: acts.toggle, off: !node.kids },
    ...(compared ? matching : []),
    { text: t("copyName"), act: () => void copyText(node.name).then(() => toast(t("copied"))) },
  ];
}
