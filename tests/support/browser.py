"""A real browser for the pages that camshaft writes: headless Chromium, a page opened in it, and what a probe finds there."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support.needs import require

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 120
_RESULT = re.compile(r'<pre id="probed"[^>]*>(.*?)</pre>', re.DOTALL)


def browser() -> str:
    """The browser's command; the test is skipped without one, and fails in CI."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    require(found, f"no browser here: none of {', '.join(NAMES)}")
    assert found is not None
    return found


def probed(page: str, probe: str, folder: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Any:
    """What the JavaScript function body `probe` returns once the page is loaded, with two keys more: `errors`, what the page
    threw or its policy forbade, and `console`, what the browser logged of it."""
    listener = (
        "<script>window.thrown = [];"
        "window.addEventListener('error', (e) => thrown.push(String(e.message)));"
        "document.addEventListener('securitypolicyviolation', (e) => thrown.push(e.violatedDirective + ' ' + e.blockedURI));"
        "</script>"
    )
    asker = (
        f"<script>window.addEventListener('load', () => {{ let found = {{}};"
        f"try {{ found = (() => {{ {probe} }})(); }} catch (error) {{ thrown.push(String(error)); }}"
        "const pre = Object.assign(document.createElement('pre'), { id: 'probed' });"
        "pre.textContent = JSON.stringify({ ...found, errors: thrown }); document.body.append(pre); });</script>"
    )
    path = folder / "probed.html"
    path.write_text(page.replace("<title>", f"{listener}<title>", 1).replace("</body>", f"{asker}</body>", 1), "utf-8")
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'browser'}",
        f"--window-size={width},{height}",
        "--virtual-time-budget=3000",
        "--enable-logging=stderr",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, encoding="utf-8")
    found = _RESULT.search(done.stdout)
    assert found is not None, f"the page did not load: {done.stderr[-2000:]}"
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])) | {"console": said}
