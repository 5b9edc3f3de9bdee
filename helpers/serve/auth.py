"""Authentication, CORS, allowed hosts and limits of a request."""

import asyncio
import base64
import binascii
import contextlib
import hmac
import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from urllib.parse import urlsplit

from aiohttp import hdrs, web

OPEN = "/healthz"  # the one address that asks for no key
HEADERS = {
    # a notebook on this machine may show the page in a frame, nobody else; the page loads from this server only
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PREFLIGHT = {"Allow-Methods": "GET, POST", "Allow-Headers": "Authorization, Content-Type", "Max-Age": "600"}


class Refusal(Exception):
    """No: the status, the words for a person, a short code for programs and for the metrics, the key at fault."""

    def __init__(self, status: int, words: str, code: str, key: str | None = None, **headers: str) -> None:
        super().__init__(words)
        self.status, self.words, self.code, self.key, self.headers = status, words, code, key, headers


def loopback(host: str) -> bool:
    """Return whether only this machine can call a server that listens on `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name, or nothing, which means every address
        return False


def check_open(host: str, key: bool) -> None:
    """Raise ValueError if the server would listen to other machines; `key`: it asks for one, and then it may."""
    if not key and not loopback(host):
        raise ValueError(
            f"other machines can call {host or 'every address'}, and there is no API key: put one into a file and name "
            "it with --api-key-file, set CHINESE_GPT_API_KEY, or listen on 127.0.0.1"
        )


def check_key(key: str) -> str:
    """Return the key; raises ValueError for one that a header cannot carry."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the API key must be one word of ASCII letters, digits and signs")
    return key


def host_name(host: str) -> str:
    """Return a Host header, or a host, in lower case and without its port and brackets."""
    name = host.rsplit(":", 1)[0] if host.count(":") == 1 or "]:" in host else host
    return name.strip("[]").rstrip(".").lower()


def check_origin(origin: str) -> str:
    """Return the origin; raises ValueError for anything but scheme://host[:port]."""
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}" or "*" in origin:
        raise ValueError(f"'{origin}' is not an origin: write it like https://example.org, without a path")
    return origin


def shown_key(request: web.Request) -> str | None:
    """Return the key that a request shows: a bearer's, or the password of a browser's own dialogue."""
    scheme, _, value = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                pair = base64.b64decode(value.strip(), validate=True).decode("utf-8")
            except (binascii.Error, ValueError):
                return None
            return pair.partition(":")[2]
    return None


class Guard:
    """Lets a request in, or raises Refusal: Host, origin, key, number of requests a client.

    key: None asks for none. hosts: names that the Host header may have beside those of this machine. origins: pages
    that may call from elsewhere. proxies: addresses whose X-Forwarded-For is believed. max_concurrent: requests that
    one client may have under way.
    """

    def __init__(
        self,
        key: str | None = None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        proxies: Iterable[str] = (),
        max_concurrent: int = 32,
    ) -> None:
        # digests have one length, so that the time of a comparison tells nothing, not even how long the key is
        self._digest = None if key is None else sha256(check_key(key).encode()).digest()
        self.key = key is not None
        self.hosts = {"localhost", "127.0.0.1", "::1", *map(host_name, hosts)}
        self.origins = frozenset(map(check_origin, origins))
        self._proxies = frozenset(map(host_name, proxies))
        self.max_concurrent = max_concurrent
        self.under_way: Counter[str] = Counter()

    def check(self, request: web.Request) -> None:
        """Raise Refusal unless this request may go on to its handler."""
        self._check_host(request)
        if request.method == hdrs.METH_OPTIONS:
            return  # a browser asks before it shows the key; the answer is made of headers alone
        if self._digest is not None and request.path != OPEN:
            self._check_key(request)

    def _check_host(self, request: web.Request) -> None:
        """A page of another name that points to this address (DNS rebinding) tells its own name here."""
        named = request.headers.getall(hdrs.HOST, [])
        if len(named) == 1:
            name, dialled = host_name(named[0]), request.get_extra_info("sockname", ("",))[0]
            if name in self.hosts or name == dialled:
                return
        words = "this server does not go by that name: start it with --allow-host and the name in your address bar"
        raise Refusal(421, words, "host_not_allowed")

    def _check_key(self, request: web.Request) -> None:
        shown = shown_key(request)
        digest = sha256((shown or "").encode("utf-8", "surrogateescape")).digest()
        if not hmac.compare_digest(digest, self._digest):
            words = "this key is not the right one" if shown else "no API key was sent"
            challenge = 'Basic realm="the API key is the password", charset="UTF-8"'
            raise Refusal(
                401, f"{words}: send the header Authorization: Bearer KEY", "invalid_api_key",
                **{hdrs.WWW_AUTHENTICATE: challenge},
            )  # fmt: skip

    def allow_origin(self, request: web.Request) -> web.Response:
        """Answer a browser's preflight: may a page of that origin call?"""
        if request.headers.get(hdrs.ORIGIN) not in self.origins:
            words = "pages of this origin may not call: start the server with --origin and the page's origin"
            raise Refusal(403, words, "origin_not_allowed")
        return web.Response(status=204, headers={f"Access-Control-{name}": value for name, value in PREFLIGHT.items()})

    async def add_headers(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add what every answer carries, refusals too: a browser on a named origin may read those as well."""
        response.headers.update(HEADERS)
        response.headers[hdrs.VARY] = "Origin"
        origin = request.headers.get(hdrs.ORIGIN)
        if origin in self.origins:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin

    def client(self, request: web.Request) -> str:
        """Return who asks: an IPv4 address, or an IPv6 network of 64 bits, of which one client may have all."""
        address = request.remote or ""
        if address in self._proxies:  # the last entry is the one that our own proxy wrote
            address = request.headers.get(hdrs.X_FORWARDED_FOR, address).rpartition(",")[2].strip()
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return "unknown"
        return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))

    @contextlib.contextmanager
    def visit(self, request: web.Request) -> Iterator[None]:
        """Count the request as under way; raises Refusal if this client has too many of them."""
        client = self.client(request)
        if self.under_way[client] >= self.max_concurrent:
            words = f"{self.max_concurrent} of your requests are under way: wait for one of them to end"
            raise Refusal(429, words, "too_many_requests", **{hdrs.RETRY_AFTER: "1"})
        self.under_way[client] += 1
        try:
            yield
        finally:
            self.under_way[client] -= 1
            if not self.under_way[client]:
                del self.under_way[client]


async def read_json(request: web.Request, most: int, seconds: float) -> bytes:
    """Return the body, at most `most` bytes that arrive within `seconds`; raises Refusal.

    A compressed body is refused unread: what it would grow to can then do no harm.
    """
    if request.content_type != "application/json" or (request.charset or "utf-8").lower() != "utf-8":
        words = "the body must be JSON in UTF-8: send the header Content-Type: application/json"
        raise Refusal(415, words, "not_json")
    if hdrs.CONTENT_ENCODING in request.headers:
        raise Refusal(415, "the body must not be compressed", "compressed")
    too_large = Refusal(413, f"the body is larger than {most} bytes", "body_too_large")
    if (request.content_length or 0) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.content.iter_any():
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {seconds:g} seconds", "body_too_slow") from None
    except web.RequestPayloadError:
        raise Refusal(400, "the body cannot be read: it breaks the rules of HTTP", "bad_http") from None
    return bytes(body)
