// The roofline: operations per byte against operations per second, both logarithmic, with the measured peak rates.
function drawRoofline(profile, colours) {
  const box = byId("roofline"), width = Math.max(box.clientWidth, 240), height = Math.round(Math.min(440, 240 + width * 0.16));
  const rows = records(profile, byId("dots").value);
  const plotted = rows.filter((r) => r.flops > 0 && r.nbytes > 0 && r.ns > 0);
  byId("unplotted").textContent = unplotted(rows.length - plotted.length, profile.peak);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Roofline" });
  const scale = roofScale(plotted, profile.peak, width, height);
  drawPowers(svg, scale, width, height);
  if (profile.peak) drawRoof(svg, scale, profile.peak);
  const most = Math.max(...plotted.map((r) => r.share), 1e-9);
  plotted.sort((a, b) => b.share - a.share).forEach((row) => {
    const radius = 3.2 + 9 * Math.sqrt(Math.max(row.share, 0) / most);
    const dot = make("circle", { cx: scale.x(row.flops / row.nbytes), cy: scale.y(row.gflop_per_s), r: radius, class: "dot" }, svg);
    dot.setAttribute("fill", colours.get(row.op) || COLOURS[COLOURS.length - 1]);
    dot.dataset.row = rows.indexOf(row);
  });
  tips(svg, (element) => {
    const row = element.dataset.row === undefined ? null : rows[Number(element.dataset.row)];
    return row && [row.name, [number(row.flops / row.nbytes) + " FLOP per byte", ...rowLines(row)]];
  });
  box.replaceChildren(svg);
}

function unplotted(count, roof) {
  const words = count ? [`${count} rows without arithmetic or without a time are not plotted; see the table.`] : [];
  if (!roof) words.push("No peak rates: they are measured for the CPU, and nothing ran there.");
  return words.join(" ");
}

function roofScale(rows, roof, width, height) {
  const peaks = roof ? [roof.int8_ops_per_s, roof.f32_ops_per_s, roof.bf16_ops_per_s].map((p) => p / 1e9) : [];
  const ridge = roof ? peaks.map((p) => p / (roof.read_bytes_per_s / 1e9)) : [];
  const across = [...rows.map((r) => r.flops / r.nbytes), ...ridge.map((r) => r * 4)];
  const up = [...rows.map((r) => r.gflop_per_s), ...peaks];
  const [x0, x1] = powers(across), [y0, y1] = powers(up);
  const left = 64, right = 18, top = 18, bottom = 44;
  return {
    x0, x1, y0, y1, left, right, top, bottom, width, height,
    x: (v) => left + (Math.log10(v) - x0) / (x1 - x0) * (width - left - right),
    y: (v) => height - bottom - (Math.log10(v) - y0) / (y1 - y0) * (height - top - bottom),
  };
}

function powers(values) {
  const logs = values.filter((v) => v > 0).map(Math.log10);
  const low = Math.floor(Math.min(...logs, 0)), high = Math.ceil(Math.max(...logs, 1) + 1e-9);
  return [low, Math.max(high, low + 1)];
}

function drawPowers(svg, s, width, height) {
  const plain = (power) => (power >= -3 && power <= 4 ? String(Number((10 ** power).toPrecision(1))) : "10^" + power);
  for (let p = s.x0; p <= s.x1; p++) {
    make("line", { x1: s.x(10 ** p), x2: s.x(10 ** p), y1: s.top, y2: height - s.bottom, class: "grid" }, svg);
    make("text", { x: s.x(10 ** p), y: height - s.bottom + 17, "text-anchor": "middle" }, svg, plain(p));
  }
  for (let p = s.y0; p <= s.y1; p++) {
    make("line", { x1: s.left, x2: width - s.right, y1: s.y(10 ** p), y2: s.y(10 ** p), class: "grid" }, svg);
    make("text", { x: s.left - 8, y: s.y(10 ** p) + 4, "text-anchor": "end" }, svg, plain(p));
  }
  make("text", { x: (s.left + width - s.right) / 2, y: height - 6, "text-anchor": "middle" }, svg, "operations per byte");
  const side = { x: 0, y: 0, "text-anchor": "middle", transform: `translate(13 ${(height - s.bottom + s.top) / 2}) rotate(-90)` };
  make("text", side, svg, "GFLOP/s");
}

function drawRoof(svg, s, roof) {
  const speed = roof.read_bytes_per_s / 1e9, peaks = { int8: roof.int8_ops_per_s, bf16: roof.bf16_ops_per_s, f32: roof.f32_ops_per_s };
  const top = Math.max(...Object.values(peaks)) / 1e9;
  const first = Math.max(10 ** s.x0, 10 ** s.y0 / speed), ridge = top / speed;
  const path = `M${s.x(first)} ${s.y(first * speed)} L${s.x(ridge)} ${s.y(top)} L${s.x(10 ** s.x1)} ${s.y(top)}`;
  make("path", { d: path, class: "roof" }, svg);
  const middle = Math.sqrt(first * ridge), slope = Math.atan2(s.y(top) - s.y(first * speed), s.x(ridge) - s.x(first)) * 180 / Math.PI;
  const placed = `translate(${s.x(middle)} ${s.y(middle * speed) - 7}) rotate(${slope.toFixed(1)})`;
  make("text", { "text-anchor": "middle", class: "strong halo", transform: placed }, svg, number(speed) + " GB/s read");
  const taken = [];
  for (const [kind, peak] of Object.entries(peaks).sort((a, b) => b[1] - a[1])) {
    const height = s.y(peak / 1e9);
    if (peak / 1e9 < top) make("line", { x1: s.x(peak / 1e9 / speed), x2: s.x(10 ** s.x1), y1: height, y2: height, class: "peak" }, svg);
    let at = height - 5;
    while (taken.some((other) => Math.abs(other - at) < 13)) at += 13;
    taken.push(at);
    make("text", { x: s.x(10 ** s.x1) - 4, y: at, "text-anchor": "end", class: "strong halo" }, svg, `${kind} ${number(peak / 1e9)} G/s`);
  }
}
