// The table: one row per op, part, layer or thunk; click a heading to sort, type to filter by name.
const COLUMNS = [
  ["name", "name", (r) => r.name],
  ["thunks", "n_thunks", (r) => number(r.n_thunks, 6)],
  ["time", "ns", (r) => duration(r.ns)],
  ["share", "share", (r) => percent(r.share)],
  ["waited", "waited_ns", (r) => duration(r.waited_ns)],
  ["bytes", "nbytes", (r) => bytes(r.nbytes)],
  ["MFLOP", "flops", (r) => number(r.flops / 1e6)],
  ["GB/s", "gb_per_s", (r) => number(r.gb_per_s)],
  ["GFLOP/s", "gflop_per_s", (r) => number(r.gflop_per_s)],
  ["of peak", "peak_share", (r) => percent(r.peak_share)],
];
const order = { key: null, descending: true };

function drawTable(profile) {
  const wanted = byId("find").value.trim().toLowerCase();
  const rows = records(profile, byId("by").value).filter((r) => (r.name + " " + r.op).toLowerCase().includes(wanted));
  if (order.key) rows.sort((a, b) => compare(a[order.key], b[order.key]) * (order.descending ? -1 : 1));
  const most = Math.max(...rows.map((r) => r.share), 1e-9);
  byId("table").tHead.replaceChildren(headings(profile));
  byId("table").tBodies[0].replaceChildren(...rows.map((row) => tableRow(row, most)));
}

// Unknown values come last in either order.
function compare(a, b) {
  if (a === null || b === null) return (a === null ? 1 : 0) * (order.descending ? -1 : 1) - (b === null ? 1 : 0) * (order.descending ? -1 : 1);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

function headings(profile) {
  const line = document.createElement("tr");
  for (const [title, key] of COLUMNS) {
    const cell = Object.assign(document.createElement("th"), { textContent: title, tabIndex: 0, scope: "col" });
    if (order.key === key) cell.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    const sort = () => {
      order.descending = order.key === key ? !order.descending : key !== "name";
      order.key = key;
      drawTable(profile);
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    line.append(cell);
  }
  return line;
}

function tableRow(row, most) {
  const line = document.createElement("tr");
  for (const [, key, text] of COLUMNS) {
    const cell = Object.assign(document.createElement("td"), { textContent: text(row), title: key === "name" ? row.name : "" });
    if (key === "share") {
      cell.className = "share";
      cell.style.setProperty("--part", (100 * row.share / most).toFixed(1) + "%");
    }
    line.append(cell);
  }
  return line;
}
