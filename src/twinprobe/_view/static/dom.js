// Elements without markup: whatever a file contains goes into the page as text, never as HTML.

/**
 * Foreign text with every character spelled out that is not seen or turns the reading direction.
 * @param {string} text
 */
export function seen(text) {
  return text.replace(
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, unknown>} [props] attributes; "class" and "on…" handlers are understood; false and null are left out
 * @param {...(globalThis.Node | string | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on") && typeof value === "function") {
      element.addEventListener(key.slice(2), /** @type {EventListener} */ (value));
    } else {
      const text = value === true ? "" : String(value);
      element.setAttribute(key, key === "title" || key === "aria-label" ? seen(text) : text);
    }
  }
  for (const child of children)
    if (child !== null && child !== undefined && child !== false)
      element.append(typeof child === "string" ? seen(child) : child);
  return element;
}

const paths = {
  chevron: "M6 4l5 5-5 5",
  search: "M8 13.5a5.5 5.5 0 1 1 0-11 5.5 5.5 0 0 1 0 11zM12.2 12.2 16 16",
  sun: "M9 12.5a3.5 3.5 0 1 1 0-7 3.5 3.5 0 0 1 0 7zM9 1v1.6M9 15.4V17M1 9h1.6M15.4 9H17M3.4 3.4l1.1 1.1M13.5 13.5l1.1 1.1M3.4 14.6l1.1-1.1M13.5 4.5l1.1-1.1",
  moon: "M15.5 10.6A6.8 6.8 0 0 1 7.4 2.5a6.8 6.8 0 1 0 8.1 8.1z",
  help: "M9 16.5a7.5 7.5 0 1 1 0-15 7.5 7.5 0 0 1 0 15zM6.9 7a2.1 2.1 0 1 1 3 1.9c-.6.3-.9.7-.9 1.4M9 12.8v.1",
  fit: "M2.5 6.5v-4h4M15.5 6.5v-4h-4M2.5 11.5v4h4M15.5 11.5v4h-4",
  plus: "M9 3.5v11M3.5 9h11",
  minus: "M3.5 9h11",
  up: "M4 11l5-5 5 5",
  down: "M4 7l5 5 5-5",
  copy: "M6 6V2.5h9.5V12H12M2.5 6H12v9.5H2.5z",
  link: "M7.5 10.5l3-3M8 5.2l1.9-1.9a3.4 3.4 0 0 1 4.8 4.8L12.8 10M10 12.8l-1.9 1.9a3.4 3.4 0 0 1-4.8-4.8L5.2 8",
  close: "M4 4l10 10M14 4L4 14",
  grid: "M2.5 2.5h5v5h-5zM10.5 2.5h5v5h-5zM2.5 10.5h5v5h-5zM10.5 10.5h5v5h-5z",
  panel: "M2.5 3h13v12h-13zM7 3v12",
  flag: "M4.5 16V2.5M4.5 3h9l-2 3 2 3h-9",
  download: "M9 2.5v9M5 8l4 4 4-4M2.5 15.5h13",
  upload: "M9 12V3M5 6.5l4-4 4 4M2.5 15.5h13",
  swap: "M3 6h11l-3-3M15 12H4l3 3",
};

/**
 * @param {keyof typeof paths} name
 * @returns {SVGSVGElement}
 */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 18 18");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", paths[name]);
  svg.append(path);
  return svg;
}

/**
 * A button with an icon, a name for screen readers and a tooltip.
 * @param {keyof typeof paths} name
 * @param {string} label
 * @param {() => void} act
 * @param {Record<string, unknown>} [props]
 */
export function iconButton(name, label, act, props = {}) {
  return h(
    "button",
    { type: "button", class: "icon-button", title: label, "aria-label": label, onclick: act, ...props },
    icon(name),
  );
}

/**
 * @param {string} text
 * @returns {Promise<void>}
 */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/**
 * @param {string} name
 * @param {string} text
 */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const anchor = h("a", { href: address, download: name });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * A canvas as large as its place and as sharp as the screen.
 * @param {HTMLCanvasElement} canvas
 * @returns {{pen: CanvasRenderingContext2D, width: number, height: number}}
 */
export function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}
