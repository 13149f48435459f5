// The arena: a rectangle per temporary, from its first to its last thunk and from its first to its last byte.
function drawArena(profile, colours) {
  const box = byId("arena"), space = byId("space").value, nbytes = profile.arena_nbytes[space] || 0;
  const width = Math.max(box.clientWidth, 240), height = 300, left = 78, right = 8, top = 8, bottom = 40;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Arena over time" });
  const thunks = records(profile, "thunk"), along = byId("along").value;
  const [begin, end, last] = along === "time" ? timesOf(profile, thunks.length) : [(i) => i, (i) => i + 1, thunks.length];
  const x = (v) => left + v / (last || 1) * (width - left - right), y = (b) => height - bottom - b / (nbytes || 1) * (height - top - bottom);
  for (const t of ticks(0, last, Math.max(3, Math.floor(width / 130)))) {
    make("line", { x1: x(t), x2: x(t), y1: top, y2: height - bottom, class: "grid" }, svg);
    tickText(svg, x(t), height - bottom + 16, width, along === "time" ? duration(t) : number(t, 6));
  }
  for (const t of ticks(0, nbytes, 5)) {
    make("line", { x1: left, x2: width - right, y1: y(t), y2: y(t), class: "grid" }, svg);
    make("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, svg, bytes(t));
  }
  make("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, svg, along === "time" ? "time" : "thunk");
  const placed = profile.placements.filter((p) => p[1] === space);
  placed.forEach(([, , offset, size, first, final], index) => {
    const rect = make("rect", { x: x(begin(first)), y: y(offset + size), class: "place" }, svg);
    const across = x(end(final)) - x(begin(first));
    if (across < 3) rect.classList.add("thin");
    rect.setAttribute("width", Math.max(across, 0.8));
    rect.setAttribute("height", Math.max(y(offset) - y(offset + size), 0.8));
    rect.setAttribute("fill", colours.get(thunks[first].op) || COLOURS[COLOURS.length - 1]);
    rect.dataset.place = index;
  });
  tips(svg, (element) => {
    if (element.dataset.place === undefined) return null;
    const [name, , offset, size, first, final] = placed[Number(element.dataset.place)];
    const lines = [`${bytes(size)} at ${offset.toLocaleString("en")}`, `from thunk ${first}, ${thunks[first].name}`];
    return [name, [...lines, `to thunk ${final}, ${thunks[final].name}`]];
  });
  box.replaceChildren(svg);
}

// Start and end of each thunk over all lanes; a thunk without bars is placed at the end of the previous one.
function timesOf(profile, count) {
  const starts = Array(count).fill(Infinity), ends = Array(count).fill(-Infinity);
  for (const [, thunk, start, end] of profile.timeline.bars) {
    starts[thunk] = Math.min(starts[thunk], start);
    ends[thunk] = Math.max(ends[thunk], end);
  }
  let seen = 0;
  for (let i = 0; i < count; i++) {
    if (starts[i] === Infinity) starts[i] = ends[i] = seen;
    seen = Math.max(seen, ends[i]);
  }
  return [(i) => starts[i], (i) => ends[i], profile.timeline.total_ns];
}
