// Names as people read them: no Module prefix, the direction in second place, and never without their end.

/** @typedef {{prefix: string, body: string, cls: string, direction: string, call: string}} Parts */
/** @typedef {{own: string, direction: string, rest: string, text: string}} Label */

const directions = new Set(["forward", "backward", "parameters_grad"]);
const containers = new Set(["Module", "Cell"]);

/**
 * Take a recorded name apart; a name outside of the grammar is all body.
 * @param {string} name
 * @returns {Parts}
 */
export function parse(name) {
  const parts = name.split(".");
  let call = "";
  let direction = "";
  const last = parts.length - 1;
  if (directions.has(parts[last])) {
    direction = /** @type {string} */ (parts.pop());
    if (direction !== "parameters_grad" && parts.length > 2 && /^\d+$/.test(parts[parts.length - 1]))
      call = parts.pop() ?? "";
  } else if (parts.length > 2 && directions.has(parts[last - 1]) && /^\d+$/.test(parts[last])) {
    call = parts.pop() ?? "";
    direction = parts.pop() ?? "";
  } else {
    return { prefix: "", body: name, cls: "", direction: "", call: "" };
  }
  const prefix = parts.shift() ?? "";
  const cls = containers.has(prefix) || direction === "parameters_grad" ? (parts.pop() ?? "") : "";
  return { prefix, body: parts.join("."), cls, direction, call };
}

/**
 * What a node is called under its parent: its own name, the direction, then class and call number.
 * @param {string} name
 * @param {string} [parent]
 * @returns {Label}
 */
export function label(name, parent = "") {
  const { prefix, body, cls, direction, call } = parse(name);
  let own = prefix && !containers.has(prefix) ? `${prefix}.${body}` : body || cls || name;
  const above = parse(parent).body;
  if (containers.has(prefix) && above && body.startsWith(`${above}.`)) own = body.slice(above.length + 1);
  else if (containers.has(prefix) && above === body) own = body.slice(body.lastIndexOf(".") + 1);
  const rest = [body ? cls : "", call].filter(Boolean).join(".");
  return { own, direction, rest, text: [own, direction, rest].filter(Boolean).join(".") };
}

/**
 * What an argument is called beside its node.
 * @param {string} argument
 * @param {string} node
 */
export function argumentName(argument, node) {
  return argument.startsWith(`${node}.`) ? argument.slice(node.length + 1) : argument;
}
