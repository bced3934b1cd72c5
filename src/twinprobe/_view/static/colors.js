// How a node looks: the file's own levels, or a metric and a limit that the user picks. More colour is worse.

/** @typedef {import("./api.js").GraphNode} GraphNode */
/** @typedef {import("./api.js").Band} Band */
/** @typedef {"pass" | "notice" | "warning" | "bad" | "error" | "unmatched" | "none"} Look */
/** @typedef {{look: Look, fill: string, edge: string, mark: string}} Paint */

export const worst = 1e30;

// Five steps, light to dark in one direction so that they tell apart without hue; each has its own mark as well.
const ramps = {
  light: [
    ["#ffffff", "#d5dae1"],
    ["#fff3d1", "#e0be6a"],
    ["#ffe09a", "#cf9a2b"],
    ["#ffb877", "#d9772b"],
    ["#ff8a66", "#c8401c"],
  ],
  dark: [
    ["#262c34", "#3d4650"],
    ["#453d22", "#857034"],
    ["#5f4c14", "#b98f2a"],
    ["#74431a", "#d6803a"],
    ["#8e3823", "#f0714d"],
  ],
};
const greys = { light: ["#e4e7eb", "#9aa3ad"], dark: ["#33383f", "#7d8793"] };
/** @type {Look[]} */
const looks = ["pass", "notice", "warning", "bad", "error"];
const marks = { pass: "●", notice: "◔", warning: "▲", bad: "◮", error: "◆", unmatched: "○", none: "" };

/**
 * The step of the ramp that a band takes: the first is harmless, the last is the worst.
 * @param {number} level
 * @param {number} bands
 */
export function stepOf(level, bands) {
  return bands < 2 ? 0 : Math.round((level / (bands - 1)) * 4);
}

/**
 * How far above the limit a value is: 0 at or below it, then a quarter for each factor of about 5, at most 1.
 * @param {number} value
 * @param {number} above
 */
export function strength(value, above) {
  if (!(value > above)) return 0;
  if (value >= worst) return 1;
  return Math.min(1, 0.25 + (0.25 * Math.log10(value / Math.max(above, 1e-12))) / 0.7);
}

/**
 * @param {{bands: Band[], compared: boolean, color: string, above: number, dark: boolean}} how
 * @returns {(node: GraphNode) => Paint}
 */
export function painter({ bands, compared, color, above, dark }) {
  const theme = dark ? "dark" : "light";
  /** @param {Look} look @param {string[]} pair @returns {Paint} */
  const paint = (look, pair) => ({ look, fill: pair[0], edge: pair[1], mark: marks[look] });
  const steps = looks.map((look, at) => paint(look, ramps[theme][at]));
  const unmatched = paint("unmatched", greys[theme]);
  const none = paint("none", ramps[theme][0]);
  return (node) => {
    if (!compared) return none;
    if (node.match === undefined) return unmatched;
    if (color === "levels") return node.level === undefined ? none : steps[stepOf(node.level, bands.length)];
    if (node.value === undefined || node.value === null) return none;
    const share = strength(node.value, above);
    const step = steps[share === 0 ? 0 : Math.max(1, Math.round(share * 4))];
    return share === 0 ? step : { ...step, fill: between(ramps[theme], share) };
  };
}

/** @param {string[][]} ramp @param {number} share */
function between(ramp, share) {
  const at = Math.min(3.999, share * 4);
  const low = Math.floor(at);
  const mix = at - low;
  const [from, to] = [ramp[low][0], ramp[low + 1][0]].map((text) =>
    [1, 3, 5].map((i) => Number.parseInt(text.slice(i, i + 2), 16)),
  );
  return `rgb(${from.map((part, i) => Math.round(part + (to[i] - part) * mix)).join(" ")})`;
}

/**
 * A number for people: percent for relative errors, few digits otherwise.
 * @param {number | null | undefined} value
 * @param {string} metric
 */
export function shown(value, metric) {
  if (value === null || value === undefined) return "–";
  if (value >= worst) return "nan/inf";
  if (value === 0) return "0";
  if (metric === "error" || metric.endsWith("RelativeErr")) {
    const percent = value * 100;
    return percent >= 1e5 || percent < 0.001
      ? `${percent.toExponential(1)} %`
      : `${Number(percent.toPrecision(percent < 1 ? 2 : 3))} %`;
  }
  return value >= 1e5 || value < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}
