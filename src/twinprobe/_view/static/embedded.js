// The exported page: the same questions, answered from the part of the graphs that is in the file.

import { AskError } from "./api.js";
import { worst } from "./colors.js";
import { t } from "./i18n.js";

/** @typedef {import("./api.js").Api} Api */
/** @typedef {import("./api.js").Facts} Facts */
/** @typedef {import("./api.js").First} First */
/** @typedef {import("./api.js").FullNode} FullNode */
/** @typedef {import("./api.js").Opened} Opened */
/** @typedef {import("./api.js").Side} Side */
/** @typedef {Omit<FullNode, "stack"> & {stack: number, facts?: Facts, more?: number}} Stored */
/** @typedef {{nodes: Stored[], edges: Record<string, [number, number][]>}} StoredSide */
/**
 * @typedef {{step: number, rank: number, first: First | null, growth: unknown, stacks: string[], target: StoredSide, golden?: StoredSide,
 *   missing?: boolean}} Graph
 */
/** @typedef {Record<string, any>} Asked */

/**
 * @param {string} text gzip in base64
 * @returns {Promise<Api>}
 */
export async function embeddedApi(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = /** @type {{opened: Opened, graphs: Graph[]}} */ (await new Response(stream).json());
  const library = new Library(
    data.opened,
    data.graphs.filter((graph) => !graph.missing),
  );
  return {
    live: false,
    ask: async (question, asked = {}) => {
      const answer = /** @type {Record<string, (asked: Asked) => any>} */ (library.answers)[question];
      return answer(
        Object.fromEntries(
          Object.entries(asked).filter(([, value]) => value !== null && value !== undefined && value !== ""),
        ),
      );
    },
    change: async () => {
      throw new AskError(t("readOnlyPage"));
    },
  };
}

class Library {
  /** @param {Opened} opened @param {Graph[]} graphs */
  constructor(opened, graphs) {
    this.opened = opened;
    this.graphs = graphs;
    /** @type {Map<StoredSide, Map<string, Stored[]>>} */
    this.families = new Map();
    for (const graph of graphs)
      for (const side of [graph.target, graph.golden]) if (side) this.families.set(side, family(side));
    this.answers = {
      files: () => ({ files: [{ id: opened.file, size: 0, modified: 0, db: true }], place: "" }),
      open: (/** @type {Asked} */ asked) => this.#open(asked),
      first: (/** @type {Asked} */ asked) => ({ first: this.#first(asked) }),
      children: (/** @type {Asked} */ asked) =>
        this.#children(asked, this.#side(asked), asked.parent, asked.offset ?? 0),
      unfold: (/** @type {Asked} */ asked) => this.#unfold(asked),
      restore: (/** @type {Asked} */ asked) => this.#restore(asked),
      node: (/** @type {Asked} */ asked) => this.#node(asked),
      edges: (/** @type {Asked} */ asked) => ({ edges: this.#side(asked).edges[asked.parent] ?? [] }),
      search: (/** @type {Asked} */ asked) => this.#search(asked),
      list: (/** @type {Asked} */ asked) => this.#list(asked),
      counts: (/** @type {Asked} */ asked) => this.#counts(asked),
      strip: (/** @type {Asked} */ asked) => this.#strip(asked),
      step: (/** @type {Asked} */ asked) => this.#step(asked),
      heat: () => ({ cells: graphs.map((graph) => this.#cell(graph)), complete: true }),
      growth: (/** @type {Asked} */ asked) => this.#graph(asked).growth,
      matches: () => ({ matches: {}, removed: [], yaml: "" }),
    };
  }

  /** @param {Asked} asked */
  #graph(asked) {
    const found = this.graphs.find(
      (graph) =>
        (asked.step === undefined || graph.step === asked.step) &&
        (asked.rank === undefined || graph.rank === asked.rank),
    );
    if (!found) throw new AskError(t("none"));
    return found;
  }

  /** @param {Asked} asked @param {Side} [side] */
  #side(asked, side = asked.side ?? "target") {
    return this.#graph(asked)[side] ?? { nodes: [], edges: {} };
  }

  /** Nodes in the order of their execution. @param {StoredSide} side */
  #ordered(side) {
    return [...side.nodes].sort((a, b) => a.order - b.order);
  }

  /** @param {Asked} asked @param {Stored} node */
  #brief(asked, node) {
    return { ...node, value: valueOf(node, asked.metric || this.opened.metrics[0] || "") ?? undefined };
  }

  /** @param {Asked} asked */
  #open(asked) {
    const graph = this.#graph(asked);
    const pages = {
      target: [this.#children(asked, graph.target, graph.target.nodes[0].name, 0)],
      golden: graph.golden ? [this.#children(asked, graph.golden, graph.golden.nodes[0].name, 0)] : [],
    };
    const steps = [...new Set(this.graphs.map(({ step }) => step))].sort((a, b) => a - b);
    const ranks = [...new Set(this.graphs.map(({ rank }) => rank))].sort((a, b) => a - b);
    const roots = { target: graph.target.nodes[0], ...(graph.golden ? { golden: graph.golden.nodes[0] } : {}) };
    return { ...this.opened, step: graph.step, rank: graph.rank, steps, ranks, roots, pages, first: graph.first };
  }

  /** @param {Asked} asked @param {StoredSide} side @param {string} parent @param {number} offset */
  #children(asked, side, parent, offset) {
    const top = side.nodes[0]?.name === parent;
    const all = (this.families.get(side)?.get(parent) ?? []).filter(
      (node) => asked.micro === undefined || !top || (node.micro ?? 0) === asked.micro,
    );
    return {
      parent,
      total: all.length,
      offset,
      nodes: all.slice(offset, offset + (asked.limit ?? 200)).map((node) => this.#brief(asked, node)),
    };
  }

  /** @param {Asked} asked @param {StoredSide} side */
  #named(asked, side) {
    const found = side.nodes.find((node) =>
      asked.order !== undefined ? node.order === asked.order : node.name === asked.name,
    );
    if (!found) throw new AskError(t("none"));
    return found;
  }

  /** @param {Asked} asked @param {StoredSide} side @param {Stored | undefined} node */
  #pages(asked, side, node) {
    const pages = [];
    if (node && asked.inside && node.kids) pages.push(this.#children({ ...asked, limit: 1e9 }, side, node.name, 0));
    for (let at = node; at?.parent; at = side.nodes.find((other) => other.name === at?.parent))
      pages.push(this.#children({ ...asked, limit: 1e9 }, side, at.parent, 0));
    return pages.reverse();
  }

  /** @param {Asked} asked */
  #unfold(asked) {
    const graph = this.#graph(asked);
    const side = /** @type {Side} */ (asked.side ?? "target");
    const node = this.#named(asked, this.#side(asked));
    const other = side === "target" ? "golden" : "target";
    const far = graph[other];
    const mate = far?.nodes.find(({ name }) => name === node.match);
    return {
      node: this.#brief(asked, node),
      [side]: this.#pages(asked, this.#side(asked), node),
      [other]: far ? this.#pages(asked, far, mate) : [],
    };
  }

  /** @param {Asked} asked */
  #restore(asked) {
    const pages = (/** @type {Side} */ side) =>
      String(asked[side] ?? "")
        .split(",")
        .filter(Boolean)
        .map(Number)
        .sort((a, b) => b - a)
        .flatMap((order) => this.#side(asked, side).nodes.filter((node) => node.order === order && node.kids))
        .map((node) => this.#children({ ...asked, limit: 1e9 }, this.#side(asked, side), node.name, 0));
    return { target: pages("target"), golden: pages("golden") };
  }

  /** @param {Asked} asked */
  #node(asked) {
    const graph = this.#graph(asked);
    const side = /** @type {Side} */ (asked.side ?? "target");
    const node = this.#named(asked, this.#side(asked));
    const other = side === "target" ? "golden" : "target";
    const mate = graph[other]?.nodes.find(({ name }) => name === node.match);
    const full = (/** @type {Stored | undefined} */ one) =>
      one ? { ...one, stack: (graph.stacks[one.stack] ?? "").split("\n\0").filter(Boolean) } : null;
    return { [side]: full(node), [other]: full(mate), facts: (side === "target" ? node : mate)?.facts ?? null };
  }

  /** @param {Asked} asked */
  #search(asked) {
    const text = String(asked.text ?? "").toLowerCase();
    const found = (/** @type {Side} */ side) =>
      this.#ordered(this.#side(asked, side))
        .filter((node) => node.name.toLowerCase().includes(text))
        .slice(0, 300)
        .map((node) => this.#brief(asked, node));
    return { target: found("target"), golden: found("golden") };
  }

  /** @param {Asked} asked @returns {(node: Stored) => boolean} */
  #suspicious(asked) {
    if (!asked.metric || asked.above === undefined) return (node) => (node.level ?? 0) > 0;
    return (node) => (valueOf(node, asked.metric) ?? -1) > asked.above;
  }

  /** @param {Asked} asked */
  #list(asked) {
    const levels = String(asked.levels ?? "")
      .split(",")
      .filter(Boolean)
      .map(Number);
    const overflow = String(asked.overflow ?? "")
      .split(",")
      .filter(Boolean);
    const kinds = /** @type {Record<string, (node: Stored) => boolean>} */ ({
      suspicious: this.#suspicious(asked),
      unmatched: (node) => !node.match,
      matched: (node) => Boolean(node.match),
    });
    const found = this.#ordered(this.#side(asked)).filter(
      (node) =>
        (asked.injected ? node.origin === "injected" : (kinds[asked.kind] ?? (() => true))(node)) &&
        (!levels.length || levels.includes(node.level ?? -1)) &&
        (!overflow.length || overflow.includes(node.overflow ?? "")) &&
        (!asked.what || (asked.what === "apis") === (node.type === "1")) &&
        (asked.micro === undefined || (node.micro ?? 0) === asked.micro),
    );
    const offset = asked.offset ?? 0;
    return {
      total: found.length,
      offset,
      nodes: found.slice(offset, offset + (asked.limit ?? 200)).map((node) => this.#brief(asked, node)),
    };
  }

  /** @param {Asked} asked */
  #counts(asked) {
    const count = (/** @type {Side} */ side) => {
      const { nodes } = this.#side(asked, side);
      const of = (/** @type {(node: Stored) => boolean} */ test) => nodes.filter(test).length;
      const overflow = Object.fromEntries(
        ["medium", "high", "critical"].map((name) => [name, of((node) => node.overflow === name)]),
      );
      return {
        nodes: nodes.length,
        unmatched: of((node) => !node.match),
        suspicious: of(this.#suspicious(asked)),
        injected: of((node) => node.origin === "injected"),
        levels: this.opened.bands.map((_, level) => of((node) => node.level === level)),
        overflow,
      };
    };
    return { target: count("target"), golden: count("golden") };
  }

  /** @param {Asked} asked */
  #strip(asked) {
    const nodes = this.#ordered(this.#graph(asked).target);
    const count = Math.min(asked.bins ?? 700, nodes.length);
    const bins = Array.from({ length: count }, (_, at) =>
      nodes.slice(Math.floor((at * nodes.length) / count), Math.floor(((at + 1) * nodes.length) / count)),
    );
    const value = (/** @type {Stored} */ node) => valueOf(node, asked.metric ?? "");
    const top = bins.map((bin) =>
      bin.reduce((best, node) =>
        (node.level ?? -1) * 1e6 + (value(node) ?? -1) > (best.level ?? -1) * 1e6 + (value(best) ?? -1) ? node : best,
      ),
    );
    const values = bins.map((bin) =>
      bin.reduce(
        (/** @type {number | null} */ most, node) =>
          value(node) === null ? most : Math.max(most ?? 0, value(node) ?? 0),
        null,
      ),
    );
    return {
      nodes: nodes.length,
      level: top.map((node) => node.level ?? -1),
      value: asked.metric ? values : null,
      order: top.map((node) => node.order),
      unmatched: bins.map((bin) => bin.filter((node) => !node.match).length / bin.length),
    };
  }

  /** @param {Asked} asked */
  #step(asked) {
    const found = this.#ordered(this.#graph(asked).target).filter(this.#suspicious(asked));
    if (!found.length) return { node: null, at: 0, of: 0 };
    const from = asked.from;
    let at =
      from === undefined
        ? 0
        : asked.back
          ? found.findLastIndex((node) => node.order < from)
          : found.findIndex((node) => node.order > from);
    if (at < 0) at = asked.back ? found.length - 1 : 0;
    return { node: this.#brief(asked, found[at]), at: at + 1, of: found.length };
  }

  /** @param {Asked} asked */
  #first(asked) {
    const graph = this.#graph(asked);
    if (asked.above === undefined || !asked.metric) return graph.first;
    const node = this.#ordered(graph.target).find(this.#suspicious(asked));
    return node ? { ...node, ...node.facts, sentence: "", stack: "", error: node.error ?? null } : null;
  }

  /** @param {Graph} graph */
  #cell({ step, rank, target }) {
    const levels = target.nodes.map((node) => node.level ?? 0);
    return {
      step,
      rank,
      level: levels.reduce((most, level) => Math.max(most, level), 0),
      suspicious: levels.filter(Boolean).length,
    };
  }
}

/** Children by parent; what was left out of the page is counted. @param {StoredSide} side */
function family(side) {
  /** @type {Map<string, Stored[]>} */
  const found = new Map();
  for (const node of side.nodes) if (node.parent) found.set(node.parent, [...(found.get(node.parent) ?? []), node]);
  for (const children of found.values()) children.sort((a, b) => a.order - b.order);
  for (const node of side.nodes) {
    const there = found.get(node.name)?.length ?? 0;
    node.more = (node.kids ?? 0) - there;
    node.kids = there;
  }
  return found;
}

/** The worst of a metric over the outputs of a node, more being worse. @param {Stored} node @param {string} metric */
function valueOf(node, metric) {
  if (!metric || metric === "error") return node.error ?? null;
  const found = node.outputs.flatMap((tensor) => badness(tensor[metric], metric) ?? []);
  return found.length ? found.reduce((most, value) => Math.max(most, value)) : null;
}

/** @param {string | undefined} text @param {string} metric */
function badness(text, metric) {
  const plain = text?.split(",")[0].trim() ?? "";
  if (!plain || ["n/a", "none", "null", "unsupported", "-"].includes(plain.toLowerCase())) return null;
  if (/nan|inf/i.test(plain)) return worst;
  const value = plain.endsWith("%") ? Number(plain.slice(0, -1)) / 100 : Number(plain);
  if (Number.isNaN(value)) return null;
  return metric === "Cosine" || metric.endsWith("Err Ratio") ? Math.max(0, 1 - value) : Math.abs(value);
}
