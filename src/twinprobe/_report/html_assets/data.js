// The embedded table: columns are packed in a few ways (see html_data.py) and unpacked lazily here.

const VERDICTS = ["error", "warning", "pass"];
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?%?$/i;
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]/g;

// Characters that steer the text instead of being part of it are spelled out.
function visible(text) {
  return text.replace(UNSEEN, (letter) => "\\u" + letter.charCodeAt(0).toString(16).padStart(4, "0"));
}

function toNumber(text) {
  const plain = text.trim().toLowerCase();
  if (NUMBER.test(plain)) return parseFloat(plain);
  return plain === "inf" ? Infinity : plain === "-inf" ? -Infinity : NaN;
}

// Numbers of a table cell, short enough to read; the details show them in full.
function brief(text) {
  if (text.length < 9 || !NUMBER.test(text)) return text;
  const percent = text.endsWith("%") ? "%" : "";
  const number = parseFloat(text);
  if (Number.isInteger(number) && Math.abs(number) < 1e12) return text;
  return tidy(number, 6) + percent;
}

function tidy(number, digits) {
  const [mantissa, exponent] = number.toPrecision(digits).split("e");
  const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
  if (exponent) return short + "e" + exponent.replace("+", "");
  const size = Math.abs(number);
  return size !== 0 && size < 1e-3 ? number.toExponential(digits - 2) : short;
}

class Column {
  constructor(packed, columns) {
    this.name = packed.name;
    this.packed = packed;
    const { all, codes, texts, like, numbers, heads } = packed;
    if (all !== undefined) this.text = () => all;
    else if (heads) this.text = (row) => heads[packed.head[row]] + packed.values[codes[row]];
    else if (codes) this.text = (row) => packed.values[codes[row]];
    else if (like !== undefined) this.text = this.unlike(columns[like]);
    else if (numbers) this.text = (row) => (numbers[row] === null ? "" : String(numbers[row]));
    else this.text = (row) => texts[row];
  }

  unlike(other) {
    const own = new Map(this.packed.at.map((row, i) => [row, this.packed.texts[i]]));
    return (row) => (own.has(row) ? own.get(row) : other.text(row));
  }

  // Which rows hold the wanted text; each distinct text is looked at once where they are listed.
  mark(wanted, marks) {
    const has = (text) => text.toLowerCase().includes(wanted);
    const { all, codes, heads, values } = this.packed;
    if (all !== undefined) {
      if (has(all)) marks.fill(1);
    } else if (codes && !heads) {
      const found = values.map(has);
      for (let row = 0; row < codes.length; row++) if (found[codes[row]]) marks[row] = 1;
    } else {
      for (let row = 0; row < marks.length; row++) if (!marks[row] && has(this.text(row))) marks[row] = 1;
    }
  }

  // Sort keys: numbers before texts, empty and missing values last.
  keys(count) {
    const texts = Array.from({ length: count }, (_, row) => this.text(row));
    const numbers = texts.map(toNumber);
    const numeric = numbers.some((number) => !Number.isNaN(number));
    return { texts, numbers, numeric };
  }
}

function sortedRows(rows, column, descending, count) {
  const { texts, numbers, numeric } = column.keys(count);
  const sign = descending ? -1 : 1;
  const byText = (a, b) => {
    if ((texts[a] === "") !== (texts[b] === "")) return texts[a] === "" ? 1 : -1;
    return texts[a] < texts[b] ? -sign : texts[a] > texts[b] ? sign : a - b;
  };
  const byNumber = (a, b) => {
    const [first, second] = [numbers[a], numbers[b]];
    const [none, nothing] = [Number.isNaN(first), Number.isNaN(second)];
    if (none || nothing) return none && nothing ? byText(a, b) : none ? 1 : -1;
    return first === second ? a - b : (first < second ? -sign : sign);
  };
  return rows.slice().sort(numeric ? byNumber : byText);
}

class Table {
  constructor(data) {
    this.count = data.rows;
    this.columns = [];
    for (const packed of data.columns) this.columns.push(new Column(packed, this.columns));
    this.byName = new Map(this.columns.map((column) => [column.name, column]));
    this.stacks = data.stacks;
    this.order = data.order;
    const result = this.byName.get("Result");
    this.verdict = Uint8Array.from({ length: this.count }, (_, row) => VERDICTS.indexOf(result.text(row)));
    const error = this.byName.get("Relative Error").packed;
    this.error = Float64Array.from(error.numbers, (value) => (value === null ? NaN : value === "nan" ? Infinity : toNumber(String(value))));
    this.expected = this.noise();
  }

  // The relative error that noise explains, where it was weighed.
  noise() {
    const times = this.byName.get("Times noise")?.packed.numbers;
    if (!times) return null;
    return Float64Array.from(this.error, (error, row) => (times[row] > 0 ? error / times[row] : NaN));
  }

  text(name, row) {
    return this.byName.has(name) ? this.byName.get(name).text(row) : "";
  }

  // Its place in the whole result, counted from 1; rows may have been left out of the page.
  number(row) {
    return (this.order ? this.order[row] : row) + 1;
  }

  // The row of this page that stands at a place of the whole result, or -1.
  rowAt(place) {
    const row = this.order ? this.order.indexOf(place) : place;
    return row < this.count ? row : -1;
  }

  stack(row) {
    return this.stacks ? this.stacks.stacks[this.stacks.codes[row]].map((place) => this.stacks.frames[place]) : [];
  }

  markStacks(word, marks) {
    const { frames, stacks, codes } = this.stacks;
    const lines = frames.map((frame) => frame.toLowerCase().includes(word));
    const found = stacks.map((places) => places.some((place) => lines[place]));
    for (let row = 0; row < this.count; row++) if (found[codes[row]]) marks[row] = 1;
  }

  filter({ words, verdicts, origin }) {
    const origins = this.byName.get("Origin");
    const wanted = words.map((word) => {
      const marks = new Uint8Array(this.count);
      for (const column of this.columns) column.mark(word, marks);
      if (this.stacks) this.markStacks(word, marks);
      return marks;
    });
    const rows = [];
    for (let row = 0; row < this.count; row++) {
      if (!verdicts.has(VERDICTS[this.verdict[row]])) continue;
      if (origin !== "*" && origins.text(row) !== origin) continue;
      if (wanted.every((marks) => marks[row])) rows.push(row);
    }
    return rows;
  }
}
