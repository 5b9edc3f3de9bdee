"""Thousands of requests, valid and not: never a 500, always a reason in JSON, at once, and the server lives on."""

import asyncio
import json
import random
import time
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance
from service import JSON, FakeEngine, chat_tokenizer, in_thread, serving, tiny_engine
from yarl import URL

from helpers.serve.limits import DEFAULT_LIMITS
from helpers.serve.schema import request_models

pytestmark = pytest.mark.slow
QUICK = 0.1  # seconds in which whatever needs no text is answered
KEYS = {"/generate": "context", "/v1/completions": "prompt", "/v1/chat/completions": "messages"}
MODELS = request_models(DEFAULT_LIMITS)
BODIES = dict(zip(KEYS, (MODELS.generate, MODELS.completion, MODELS.chat), strict=True))

text = st.text(st.characters(), max_size=50) | st.sampled_from(
    ["<eos>", "<pad><user>", "\0", "<0xE6>", "</s>", "﷽" * 40, "\u202e", "\ud800", "😀" * 60, "' OR 1=1 --", "{{7*7}}"]
)
numbers = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, -0.0, 5e-324])
anything = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=8,
)
simple = st.integers(-1, 4) | st.floats(0, 1) | st.booleans() | st.none() | numbers | text
right = {
    "maxlength": 2,
    "max_tokens": 2,
    "samples": 2,
    "n": 2,
    "temperature": 0,
    "stop": "a",
    "stream": True,
    "seed": 1,
}


roles = st.sampled_from(["user", "assistant", "system", "tool", "User", "", "<user>", None, 1])
parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", 3]), "text": text | simple})
contents = text | st.lists(parts, max_size=3) | anything
messages = st.fixed_dictionaries({"role": roles, "content": contents}) | anything
turns = st.lists(text, min_size=1, max_size=9).map(
    lambda texts: [{"role": ("user", "assistant")[i % 2], "content": each} for i, each in enumerate(texts)]
)
conversations = turns | turns | st.lists(messages, max_size=4) | anything


@st.composite
def nearly_right(draw, path):
    """Return a body that is right, or wrong in a key or two."""
    model = BODIES[path]
    body = {key: value for key, value in right.items() if key in model.model_fields and draw(st.booleans())}
    body[KEYS[path]] = draw(conversations if KEYS[path] == "messages" else text)
    for key in draw(st.lists(st.sampled_from([*model.model_fields, "extra", "Prompt"]), max_size=2)):
        body[key] = draw(simple | st.lists(simple, max_size=3))
    return body


def dump(value) -> bytes:
    return json.dumps(value).encode()  # a lone surrogate becomes \ud800, an infinity Infinity


def deep(letters, depth=60_000):
    return b'{"context": "a", "prompt": "a", "stop": ' + letters[:1] * depth + letters[1:] * depth + b"}"


odd_bodies = st.sampled_from(
    [
        b"[" * 60_000, b'{"a":' * 12_000, deep(b"[", 60_000), deep(b"[]", 30_000), b'"', b"null", b"{}", b"[]",
        b"\xff\xfe", b'{"context": "a", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": 0.' + b"1" * 5000 + b"}", b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "a", "temperature": 1e' + b"9" * 5000 + b"}", b'{"prompt": "a", "prompt": 3}',
        b'{"context": "a"}\0', b"\0" * 1000, b" " * 60_000, b"\xef\xbb\xbf{}", b"NaN",
        dump({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}] * 1000}),
        dump({"messages": [{"role": "user", "content": "好" * 2000}, {"role": "assistant", "content": "好"}] * 5}),
        dump({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 1000}]}),
        b'{"context": "' + b"x" * 65_000 + b'"}', b"x" * 200_000,
    ]
)  # fmt: skip
bodies = st.one_of(
    st.sampled_from(list(KEYS)).flatmap(lambda path: st.tuples(st.just(path), nearly_right(path).map(dump))),
    st.tuples(st.sampled_from(list(KEYS)), anything.map(dump) | st.binary(max_size=200) | odd_bodies),
)
header = st.sampled_from(
    ["Content-Type", "Content-Encoding", "Accept", "Origin", "Cookie", "Range", "If-Match", "Expect", "Upgrade", "X"]
)
value = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Z", "S")), max_size=20).map(str.strip)
value |= st.sampled_from(["application/json", "text/html; charset=utf-16", "gzip", "100-continue", "websocket", "*/*"])
paths = st.sampled_from(["/", *KEYS, "/v1/models", "/healthz", "/readyz", "/openapi.json", "/metrics"])
paths |= st.text(st.characters(codec="utf-8", exclude_characters="?#"), max_size=20).map(lambda text: "/" + text)
paths |= st.sampled_from(["/../../etc/passwd", "//evil.example/", "/%00", "/%ff", "/..%2f..%2fserve.py", "/v1", "/v1/"])
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"])


def is_a_reason(answer) -> bool:
    error = answer["error"]
    words = error["message"] if isinstance(error, dict) else error  # OpenAI's form, or the plain one
    return isinstance(words, str) and len(words) > 5


class Client:
    """A server in this loop, and requests to it one after the other, each of them timed."""

    def __init__(self, loop, engine):
        self.loop, self.engine = loop, engine
        self.serving = serving(engine)
        self.session = loop.run(self.serving.__aenter__())
        self.statuses = set()

    def close(self):
        self.loop.run(self.serving.__aexit__(None, None, None))

    def send(self, method, path, **request):
        """Send a request; return (status, content type, body). One that takes long is tried anew: machines hiccup."""

        async def once():
            since = time.perf_counter()
            # as it is: what starts with // would be another host to the client, and what is odd would be mended
            address = URL(str(self.session._base_url).rstrip("/") + quote(path, safe="/%.:"), encoded=True)
            async with self.session.request(method, address, **request) as response:
                body = await response.read()
                return response.status, response.content_type, body, time.perf_counter() - since

        for _ in range(5):
            *answer, seconds = self.loop.run(once())
            if seconds < QUICK:
                break
        else:
            raise AssertionError(f"{method} {path} takes {seconds:.2f} seconds, five times")
        self.statuses.add(answer[0])
        return answer


@pytest.fixture
def client():
    with asyncio.Runner() as loop:
        client = Client(loop, FakeEngine(tokenizer=chat_tokenizer()))
        yield client
        assert client.send("GET", "/healthz")[0] == 200
        client.close()


def many(count):
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, database=None, suppress_health_check=checks)


def test_a_thousand_bodies(client):
    @many(1000)
    @given(bodies)
    # one for each status that is demanded below: chance may draw none
    @example(("/generate", b'{"context": "a"}'))  # 200
    @example(("/generate", b"{}"))  # 400
    @example(("/generate", b"x" * 200_000))  # 413
    def try_one(case):
        path, body = case
        status, kind, answer = client.send("POST", path, data=body, headers=JSON)
        assert status in (200, 400, 404, 413), (status, answer)
        if status != 200:
            assert kind == "application/json" and is_a_reason(json.loads(answer))
        elif kind == "text/event-stream":
            assert answer.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(answer)

    try_one()
    assert client.statuses >= {200, 400, 413}


def test_six_hundred_methods_addresses_and_headers(client):
    @many(600)
    @given(methods, paths, st.dictionaries(header, value, max_size=3), anything.map(dump))
    # one for each status that is demanded below: chance may draw none
    @example("GET", "/", {}, b"")  # 200
    @example("POST", "/generate", JSON, b"{}")  # 400
    @example("GET", "/nothing", {}, b"")  # 404
    @example("BREW", "/generate", {}, b"")  # 405
    @example("POST", "/generate", {"Content-Type": "text/html"}, b"{}")  # 415
    def try_one(method, path, headers, body):
        status, kind, answer = client.send(method, path, headers=headers, data=body, allow_redirects=False)
        assert status < 500, (status, answer)
        if status >= 400 and method != "HEAD":
            assert kind == "application/json" and is_a_reason(json.loads(answer))

    try_one()
    assert client.statuses >= {200, 400, 404, 405, 415}


def test_four_hundred_requests_made_from_openapi():
    """What /openapi.json allows and forbids, as schemathesis reads it, is what the server takes and refuses."""
    with in_thread(FakeEngine(tokenizer=chat_tokenizer())) as address:
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        count = 0
        for operation in schema.get_all_operations():
            strategy = operation.ok().as_strategy()

            @many(200 if operation.ok().method == "post" else 5)
            @given(strategy)
            def try_one(case):
                nonlocal count
                count += 1
                response = case.call(base_url=address)
                # JSON Schema calls 3.0 an integer, this server does not: what it may refuse is left to the other tests
                case.validate_response(response, excluded_checks=[positive_data_acceptance])

            try_one()
    assert count > 300


def test_bytes_that_are_hardly_http():
    """Three hundred connections with requests that were cut, doubled, or had some of their bytes changed."""
    body = dump({"context": "<eos>", "maxlength": 2})
    whole = (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    )
    whole %= (len(body), body)
    dice = random.Random(0)

    async def try_one(port, data):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        for part in answer.split(b"HTTP/1.")[1:]:
            status, body = int(part[2:5]), part.partition(b"\r\n\r\n")[2]
            assert status < 500, answer
            if status >= 400:
                assert is_a_reason(json.loads(body)), answer

    async def scene():
        async with serving(FakeEngine(), header_seconds=0.3, body_seconds=0.3) as session:
            cases = []
            for _ in range(300):
                data = bytearray(whole * dice.randint(1, 2))
                for _ in range(dice.randint(0, 4)):
                    data[dice.randrange(len(data))] = dice.choice(b"\0\r\n :\xff{}[]9a")
                cases.append(bytes(data[: dice.randint(1, len(data))]))
            for begin in range(0, len(cases), 100):
                await asyncio.gather(*(try_one(session._base_url.port, data) for data in cases[begin : begin + 100]))
            async with session.get("/healthz") as response:
                assert response.status == 200

    asyncio.run(scene())


def test_a_hundred_odd_prompts_through_a_real_model():
    """Special tokens typed as text, halves of characters, nothing but spaces: the model writes on from all of them."""
    with asyncio.Runner() as loop, tiny_engine() as engine:
        client = Client(loop, engine)

        @many(100)
        @given(
            text.filter(lambda text: text.encode("utf-8", "ignore").decode() == text != ""), st.integers(0, 2**32 - 1)
        )
        def try_one(prompt, seed):
            body = {"prompt": prompt, "max_tokens": 3, "seed": seed, "echo": True}
            status, _, answer = client.send("POST", "/v1/completions", data=dump(body), headers=JSON)
            assert status == 200 and json.loads(answer)["choices"][0]["text"].startswith(prompt)

        try_one()
        client.close()
        assert engine.rows == engine.waiting == 0
