"""The HTML page in a real headless browser: plots, interaction, no network access."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_plans import X, plan

import camshaft as cs
from camshaft.observe.page import SCRIPTS, page
from camshaft.observe.profile import Profile
from camshaft.train.record.recorder import SCRIPTS as TRAINING_SCRIPTS
from tests.support.browser import probed
from tests.support.devices.profiled import profile_of_devices
from tests.support.quick import full

pytestmark = pytest.mark.usefixtures("known_peak")
HOSTILE = "</script><b onload=alert(1)>&<!--"


@pytest.fixture
def profiles() -> dict[str, Profile]:
    found = {}
    for title, layers in (("two layers", 2), ("one <b>layer</b>", 1)):
        with plan(layers) as made:
            made.run(x=X)
            found[title] = made.profile(runs=3)
    return found


# What is measured at any width.
LAYOUT = """
const box = (id) => { const r = document.querySelector(id).getBoundingClientRect(); return [r.width, r.height]; };
const plots = ['#timeline svg', '#roofline svg', '#arena svg'].map(box);
const outside = [...document.querySelectorAll('main *')].filter((e) => {
  const r = e.getBoundingClientRect();
  return r.width > 0 && r.right > innerWidth + 1 && !e.closest('.scroll') && !e.closest('svg');
}).length;
const texts = [...document.querySelectorAll('svg text')].filter((e) => {
  const r = e.getBoundingClientRect(), s = e.ownerSVGElement.getBoundingClientRect();
  return r.left < s.left - 1 || r.right > s.right + 1 || r.bottom > s.bottom + 1;
}).map((e) => e.textContent);
return { plots, outside, texts, wide: document.documentElement.scrollWidth, window: innerWidth,
  ink: getComputedStyle(document.body).color, page: getComputedStyle(document.body).backgroundColor,
  fetched: performance.getEntriesByType('resource').length };
"""


@pytest.mark.parametrize(("width", "dark"), [full(1280, False), (500, True)])
@pytest.mark.full
def test_the_page_fits_its_window_in_both_modes(
    width: int, dark: bool, profiles: dict[str, Profile], tmp_path: Path
) -> None:
    found = probed(page("model", {"threads": "2"}, profiles), LAYOUT, tmp_path, width=width, dark=dark)
    assert found["errors"] == found["console"] == []
    assert found["wide"] <= found["window"] == width
    assert (found["outside"], found["texts"], found["fetched"]) == (0, [], 0)
    for across, down in found["plots"]:
        assert across >= 0.75 * min(width, 1240)
        assert down >= 90
    light, bright = (sum(int(n) for n in re.findall(r"\d+", found[name])[:3]) for name in ("page", "ink"))
    assert (light < bright) is dark


WORK = """
const rows = () => [...document.querySelectorAll('#table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent));
const pick = (id, value) => { byId(id).value = value; byId(id).dispatchEvent(new Event(id === 'find' ? 'input' : 'change')); };
const click = (text) => [...document.querySelectorAll('th')].find((t) => t.textContent === text).click();
const counts = {};
for (const by of ['op', 'part', 'layer', 'thunk']) { pick('by', by); counts[by] = rows().length; }
click('GFLOP/s');
const sorted = current.rows.thunk.map((r) => r[current.columns.indexOf('gflop_per_s')]).sort((a, b) => b - a);
const shown = rows().map((r) => r[0]);
const aria = document.querySelector('th[aria-sort]').getAttribute('aria-sort');
pick('find', 'blk.1');
const filtered = rows().map((r) => r[0]);
pick('find', '');
const dots = {};
for (const per of ['op', 'thunk']) { pick('dots', per); dots[per] = document.querySelectorAll('#roofline circle').length; }
const places = document.querySelectorAll('#arena rect.place').length;
pick('along', 'time');
const timed = document.querySelectorAll('#arena rect.place').length;
const whole = [view.from, view.to], box = byId('timeline').getBoundingClientRect();
const about = { clientX: box.left + 500, clientY: box.top + 40, cancelable: true };
const wheel = (deltaY) => byId('timeline').dispatchEvent(new WheelEvent('wheel', { deltaY, ...about }));
for (let i = 0; i < 3; i++) wheel(-200);
const near = [view.from, view.to];
byId('whole').click();
const back = [view.from, view.to];
const bar = document.querySelector('#timeline rect.bar');
bar.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: 300, clientY: 300 }));
const told = byId('tip').hidden ? '' : byId('tip').textContent;
const tabs = [...document.querySelectorAll('nav button')];
const first = byId('timeline').firstChild.dataset.bars;
tabs[1].click();
return { counts, sorted, shown, aria, filtered, dots, places, timed, whole, near, back, told, first,
  second: byId('timeline').firstChild.dataset.bars, drawn: document.querySelectorAll('#timeline rect.bar').length,
  tabs: tabs.map((t) => t.textContent), chosen: tabs.map((t) => t.getAttribute('aria-selected')),
  names: current.rows.thunk.map((r) => r[0]), roof: document.querySelectorAll('#roofline .roof').length };
"""


def test_tables_charts_tabs_and_tooltips_work(profiles: dict[str, Profile], tmp_path: Path) -> None:
    two, one = profiles.values()
    found = probed(page("model", {}, profiles), WORK, tmp_path)
    assert found["errors"] == found["console"] == []
    assert found["counts"] == {what: len(two.by(what)) for what in ("op", "part", "layer", "thunk")}
    rates = {row.name: float(f"{row.gflop_per_s:.6g}") for row in two.thunks}
    assert [rates[name] for name in found["shown"]] == found["sorted"]
    assert found["aria"] == "descending"
    assert found["filtered"] == [name for name in found["shown"] if "blk.1" in name]
    assert found["dots"] == {what: sum(row.flops > 0 for row in two.by(what)) for what in ("op", "thunk")}
    assert found["places"] == found["timed"] == len(two.placements)
    assert found["whole"] == found["back"] == [0, pytest.approx(two.timeline.total_ns, abs=0.1)]
    assert found["near"][0] > 0
    assert 0 < found["near"][1] - found["near"][0] < 0.2 * two.timeline.total_ns
    assert "GFLOP/s" in found["told"]
    assert "of peak" in found["told"]
    assert (int(found["first"]), int(found["second"])) == tuple((p.timeline.programs > 0).sum() for p in (two, one))
    assert 0 < found["drawn"] <= int(found["second"])
    assert (found["tabs"], found["chosen"]) == (list(profiles), ["false", "true"])
    assert found["names"] == [row.name for row in one.thunks]
    assert found["roof"] == 1


@pytest.mark.full
def test_names_from_a_model_are_text_and_never_markup(tmp_path: Path) -> None:
    graph = cs.Graph()
    x = graph.input("x", (3, 8), "f32")
    with graph.scope(HOSTILE):
        graph.output("y", cs.silu(x))
    with cs.compile(graph, backend="simd", threads=1) as made:
        made.run(x=X[:3, :8].copy())
        found = {HOSTILE: made.profile(runs=1)}
    text = page(HOSTILE, {HOSTILE: "@@data@@"}, found)
    probe = """
    const count = (what) => document.querySelectorAll(what).length, text = (what) => document.querySelector(what).textContent;
    byId('by').value = 'thunk';
    byId('by').onchange();
    return { title: document.title, heading: text('h1'), bold: count('h1 b'), facts: text('.facts li'), row: text('#table td'),
      scripts: count('script') };
    """
    seen = probed(text, probe, tmp_path)
    assert seen["errors"] == seen["console"] == []
    assert seen["heading"] == HOSTILE
    assert seen["title"] == f"{HOSTILE}: profile"
    assert seen["facts"] == f"{HOSTILE} @@data@@"
    assert seen["row"] == f"{HOSTILE}.silu"
    assert (seen["bold"], seen["scripts"]) == (0, 4), "data, the page's own, and the two of this test"


@pytest.mark.full
def test_a_plan_on_a_device_alone_is_drawn_without_roof_and_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = profile_of_devices(monkeypatch, tick_ns=900, runs=2)
    probe = """
    const count = (what) => document.querySelectorAll(what).length;
    byId('by').value = 'thunk';
    byId('by').onchange();
    return { notes: byId('notes').textContent, roof: count('#roofline .roof'), hint: byId('unplotted').textContent,
      lanes: [...document.querySelectorAll('#timeline text.strong')].map((t) => t.textContent),
      rows: count('#table tbody tr'), spaces: [...byId('space').options].map((o) => o.text) };
    """
    seen = probed(page("devices", {}, {"one run": found}), probe, tmp_path)
    assert seen["errors"] == seen["console"] == []
    assert seen["notes"] == "fake:0 has no clock for its thunks: their times are unknown"
    assert seen["lanes"] == ["worker 0", "fake:0", "fake:1"]
    assert (seen["roof"], seen["rows"]) == (0, len(found.thunks))
    assert "No peak rates" in seen["hint"]
    assert set(seen["spaces"]) == set(found.arena_nbytes)


def test_the_page_names_no_place_outside_of_itself(profiles: dict[str, Profile]) -> None:
    text = page("model", {}, profiles)
    addresses = set(re.findall(r"\b(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG, which nothing fetches"
    assert "default-src 'none'" in text
    assert not re.search(r"<(?:link|script|img|iframe)[^>]+(?:src|href)=\"(?!data:,)", text)
    assert all(f"@@{name}@@" not in text for name in ("title", "facts", "style", "data", "scripts"))
    there = {p.name for p in (Path(cs.__file__).parent / "observe" / "pages").glob("*.js")}
    assert {*SCRIPTS, *TRAINING_SCRIPTS} == there
