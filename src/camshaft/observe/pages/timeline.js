// Workers over time: a lane per worker, a bar per thunk and per wait. Scroll to zoom at the pointer, drag to move.
// Adjacent bars narrower than half a pixel are drawn as one in the colour of the longest, which bounds the work per frame.
const LANE = 40, LEFT = 78, TOP = 22, RIGHT = 8;
const view = { from: 0, to: 1 };

function drawTimeline(profile, colours) {
  const line = profile.timeline, box = byId("timeline");
  const width = Math.max(box.clientWidth, 240), height = TOP + line.lanes.length * LANE + 8;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Workers over time" });
  const inner = width - LEFT - RIGHT, span = view.to - view.from;
  const x = (ns) => LEFT + (ns - view.from) / span * inner;
  for (const t of ticks(view.from, view.to, Math.max(3, Math.floor(inner / 110)))) {
    make("line", { x1: x(t), x2: x(t), y1: TOP - 4, y2: height, class: "grid" }, svg);
    tickText(svg, x(t), 12, width, duration(Math.round(t)));
  }
  line.lanes.forEach((name, lane) => {
    make("rect", { x: LEFT, y: TOP + lane * LANE, width: inner, height: LANE - 6, class: "lane", rx: 3 }, svg);
    const worker = profile.workers[lane], middle = TOP + lane * LANE + LANE / 2;
    make("text", { x: 0, y: worker ? middle - 4 : middle + 1, class: "strong" }, svg, name);
    if (worker) make("text", { x: 0, y: middle + 11, class: "small" }, svg, "waits " + percent(worker.waited_ns / profile.total_ns));
  });
  const names = records(profile, "thunk");
  svg.dataset.bars = line.bars.length;
  lanePieces(line.waits, x, width).forEach((piece) => bar(svg, piece, "wait", null));
  lanePieces(line.bars, x, width).forEach((piece) => bar(svg, piece, "bar", colours.get(names[piece.thunk].op)));
  tips(svg, (element) => tipOf(element, names, line));
  box.replaceChildren(svg);
  return svg;
}

// The visible bars, as {lane, x, width, thunk, index, many}.
function lanePieces(bars, x, width) {
  const pieces = [];
  let last = null;
  bars.forEach(([lane, thunk, start, end], index) => {
    if (end < view.from || start > view.to) return;
    const left = Math.max(x(start), LEFT), right = Math.min(x(end), width - RIGHT);
    if (last && last.lane === lane && right - left < 0.5 && last.narrow && left - last.right < 0.5) {
      Object.assign(last, { right, many: last.many + 1 });
      if (end - start > last.longest) Object.assign(last, { longest: end - start, thunk });
      return;
    }
    last = { lane, thunk, index, left, right, many: 0, narrow: right - left < 0.5, longest: end - start };
    pieces.push(last);
  });
  return pieces;
}

function bar(svg, piece, kind, colour) {
  const wait = kind === "wait", width = Math.max(piece.right - piece.left, 0.4);
  const y = TOP + piece.lane * LANE + (wait ? 12 : 0);
  const rect = make("rect", { x: piece.left.toFixed(2), y, width: width.toFixed(2), height: wait ? LANE - 30 : LANE - 6, class: kind }, svg);
  if (!wait) rect.setAttribute("fill", colour);
  rect.dataset.kind = kind;
  rect.dataset.index = piece.index;
  rect.dataset.many = piece.many;
}

function tipOf(element, names, line) {
  if (!element.dataset.kind) return null;
  const wait = element.dataset.kind === "wait", bar = (wait ? line.waits : line.bars)[Number(element.dataset.index)];
  const [lane, thunk, start, end] = bar, many = Number(element.dataset.many);
  if (many) return [`${many + 1} ${wait ? "waits" : "thunks"}`, ["zoom in to see each", "from " + duration(start)]];
  const when = `${line.lanes[lane]}, at ${number(start / 1e3, 7)} µs`;
  const row = names[thunk];
  if (wait) return ["wait before " + (row ? row.name : "the end of the run"), [duration(end - start), when]];
  return [row.name, [duration(end - start) + " here", when, ...rowLines(row)]];
}

function clampView(from, to, total) {
  const span = Math.min(Math.max(to - from, 50), total);
  const first = Math.min(Math.max(from, 0), total - span);
  Object.assign(view, { from: first, to: first + span });
}

// `draw` redraws the plot and returns its SVG element.
function zoomable(box, total, draw) {
  box.onwheel = (event) => {
    event.preventDefault();
    const inner = box.clientWidth - LEFT - RIGHT, place = (event.offsetX - LEFT) / inner;
    const at = view.from + Math.min(Math.max(place, 0), 1) * (view.to - view.from);
    const factor = Math.exp(Math.min(Math.max(event.deltaY, -200), 200) * 0.003);
    clampView(at - (at - view.from) * factor, at + (view.to - at) * factor, total);
    draw();
  };
  box.ondblclick = () => { clampView(0, total, total); draw(); };
  box.onpointerdown = (event) => {
    const start = event.clientX, from = view.from, to = view.to;
    box.setPointerCapture(event.pointerId);
    box.onpointermove = (move) => {
      const moved = (start - move.clientX) / (box.clientWidth - LEFT - RIGHT) * (to - from);
      clampView(from + moved, to + moved, total);
      draw().classList.add("moving");
    };
  };
  box.onpointerup = box.onpointercancel = () => { box.onpointermove = null; draw(); };
}
