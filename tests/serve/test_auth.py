"""Who may call, and what a body must be: keys, host names, origins, requests per client, size and type."""

import asyncio
import base64
import gzip
import hmac

import aiohttp
import pytest
from multidict import CIMultiDict
from service import JSON, FakeEngine, fetch, listening, raw, serving, until

from helpers.serve import auth, server
from helpers.serve.app import PAGE, STATE, make_app
from helpers.serve.limits import Limits

FRIEND = "https://friend.example"
ROUTES = [("POST", "/generate"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/readyz")]
ROUTES += [("GET", path) for path in ("/metrics", "/openapi.json", "/nothing", *PAGE)]


def basic(user, key):
    return "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()


# ---- the key ----

WRONG = ["", "Bearer", "Bearer the-ke", "Bearer the-keyy", "Bearer THE-KEY", "Bearer the-key the-key", "the-key"]
WRONG += ["Digest the-key", basic("the-key", ""), basic("u", "no"), "Basic !", "Basic /w==", "Bearer 钥匙"]


@pytest.mark.parametrize("method, path", ROUTES)
async def test_nobody_without_the_key(method, path):
    async with serving(FakeEngine(), api_key="the-key") as session:
        for headers in ({}, *({"Authorization": wrong} for wrong in WRONG)):
            async with session.request(method, path, headers=headers) as response:
                assert response.status == 401, headers
                assert "Authorization: Bearer KEY" in str((await response.json())["error"])
                assert response.headers["WWW-Authenticate"].startswith("Basic realm=")  # a browser then asks
        for right in ("Bearer the-key", basic("", "the-key"), basic("用户", "the-key")):
            async with session.request(method, path, headers={"Authorization": right}, data=b"{}") as response:
                assert response.status not in (401, 403)


def test_keys_are_compared_in_constant_time(monkeypatch):
    """Nothing but compare_digest sees the key, and what it sees has one length."""
    seen, really = [], hmac.compare_digest
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda *pair: seen.append(pair) or really(*pair))
    for key in ("the-key", "x", "x" * 1000):
        fetch("GET", "/v1/models", options={"api_key": "the-key"}, headers={"Authorization": f"Bearer {key}"})
    assert len(seen) == 3 and {len(side) for pair in seen for side in pair} == {32}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "example.org"])
def test_other_machines_need_a_key(host):
    with pytest.raises(ValueError, match="there is no API key"):
        asyncio.run(server.start_server(make_app(FakeEngine()), host))


# ---- names ----


async def test_all_addresses_with_a_key():
    """Bound to every address, a server also goes by the address that was called."""
    runner, address = await server.start_server(make_app(FakeEngine(), api_key="k"), "0.0.0.0")
    async with aiohttp.ClientSession() as session:
        for name in ("127.0.0.1", "127.0.0.2", "localhost"):
            async with session.get(f"http://{name}:{address.rpartition(':')[2]}/healthz") as response:
                assert response.status == 200
    await server.stop_server(runner)


OWN = ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:5005", "[::1]"]
OWN += ["friend.example", "friend.example:5005", "friend.example."]
FOREIGN = ["evil.example", "localhost.evil.example", "evil.example:127.0.0.1", "", "127.0.0.1.evil.example"]
FOREIGN += ["127.0.0.2", "xfriend.example", "user@localhost"]


@pytest.mark.parametrize("host, status", [(host, 200) for host in OWN] + [(host, 421) for host in FOREIGN])
def test_only_its_own_names(host, status):
    """A page whose name is made to point to this machine (DNS rebinding) is of that name."""
    got, _, answer = fetch("GET", "/healthz", options={"hosts": ["friend.example"]}, headers={"Host": host})
    assert got == status
    assert status == 200 or "--allow-host" in answer["error"]


MANY = "".join(f"X-{number}: 1\r\n" for number in range(99)) + f"Cookie: {'x' * 10_000}\r\n"


@pytest.mark.parametrize(
    "head, status",
    [("GET /healthz HTTP/1.0\r\n", 200), ("GET /readyz HTTP/1.0\r\n", 200), ("GET /v1/models HTTP/1.0\r\n", 401),
     ("GET /healthz HTTP/1.1\r\nConnection: close\r\n", 400), ("GET /healthz HTTP/1.0\r\nHost: evil.example\r\n", 421),
     (f"GET /healthz HTTP/1.0\r\nHost: localhost\r\n{MANY}", 200)],
)  # fmt: skip
async def test_health_checks_and_browsers_with_many_cookies(head, status):
    """A balancer names no host; a browser sends the cookies of all ports of 127.0.0.1, Jupyter's too."""
    async with listening(FakeEngine(), api_key=None if "ready" in head else "k") as (_, port):
        assert (await raw(port, f"{head}\r\n".encode())).split()[1] == str(status).encode()


@pytest.mark.parametrize(
    "option, wrong",
    [
        *(("api_key", key) for key in ("", "two words", "钥匙", "a\nb")),
        *(
            ("hosts", [host])
            for host in ("https://gpt.example.org", "gpt.example.org/", "me@example.org", "*.a.org", "")
        ),
        *(("proxies", [proxy]) for proxy in ("10.0.0.0/8", "nginx", "10.0.0.1:80", "")),
        *(("origins", [origin]) for origin in ("*", "https://*.example.org", "example.org", "null", "", "https://")),
        *(("origins", [origin]) for origin in ("https://example.org/", "https://:80", "https://me@example.org")),
        # valid, and in a form that no browser sends
        *(("origins", [f"{origin}"]) for origin in ("https://Example.org", "https://a.org:443", "http://a.org:80")),
    ],
)
def test_what_is_not_named_as_it_should_be_is_refused(option, wrong):
    what = dict(api_key="API key must be", hosts="name of a host", proxies="of a proxy", origins="not an origin")
    with pytest.raises(ValueError, match=what[option]):
        make_app(FakeEngine(), **{option: wrong})


# ---- origins ----


def test_foreign_origins_are_closed_by_default():
    """The book answered every origin, with credentials."""
    foreign = {"Origin": "https://evil.example"}
    status, headers, _ = fetch("POST", "/generate", json={"context": "x"}, headers=foreign)
    assert status == 200  # the server cannot know who asks; the browser keeps the answer from the page
    refused, more, answer = fetch("OPTIONS", "/generate", headers=foreign)
    assert refused == 403 and "--origin" in answer["error"]
    assert not [name for name in [*headers, *more] if name.startswith("Access-Control")]


@pytest.mark.parametrize("body, status", [({"context": "x"}, 200), ({}, 400)])
def test_a_named_origin_may_read_answers_and_refusals(body, status):
    for origin in (FRIEND, FRIEND + ".evil", "http://friend.example", FRIEND + ":8443", "null"):
        asked = {"json": body, "headers": {"Origin": origin}, "options": {"origins": [FRIEND]}}
        got, headers, _ = fetch("POST", "/generate", **asked)
        assert (got, headers["Vary"]) == (status, "Origin")
        assert headers.get("Access-Control-Allow-Origin") == (FRIEND if origin == FRIEND else None)
        assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize("asked", [None, "authorization,content-type,x-stainless-lang"])
def test_preflight_of_a_named_origin(asked):
    """It may announce any header: OpenAI's client for browsers sends x-stainless-lang and others."""
    sent = {"Origin": FRIEND} | ({"Access-Control-Request-Headers": asked} if asked else {})
    status, headers, _ = fetch("OPTIONS", "/v1/completions", options={"origins": [FRIEND]}, headers=sent)
    assert (status, headers["Access-Control-Allow-Origin"]) == (204, FRIEND)
    assert headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert headers["Access-Control-Allow-Headers"] == (asked or "Authorization, Content-Type")
    assert headers["Vary"] == "Origin, Access-Control-Request-Headers"


# ---- the body, and how many requests ----


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize(
    "headers, why",
    [
        *(({"Content-Type": kind}, "application/json") for kind in ("text/plain", "application/x-www-form-urlencoded")),
        ({}, "Content-Type: application/json"),
        ({"Content-Type": "application/json; charset=gbk"}, "UTF-8"),
        *((JSON | {"Content-Encoding": coding}, "must not be compressed") for coding in ("gzip", "br", "zstd", "x")),
    ],
)
def test_only_plain_json_is_read(path, headers, why):
    """Ten megabytes that arrive as ten kilobytes: no compressed body is unpacked at all."""
    status, _, answer = fetch("POST", path, data=gzip.compress(b" " * 10_000_000), headers=headers)
    assert status == 415
    assert why in str(answer["error"])


@pytest.mark.parametrize("charset", ["", "; charset=utf-8", "; charset=utf8", '; charset="UTF-8"', "; Charset=UTF8"])
def test_utf8_by_any_name_and_no_compression_at_all(charset):
    headers = {"Content-Type": f"application/json{charset}", "Content-Encoding": "identity"}
    assert fetch("POST", "/generate", data=b'{"context": "x"}', headers=headers)[0] == 200


@pytest.mark.parametrize("whole", [True, False])
def test_a_body_is_measured_as_it_comes(whole):
    sent = []

    async def endless():
        for _ in range(10_000):
            sent.append(b" " * 10_000)
            yield sent[-1]

    status, _, answer = fetch("POST", "/generate", data=b" " * 65537 if whole else endless(), headers=JSON)
    assert (status, answer) == (413, {"error": "the body is larger than 65536 bytes"})
    assert len(sent) < 3000  # the client was stopped, not listened to


async def test_a_client_has_so_many_requests_and_not_more():
    engine = FakeEngine(held=True)
    app = make_app(engine, Limits(max_concurrent=3), proxies=["127.0.0.1"])
    async with serving(app) as session:

        def call(client):
            headers = {"X-Forwarded-For": f"6.6.6.6, {client}"}
            return asyncio.create_task(session.post("/generate", json={"context": "x"}, headers=headers))

        held = [call(client) for client in ("1.1.1.1", "1.1.1.1", "1.1.1.1", "2.2.2.2")]
        await until(lambda: len(engine.futures) == 4)
        response = await call("1.1.1.1")
        assert response.status == 429 and response.headers["Retry-After"] == "1"
        assert "3 of your requests are under way" in (await response.json())["error"]
        assert dict(app[STATE].guard.under_way) == {"1.1.1.1": 3, "2.2.2.2": 1}
        engine.release()
        assert [(await task).status for task in held] == [200] * 4
        engine.held = False
        assert (await call("1.1.1.1")).status == 200
        assert not app[STATE].guard.under_way


@pytest.mark.parametrize(
    "remote, forwarded, client",
    [
        ("9.9.9.9", "1.1.1.1", "9.9.9.9"),
        ("10.0.0.1", "7.7.7.7, 1.1.1.1", "1.1.1.1"),  # the first one is anybody's invention
        ("10.0.0.1", "7.7.7.7\n1.1.1.1", "1.1.1.1"),  # HAProxy adds a line of its own
        ("::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "", "2001:db8:1:2::/64"),
        ("::ffff:9.9.9.9", "1.1.1.1", "9.9.9.9"),  # as a socket for IPv4 and IPv6 has it
        ("::ffff:10.0.0.1", "::ffff:1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", "nonsense", "unknown"),
        (None, "", "unknown"),
    ],
)
def test_only_a_named_proxy_is_believed(remote, forwarded, client):
    class Request:
        headers = CIMultiDict(("X-Forwarded-For", line) for line in forwarded.split("\n"))

    Request.remote = remote
    for proxy in ("::1", "[::1]", "0:0:0:0:0:0:0:1"):  # one address in many forms
        assert auth.Guard(proxies=["10.0.0.1", proxy]).client(Request) == client
