"""Requests of an enemy, and bytes that are hardly HTTP: never a 500, always a reason, and the server lives on."""

import asyncio
import json
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance
from service import HEAD, JSON, FakeEngine, chat_tokenizer, fetch, in_thread, listening, raw
from yarl import URL

from helpers.serve import auth
from helpers.serve.app import POSTS

text = st.text(st.characters(), max_size=50) | st.sampled_from(
    ["<eos>", "<pad><user>", "\0", "<0xE6>", "</s>", "﷽" * 40, "\u202e", "\ud800", "😀" * 60, "' OR 1=1 --", "{{7*7}}"]
)
numbers = st.integers() | st.floats() | st.sampled_from([2**31, 2**64, -(2**63), 10**400, 1e308, -0.0, 5e-324])
anything = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=8,
)


def dump(value) -> bytes:
    return json.dumps(value).encode()  # a lone surrogate becomes \ud800, an infinity Infinity


odd_bodies = st.sampled_from(
    [
        b"[" * 60_000, b'{"a":' * 12_000, b'{"prompt": "a", "stop": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", b'"',
        b"null", b"\xff\xfe", b'{"context": "a", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "a", "temperature": 0.' + b"1" * 5000 + b"}", b'{"prompt": "a", "prompt": 3}', b"NaN", b"\0" * 9,
        b'{"prompt": "a", "temperature": 1e' + b"9" * 5000 + b"}", b'{"context": "a"}\0', b" " * 60_000,
        dump({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}] * 1000}),
        dump({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 1000}]}), b"x" * 200_000,
    ]
)  # fmt: skip
paths = st.sampled_from(list(POSTS))
bodies = st.tuples(paths, anything.map(dump) | st.binary(max_size=200) | odd_bodies)
header = st.sampled_from(
    ["Content-Type", "Content-Encoding", "Accept", "Origin", "Cookie", "Range", "If-Match", "Expect", "Upgrade", "X"]
)
value = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Z", "S")), max_size=20).map(str.strip)
value |= st.sampled_from(["application/json", "text/html; charset=utf-16", "gzip", "100-continue", "websocket", "*/*"])
addresses = st.sampled_from(["/", *POSTS, "/v1/models", "/healthz", "/readyz", "/openapi.json", "/metrics"])
addresses |= st.text(st.characters(codec="utf-8", exclude_characters="?#"), max_size=20).map(lambda text: "/" + text)
addresses |= st.sampled_from(["/../../etc/passwd", "//evil.example/", "/%00", "/%ff", "/..%2f..%2fserve.py", "/v1/"])
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"])


def is_a_reason(answer) -> bool:
    error = answer["error"]
    words = error["message"] if isinstance(error, dict) else error  # OpenAI's form, or the plain one
    return isinstance(words, str) and len(words) > 5


@pytest.fixture
def send():
    """Send requests to one server, which is alive at the end; return (status, content type, body) of each."""
    with asyncio.Runner() as loop:
        serving = listening(FakeEngine(tokenizer=chat_tokenizer()))
        session, port = loop.run(serving.__aenter__())

        async def once(method, path, **request):
            # as it is: what starts with // would be another host to the client, and what is odd would be mended
            address = URL(f"http://127.0.0.1:{port}{quote(path, safe='/%.:')}", encoded=True)
            async with session.request(method, address, allow_redirects=False, **request) as response:
                return response.status, response.content_type, await response.read()

        yield lambda *arguments, **request: loop.run(once(*arguments, **request))
        assert loop.run(once("GET", "/healthz"))[0] == 200
        loop.run(serving.__aexit__(None, None, None))


def many(count):
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, database=None, suppress_health_check=checks)


@pytest.mark.slow
def test_many_bodies(send):
    @many(400)
    @given(bodies)
    @example(("/generate", b'{"context": "a"}'))
    @example(("/generate", b"x" * 200_000))
    def try_one(case):
        status, kind, answer = send("POST", case[0], data=case[1], headers=JSON)
        assert status in (200, 400, 404, 413), (status, answer)
        if status != 200:
            assert kind == "application/json" and is_a_reason(json.loads(answer))
        else:
            assert answer.endswith(b"data: [DONE]\n\n") if kind == "text/event-stream" else json.loads(answer)

    try_one()


@pytest.mark.slow
def test_many_methods_addresses_and_headers(send):
    @many(300)
    @given(methods, addresses, st.dictionaries(header, value, max_size=3), anything.map(dump))
    @example("BREW", "/generate", {}, b"")
    def try_one(method, path, headers, body):
        status, kind, answer = send(method, path, headers=headers, data=body)
        assert status < 500, (status, answer)
        if status >= 400 and method != "HEAD":  # what breaks the rules of HTTP is answered by aiohttp
            assert is_a_reason(json.loads(answer)) if kind == "application/json" else status in (400, 417)

    try_one()


@pytest.mark.slow
def test_requests_made_from_openapi():
    """What /openapi.json allows and forbids, as schemathesis reads it, is what the server takes and refuses."""
    tried = []
    with in_thread(FakeEngine(tokenizer=chat_tokenizer())) as address:
        for operation in schemathesis.openapi.from_url(f"{address}/openapi.json").get_all_operations():

            @many(80 if operation.ok().method == "post" else 5)
            @given(operation.ok().as_strategy())
            def try_one(case):
                tried.append(case.call(base_url=address))
                # JSON Schema calls 3.0 an integer, this server does not
                case.validate_response(tried[-1], excluded_checks=[positive_data_acceptance])

            try_one()
    assert len(tried) > 150 and all(response.status_code < 500 for response in tried)


# ---- bytes that are hardly HTTP ----

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * 200 + b"\r\n",
        HEAD + b"Content-Length: 7\r\n\r\n{}", HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET.replace(b"\r\n\r\n", b"\r\nHost: evil.example\r\n\r\n"), b"GET / HTTP/1.1\r\n\r\n",
        GET.replace(b"\r\n\r\n", b"\r\nExpect: tea\r\n\r\n"), b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked") + b"\r\nzz\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
        b"GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
)  # fmt: skip
async def test_what_breaks_the_rules_is_a_mistake_of_the_client(data, caplog):
    async with listening(FakeEngine(), header_seconds=0.3, body_seconds=0.3) as (_, port):
        assert (await raw(port, data)).startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert not caplog.records


# ---- connections ----


@pytest.mark.parametrize(
    "data, drip, answer",
    [
        (b"", b"", b""),  # it asked for nothing
        (b"", HEAD * 100, b""),
        (GET, HEAD * 100, b"HTTP/1.1 200"),  # the second header must come in time, too
        (HEAD + b"\r\n{", b"", b"HTTP/1.1 408"),
    ],
)
async def test_silent_and_dripping_connections_are_closed_and_others_feel_nothing(data, drip, answer):
    async with listening(FakeEngine(room=10**6), header_seconds=0.5, body_seconds=0.5, max_concurrent=99) as (
        session,
        port,
    ):
        slow = [asyncio.create_task(raw(port, data, drip)) for _ in range(50)]
        while not all(task.done() for task in slow):
            async with session.post("/generate", json={"context": "x"}) as response:
                assert response.status == 200
        assert all(task.result().startswith(answer) if answer else task.result() == b"" for task in slow)


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/v1/models"])
def test_every_answer_tells_a_browser_to_be_careful(path):
    assert auth.HEADERS.items() <= dict(fetch("GET", path)[1]).items()
