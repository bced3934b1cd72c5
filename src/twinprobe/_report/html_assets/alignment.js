"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const DOUBTFUL = 0.8, MOST = 4000, AT_FIRST = 120;
  const chinese = navigator.language.toLowerCase().startsWith("zh");
  const byId = (id) => document.getElementById(id);
  const sides = data.sides.map((side, at) => ({ ...side, at, open: new Set([0]), rows: new Map(), links: new Map() }));
  data.links.forEach((link, number) => [0, 1].forEach((at) => link[at].forEach((node) => {
    const known = sides[at].links.get(node);
    if (known) known.push(number); else sides[at].links.set(node, [number]);
  })));
  const options = { calls: false, alone: false, find: "" };

  const isWanted = (side, node) => {
    if (!side.modules[node] && !options.calls) return false;
    if (options.find && !side.names[node].toLowerCase().includes(options.find)) return false;
    if (!options.alone) return true;
    const links = side.links.get(node);
    return !links || links.some((number) => data.links[number][2] < DOUBTFUL);
  };

  // A node is shown if it is wanted, or encloses something that is.
  const wanted = (side) => {
    const filtered = options.find || options.alone;
    const shown = new Uint8Array(side.names.length);
    const order = [];
    const stack = [0];
    while (stack.length) { const node = stack.pop(); order.push(node); stack.push(...side.children[node]); }
    for (let at = order.length - 1; at >= 0; at -= 1) {
      const node = order[at];
      if (isWanted(side, node)) shown[node] = 1;
      if (shown[node] && filtered && node) shown[side.parents[node]] = 1;
    }
    return shown;
  };

  const visible = (side, shown) => {
    const rows = [];
    const stack = [[0, -1]];
    const all = Boolean(options.find || options.alone);
    while (stack.length && rows.length < MOST) {
      const [node, depth] = stack.pop();
      if (node) rows.push([node, depth]);
      if (node === 0 || side.open.has(node) || all) {
        for (let at = side.children[node].length - 1; at >= 0; at -= 1) {
          const child = side.children[node][at];
          if (shown[child]) stack.push([child, depth + 1]);
        }
      }
    }
    return rows;
  };

  const text = (tag, content, name) => {
    const element = document.createElement(tag);
    element.textContent = content;
    if (name) element.className = name;
    return element;
  };

  // What a module is paired with where that is a call and calls are not shown: no line can tell.
  const unseen = (side, links) => {
    const other = sides[1 - side.at];
    const partners = (links || []).flatMap((number) => data.links[number][1 - side.at]);
    if (options.calls || !partners.length || partners.some((node) => other.modules[node])) return [];
    return [text("span", `= ${other.labels[partners[0]]}`, "other")];
  };

  const draw = () => {
    for (const side of sides) {
      const shown = wanted(side);
      const home = byId(`tree${side.at}`);
      side.rows.clear();
      const parts = [text("h2", `${side.title} (${side.framework}): ${side.path}`)];
      for (const [node, depth] of visible(side, shown)) {
        const row = document.createElement("button");
        const links = side.links.get(node);
        const doubt = links && links.some((number) => data.links[number][2] < DOUBTFUL);
        row.type = "button";
        row.className = `node${side.modules[node] ? "" : " call"}${links ? "" : " alone"}${doubt ? " doubt" : ""}`;
        row.title = side.names[node];
        row.style.paddingLeft = `${10 + 14 * depth}px`;
        const inner = side.children[node].some((child) => shown[child]);
        if (inner) row.setAttribute("aria-expanded", String(side.open.has(node)));
        row.append(text("span", inner ? (side.open.has(node) ? "\u25be" : "\u25b8") : "", "twist"),
          text("span", side.labels[node], "text"), ...unseen(side, links));
        row.dataset.node = node;
        row.dataset.side = side.at;
        parts.push(row);
        side.rows.set(node, row);
      }
      home.replaceChildren(...parts);
    }
    connect();
  };

  const connect = () => {
    const svg = byId("lines");
    const frame = svg.getBoundingClientRect();
    const paths = [];
    data.links.forEach(([mine, theirs, confidence, kind], number) => {
      for (const one of mine) {
        for (const other of theirs) {
          const left = sides[0].rows.get(one), right = sides[1].rows.get(other);
          if (!left || !right) continue;
          const from = left.getBoundingClientRect(), to = right.getBoundingClientRect();
          const y0 = from.top + from.height / 2 - frame.top, y1 = to.top + to.height / 2 - frame.top;
          const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
          path.setAttribute("d", `M0,${y0} C90,${y0} 130,${y1} 220,${y1}`);
          const many = mine.length > 1 || theirs.length > 1;
          path.setAttribute("class", `link${many ? " many" : ""}${confidence < DOUBTFUL ? " doubt" : ""}`);
          path.dataset.link = number;
          path.dataset.kind = kind;
          paths.push(path);
        }
      }
    });
    svg.replaceChildren(...paths);
  };

  const light = (row) => {
    document.querySelectorAll(".lit").forEach((element) => element.classList.remove("lit"));
    if (!row) return;
    const side = sides[row.dataset.side], node = Number(row.dataset.node);
    const links = side.links.get(node) || [];
    const home = byId("details");
    home.replaceChildren(text("code", side.names[node]));
    row.classList.add("lit");
    if (!links.length) home.append(text("div", `${chinese ? "未配对：" : "unmatched: "}${side.why[node] || (chinese ? "没有找到对应模块" : "no partner was found")}`));
    for (const number of links) {
      const [mine, theirs, confidence, kind, rule, reason] = data.links[number];
      const names = [mine.map((at) => sides[0].names[at]), theirs.map((at) => sides[1].names[at])];
      home.append(text("div", `${names[0].join(" + ")} = ${names[1].join(" + ")}`),
        text("div", `${rule} (${kind}), ${chinese ? "置信度" : "confidence"} ${confidence.toFixed(2)}: ${reason}`));
      document.querySelectorAll(`[data-link="${number}"]`).forEach((path) => path.classList.add("lit"));
      [mine, theirs].forEach((nodes, at) => nodes.forEach((one) => sides[at].rows.get(one)?.classList.add("lit")));
    }
  };

  const toggle = (side, node) => {
    const opens = !side.open.has(node);
    const partners = (side.links.get(node) || []).flatMap((number) => data.links[number][1 - side.at]);
    for (const [home, at] of [[side, node], ...partners.map((partner) => [sides[1 - side.at], partner])]) {
      if (opens) home.open.add(at); else home.open.delete(at);
    }
    draw();
  };

  const stage = byId("stage");
  stage.addEventListener("click", (event) => {
    const row = event.target.closest(".node");
    if (!row) return;
    toggle(sides[row.dataset.side], Number(row.dataset.node));
    light(sides[row.dataset.side].rows.get(Number(row.dataset.node)));
    sides[row.dataset.side].rows.get(Number(row.dataset.node))?.focus();
  });
  stage.addEventListener("mouseover", (event) => { const row = event.target.closest(".node"); if (row) light(row); });
  stage.addEventListener("focusin", (event) => { const row = event.target.closest(".node"); if (row) light(row); });
  byId("calls").addEventListener("change", (event) => { options.calls = event.target.checked; draw(); });
  byId("alone").addEventListener("change", (event) => { options.alone = event.target.checked; draw(); });
  byId("find").addEventListener("input", (event) => { options.find = event.target.value.trim().toLowerCase(); draw(); });
  byId("open").addEventListener("click", () => {
    for (const side of sides) side.children.forEach((children, node) => { if (children.length) side.open.add(node); });
    draw();
  });
  byId("shut").addEventListener("click", () => { for (const side of sides) side.open = new Set([0]); draw(); });
  window.addEventListener("resize", connect);

  byId("summary").textContent = chinese
    ? `${data.modules[0]} 个模块中的 ${data.matched[0]} 个对应 ${data.modules[1]} 个中的 ${data.matched[1]} 个`
    : `${data.matched[0]} of ${data.modules[0]} modules match ${data.matched[1]} of ${data.modules[1]}`;
  byId("notes").replaceChildren(...data.notes.map((note) => text("li", note)));
  // Open level by level as long as it stays readable.
  for (const side of sides) {
    let level = [0], count = 0;
    while (level.length && count + level.length < AT_FIRST) {
      level.forEach((node) => side.open.add(node));
      count += level.length;
      level = level.flatMap((node) => side.children[node].filter((child) => side.modules[child]));
    }
  }
  draw();
})();
