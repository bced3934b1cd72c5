// Everything about the selected node and its partner: tensors, metrics and stacks, side by side.

import { shown } from "./colors.js";
import { copyText, h, icon, iconButton } from "./dom.js";
import { t } from "./i18n.js";
import { argumentName, label } from "./labels.js";
import { table } from "./tables.js";
import { TensorView } from "./tensor.js";

/** @typedef {import("./api.js").FullNode} FullNode */
/** @typedef {import("./api.js").Facts} Facts */
/** @typedef {import("./api.js").Tensor} Tensor */
/** @typedef {import("./api.js").Side} Side */
/** @typedef {{target: FullNode | null, golden: FullNode | null, facts: Facts | null, drawn?: string[]}} Detail */

const shared = ["dtype", "shape", "md5", "Max", "Min", "Mean", "Norm", "value"];
const last = ["requires_grad", "Requires_grad Consistent", "type"];
const hidden = new Set(["name", "data_name", ...shared, ...last]);
const numbers = new Set(["Max", "Min", "Mean", "Norm"]);

export class Details {
  /**
   * @param {object} events
   * @param {(rank: number, node: string) => void} events.jump
   * @param {() => void} events.close
   * @param {(side: Side, name: string) => void} events.go
   * @param {(argument: string, wanted?: import("./tensor.js").Wanted, chosen?: boolean) => Promise<import("./tensor.js").Picture>} events.inside
   * @param {() => {argument: string, language: string, live: boolean}} events.now
   */
  constructor(events) {
    this.events = events;
    this.element = h("section", { class: "details", tabindex: "-1" });
    /** @type {Record<string, string>} */
    this.tooltips = {};
  }

  empty() {
    this.element.replaceChildren(h("p", { class: "quiet" }, t("choose")));
  }

  /** @param {Detail} detail @param {boolean} compared */
  show(detail, compared) {
    const { target, golden } = detail;
    const one = target ?? golden;
    if (!one) return this.empty();
    this.element.setAttribute("aria-label", t("details"));
    this.element.replaceChildren(
      this.#header(detail, compared),
      h(
        "div",
        { class: "details-body" },
        this.#tensors(t("inputs"), target, golden, "inputs"),
        this.#tensors(t("outputs"), target, golden, "outputs"),
        this.#inside(target, golden, detail.drawn ?? []),
        this.#stacks(target, golden, compared),
        one.merge.length
          ? h(
              "figure",
              { class: "table" },
              h("figcaption", {}, t("mergeInfo")),
              h("ul", { class: "merge" }, ...one.merge.map((line) => h("li", {}, line))),
            )
          : null,
      ),
    );
    return undefined;
  }

  /** @param {Detail} detail @param {boolean} compared */
  #header({ target, golden, facts }, compared) {
    const name = (/** @type {Side} */ side, /** @type {FullNode | null} */ node) =>
      h(
        "div",
        { class: `who who-${side}` },
        h("span", { class: "who-side" }, t(compared ? side : "single")),
        node
          ? h(
              "button",
              { type: "button", class: "who-name", title: node.name, onclick: () => this.events.go(side, node.name) },
              label(node.name).text,
            )
          : h("span", { class: "quiet" }, t("noPartner")),
        node && iconButton("copy", t("copyName"), () => void copyText(node.name)),
      );
    const peers = [...(target?.peers ?? [])].map((peer) =>
      h(
        "button",
        { type: "button", class: "chip", onclick: () => this.events.jump(peer.rank, peer.node) },
        icon("swap"),
        t("goRank", { rank: peer.rank, node: label(peer.node).text }),
      ),
    );
    const facts_ = facts && target?.match ? h("span", { class: "facts" }, sentence(facts)) : null;
    const by = target?.by ? h("span", { class: "quiet" }, t("matchedBy", { by: target.by })) : null;
    return h(
      "header",
      { class: "details-head" },
      h("div", { class: "whos" }, name("target", target), compared ? name("golden", golden) : null),
      h(
        "div",
        { class: "about" },
        facts_,
        by,
        peers.length ? h("span", { class: "quiet" }, `${t("peers")}:`) : null,
        ...peers,
      ),
      iconButton("close", t("close"), () => this.events.close()),
    );
  }

  /** @param {string} title @param {FullNode | null} target @param {FullNode | null} golden @param {"inputs" | "outputs"} part */
  #tensors(title, target, golden, part) {
    const left = target?.[part] ?? [];
    const right = golden?.[part] ?? [];
    if (!left.length && !right.length) return h("p", { class: "quiet" }, `${title}: ${t("noTensors")}`);
    const pairs = together(left, right, target?.name ?? "", golden?.name ?? "");
    const all = [...left, ...right];
    const both = shared.filter((key) => all.some((tensor) => tensor[key] !== undefined));
    const metrics = telling([...new Set(left.flatMap(Object.keys))].filter((key) => !hidden.has(key)));
    const rest = last.filter((key) => all.some((tensor) => tensor[key] !== undefined));
    const judged = target?.arguments ?? null;
    const own = judged ? [t("relativeError"), t("timesNoise")] : [];
    const columns = [
      { title: t("argument") },
      ...own.map((title) => ({ title, number: true })),
      ...both.map((key) => ({ title: key, number: numbers.has(key) })),
      ...metrics.map((key) => ({
        title: key,
        number: key !== "Result" && key !== "Err_message",
        hint: this.tooltips[key],
      })),
      ...rest.map((title) => ({ title })),
    ];
    const rows = pairs.map(([name, a, b]) => [
      { text: name },
      ...(judged ? judgement(judged[name], a !== undefined && b !== undefined && (name in judged || alike(a, b))) : []),
      ...both.map((key) => pair(key, a, b)),
      ...metrics.map((key) => metric(key, a?.[key])),
      ...rest.map((key) => pair(key, a, b)),
    ]);
    return table(columns, rows, title);
  }

  /** What is inside the tensors, where both runs kept them or summaries of them. @param {FullNode | null} target @param {FullNode | null} golden @param {string[]} drawn */
  #inside(target, golden, drawn) {
    const { argument: wanted, language, live } = this.events.now();
    if (!target || !golden || !live) return null;
    const kept = (/** @type {FullNode} */ node) =>
      [...node.outputs, ...node.inputs]
        .filter((tensor) => (tensor.data_name ?? "-1") !== "-1")
        .map((tensor) => argumentName(tensor.name, node.name));
    const there = new Set(kept(golden));
    const whole = target.folder && golden.folder ? kept(target).filter((name) => there.has(name)) : [];
    const names = [...new Set([...whole, ...drawn])];
    if (!names.length) return null;
    const place = h("div", {}, h("p", { class: "quiet" }, t("loading")));
    const differs = names.filter((name) => target.arguments?.[name]);
    const first = names.includes(wanted) ? wanted : (differs[0] ?? names[0]);
    const dark = () => document.documentElement.dataset.theme === "dark";
    const show = async (/** @type {string} */ name, chosen = false) => {
      try {
        const picture = await this.events.inside(name, undefined, chosen);
        const ask = (/** @type {import("./tensor.js").Wanted} */ part) => this.events.inside(name, part);
        place.replaceChildren(new TensorView(picture, { language, dark, ask: picture.apart ? undefined : ask }).element);
      } catch (error) {
        place.replaceChildren(h("p", { class: "quiet" }, error instanceof Error ? error.message : String(error)));
      }
    };
    const select = h(
      "select",
      { "aria-label": t("argument"), onchange: () => void show(select.value, true) },
      ...names.map((name) => h("option", { value: name, selected: name === first }, name)),
    );
    void show(first);
    return h("figure", { class: "table inside-figure" }, h("figcaption", {}, h("span", {}, t("insideTitle")), select), place);
  }

  /** @param {FullNode | null} target @param {FullNode | null} golden @param {boolean} compared */
  #stacks(target, golden, compared) {
    const one = (/** @type {Side} */ side, /** @type {FullNode | null} */ node) => {
      if (!node) return null;
      const copy = iconButton("copy", t("copy"), () => void copyText(node.stack.join("\n")));
      const frames = node.stack.map((frame) =>
        h("li", { class: frame.includes("site-packages") ? "foreign" : "" }, frame.replace(/\s*\n\s*/g, "  →  ")),
      );
      return h(
        "figure",
        { class: "table stack" },
        h("figcaption", {}, h("span", {}, `${t("stack")}${compared ? ` · ${t(side)}` : ""}`), copy),
        frames.length ? h("ol", { tabindex: "0" }, ...frames) : h("p", { class: "quiet" }, t("noStack")),
      );
    };
    return h("div", { class: "stacks" }, one("target", target), one("golden", golden));
  }
}

/** Whether two values have the same statistics. @param {Tensor} a @param {Tensor} b */
function alike(a, b) {
  return [...numbers, "md5"].every((key) => a[key] === b[key]);
}

/** What the judge says of a value: those that it does not list are equal. @param {(number | null)[] | undefined} found @param {boolean} compared */
function judgement(found, compared) {
  if (!compared) return [{ text: "" }, { text: "" }];
  if (!found) return [{ text: "0" }, { text: "" }];
  const [error, , times] = found;
  return [
    { text: error === null ? t("differs") : shown(error, "error"), differs: true },
    { text: times === null ? "" : shown(times, ""), differs: (times ?? 0) > 1 },
  ];
}

/** The verdict first, then relative errors, then the rest. @param {string[]} keys */
function telling(keys) {
  const rank = (/** @type {string} */ key) =>
    key === "Result"
      ? 0
      : key.startsWith("Norm")
        ? 1
        : key.includes("Relative") || key === "Cosine"
          ? 2
          : key === "Err_message"
            ? 4
            : 3;
  return keys.sort((a, b) => rank(a) - rank(b));
}

/**
 * What happened in a node, in words.
 * @param {Facts} facts
 */
export function sentence(facts) {
  const parts = [];
  const what = facts.argument ?? t("input");
  const size = (/** @type {number | null} */ value) => facts.metric !== "md5" && value !== null && value > 1e-9;
  if (facts.differs)
    parts.push(
      size(facts.input)
        ? t("inputBy", { what, value: shown(facts.input, facts.metric) })
        : t("inputDiffers", { what }),
    );
  else if (facts.inputs) parts.push(t("equal"));
  if (size(facts.output)) {
    const metric = facts.metric === "error" ? t("relativeError") : facts.metric;
    parts.push(t("outputBy", { value: shown(facts.output, facts.metric), metric }));
  } else if (facts.outputs) parts.push(t("outputDiffers"));
  else if (facts.output !== null) parts.push(t("outputEqual"));
  const how =
    facts.how === "injected" || facts.how === "amplified" || facts.how === "inherited" ? `; ${t(facts.how)}` : "";
  return parts.join(", ") + how;
}

/**
 * Arguments of both sides that belong together: those of the same name, then the rest in order.
 * @param {Tensor[]} left @param {Tensor[]} right @param {string} target @param {string} golden
 * @returns {[string, Tensor | undefined, Tensor | undefined][]}
 */
function together(left, right, target, golden) {
  const rest = new Map(right.map((tensor) => [argumentName(tensor.name, golden), tensor]));
  /** @type {[string, Tensor | undefined, Tensor | undefined][]} */
  const pairs = left.map((tensor) => {
    const name = argumentName(tensor.name, target);
    const partner = rest.get(name);
    rest.delete(name);
    return [name, tensor, partner];
  });
  for (const [name, tensor] of rest) pairs.push([name, undefined, tensor]);
  return pairs;
}

/** @param {string} key @param {Tensor | undefined} a @param {Tensor | undefined} b */
function pair(key, a, b) {
  const [x, y] = [a?.[key], b?.[key]];
  const short = (/** @type {string | undefined} */ text) =>
    text === undefined ? "–" : numbers.has(key) ? digits(text) : text.replace(/^(torch|mindspore)\./, "");
  if (x === undefined && y === undefined) return { text: "" };
  if (b === undefined || (x === y && !numbers.has(key))) return { text: short(x) };
  return { text: short(x), under: short(y), differs: x !== y };
}

/** @param {string} key @param {string | undefined} text */
function metric(key, text) {
  if (text === undefined) return { text: "" };
  if (key === "Result") return { text, tone: `result-${["pass", "warning", "error"].includes(text) ? text : "other"}` };
  return { text: key === "Err_message" ? text.replace(/^\[\]$/, "").replace(/^\["|"\]$/g, "") : digits(text) };
}

/** A number as it is, but not longer than anybody reads. @param {string} text */
function digits(text) {
  const value = Number(text);
  return text.length < 10 || Number.isNaN(value) ? text : String(Number(value.toPrecision(7)));
}
