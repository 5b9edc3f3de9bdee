"""The metrics and the log: what was counted, and no word of a request in either."""

import asyncio
import logging

import pytest
from service import JSON, FakeEngine, listening, raw, serving, tiny_engine

from helpers.serve.app import STATE, make_app

MARK, KEY = "zebrasecret", {"Authorization": "Bearer the-key"}
ASKED = [
    (method, path, {"headers": KEY} | request)
    for path in ("/generate", "/v1/completions")
    for method, request in [
        *(("POST", {"json": body}) for body in ({"context": MARK}, {"prompt": MARK}, {MARK: MARK})),
        ("POST", {"json": {"prompt": MARK, "stream": True}}),
        ("POST", {"json": {"prompt": MARK, "model": MARK, "user": MARK}}),
        ("POST", {"data": MARK}),
        ("POST", {"data": b'{"' + MARK.encode(), "headers": KEY | JSON}),
    ]
] + [
    ("GET", f"/{MARK}?{MARK}={MARK}", {"headers": KEY | {"User-Agent": MARK, "Referer": MARK}}),
    ("GET", "/", {"headers": {"Authorization": f"Bearer {MARK}"}}),
    ("GET", "/", {"headers": KEY | {"Host": MARK, "Origin": f"https://{MARK}"}}),
    (MARK.upper(), "/generate", {"headers": KEY}),
]
BROKEN = ["{}\r\n\r\n", "GET /{} HTTP/1.1\r\n{}\r\n\r\n", "GET / HTTP/1.1\r\nA: {}\0\r\n\r\n"]


@pytest.mark.parametrize("engine", [{}, {"error": RuntimeError(MARK)}, {"room": 0}])
def test_no_word_of_a_request_in_logs_or_figures(caplog, engine):
    """The marker stands in prompts, keys, paths, headers, models, and in what breaks HTTP's rules."""

    async def figures():
        async with listening(FakeEngine(**engine), api_key="the-key") as (session, port):
            for method, path, request in ASKED:
                async with session.request(method, path, **request) as response:
                    await response.read()
            for data in BROKEN:
                await raw(port, data.format(MARK, MARK).encode())
            async with session.get("/metrics", headers=KEY) as response:
                return await response.text()

    with caplog.at_level(logging.DEBUG):
        told = asyncio.run(figures())
        told += "".join(map(str, (vars(record) for record in caplog.records if record.name != "asyncio")))
    assert MARK not in told.lower() and "the-key" not in told
    assert ("RuntimeError" in caplog.text) == ("error" in engine)


async def test_the_figures():
    with tiny_engine() as engine:
        async with serving(engine) as session:
            for _ in range(3):
                body = {"context": "春天", "samples": 2, "maxlength": 7}
                assert (await session.post("/generate", json=body)).status == 200
            assert (await session.post("/v1/completions", json={})).status == 400
            async with session.get("/metrics") as response:
                assert response.content_type == "text/plain"
                figures = (await response.text()).splitlines()
    assert 'chinese_gpt_requests_total{route="/generate",status="200"} 3.0' in figures
    assert 'chinese_gpt_requests_total{route="/v1/completions",status="400"} 1.0' in figures
    assert 'chinese_gpt_rejects_total{reason="invalid"} 1.0' in figures
    assert "chinese_gpt_first_token_seconds_count 3.0" in figures
    assert [float(line.split()[1]) > 0 for line in figures if "first_token_seconds_sum" in line] == [True]
    assert 'chinese_gpt_request_seconds_count{route="/generate"} 3.0' in figures
    assert "chinese_gpt_tokens_written_total 42.0" in figures
    assert "chinese_gpt_waiting 0.0" in figures and "chinese_gpt_rows 0.0" in figures


def test_two_applications_do_not_share_figures():
    one, other = (make_app(FakeEngine())[STATE].metrics for _ in range(2))
    one.refused("full")
    assert [b'reason="full"' in metrics.text()[0] for metrics in (one, other)] == [True, False]
