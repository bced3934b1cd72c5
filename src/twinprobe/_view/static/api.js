// Questions to the server. The exported page answers the same questions from data in the file (embedded.js).

/** @typedef {"target" | "golden"} Side */
/**
 * @typedef {object} GraphNode
 * @property {string} name
 * @property {number} order place in the execution; children come before their parent
 * @property {string} type
 * @property {number} [kids]
 * @property {number} [level] number of the band; 0 is harmless
 * @property {number} [precision]
 * @property {string} [overflow]
 * @property {number} [micro]
 * @property {string} [match] name of the partner on the other side
 * @property {boolean} [manual]
 * @property {boolean} [comm]
 * @property {number} [error]
 * @property {string} [verdict]
 * @property {string} [origin]
 * @property {string} [by]
 * @property {number} [value] the metric in use
 * @property {number} [expected] the relative error that noise explains
 * @property {number} [times] the error as a multiple of that
 * @property {number} [more] children that an exported page leaves out
 */
/** @typedef {{parent: string, total: number, offset: number, nodes: GraphNode[]}} Page */
/** @typedef {{low: number, high: number, color: string, label: string}} Band */
/** @typedef {Record<string, string> & {name: string}} Tensor */
/** @typedef {{rank: number, node: string, index: string, kind: string}} Peer */
/**
 * @typedef {GraphNode & {parent: string | null, inputs: Tensor[], outputs: Tensor[], stack: string[], merge: string[],
 *   peers: Peer[], folder: string | null, arguments?: Record<string, (number | null)[]> | null}} FullNode
 */
/**
 * @typedef {{metric: string, input: number | null, output: number | null, argument: string | null, how: string | null,
 *   differs: number, inputs: number, outputs: number}} Facts differs, outputs: how many inputs and outputs are not the same
 */
/**
 * @typedef {Facts & {name: string, order: number, level: number | null, origin: string | null, verdict: string | null,
 *   error: number | null, match: string | null, sentence: string, stack: string, parent: string | null}} First
 */
/** @typedef {{id: string, size: number, modified: number, db: boolean}} FileInfo */
/**
 * @typedef {object} Opened
 * @property {string} file
 * @property {number} step
 * @property {number} rank
 * @property {number[]} steps
 * @property {number[]} ranks
 * @property {boolean} compared
 * @property {string} task
 * @property {number} microSteps
 * @property {boolean} overflow
 * @property {Record<string, string>} tooltips
 * @property {Band[]} bands
 * @property {string[]} metrics
 * @property {boolean} knowsMore
 * @property {{target: GraphNode, golden?: GraphNode}} roots
 * @property {Record<Side, Page[]>} pages
 * @property {First | null} first
 */
/** @typedef {{node: GraphNode, target: Page[], golden: Page[]}} Unfolded */
/** @typedef {{nodes: number, unmatched: number, suspicious: number, injected?: number, levels: number[], overflow: Record<string, number>}} Counts */
/** @typedef {{nodes: number, level: number[], value: (number | null)[] | null, order: number[], unmatched: number[]}} StripData */
/** @typedef {{step: number, rank: number, level?: number | null, suspicious?: number, missing?: boolean}} Cell */
/** @typedef {{matches: Record<string, string>, removed: string[], yaml: string}} ByHand */
/** @typedef {Record<string, string | number | boolean | null | undefined>} Arguments */
/**
 * @typedef {object} Api
 * @property {(question: string, asked?: Arguments) => Promise<any>} ask
 * @property {((change: Record<string, unknown>) => Promise<any>)} change
 * @property {boolean} live whether a server answers, so that a reload can show something new
 */

export class AskError extends Error {
  /**
   * @param {string} what
   * @param {string} [hint]
   */
  constructor(what, hint = "") {
    super(what);
    this.hint = hint;
  }
}

/**
 * @param {URL} base the folder of the API
 * @param {(done: number) => void} indexing called while the server still puts a JSON file into a database
 * @returns {Api}
 */
export function httpApi(base, indexing) {
  /** @param {Arguments} asked */
  const query = (asked) => {
    const used = Object.entries(asked).filter(
      ([, value]) => value !== null && value !== undefined && value !== "" && value !== false,
    );
    return new URLSearchParams(used.map(([key, value]) => [key, value === true ? "1" : String(value)])).toString();
  };
  /** @param {Response} reply */
  const read = async (reply) => {
    const body = await reply.json().catch(() => ({ error: { what: `HTTP ${reply.status}` } }));
    if (!reply.ok) throw new AskError(body.error?.what ?? `HTTP ${reply.status}`, body.error?.hint ?? "");
    return body;
  };
  return {
    live: true,
    async ask(question, asked = {}) {
      for (;;) {
        const reply = await fetch(new URL(`${question}?${query(asked)}`, base), { credentials: "same-origin" });
        const body = await read(reply);
        if (reply.status !== 202) return body;
        indexing(body.indexing);
        await new Promise((resolve) => setTimeout(resolve, 300));
      }
    },
    async change(change) {
      const headers = { "Content-Type": "application/json", "X-TwinProbe": "1" };
      const body = JSON.stringify(change);
      return read(await fetch(new URL("change", base), { method: "POST", headers, body, credentials: "same-origin" }));
    },
  };
}
