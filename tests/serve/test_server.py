"""Start and stop: the command, its refusals, and what happens to requests under way when the server stops."""

import asyncio
import copy
import gc
import json
import os
import shlex
import signal
import socket
import urllib.request
from contextlib import nullcontext
from dataclasses import fields

import aiohttp
import pytest
from models import LOOK_UP
from service import (
    HEAD,
    JSON,
    FakeEngine,
    app_with,
    chat_tokenizer,
    events_of,
    in_thread,
    make_run,
    tiny_model,
    tools_tokenizer,
    until,
)

from helpers import paths
from helpers.serve import server
from helpers.serve.app import STATE
from helpers.serve.limits import Limits

STREAM = {"prompt": "x", "n": 2, "stream": True}
TOOLS = json.dumps({"definitions": [LOOK_UP], "table": {"绿萝": {"水": "少浇"}}})


async def test_stopping_lets_a_running_request_finish():
    engine = FakeEngine(held=True)
    runner, address = await server.start_server(app_with(engine))
    async with aiohttp.ClientSession(address) as session, aiohttp.ClientSession(address) as late:
        running = asyncio.create_task(session.post("/generate", json={"context": "x", "samples": 2}))
        await until(lambda: engine.futures)
        stopping = asyncio.create_task(server.stop_server(runner))
        await until(lambda: runner.app[STATE].draining and not runner.sites)
        with pytest.raises(aiohttp.ClientConnectorError):
            await late.get("/healthz")
        assert not stopping.done()
        engine.release()
        response = await running
        assert (response.status, await response.json()) == (200, ["x，第0份", "x，第1份"])
        await stopping


async def test_what_outlasts_the_grace_time_is_told_so():
    """Not cut in two: a whole refusal, a stream that says why it ends."""
    engine = FakeEngine(held=True)
    runner, address = await server.start_server(app_with(engine, grace_seconds=0.3))
    async with aiohttp.ClientSession(address) as session:
        piecewise = asyncio.create_task(session.post("/v1/completions", json=STREAM))
        await until(lambda: engine.futures)
        whole = asyncio.create_task(session.post("/generate", json={"context": "x"}))
        await until(lambda: len(engine.futures) == 2)
        engine.write(0, 0, "你")
        response = await piecewise
        await server.stop_server(runner)
        assert "the server is stopping" in events_of(await response.content.read())[-1]["error"]["message"]
        refused = await whole
        assert refused.status == 503 and "the server is stopping" in (await refused.json())["error"]
        assert engine.waiting == 0


async def test_a_request_whose_time_is_just_over_does_not_hinder_a_stop():
    app = app_with(FakeEngine(held=True), text_seconds=0.2)
    runner, address = await server.start_server(app)
    async with aiohttp.ClientSession(address) as session:
        late = asyncio.create_task(session.post("/generate", json={"context": "x"}))
        await until(lambda: app[STATE].deadlines)
        (limit,) = app[STATE].deadlines
        while not limit.expired():  # it is cancelled now, and its task has not run yet
            await asyncio.sleep(0)
        await server.stop_server(runner)
        assert (await late).status == 503


async def test_a_request_that_is_still_arriving_when_the_server_stops_is_told_so(monkeypatch):
    engine, reading = FakeEngine(held=True), []
    really = aiohttp.web.Request.read
    monkeypatch.setattr(aiohttp.web.Request, "read", lambda request: reading.append(request) or really(request))
    runner, _ = await server.start_server(app_with(engine, body_seconds=1.0))
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(HEAD + b"\r\n")
    await until(lambda: reading)
    stopping = asyncio.create_task(server.stop_server(runner))
    await until(lambda: runner.app[STATE].draining)
    writer.write(json.dumps({"context": "x"}).ljust(100).encode())
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503") and b"the server is stopping" in answer
    assert not engine.futures
    await stopping
    writer.close()


# ---- the command ----


def refusal_of(arguments, capsys, monkeypatch):
    """Return what the command says, which must end before the model is loaded."""
    monkeypatch.setattr(server.generate, "load", lambda *_: pytest.fail("the model was loaded for nothing"))
    assert server.main(["--run", "any", "--port", "0", *arguments]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--host", "0.0.0.0"], "other machines can call 0.0.0.0, and there is no API key"),
        (["--host", ""], "other machines can call every address"),
        (["--api-key-file", "/nowhere"], "cannot read the API key from /nowhere"),
        (["--origin", "*"], "is not an origin"),
        (["--max-length", "0"], "max_length is 0: it must be 1 or more"),
        (["--body-seconds", "nan"], "body_seconds is nan: it must be above 0"),
    ],
)
def test_it_refuses_to_start(monkeypatch, capsys, arguments, words):
    monkeypatch.delenv(server.KEY, raising=False)
    assert words in refusal_of(arguments, capsys, monkeypatch)


def test_the_port_is_taken(capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = refusal_of(["--room", "base", "--port", port], capsys, monkeypatch)
    assert f"cannot listen on 127.0.0.1:{port}" in said and "choose another --port or --host" in said
    monkeypatch.setenv(server.KEY, "k")
    said = refusal_of(["--room", "base", "--host", "no such host"], capsys, monkeypatch)
    assert "cannot listen on no such host" in said


def test_the_model_is_there_before_the_first_request(monkeypatch, capsys):
    """The book's first request loaded the model; and it listened on every address of the machine."""
    happened = []

    class Recorded(FakeEngine):
        def __init__(self, model, tokenizer, limits):
            super().__init__()
            happened.append(tokenizer)

        def start(self):
            happened.append("start")

        def close(self, cancel):
            happened.append("close")

    async def start_server(app, host, listening):
        assert listening.getsockname()[0] == host == "127.0.0.1"
        assert gc.get_freeze_count() > 100_000  # objects of torch and of the model: never searched for garbage again
        happened.append("serve")
        os.kill(os.getpid(), signal.SIGTERM)
        return await really(app, host, listening=listening)

    really = server.start_server
    monkeypatch.setattr(server.generate, "load", lambda run, room: (tiny_model(), f"{run} {room}"))
    monkeypatch.setattr(server, "Engine", Recorded)
    monkeypatch.setattr(server, "start_server", start_server)
    assert server.main(["--run", "sample", "--room", "base", "--port", "0"]) == 0
    assert happened == ["sample base", "start", "serve", "close"]
    assert gc.get_freeze_count() == 0
    said = capsys.readouterr().out
    assert said.startswith("open http://127.0.0.1:") and "the base model of run 'sample' answers at" in said


def test_a_server_whose_engine_fails_for_good_ends(monkeypatch, capsys):
    """At once, and with exit code 1: then something can replace it."""

    class Failing(FakeEngine):
        def __init__(self, *_):
            super().__init__()

        def start(self):
            self.alive = False
            self.on_failure()

        def close(self, cancel):
            assert cancel

    monkeypatch.setattr(server, "Engine", Failing)
    monkeypatch.setattr(server.generate, "load", lambda *_: (tiny_model(), "tokenizer"))
    assert server.main(["--run", "any", "--room", "base", "--port", "0"]) == 1
    assert "another one can take its place" in capsys.readouterr().err


def test_where_the_key_comes_from(monkeypatch, tmp_path):
    """Not from a flag's value, which every user of the machine can read in the list of processes."""
    monkeypatch.delenv(server.KEY, raising=False)
    assert server.read_key(None) is None
    monkeypatch.setenv(server.KEY, "from-the-environment")
    assert server.read_key(None) == "from-the-environment"
    file = tmp_path / "key"
    for ending, encoding in (("\n", "utf-8"), ("\r\n", "utf-8-sig")):  # as editors on Windows leave it
        file.write_text(f"from-a-file{ending}", encoding)
        assert server.read_key(str(file)) == "from-a-file"
    for wrong in ("", "two words", "钥匙"):
        file.write_text(wrong, "utf-8")
        with pytest.raises(ValueError, match="one word of ASCII"):
            server.read_key(str(file))


@pytest.mark.parametrize("name", [limit.name for limit in fields(Limits) if limit.type is int])
@pytest.mark.parametrize("has_chat", [False, True])
def test_the_suggested_command_is_answered_whatever_the_limits(has_chat, name):
    """`--max-length 40` made the server refuse what it had suggested itself."""
    least = {"max_body_bytes": 64, "max_context": 2, "max_prompt_tokens": 8}.get(name, 1)
    engine = FakeEngine(tokenizer=chat_tokenizer() if has_chat else None)
    with in_thread(engine, **{name: least}) as address:
        command = server.curl(address, has_chat=has_chat)
        curl, url, header, kind, data, body = shlex.split(command)
        assert (curl, header, kind, data) == ("curl", "-H", "Content-Type: application/json", "-d")
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), JSON), timeout=60) as response:
            assert "第0份" in response.read().decode()


def test_a_server_on_every_address_tells_one_that_can_be_opened():
    told = [server.url(host, 5) for host in ("", "0.0.0.0", "::", "::1", "localhost")]
    assert told == [f"http://{host}:5" for host in ("127.0.0.1", "127.0.0.1", "[::1]", "[::1]", "localhost")]


# ---- which model of the run ----


@pytest.mark.parametrize("made, wanted", [([], "base"), (["chat"], "chat"), (["reward"], "reward")])
def test_the_last_model_that_the_run_has(monkeypatch, tmp_path, made, wanted):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    for stage in ["train", *made]:
        make_run(stage)
    asked = []
    monkeypatch.setattr(server, "serve", lambda options, *_: asked.append(options.room) or 0)
    assert server.main(["--run", "tiny", "--port", "0"]) == 0
    assert server.main(["--run", "tiny", "--port", "0", "--room", "base"]) == 0
    assert asked == [wanted, "base"]


@pytest.mark.parametrize("run, words", [("nowhere", "04_train"), ("tiny", "deeper/chat")])
def test_a_model_that_is_not_there(monkeypatch, tmp_path, capsys, run, words):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    make_run()
    assert server.main(["--run", run, "--port", "0", "--room", "chat"]) == 1
    assert run in (error := capsys.readouterr().err) and words in error


@pytest.mark.parametrize("written, made, words", [
    ("{", tools_tokenizer, "not JSON"), ('{"definitions": [], "table": []}', tools_tokenizer, "'definitions'"),
    (TOOLS, chat_tokenizer, "calls no tools"), (TOOLS, tools_tokenizer, ""),
])  # fmt: skip
def test_the_tools_of_the_page_are_read_or_the_reason_is_told(tmp_path, written, made, words):
    assert server.read_tools(tmp_path, made()) == {}
    (tmp_path / "tools.json").write_text(written, "utf-8")
    with pytest.raises(ValueError, match=f"tools.json cannot be used: .*{words}") if words else nullcontext():
        assert server.read_tools(tmp_path, made()) == {"tools": json.loads(TOOLS)}


def test_a_chat_model_whose_answers_would_not_end(monkeypatch, capsys):
    other = copy.deepcopy(chat_tokenizer())
    other.chat_template = other.chat_template.replace("eos_token", "'<pad>'")
    monkeypatch.setattr(server.generate, "load", lambda *_: ("model", other))
    assert server.main(["--run", "any", "--port", "0", "--room", "chat"]) == 1
    assert "no answer would ever end" in capsys.readouterr().err


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("room, began", [("base", ""), ("chat", "train"), ("reward", "train"), ("reward", "chat")])
def test_a_text_begins_with_the_settings_of_the_model_that_was_taught_to_answer(
    monkeypatch, capsys, tmp_path, room, began, given
):
    """And an answer with those of the model itself."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    make_run()
    make_run("chat", pretrained_model=str(tmp_path) if given else "")
    make_run("reward", began or "train")
    base = tmp_path if given and "chat" in (room, began) else paths.room("tiny", "train") / "final_model"
    for folder, temperature in ((paths.room("tiny", paths.MODELS[room]) / "final_model", 0.3), (base, 0.9)):
        (folder / "generation_config.json").write_text(json.dumps({"temperature": temperature}))

    def make_app(*_, about, **__):
        raise ValueError({view: settings["temperature"] for view, settings in about["defaults"].items()})

    monkeypatch.setattr(server.generate, "load", lambda *_: (tiny_model(), chat_tokenizer()))
    monkeypatch.setattr(server, "Engine", FakeEngine)
    monkeypatch.setattr(server, "make_app", make_app)
    assert server.main(["--run", "tiny", "--port", "0", "--room", room]) == 1
    assert capsys.readouterr().err == f"{ {'texts': 0.9, 'chat': 0.9 if room == 'base' else 0.3} }\n"
