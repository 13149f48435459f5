// Tabs, the summary figures, and redrawing after a resize or a changed choice.
const data = JSON.parse(byId("data").textContent);
let current = null;

function tiles(profile) {
  const rows = records(profile, "thunk"), total = profile.total_ns, sum = (key) => rows.reduce((all, row) => all + row[key], 0);
  const tokens = profile.extents.tokens || 1;
  const waits = rows.reduce((all, row) => all + (row.waited_ns > 0 ? 1 : 0), 0);
  const figures = [
    [duration(total), `per run, median of ${profile.runs}; fastest ${duration(profile.fastest_ns)}`],
    [number(tokens * 1e9 / total) + " /s", tokens > 1 ? `tokens, ${tokens} per run` : "runs"],
    [percent(profile.waited_share), `of the workers' time at ${waits} waits`],
    [number(sum("nbytes") / total) + " GB/s", `read and written: ${bytes(sum("nbytes"))}`],
    [number(sum("flops") / total) + " GFLOP/s", number(sum("flops") / 1e9) + " GFLOP per run"],
    [bytes(Object.values(profile.arena_nbytes).reduce((a, b) => a + b, 0)), `of arena for ${profile.placements.length} temporaries`],
  ];
  showTiles(figures);
}

function legend(profile, colours) {
  const shares = new Map();
  for (const row of records(profile, "thunk")) shares.set(row.op, (shares.get(row.op) || 0) + row.share);
  const marks = [...colours].map(([op, colour]) => [colour, `${op} ${percent(shares.get(op))}`]);
  marks.push(["var(--wait)", "waiting " + percent(profile.waited_share)]);
  byId("legend").replaceChildren(...marks.map(([colour, text]) => {
    const mark = document.createElement("span"), square = document.createElement("i");
    square.style.background = colour;
    mark.append(square, text);
    return mark;
  }));
}

function drawAll() {
  const colours = opColours(current);
  tiles(current);
  legend(current, colours);
  byId("notes").hidden = current.notes.length === 0;
  byId("notes").textContent = current.notes.join(" ");
  const total = current.timeline.total_ns, redraw = () => drawTimeline(current, colours);
  redraw();
  zoomable(byId("timeline"), total, redraw);
  byId("whole").onclick = () => { clampView(0, total, total); redraw(); };
  byId("dots").onchange = () => drawRoofline(current, colours);
  byId("space").onchange = byId("along").onchange = () => drawArena(current, colours);
  byId("by").onchange = byId("find").oninput = () => drawTable(current);
  drawRoofline(current, colours);
  drawArena(current, colours);
  drawTable(current);
}

function choose(index) {
  current = data.profiles[index];
  [...byId("tabs").children].forEach((tab, i) => tab.setAttribute("aria-selected", String(i === index)));
  byId("space").replaceChildren(...Object.keys(current.arena_nbytes).map((name) => new Option(name)));
  clampView(0, current.timeline.total_ns, current.timeline.total_ns);
  drawAll();
}

data.profiles.forEach((profile, index) => {
  const tab = Object.assign(document.createElement("button"), { type: "button", textContent: profile.title });
  tab.setAttribute("role", "tab");
  tab.addEventListener("click", () => choose(index));
  byId("tabs").append(tab);
});
choose(0);
let waiting = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); });
