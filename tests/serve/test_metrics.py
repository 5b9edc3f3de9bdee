"""The metrics and the log: what was counted, and no word of a request in either."""

import asyncio
import logging

from service import JSON, FakeEngine, Wire, serving, tiny_engine

from helpers.serve.app import METRICS, make_app


def test_no_word_of_a_request_in_logs_or_figures(caplog):
    """The marker stands in prompts, keys, paths, headers, models, and in what breaks HTTP's rules."""
    mark = "zebrasecret"

    async def scene(engine):
        app = make_app(engine, api_key="the-key")
        async with serving(app) as session:
            key = {"Authorization": "Bearer the-key"}

            async def call(method, path, headers=key, **request):
                async with session.request(method, path, headers=headers, **request) as response:
                    return response.status, await response.text()

            for path in ("/generate", "/v1/completions"):
                for body in ({"context": mark}, {"prompt": mark}, {"prompt": mark, "stream": True}, {mark: mark}):
                    await call("POST", path, json=body)
                await call("POST", path, json={"prompt": mark, "model": mark, "user": mark})
                await call("POST", path, data=mark)
                await call("POST", path, data=b'{"' + mark.encode(), headers=key | JSON)
            await call("GET", f"/{mark}?{mark}={mark}", headers=key | {"User-Agent": mark, "Referer": mark})
            await call("GET", "/", headers={"Authorization": f"Bearer {mark}"})
            await call("GET", "/", headers=key | {"Host": mark, "Origin": f"https://{mark}"})
            await call(mark.upper(), "/generate")
            for data in ("{}\r\n\r\n", "GET /{} HTTP/1.1\r\n{}\r\n\r\n", "GET / HTTP/1.1\r\nA: {}\0\r\n\r\n"):
                await (await Wire.open(session, data.format(mark, mark).encode())).all()
            return (await call("GET", "/metrics"))[1]

    with caplog.at_level(logging.DEBUG, logger="helpers"), caplog.at_level(logging.DEBUG, logger="aiohttp"):
        for engine in (FakeEngine(), FakeEngine(error=RuntimeError(mark)), FakeEngine(room=0)):
            figures = asyncio.run(scene(engine))
            assert mark not in figures.lower()
            assert "the-key" not in figures
    assert "RuntimeError" in caplog.text
    assert mark not in caplog.text.lower()
    assert "the-key" not in caplog.text


def test_the_figures():
    async def scene(engine):
        async with serving(engine) as session:
            for _ in range(3):
                async with session.post(
                    "/generate", json={"context": "春天", "samples": 2, "maxlength": 7}
                ) as response:
                    assert response.status == 200
            async with session.post("/v1/completions", json={}) as response:
                assert response.status == 400
            async with session.get("/metrics") as response:
                assert response.content_type == "text/plain"
                return (await response.text()).splitlines()

    with tiny_engine() as engine:
        figures = asyncio.run(scene(engine))
    assert 'chinese_gpt_requests_total{route="/generate",status="200"} 3.0' in figures
    assert 'chinese_gpt_requests_total{route="/v1/completions",status="400"} 1.0' in figures
    assert 'chinese_gpt_rejects_total{reason="invalid"} 1.0' in figures
    assert "chinese_gpt_first_token_seconds_count 3.0" in figures
    assert 'chinese_gpt_request_seconds_count{route="/generate"} 3.0' in figures
    assert "chinese_gpt_tokens_written_total 42.0" in figures
    assert "chinese_gpt_waiting 0.0" in figures and "chinese_gpt_rows 0.0" in figures


def test_two_applications_do_not_share_figures():
    apps = [make_app(FakeEngine()) for _ in range(2)]
    apps[0][METRICS].refused("full")
    assert [b'reason="full"' in app[METRICS].text()[0] for app in apps] == [True, False]
