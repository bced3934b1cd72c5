// Elements are made here and nowhere else, from text and never from markup.

const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Foreign text, kept from turning the reading direction of its surroundings.
function foreign(text, className = "") {
  const element = make("bdi", className ? { class: className } : {});
  element.textContent = visible(text);
  return element;
}

const SHAPES = {
  error: "M6 .8 11.2 6 6 11.2 .8 6Z",
  warning: "M6 1.2 11.4 10.6H.6Z",
  pass: "M6 2.4a3.6 3.6 0 1 0 .01 0Z",
};

// Every verdict has a shape besides its colour.
function mark(verdict) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("class", "mark " + verdict);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", SHAPES[verdict] || SHAPES.pass);
  svg.append(path);
  return svg;
}

function verdictLabel(verdict) {
  const label = make("span", { class: "verdict " + verdict }, mark(verdict));
  label.append(visible(verdict));
  return label;
}

// A small table of names with one or two values each; rows that differ stand out.
function valueTable(element, header, rows, showDifference = true) {
  element.replaceChildren();
  if (header) element.append(make("thead", {}, make("tr", {}, ...header.map((title) => make("th", { scope: "col" }, title)))));
  const body = make("tbody");
  for (const [name, ...values] of rows) {
    const differs = showDifference && values.length === 2 && values[0] !== values[1];
    const cells = values.map((value) => make("td", {}, foreign(value)));
    body.append(make("tr", { class: differs ? "differs" : "" }, make("th", { scope: "row" }, visible(name)), ...cells));
  }
  element.append(body);
  return element;
}
