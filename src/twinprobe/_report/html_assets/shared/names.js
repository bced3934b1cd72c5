// Names that do not fit: the middle gives way, never the layer's number or the end.

/**
 * A name of at most so many characters. What follows the last dots says what it is, and the first number says which
 * layer it is in: of two names that differ in these, the shortened ones differ as well.
 * @param {string} text
 * @param {number} most
 */
export function shorten(text, most) {
  if (text.length <= most) return text;
  const layer = /(?:^|\.)(?:[^.]*\.)(\d+)(?=\.)/.exec(text);
  const end = layer ? layer.index + layer[0].length : 0;
  const room = most - end - 1;
  // As much of the end as of the beginning, or the layer is told by its number alone.
  if (layer && room >= Math.max(8, most / 3)) return `${text.slice(0, end)}…${text.slice(text.length - room)}`;
  if (layer && text.length - most < end - layer[1].length) return `…${text.slice(text.length - most + 1)}`; // the end has it
  const head = layer ? `…${layer[1]}…` : `${text.slice(0, Math.max(1, Math.floor(most / 3)))}…`;
  return `${head}${text.slice(text.length - Math.max(1, most - head.length))}`;
}
