"""Checks before a request reaches the model: API key, CORS, allowed host names, rate limit, readable body.

The rate limit counts the requests of a client that are not yet answered, so a fast client is not punished. Knows no
route and no model.
"""

import asyncio
import contextlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from aiohttp import BasicAuth, HttpVersion11, hdrs, web

from helpers.serve.limits import DEFAULT_LIMITS, Limits

KEYLESS_PATH = "/healthz"  # the one address that asks for no key
HEADERS = {  # of every answer
    # only a notebook on this machine may show the page in a frame; the page loads from this server only
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ORIGIN = re.compile(r"(http(?!.*:80$)|https(?!.*:443$))://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
_PREFLIGHT = {
    hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST",
    hdrs.ACCESS_CONTROL_MAX_AGE: "600",
    hdrs.VARY: f"{hdrs.ORIGIN}, {hdrs.ACCESS_CONTROL_REQUEST_HEADERS}",
}


class Refusal(Exception):
    """An answer that is an error: HTTP status, a sentence for a person, a short code for programs and for metrics.

    key: the key of the body that is wrong. headers: those of the answer.
    """

    def __init__(self, status: int, message: str, code: str, key: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.key, self.headers = status, message, code, key, headers


def require_key(host: str, has_key: bool) -> None:
    """Raise ValueError if other machines can call a server on `host` and it asks for no API key."""
    ip = ip_of(host)
    if not (has_key or host == "localhost" or (ip and ip.is_loopback)):
        raise ValueError(
            f"other machines can call {host or 'every address'}, and there is no API key: put one into a file and name "
            "it with --api-key-file, set CHINESE_GPT_API_KEY, or listen on 127.0.0.1"
        )


def check_key(key: str) -> str:
    """Return the API key; raises ValueError for one that a header cannot carry."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the API key must be one word of ASCII letters, digits and signs")
    return key


def host_name(host: str) -> str:
    """Return a host, or a Host header, in lower case and without port and brackets."""
    name = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    return name.strip("[]").rstrip(".").lower()


def ip_of(address: str) -> IPv4Address | IPv6Address | None:
    """Return an address, as IPv4 where it is one: on a socket for both, 192.168.1.5 calls itself ::ffff:192.168.1.5."""
    with contextlib.suppress(ValueError):
        ip = ip_address(address)
        return getattr(ip, "ipv4_mapped", None) or ip
    return None


def check_host(host: str) -> str:
    """Return the name of a host as `host_name` does; raises ValueError for what is no name, such as a whole URL."""
    name = host_name(host)
    if not name or set("/@* ") & set(host):
        raise ValueError(f"'{host}' is not the name of a host: write it like example.org, without https:// and path")
    return name


def check_proxy(proxy: str) -> IPv4Address | IPv6Address:
    """Return the address of a proxy; raises ValueError if it is none."""
    if ip := ip_of(proxy.strip("[]")):
        return ip
    raise ValueError(f"'{proxy}' is not the address of a proxy: write it like 127.0.0.1, without a port")


def check_origin(origin: str) -> str:
    """Return the origin; raises ValueError unless it is scheme://host[:port], in the form that browsers send."""
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(
            f"'{origin}' is not an origin: write it like https://example.org, in small letters, without a path or the "
            "port that is usual"
        )
    return origin


def sent_key(request: web.Request) -> str | None:
    """Return the API key that a request carries: a bearer token, or the password from a browser's dialogue."""
    header = request.headers.get(hdrs.AUTHORIZATION, "")
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    try:
        return BasicAuth.decode(header, "utf-8").password
    except ValueError:  # another scheme, or not what it should be
        return None


class Guard:
    """Checks host name, API key, origin and the number of a client's requests; `make_app` explains the arguments."""

    def __init__(
        self, key: str | None = None, hosts: Iterable = (), origins: Iterable = (), proxies: Iterable = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:  # fmt: skip
        self.has_key = key is not None
        # digests have one length, so the time of a comparison reveals nothing, not even the length of the key
        self._digest = None if key is None else sha256(check_key(key).encode()).digest()
        self.hosts = {"localhost", "127.0.0.1", "::1", *map(check_host, hosts)}
        self.origins = frozenset(map(check_origin, origins))
        self._proxies = frozenset(map(check_proxy, proxies))
        self._max_concurrent = limits.max_concurrent
        self.under_way: Counter[str] = Counter()  # client -> its requests that are not yet answered

    def check(self, request: web.Request) -> None:
        """Raise Refusal unless this request may go on to its handler."""
        # a page whose name was made to point here (DNS rebinding) sends its own name
        named, (dialled, *_) = request.headers.getall(hdrs.HOST, []), request.get_extra_info("sockname", ("",))
        is_old = not named and request.version < HttpVersion11  # a balancer's health check, and no browser
        if len(named) > 1 or not (named or is_old):
            raise Refusal(400, f"the request has {len(named)} Host headers: send one", "bad_http")
        if not is_old and host_name(named[0]) not in {*self.hosts, str(ip_of(dialled) or "")}:
            message = (
                f"this server is not called '{named[0][:100]}': if that is its name, start it with --allow-host NAME"
            )
            raise Refusal(421, message, "host_not_allowed")
        # a browser's preflight carries no key; its answer has headers only
        if self._digest is None or request.method == hdrs.METH_OPTIONS or request.path == KEYLESS_PATH:
            return
        sent = sent_key(request)
        digest = sha256((sent or "").encode("utf-8", "surrogateescape")).digest()
        if not hmac.compare_digest(digest, self._digest):
            reason = "this key is not the right one" if sent else "no API key was sent"
            message = f"{reason}: send the header Authorization: Bearer KEY"
            challenge = {hdrs.WWW_AUTHENTICATE: 'Basic realm="the API key is the password", charset="UTF-8"'}
            raise Refusal(401, message, "invalid_api_key", **challenge)

    async def allow_origin(self, request: web.Request) -> web.Response:
        """Answer a browser's CORS preflight, which asks whether a page of that origin may call."""
        if request.headers.get(hdrs.ORIGIN) not in self.origins:
            message = "pages of this origin may not call: start the server with --origin and the page's origin"
            raise Refusal(403, message, "origin_not_allowed")
        # any header: OpenAI's client for browsers sends a dozen of its own, and the routes read none of them
        asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "Authorization, Content-Type")
        return web.Response(status=204, headers=_PREFLIGHT | {hdrs.ACCESS_CONTROL_ALLOW_HEADERS: asked})

    async def add_headers(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add the headers of every answer; a page of an allowed origin may read refusals, too."""
        response.headers.update(HEADERS)
        response.headers.setdefault(hdrs.VARY, hdrs.ORIGIN)
        origin = request.headers.get(hdrs.ORIGIN)
        if origin in self.origins:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin

    def client(self, request: web.Request) -> str:
        """Return the client of a request: an IPv4 address, or an IPv6 /64 network, which one client may own whole."""
        ip = ip_of(request.remote or "")
        if ip in self._proxies:  # our own proxy wrote the last entry of the last line; the others may be invented
            lines = request.headers.getall(hdrs.X_FORWARDED_FOR, [str(ip)])
            ip = ip_of(lines[-1].rpartition(",")[2].strip())
        return str(ip_network((ip, 64), strict=False) if isinstance(ip, IPv6Address) else ip or "unknown")

    @contextlib.contextmanager
    def track_request(self, request: web.Request) -> Iterator[None]:
        """Count the request as under way; raises Refusal if this client has too many of them (rate limit)."""
        client = self.client(request)
        if self.under_way[client] >= self._max_concurrent:
            message = f"{self._max_concurrent} of your requests are under way: wait for one of them to end"
            raise Refusal(429, message, "too_many_requests", **{hdrs.RETRY_AFTER: "1"})
        self.under_way[client] += 1
        try:
            yield
        finally:
            self.under_way -= Counter([client])  # drops the clients that are at 0


async def read_json(request: web.Request, limits: Limits) -> bytes:
    """Return the body, if it is small enough and arrives in time; raises Refusal.

    A compressed body is refused unread: what it would expand to can do no harm.
    """
    if request.content_type != "application/json" or (request.charset or "").lower() not in ("", "utf-8", "utf8"):
        message = "the body must be JSON in UTF-8: send the header Content-Type: application/json"
        raise Refusal(415, message, "content_type")
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise Refusal(415, "the body must not be compressed", "compressed")
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await request.read()  # the application's client_max_size limits it
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_seconds:g} seconds"
        raise Refusal(408, message, "body_too_slow") from None
    except web.HTTPRequestEntityTooLarge:
        raise Refusal(413, f"the body is larger than {limits.max_body_bytes} bytes", "body_too_large") from None
    except web.RequestPayloadError:
        raise Refusal(400, "the body cannot be read: it breaks the rules of HTTP", "bad_http") from None
