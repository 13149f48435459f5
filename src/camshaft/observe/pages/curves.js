// A plot of curves over steps. A series is {name, values, colour, kind: "line" | "faint" | "dots"}, with null for no value.
function drawCurves(id, steps, series, { label = (v) => number(v), log = false, limit = null, zero = false } = {}) {
  const box = byId(id), width = Math.max(box.clientWidth, 240), height = width > 700 ? 320 : 220;
  const left = 64, right = 12, top = 10, bottom = 36;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": id + " over steps" });
  const seen = series.flatMap((s) => s.values.filter((v) => v !== null && (!log || v > 0)));
  if (limit !== null) seen.push(limit);
  const scale = log ? Math.log10 : (v) => v;
  const [low, high] = span(seen.map(scale), zero && !log);
  const first = steps[0] ?? 0, last = Math.max(steps[steps.length - 1] ?? 1, first + 1);
  const x = (step) => left + (step - first) / (last - first) * (width - left - right);
  const y = (v) => height - bottom - (scale(v) - low) / (high - low) * (height - top - bottom);
  for (const t of ticks(first, last, Math.max(3, Math.floor(width / 110))).filter(Number.isInteger)) {
    make("line", { x1: x(t), x2: x(t), y1: top, y2: height - bottom, class: "grid" }, svg);
    tickText(svg, x(t), height - bottom + 16, width, number(t, 6));
  }
  for (const t of ticks(low, high, 5)) {
    const at = height - bottom - (t - low) / (high - low) * (height - top - bottom);
    make("line", { x1: left, x2: width - right, y1: at, y2: at, class: "grid" }, svg);
    make("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, svg, label(log ? 10 ** t : t));
  }
  make("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, svg, "step");
  if (limit !== null) make("line", { x1: left, x2: width - right, y1: y(limit), y2: y(limit), class: "peak" }, svg);
  for (const s of series) (s.kind === "dots" ? dots : line)(svg, s, steps, x, y, log);
  const bar = make("line", { y1: top, y2: height - bottom, class: "axis", visibility: "hidden" }, svg);
  const nearest = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    return steps.reduce((best, step, i) => Math.abs(x(step) - at) < Math.abs(x(steps[best]) - at) ? i : best, 0);
  };
  svg.addEventListener("pointermove", (event) => {
    if (!steps.length) return;
    const i = nearest(event);
    for (const [name, value] of [["x1", x(steps[i])], ["x2", x(steps[i])], ["visibility", "visible"]]) bar.setAttribute(name, value);
    tip.show(event, "step " + steps[i], series.filter((s) => s.values[i] !== null).map((s) => `${s.name} ${label(s.values[i])}`));
  });
  svg.addEventListener("pointerleave", () => { bar.setAttribute("visibility", "hidden"); tip.hide(); });
  box.replaceChildren(svg);
}

// The least and greatest value, with a margin; never equal.
function span(values, zero) {
  if (!values.length) return [0, 1];
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (zero) low = Math.min(low, 0);
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return [zero && low === 0 ? 0 : low - margin, high + margin];
}

function line(svg, series, steps, x, y, log) {
  let path = "", pen = "M";
  series.values.forEach((v, i) => {
    if (v === null || (log && v <= 0)) { pen = "M"; return; }
    path += `${pen}${x(steps[i]).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = "L";
  });
  make("path", { d: path, class: "curve " + series.kind, stroke: series.colour }, svg);
}

function dots(svg, series, steps, x, y, log) {
  const shown = series.values.map((v, i) => [v, i]).filter(([v]) => v !== null && (!log || v > 0));
  const path = shown.map(([v, i], n) => `${n ? "L" : "M"}${x(steps[i]).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  make("path", { d: path, class: "curve line", stroke: series.colour }, svg);
  for (const [v, i] of shown) make("circle", { cx: x(steps[i]), cy: y(v), r: shown.length > 80 ? 2 : 4, class: "dot", fill: series.colour }, svg);
}

// The mean of up to `count` values before and with each.
function running(values, count) {
  let total = 0;
  const held = [];
  return values.map((v) => {
    if (v === null) return null;
    held.push(v);
    total += v;
    if (held.length > count) total -= held.shift();
    return total / held.length;
  });
}

// One bar of parts {name, value, colour}, as wide as the plot.
function drawParts(id, parts, label) {
  const box = byId(id), width = Math.max(box.clientWidth, 240), height = 56;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": id + " by kind" });
  const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  let at = 0;
  parts.forEach((part, index) => {
    const across = part.value / total * width;
    make("rect", { x: at, y: 6, width: Math.max(across - 1, 0.5), height: 40, rx: 3, fill: part.colour, "data-part": index, class: "place" }, svg);
    at += across;
  });
  tips(svg, (element) => {
    const part = parts[Number(element.dataset.part ?? -1)];
    return part ? [part.name, [label(part.value), percent(part.value / total)]] : null;
  });
  box.replaceChildren(svg);
}

function drawLegend(id, marks) {
  byId(id).replaceChildren(...marks.map(([colour, text]) => {
    const mark = document.createElement("span"), square = document.createElement("i");
    square.style.background = colour;
    mark.append(square, text);
    return mark;
  }));
}
