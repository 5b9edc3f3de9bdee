"""Who may call, and what a body must be: keys, host names, origins, requests per client, size and type."""

import asyncio
import base64
import gzip
import hmac
import time

import aiohttp
import pytest
from multidict import CIMultiDict
from service import JSON, FakeEngine, fetch, serving, until

from helpers.serve import auth, server
from helpers.serve.app import GUARD, PAGE, make_app
from helpers.serve.limits import Limits

BODY = {"context": "x"}


ROUTES = [("POST", "/generate"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/readyz")]


ROUTES += [("GET", path) for path in ("/metrics", "/openapi.json", "/nothing", *PAGE)]


def ask(path="/healthz", method="GET", **request):
    return fetch(method, path, **request)


def basic(user, key):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()}


# ---- the key ----

WRONG = [{}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer the-ke"}]


WRONG += [{"Authorization": f"Bearer {key}"} for key in ("the-keyy", "THE-KEY", "the-key the-key")]


WRONG += [{"Authorization": "the-key"}, {"Authorization": "Digest the-key"}, basic("the-key", ""), basic("u", "no")]


WRONG += [{"Authorization": "Basic !"}, {"Authorization": "Basic /w=="}, {"Authorization": "Bearer 钥匙"}]


@pytest.mark.parametrize("method, path", ROUTES)
def test_nobody_without_the_key(method, path):
    async def scene():
        async with serving(FakeEngine(), api_key="the-key") as session:
            for headers in WRONG:
                async with session.request(method, path, headers=headers) as response:
                    assert response.status == 401, headers
                    error = (await response.json())["error"]
                    assert "Authorization: Bearer KEY" in (error["message"] if path.startswith("/v1/") else error)
                    assert response.headers["WWW-Authenticate"].startswith("Basic realm=")  # a browser then asks
            for headers in ({"Authorization": "Bearer the-key"}, basic("", "the-key"), basic("用户", "the-key")):
                async with session.request(method, path, headers=headers, data=b"{}") as response:
                    assert response.status not in (401, 403)

    asyncio.run(scene())


def test_healthz_asks_for_no_key():
    assert ask(options={"api_key": "the-key"})[0] == 200


def test_keys_are_compared_in_constant_time(monkeypatch):
    """Nothing but compare_digest sees the key, and what it sees has one length."""
    seen = []

    def compare(one, other):
        seen.append((one, other))
        return real(one, other)

    real = hmac.compare_digest
    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    for key in ("the-key", "x", "x" * 1000):
        ask("/v1/models", options={"api_key": "the-key"}, headers={"Authorization": f"Bearer {key}"})
    assert {len(side) for pair in seen for side in pair} == {32}
    assert len(seen) == 3


@pytest.mark.parametrize("key", ["", "two words", "钥匙", "a\nb"])
def test_a_key_that_no_header_carries(key):
    with pytest.raises(ValueError, match="one word of ASCII"):
        make_app(FakeEngine(), api_key=key)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "example.org"])
def test_other_machines_need_a_key(host):
    with pytest.raises(ValueError, match="there is no API key"):
        asyncio.run(server.start(make_app(FakeEngine()), host))


def test_all_addresses_with_a_key():
    """Bound to every address, a server also goes by the address that was called."""

    async def scene():
        runner, address = await server.start(make_app(FakeEngine(), api_key="k"), "0.0.0.0")
        async with aiohttp.ClientSession() as session:
            for name in ("127.0.0.1", "127.0.0.2", "localhost"):
                async with session.get(f"http://{name}:{address.rpartition(':')[2]}/healthz") as response:
                    assert response.status == 200
        await server.stop(runner)

    asyncio.run(scene())


# ---- names ----


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:9", 200), ("[::1]:5005", 200), ("[::1]", 200),
        ("friend.example", 200), ("friend.example:5005", 200), ("friend.example.", 200),
        ("evil.example", 421), ("localhost.evil.example", 421), ("evil.example:127.0.0.1", 421), ("", 421),
        ("127.0.0.1.evil.example", 421), ("127.0.0.2", 421), ("xfriend.example", 421), ("user@localhost", 421),
    ],
)  # fmt: skip
def test_only_its_own_names(host, status):
    """A page whose name is made to point to this machine (DNS rebinding) is of that name."""
    got, _, answer = ask(options={"hosts": ["friend.example"]}, headers={"Host": host})
    assert got == status
    if status == 421:
        assert "--allow-host" in answer["error"]


# ---- origins ----


def test_foreign_origins_are_closed_by_default():
    """The book answered every origin, with credentials."""
    foreign = {"Origin": "https://evil.example"}
    status, headers, _ = fetch("POST", "/generate", json={"context": "x"}, headers=foreign)
    assert status == 200  # the server cannot know who asks; the browser keeps the answer from the page
    assert not [name for name in headers if name.startswith("Access-Control")]
    status, headers, answer = fetch("OPTIONS", "/generate", headers=foreign)
    assert status == 403
    assert "--origin" in answer["error"]
    assert not [name for name in headers if name.startswith("Access-Control")]


@pytest.mark.parametrize("body, status", [({"context": "x"}, 200), ({}, 400)])
def test_a_named_origin_may_read_answers_and_refusals(body, status):
    friend = {"origins": ["https://friend.example"]}
    got, headers, _ = fetch(
        "POST", "/generate", options=friend, json=body, headers={"Origin": "https://friend.example"}
    )
    assert got == status
    assert headers["Access-Control-Allow-Origin"] == "https://friend.example"
    assert "Access-Control-Allow-Credentials" not in headers
    assert headers["Vary"] == "Origin"
    for other in ("https://friend.example.evil", "http://friend.example", "https://friend.example:8443", "null"):
        _, headers, _ = fetch("POST", "/generate", options=friend, json=body, headers={"Origin": other})
        assert "Access-Control-Allow-Origin" not in headers


def test_preflight_of_a_named_origin():
    asked = {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
    status, headers, _ = fetch("OPTIONS", "/generate", options={"origins": [asked["Origin"]]}, headers=asked)
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == "https://friend.example"
    assert headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert headers["Access-Control-Allow-Headers"] == "Authorization, Content-Type"


def test_a_preflight_may_announce_any_header():
    """OpenAI's client for browsers sends x-stainless-lang and others."""
    asked = {
        "Origin": "https://friend.example", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }  # fmt: skip
    _, headers, _ = fetch("OPTIONS", "/v1/completions", options={"origins": [asked["Origin"]]}, headers=asked)
    assert headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-stainless-lang"
    assert headers["Vary"] == "Origin, Access-Control-Request-Headers"


# the last four are valid, and in a form that no browser sends
WRONG_ORIGINS = [
    "*", "https://*.example.org", "example.org", "https://example.org/", "null", "", "https://", "https://:80",
    "https://Example.org", "https://example.org:443", "http://example.org:80", "https://me@example.org",
]  # fmt: skip


@pytest.mark.parametrize("origin", WRONG_ORIGINS)
def test_an_origin_is_named_exactly(origin):
    with pytest.raises(ValueError, match="is not an origin"):
        make_app(FakeEngine(), origins=[origin])


@pytest.mark.parametrize("host", ["https://gpt.example.org", "gpt.example.org/", "me@example.org", "*.example.org", ""])
def test_a_host_is_named_without_the_rest_of_its_address(host):
    with pytest.raises(ValueError, match="is not the name of a host"):
        make_app(FakeEngine(), hosts=[host])


@pytest.mark.parametrize("proxy", ["10.0.0.0/8", "nginx", "10.0.0.1:80", ""])
def test_a_proxy_is_named_by_its_address(proxy):
    with pytest.raises(ValueError, match="is not the address of a proxy"):
        make_app(FakeEngine(), proxies=[proxy])


@pytest.mark.parametrize("proxy", ["::1", "[::1]", "0:0:0:0:0:0:0:1"])
def test_a_proxy_has_one_address_in_many_forms(proxy):
    assert make_app(FakeEngine(), proxies=[proxy])[GUARD]._proxies == {"::1"}


# ---- the body, and how many requests ----


@pytest.mark.parametrize(
    "headers, why",
    [
        ({"Content-Type": "text/plain"}, "Content-Type: application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "Content-Type: application/json"),
        ({"Content-Type": "application/json; charset=gbk"}, "UTF-8"),
        ({}, "Content-Type: application/json"),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_only_json(path, headers, why):
    status, _, answer = fetch("POST", path, data=b'{"context": "x"}', headers=headers)
    assert status == 415
    assert why in str(answer["error"])


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "x"])
def test_a_bomb_is_not_opened(coding):
    """Ten megabytes that arrive as ten kilobytes: no compressed body is unpacked at all."""
    bomb = gzip.compress(b" " * 10_000_000)
    assert len(bomb) < 20_000

    def seconds():
        since = time.perf_counter()
        status, _, answer = fetch("POST", "/generate", data=bomb, headers={**JSON, "Content-Encoding": coding})
        assert (status, answer) == (415, {"error": "the body must not be compressed"})
        return time.perf_counter() - since

    assert min(seconds() for _ in range(3)) < 2  # the machine may be busy with other things


def test_a_body_without_a_length_is_measured_as_it_comes():
    sent = 0

    async def endless():
        nonlocal sent
        for _ in range(10_000):
            sent += 10_000
            yield b" " * 10_000

    status, _, answer = fetch("POST", "/generate", data=endless(), headers=JSON)
    assert (status, answer) == (413, {"error": "the body is larger than 65536 bytes"})
    assert sent < 30_000_000  # the client was stopped, not listened to


def test_a_client_has_so_many_requests_and_not_more():
    async def scene():
        engine = FakeEngine(held=True)
        app = make_app(engine, Limits(max_concurrent=3), proxies=["127.0.0.1"])
        async with serving(app) as session:

            def call(client):
                return asyncio.create_task(
                    session.post("/generate", json=BODY, headers={"X-Forwarded-For": f"6.6.6.6, {client}"})
                )

            held = [call("1.1.1.1") for _ in range(3)]
            await until(lambda: len(engine.futures) == 3)
            response = await call("1.1.1.1")
            assert response.status == 429 and response.headers["Retry-After"] == "1"
            assert "3 of your requests are under way" in (await response.json())["error"]
            other = [call("2.2.2.2")]
            await until(lambda: len(engine.futures) == 4)
            assert dict(app[GUARD].under_way) == {"1.1.1.1": 3, "2.2.2.2": 1}
            engine.release()
            assert [(await task).status for task in held + other] == [200] * 4
            assert not app[GUARD].under_way
            engine.held = False
            assert (await call("1.1.1.1")).status == 200

    asyncio.run(scene())


def test_only_a_named_proxy_is_believed():
    class Request:
        def __init__(self, remote, forwarded):
            self.remote = remote
            self.headers = CIMultiDict(("X-Forwarded-For", line) for line in forwarded.split("\n"))

    guard = auth.Guard(proxies=["10.0.0.1", "::1"])
    assert guard.client(Request("9.9.9.9", "1.1.1.1")) == "9.9.9.9"
    assert guard.client(Request("10.0.0.1", "7.7.7.7, 1.1.1.1")) == "1.1.1.1"  # the first one is anybody's invention
    assert guard.client(Request("::1", "2001:db8:1:2:3:4:5:6")) == "2001:db8:1:2::/64"
    assert guard.client(Request("10.0.0.1", "7.7.7.7\n1.1.1.1")) == "1.1.1.1"  # HAProxy adds a line of its own
    assert guard.client(Request("::ffff:9.9.9.9", "1.1.1.1")) == "9.9.9.9"  # as a socket for IPv4 and IPv6 has it
    assert guard.client(Request("::ffff:10.0.0.1", "::ffff:1.1.1.1")) == "1.1.1.1"
    assert guard.client(Request("2001:db8:1:2:ffff::", "")) == "2001:db8:1:2::/64"
    assert guard.client(Request("10.0.0.1", "nonsense")) == guard.client(Request(None, "")) == "unknown"
