// Shared by all plots: number formats, colours, the tooltip, SVG elements.
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#3f78d8", "#e0803c", "#2f9e7e", "#a76bc9", "#c9a227", "#d3586f", "#3fa0bf", "#7f9440", "#9a6f57", "#737b8c"];

function byId(id) { return document.getElementById(id); }

function make(name, attributes = {}, parent = null, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10 ** digits) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(digits)).toString();
}

function duration(ns) {
  if (ns === null || ns === undefined) return "–";
  if (ns >= 1e9) return number(ns / 1e9) + " s";
  if (ns >= 1e6) return number(ns / 1e6) + " ms";
  if (ns >= 1e3) return number(ns / 1e3) + " µs";
  return number(ns) + " ns";
}

function bytes(value) {
  for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= factor) return number(value / factor) + " " + unit;
  return number(value) + " B";
}

function percent(value) {
  if (value === null || value === undefined) return "–";
  const hundredth = Math.abs(value) * 100;
  if (hundredth > 0 && hundredth < 0.05) return "<0.1 %";
  return (hundredth >= 99.95 ? Math.round(value * 100).toLocaleString("en") : (value * 100).toFixed(1)) + " %";
}

// The summary: figures, each with the words below it.
function showTiles(figures) {
  byId("tiles").replaceChildren(...figures.map(([figure, words]) => {
    const tile = Object.assign(document.createElement("div"), { className: "tile" });
    tile.append(Object.assign(document.createElement("b"), { textContent: figure }));
    tile.append(Object.assign(document.createElement("span"), { textContent: words }));
    return tile;
  }));
}

// Convert the rows of a profile, lists in column order, to objects.
function records(profile, what) {
  return profile.rows[what].map((cells) => Object.fromEntries(profile.columns.map((name, i) => [name, cells[i]])));
}

// A colour per op, by share of time; ops beyond the palette share the last colour.
function opColours(profile) {
  const shares = new Map();
  for (const row of records(profile, "thunk")) shares.set(row.op, (shares.get(row.op) || 0) + row.share);
  const order = [...shares.keys()].sort((a, b) => shares.get(b) - shares.get(a));
  return new Map(order.map((op, i) => [op, COLOURS[Math.min(i, COLOURS.length - 1)]]));
}

// About `count` round numbers from low to high.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const values = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) values.push(t);
  return values;
}

// A tick label, moved inwards at the right edge.
function tickText(svg, x, y, width, text) {
  make("text", { x: Math.min(x, width - 2), y, "text-anchor": x > width - 30 ? "end" : "middle" }, svg, text);
}

const tip = {
  show(event, title, lines) {
    const box = byId("tip");
    box.replaceChildren(Object.assign(document.createElement("b"), { textContent: title }));
    for (const line of lines) box.append(Object.assign(document.createElement("div"), { textContent: line }));
    box.hidden = false;
    const x = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
    const below = event.clientY + 16 + box.offsetHeight < window.innerHeight;
    box.style.left = Math.max(x, 8) + "px";
    box.style.top = (below ? event.clientY + 16 : event.clientY - box.offsetHeight - 12) + "px";
  },
  hide() { byId("tip").hidden = true; },
};

// Show tooltips with one listener per plot: `find` returns [title, lines] for an element, or null.
function tips(svg, find) {
  let hot = null;
  const cool = () => { if (hot) hot.classList.remove("hot"); hot = null; tip.hide(); };
  svg.addEventListener("pointermove", (event) => {
    const content = find(event.target);
    if (event.target !== hot) cool();
    if (!content) return;
    hot = event.target;
    hot.classList.add("hot");
    tip.show(event, content[0], content[1]);
  });
  svg.addEventListener("pointerleave", cool);
}

function rowLines(row) {
  return [
    [row.op, row.variant].filter(Boolean).join(" / ") + (row.device === "host" || !row.device ? "" : " on " + row.device),
    duration(row.ns) + ", " + percent(row.share) + " of the time" + (row.n_thunks > 1 ? ", " + row.n_thunks + " thunks" : ""),
    bytes(row.nbytes) + ", " + number(row.flops / 1e6) + " MFLOP (" + (row.kind || "several kinds") + ")",
    number(row.gb_per_s) + " GB/s, " + number(row.gflop_per_s) + " GFLOP/s, " + percent(row.peak_share) + " of peak",
    "waited before it " + duration(row.waited_ns),
  ];
}
