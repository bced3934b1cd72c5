// The whole state of the page in its address: a copied link shows the same thing to somebody else.

/** @typedef {import("./api.js").Side} Side */
/**
 * @typedef {object} State
 * @property {string} file
 * @property {number | null} step
 * @property {number | null} rank
 * @property {number | null} micro null shows all
 * @property {string} node the selected node
 * @property {Side} side the side it is on
 * @property {number[]} openTarget open nodes by their places in the order
 * @property {number[]} openGolden
 * @property {number} zoom
 * @property {number[]} scroll x and y of the target's pane, x and y of the golden's
 * @property {string} color "levels" or the name of a metric
 * @property {number} above limit for the metric
 * @property {string} tab
 * @property {Side} listSide
 * @property {number[]} levels filter of the lists
 * @property {string[]} overflow filter of the lists
 * @property {string} what "", "modules" or "apis"
 * @property {boolean} injected filter of the lists: only where a difference arose
 * @property {string} inside the argument whose tensors are drawn
 * @property {string} q search text
 * @property {boolean} growth
 * @property {boolean} panel
 * @property {boolean} details
 * @property {number} tall height of the details in pixels
 * @property {number} wide width of the lists in pixels
 * @property {string} lang
 * @property {string} theme
 */

/**
 * @typedef {object} Home where the page lives
 * @property {() => string} read
 * @property {(address: string, step: boolean) => void} write step: somewhere else, to which "back" returns
 * @property {() => string} link
 * @property {() => boolean | null} dark
 * @property {(() => void) | null} ownWindow
 */

/** What names a graph. @type {(keyof State)[]} */
export const place = ["file", "step", "rank"];
/** What decides which nodes count. @type {(keyof State)[]} */
export const narrow = [...place, "micro", "color", "above"];
/** @type {(keyof State)[]} */
const stops = [...narrow, "node", "tab", "listSide", "levels", "overflow", "what", "injected", "q"];

/** A place to come back to; the rest (scrolling, zoom, sizes) belongs to the place where one is. @param {State} state */
export function stopOf(state) {
  return JSON.stringify(stops.map((key) => state[key]));
}

/** @returns {State} */
export function initialState() {
  return {
    file: "",
    step: null,
    rank: null,
    micro: null,
    node: "",
    side: "target",
    openTarget: [],
    openGolden: [],
    zoom: 1,
    scroll: [],
    color: "levels",
    above: 0.01,
    tab: "suspicious",
    listSide: "target",
    levels: [],
    overflow: [],
    what: "",
    injected: false,
    inside: "",
    q: "",
    growth: false,
    panel: true,
    details: true,
    tall: 286,
    wide: 330,
    lang: "",
    theme: "",
  };
}

/**
 * Ascending numbers as short text: differences in base 36.
 * @param {number[]} numbers
 */
export function packNumbers(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  return sorted.map((number, at) => (at ? number - sorted[at - 1] : number).toString(36)).join(".");
}

/** @param {string} text */
export function unpackNumbers(text) {
  /** @type {number[]} */
  const found = [];
  for (const part of text.split(".").filter(Boolean)) {
    const step = Number.parseInt(part, 36);
    if (!Number.isSafeInteger(step) || step < 0) return found;
    found.push((found.at(-1) ?? 0) + step);
  }
  return found;
}

/** @type {Record<string, [(value: any) => string, (text: string) => any]>} */
const kinds = {
  text: [String, String],
  flag: [(value) => (value ? "1" : "0"), (text) => text === "1"],
  number: [
    (value) => (value === null ? "" : String(value)),
    (text) => (/^\d+(\.\d+)?(e-?\d+)?$/.test(text) ? Number(text) : null),
  ],
  places: [packNumbers, unpackNumbers],
  list: [(value) => value.join(","), (text) => text.split(",").filter(Boolean)],
  numbers: [
    (value) => value.join(","),
    (text) =>
      text
        .split(",")
        .filter((part) => /^\d+$/.test(part))
        .map(Number),
  ],
};

/** @type {[keyof State, string][]} */
const fields = [
  ["file", "text"],
  ["step", "number"],
  ["rank", "number"],
  ["micro", "number"],
  ["side", "text"],
  ["node", "text"],
  ["openTarget", "places"],
  ["openGolden", "places"],
  ["zoom", "number"],
  ["scroll", "numbers"],
  ["color", "text"],
  ["above", "number"],
  ["tab", "text"],
  ["listSide", "text"],
  ["levels", "numbers"],
  ["overflow", "list"],
  ["what", "text"],
  ["injected", "flag"],
  ["inside", "text"],
  ["q", "text"],
  ["growth", "flag"],
  ["panel", "flag"],
  ["details", "flag"],
  ["tall", "number"],
  ["wide", "number"],
  ["lang", "text"],
  ["theme", "text"],
];

/**
 * What differs from the initial state, as the part of an address after #.
 * @param {State} state
 */
export function toAddress(state) {
  const start = initialState();
  const query = new URLSearchParams();
  for (const [key, kind] of fields) {
    const text = kinds[kind][0](state[key]);
    if (text !== kinds[kind][0](start[key])) query.set(key, text);
  }
  return query.toString();
}

/**
 * @param {string} address
 * @returns {State}
 */
export function fromAddress(address) {
  const state = initialState();
  const query = new URLSearchParams(address.replace(/^#/, ""));
  for (const [key, kind] of fields) {
    const text = query.get(key);
    if (text === null) continue;
    const value = kinds[kind][1](text);
    if (value === null && !["step", "rank", "micro"].includes(key)) continue;
    Object.assign(state, { [key]: value });
  }
  if (state.side !== "golden") state.side = "target";
  if (state.listSide !== "golden") state.listSide = "target";
  state.tall = Math.min(2000, Math.max(80, Math.round(state.tall || 286)));
  state.wide = Math.min(2000, Math.max(220, Math.round(state.wide || 330)));
  state.zoom = Math.min(3, Math.max(0.2, state.zoom || 1));
  return state;
}
