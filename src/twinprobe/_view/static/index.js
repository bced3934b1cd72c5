// Starts the page in one of its homes: on its own, in TensorBoard's frame, or exported into a single file.

import { httpApi } from "./api.js";
import { App } from "./app.js";
import { embeddedApi } from "./embedded.js";

/** @typedef {import("./state.js").Home} Home */

/** The entry point that TensorBoard calls, too. */
export async function render() {
  const data = document.getElementById("twinprobe-data");
  /** @type {App} */
  let app;
  const api = data
    ? await embeddedApi(data.textContent ?? "")
    : httpApi(new URL("../api/", import.meta.url), (done) => app.indexing(done));
  const framed = window.parent !== window && !data;
  if (framed) addStyle();
  app = new App(api, framed ? frame() : alone());
  window.addEventListener("popstate", () => {
    const now = location.hash.replace(/^#/, "");
    if (framed || now === written) return;
    written = now;
    void app.follow(now);
  });
  await app.start();
}

let written = "";

/** @returns {Home} */
function alone() {
  written = location.hash.replace(/^#/, "");
  return {
    read: () => location.hash,
    write: (address, step) => {
      if (address === written) return;
      written = address;
      try {
        if (step) history.pushState(null, "", `#${address}`);
        else history.replaceState(null, "", `#${address}`);
      } catch {
        location.hash = address; // some browsers refuse it for files
      }
    },
    link: () => location.href,
    dark: () => null,
    ownWindow: null,
  };
}

/**
 * TensorBoard keeps the name of the tab after # in its own address, and leaves what follows alone.
 * @returns {Home}
 */
function frame() {
  const { parent } = window;
  const key = "twinprobe=";
  const parts = () => parent.location.hash.replace(/^#/, "").split("&");
  return {
    read: () =>
      decodeURIComponent(
        parts()
          .find((part) => part.startsWith(key))
          ?.slice(key.length) ?? "",
      ),
    write: (address) => {
      const others = parts().filter((part) => part && !part.startsWith(key));
      if (!others.length) others.push("twinprobe");
      parent.history.replaceState(
        parent.history.state,
        "",
        `#${[...others, key + encodeURIComponent(address)].join("&")}`,
      );
    },
    link: () => parent.location.href,
    dark: () => parent.document.body.classList.contains("dark-mode"),
    ownWindow: () => {
      const state =
        parts()
          .find((part) => part.startsWith(key))
          ?.slice(key.length) ?? "";
      window.open(new URL(`../index.html#${decodeURIComponent(state)}`, import.meta.url), "_blank", "noopener");
    },
  };
}

function addStyle() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("./style.css", import.meta.url).href;
  document.head.append(link);
}
