// Where boxes are. Only open nodes cost anything: all closed children of a node are equally high.

/** @typedef {import("./api.js").GraphNode} GraphNode */
/**
 * @typedef {object} Item
 * @property {GraphNode} node
 * @property {Item | null} parent
 * @property {number} index place among its siblings
 * @property {number} depth
 * @property {boolean} open
 * @property {(Item | undefined)[]} kids as long as there are children; with holes where they are not loaded
 * @property {Item[]} openKids in order
 * @property {number[]} extras by how much the open kids up to each are higher than closed ones
 * @property {[number, number][] | null} edges data flow between its children, by their places
 * @property {Set<number>} asked pages of children on their way
 */
/** @typedef {{item: Item | null, parent: Item | null, index: number, depth: number, top: number, height: number}} Placed */

export const row = 32;
export const gap = 10;
export const padTop = 10;
export const padBottom = 10;
export const inset = 18;
const smallest = 300;
const comfortable = 460;

/** @param {Pick<Item, "open" | "kids" | "extras">} item */
export function height(item) {
  if (!item.open) return row;
  const count = item.kids.length;
  return row + padTop + count * (row + gap) - gap + (item.extras.at(-1) ?? 0) + padBottom;
}

/** How much the open kids before a place add. @param {Item} item @param {number} index */
function extraBefore(item, index) {
  let low = 0;
  let high = item.openKids.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (item.openKids[middle].index < index) low = middle + 1;
    else high = middle;
  }
  return low ? item.extras[low - 1] : 0;
}

/** Top of a child, measured from the top of its parent. @param {Item} parent @param {number} index */
export function offsetOf(parent, index) {
  return row + padTop + index * (row + gap) + extraBefore(parent, index);
}

/** Top of an item, measured from the top of the graph. @param {Item} item @returns {number} */
export function topOf(item) {
  return item.parent ? topOf(item.parent) + offsetOf(item.parent, item.index) : 0;
}

/** The child that covers a height inside of its parent, or the last one before it. @param {Item} parent @param {number} y */
export function indexAt(parent, y) {
  let low = 0;
  let high = parent.kids.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsetOf(parent, middle) <= y) low = middle;
    else high = middle - 1;
  }
  return Math.max(0, low);
}

/**
 * Everything that shows between two heights, outer boxes first.
 * @param {Item} root
 * @param {number} from
 * @param {number} to
 * @returns {Placed[]}
 */
export function visible(root, from, to) {
  /** @type {Placed[]} */
  const found = [];
  /** @param {Item} item @param {number} top */
  const visit = (item, top) => {
    found.push({ item, parent: item.parent, index: item.index, depth: item.depth, top, height: height(item) });
    if (!item.open) return;
    for (let index = indexAt(item, from - top); index < item.kids.length; index += 1) {
      const at = top + offsetOf(item, index);
      if (at > to) break;
      const kid = item.kids[index];
      if (kid) {
        if (at + height(kid) >= from) visit(kid, at);
      } else {
        found.push({ item: null, parent: item, index, depth: item.depth + 1, top: at, height: row });
      }
    }
  };
  visit(root, 0);
  return found;
}

/** The innermost item at a height. @param {Item} root @param {number} y @returns {Item | null} */
export function itemAt(root, y) {
  let item = root;
  let rest = y;
  while (item.open && rest > row) {
    const index = indexAt(item, rest);
    const kid = item.kids[index];
    if (!kid) return null;
    rest -= offsetOf(item, index);
    if (rest > height(kid)) return kid;
    item = kid;
  }
  return item;
}

/** The item below in reading order, for the keyboard. @param {Item} item @returns {Item | null} */
export function below(item) {
  if (item.open && item.kids[0]) return item.kids[0];
  for (let at = /** @type {Item | null} */ (item); at?.parent; at = at.parent) {
    const next = at.parent.kids[at.index + 1];
    if (next) return next;
    if (at.index + 1 < at.parent.kids.length) return null;
  }
  return null;
}

/** The item above in reading order. @param {Item} item @returns {Item | null} */
export function above(item) {
  if (!item.parent) return null;
  let at = item.index ? item.parent.kids[item.index - 1] : item.parent;
  if (!at) return null;
  while (at !== item.parent && at.open && at.kids.at(-1)) at = /** @type {Item} */ (at.kids.at(-1));
  return at;
}

/**
 * How wide the outermost box is: wide enough for the innermost one, and no wider than comfortable.
 * @param {number} deepest
 * @param {number} room
 */
export function fullWidth(deepest, room) {
  const least = smallest + 2 * inset * deepest;
  return Math.max(least, Math.min(room, comfortable + 2 * inset * deepest));
}
