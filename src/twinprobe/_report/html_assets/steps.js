"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SPACE = "http://www.w3.org/2000/svg";
  const WIDTH = Math.min(900, Math.max(300, innerWidth - 90)), // as wide as it is shown, or its texts become small
     LEFT = 64, RIGHT = 12, HIGH = 150, LOW = 90, MOST_NAMES = 400;
  const byId = (id) => document.getElementById(id);
  const make = (tag, text) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const chinese = navigator.language.toLowerCase().startsWith("zh");
  const brief = (value) => value === null || value === undefined ? (chinese ? "无数值" : "no number") : String(+value.toPrecision(5));

  let trend = data.trends.find((one) => one.rank === data.rank) || data.trends[0];
  let picked = new Set();

  for (const id of ["sentence", "target", "golden"]) byId(id).textContent = data[id];
  for (const text of data.notes) byId("notes").append(make("li", text));
  for (const one of data.trends) {
    const option = make("option", String(one.rank));
    option.value = String(one.rank);
    option.selected = one === trend;
    byId("rank").append(option);
  }
  byId("rank").parentElement.hidden = data.trends.length < 2;

  // What is shown at first: loss, norms and learning rate, then what differs first.
  const start = () => {
    const names = new Set(trend.series.map((one) => one.name));
    picked = new Set(data.head.filter((name) => names.has(name)));
    const differing = trend.series.filter((one) => one.first !== null && !picked.has(one.name));
    const earliest = Math.min(...differing.map((one) => one.first));
    for (const one of differing.filter((one) => one.first === earliest).slice(0, 3)) picked.add(one.name);
    if (!picked.size && trend.series.length) picked.add(trend.series[0].name);
  };

  const path = (values, x, y) => {
    let [text, pen] = ["", "M"];
    values.forEach((value, at) => {
      if (value === null) { pen = "M"; return; }
      text += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    });
    return text;
  };

  const bounds = (lists) => {
    let [low, high] = [Infinity, -Infinity];
    for (const list of lists) for (const value of list) if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low > high) return [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
    return [low - room, high + room];
  };

  const chart = (one) => {
    const golden = one.golden || one.target;
    const count = trend.steps.length;
    const x = (at) => LEFT + (at / Math.max(count - 1, 1)) * (WIDTH - LEFT - RIGHT);
    const both = draw("svg", { viewBox: `0 0 ${WIDTH} ${HIGH + 22}`, role: "img", "aria-label": `${one.name}, ${chinese ? "两次运行" : "both runs"}` });
    const [low, high] = bounds([one.target, golden]);
    const y = (value) => 8 + ((high - value) / (high - low)) * (HIGH - 16);
    for (const share of [0, 0.5, 1]) {
      const value = low + share * (high - low);
      both.append(draw("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
      both.append(draw("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, brief(+value.toPrecision(3))));
    }
    both.append(draw("path", { class: "golden", d: path(golden, x, y) }), draw("path", { class: "target", d: path(one.target, x, y) }));
    steps(both, x, HIGH + 14);

    const apart = draw("svg", { viewBox: `0 0 ${WIDTH} ${LOW + 6}`, role: "img", "aria-label": `${one.name}, ${chinese ? "相对差异" : "relative difference"}` });
    const difference = one.difference || one.target.map((value) => value === null ? null : 0);
    const logs = difference.map((value) => value > 0 ? Math.log10(value) : null);
    const noise = one.noise ? one.noise.map((value) => value > 0 ? Math.log10(value) : null) : null;
    const [bottom, top] = logs.some((value) => value !== null) || noise ? bounds([logs, noise || []]) : [-8, 0];
    const level = (value) => 8 + ((top - value) / (top - bottom)) * (LOW - 26);
    if (noise) {
      let area = `M${x(0)} ${LOW - 12}`;
      noise.forEach((value, at) => { area += `L${x(at).toFixed(1)} ${(value === null ? LOW - 12 : level(value)).toFixed(1)}`; });
      apart.append(draw("path", { class: "noise", d: `${area}L${x(count - 1)} ${LOW - 12}Z` }));
    }
    for (const value of [bottom, top]) {
      apart.append(draw("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: level(value), y2: level(value) }));
      apart.append(draw("text", { x: LEFT - 8, y: level(value) + 4, "text-anchor": "end" }, (10 ** value).toExponential(0)));
    }
    apart.append(draw("text", { x: LEFT - 8, y: LOW, "text-anchor": "end" }, "equal"));
    apart.append(draw("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: LOW - 4, y2: LOW - 4 }));
    apart.append(draw("path", { class: "difference", d: path(logs, x, level) }));
    logs.forEach((value, at) => {
      if (difference[at] === 0) apart.append(draw("circle", { class: "dot", cx: x(at), cy: LOW - 4, r: 1.1 }));
      else if (value !== null && logs[at - 1] == null && logs[at + 1] == null) apart.append(draw("circle", { class: "dot", cx: x(at), cy: level(value), r: 2 }));
    });
    for (const [svg, height] of [[both, HIGH], [apart, LOW]]) parting(svg, x, height);

    const figure = make("figure");
    const caption = make("figcaption", one.name);
    const values = make("span", one.first !== null ? (chinese ? `自 step ${one.first} 起有差异` : `differs from step ${one.first} on`)
      : one.difference ? (chinese ? "噪声以内" : "within noise") : chinese ? "相等" : "equal");
    caption.append(values);
    figure.append(caption, both, apart);
    follow(figure, [both, apart], x, (at) => {
      const [step, target, other, off] = [trend.steps[at], brief(one.target[at]), brief(golden[at]), brief(difference[at])];
      values.textContent = chinese ? `step ${step}：${target} 对比 ${other}，差异 ${off}` : `step ${step}: ${target} against ${other}, difference ${off}`;
    });
    return figure;
  };

  const steps = (svg, x, height) => {
    const count = trend.steps.length;
    const every = Math.max(1, Math.ceil(count / 10));
    for (let at = 0; at < count; at += every) svg.append(draw("text", { x: x(at), y: height, "text-anchor": "middle" }, String(trend.steps[at])));
    svg.append(draw("text", { x: LEFT - 8, y: height, "text-anchor": "end" }, "step"));
  };

  const parting = (svg, x, height) => {
    const at = data.step === null || trend.rank !== data.rank ? -1 : trend.steps.findIndex((step) => step >= data.step);
    if (at >= 0) svg.append(draw("line", { class: "mark", x1: x(at), x2: x(at), y1: 4, y2: height - 4 }));
  };

  const follow = (figure, images, x, tell) => {
    const cursors = images.map((svg) => {
      const line = draw("line", { class: "cursor", x1: -9, x2: -9, y1: 0, y2: HIGH });
      svg.append(line);
      return line;
    });
    figure.addEventListener("pointermove", (event) => {
      const box = images[0].getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * WIDTH;
      const share = Math.min(Math.max((place - LEFT) / (WIDTH - LEFT - RIGHT), 0), 1);
      const at = Math.round(share * (trend.steps.length - 1));
      for (const line of cursors) for (const end of ["x1", "x2"]) line.setAttribute(end, x(at));
      tell(at);
    });
  };

  const showCharts = () => byId("charts").replaceChildren(...trend.series.filter((one) => picked.has(one.name))
    .sort((a, b) => [...picked].indexOf(a.name) - [...picked].indexOf(b.name)).map(chart));

  const showNames = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = trend.series.filter((one) => words.every((word) => one.name.toLowerCase().includes(word))
      && (!byId("differing").checked || one.first !== null));
    const [shown, all] = [found.length, trend.series.length].map((number) => number.toLocaleString("en"));
    const cut = found.length > MOST_NAMES;
    byId("count").textContent = chinese ? `${all} 个序列中的 ${shown} 个${cut ? `，列出前 ${MOST_NAMES} 个` : ""}` : `${shown} of ${all} series${cut ? `, the first ${MOST_NAMES} are listed` : ""}`;
    byId("names").replaceChildren(...found.slice(0, MOST_NAMES).map((one) => {
      const button = make("button", one.name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(picked.has(one.name)));
      if (one.first !== null) {
        button.className = "differs";
        button.dataset.first = String(one.first);
      }
      button.addEventListener("click", () => {
        if (!picked.delete(one.name)) picked.add(one.name);
        button.setAttribute("aria-pressed", String(picked.has(one.name)));
        showCharts();
      });
      const item = make("li");
      item.append(button);
      return item;
    }));
  };

  byId("choice").addEventListener("submit", (event) => event.preventDefault());
  byId("filter").addEventListener("input", showNames);
  byId("differing").addEventListener("change", showNames);
  byId("rank").addEventListener("change", () => {
    trend = data.trends.find((one) => String(one.rank) === byId("rank").value) || trend;
    start();
    showNames();
    showCharts();
  });
  start();
  showNames();
  showCharts();
})();
