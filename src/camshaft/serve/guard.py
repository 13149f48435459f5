"""Who may ask: API keys, and web pages of other origins."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from camshaft.errors import SettingError
from camshaft.formats.texts import read_text
from camshaft.serve.requests.errors import TWO_LENGTHS, HttpError

OPEN_PATHS = frozenset(
    {"/health", "/", "/page.css", "/page.js", "/docs", "/docs.js"}
)  # the page asks for the key itself
ANY = "*"
_HASHED = "sha256:"


@dataclass(frozen=True)
class Guard:
    """Checks the headers of requests. `keys` are SHA-256 digests of the API keys; without keys everybody on this machine may
    ask, but no web page of another origin: browsers run those of anybody.

    `names` are the host names under which the server may be addressed then, beside IP addresses; `origins` are those whose pages
    may ask all the same, as `read_origins` has them: with keys browsers let no other pages read answers."""

    keys: tuple[bytes, ...] = ()
    names: frozenset[str] = frozenset({"localhost"})
    origins: tuple[str, ...] = ()

    def check(self, path: str, headers: Headers) -> None:
        """Raise HttpError for a request that has no key, comes from a page of another origin, or has two lengths, of which a
        proxy may read it differently."""
        if "transfer-encoding" in headers and "content-length" in headers:
            message = "both Content-Length and Transfer-Encoding are given; wanted one of them"
            raise HttpError(400, message, code=TWO_LENGTHS)
        if self.keys:
            if path not in OPEN_PATHS:
                self._check_key(headers)
            return
        host, origin = _host(headers.get("host", "")), headers.get("origin")
        if host not in self.names and not _is_address(host):
            raise HttpError(403, f"the host {host[:100]!r} is not this server's", code="wrong_host")
        is_ours = origin is None or urlsplit(origin).netloc == headers.get("host")
        if not is_ours and origin not in self.origins and ANY not in self.origins:
            message = "without an API key, pages of other origins may not use this server"
            raise HttpError(403, message, code="wrong_origin")

    def _check_key(self, headers: Headers) -> None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = sha256(key.encode("utf-8", "surrogatepass")).digest()
        fits = [hmac.compare_digest(digest, known) for known in self.keys]  # all of them: takes the same time
        if not any(fits):
            message = "the API key is wrong" if key else "an API key is missing: send 'Authorization: Bearer KEY'"
            raise HttpError(401, message, code="invalid_api_key")


def _host(header: str) -> str:
    """The name or address of a Host header, without its port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def read_origins(texts: Sequence[str]) -> tuple[str, ...]:
    """Origins of web pages, SCHEME://HOST or SCHEME://HOST:PORT, or ANY. Raises SettingError for anything that is not a
    origin."""
    for text in texts:
        parts = urlsplit(text)
        if text != ANY and (text != f"{parts.scheme}://{parts.netloc}" or not (parts.scheme and parts.netloc)):
            raise SettingError(f"--cors {text!r:.80}: wanted an origin such as https://example.org, or {ANY}")
    return tuple(text.lower() for text in texts)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The digests of the keys in a file: one a line, as the key itself or as sha256:HEX. Lines that begin with # are comments.

    Raises SettingError if the file has no key or a line is not a digest."""
    lines = [line.strip() for line in read_text(path).splitlines()]
    keys = tuple(_digest(line, path) for line in lines if line and not line.startswith("#"))
    if not keys:
        raise SettingError(f"{path} has no API key; wanted one a line")
    return keys


def _digest(line: str, path: Path) -> bytes:
    if not line.startswith(_HASHED):
        return sha256(line.encode()).digest()
    try:
        digest = bytes.fromhex(line.removeprefix(_HASHED))
    except ValueError:
        digest = b""
    if len(digest) != sha256().digest_size:
        raise SettingError(f"{path}: a line that begins with {_HASHED} has no SHA-256 digest of 64 hexadecimal digits")
    return digest
