"""The chat page at `/`, and at `/docs` the addresses: files without outside resources, under a policy that allows none."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from camshaft.serve.models.models import Models

# Path -> file and type.
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def page(request: Request, models: Models) -> Response:
    """A file of the page."""
    name, media_type = FILES[request.url.path]
    data = (files("camshaft.serve") / "page" / name).read_bytes()
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return Response(data, media_type=media_type, headers=headers)
