// What is shown, in the page's address: a copied link shows the same, and "back" returns to what was shown before.

class Address {
  constructor(onChange) {
    this.written = location.hash.slice(1);
    addEventListener("popstate", () => {
      if (location.hash.slice(1) === this.written) return;
      this.written = location.hash.slice(1);
      onChange(this.read());
    });
  }

  // Every entry may have been typed by hand: what makes no sense is left out.
  read() {
    const query = new URLSearchParams(location.hash.slice(1));
    const numbers = (name) => (query.get(name) || "").split(",").filter((text) => /^\d+(\.\d+)?$/.test(text)).map(Number);
    const verdicts = (query.get("verdicts") ?? VERDICTS.join(",")).split(",").filter((name) => VERDICTS.includes(name));
    const sort = /^([+-])(.+)$/.exec(query.get("sort") || "");
    return {
      text: query.get("q") || "",
      verdicts: new Set(verdicts),
      origin: query.get("origin") ?? "*",
      row: numbers("row")[0] ?? null,
      zoom: numbers("zoom").length === 2 ? numbers("zoom") : null,
      sort: sort ? { name: sort[2], descending: sort[1] === "-" } : null,
      lang: query.get("lang") || "",
      wide: numbers("wide")[0] ?? null,
    };
  }

  // ``step``: somewhere else, to which "back" returns.
  write({ text, verdicts, origin, row, zoom, sort, lang, wide }, step) {
    const query = new URLSearchParams();
    if (text) query.set("q", text);
    if (verdicts.size < VERDICTS.length) query.set("verdicts", [...verdicts].join(","));
    if (origin !== "*") query.set("origin", origin);
    if (row !== null) query.set("row", String(row));
    if (zoom) query.set("zoom", zoom.map((place) => +place.toFixed(2)).join(","));
    if (sort) query.set("sort", (sort.descending ? "-" : "+") + sort.name);
    if (lang) query.set("lang", lang);
    if (wide) query.set("wide", String(wide));
    const now = query.toString();
    if (now === this.written) return;
    this.written = now;
    try {
      if (step) history.pushState(null, "", "#" + now);
      else history.replaceState(null, "", "#" + now);
    } catch {
      location.hash = now; // some browsers refuse it for files
    }
  }
}
