"""Record what programs made for OpenAI's API send. In an empty folder, with copies of record.py and record.mjs:

    python -m venv programs; programs/bin/pip install openai litellm langchain-openai llm
    npm install openai ai @ai-sdk/openai @ai-sdk/openai-compatible
    programs/bin/python record.py clients.json

A small server takes every request, keeps its body, and answers as OpenAI would. tests/serve/test_clients.py sends the
bodies of tests/serve/clients.json to our own server: a program that works with OpenAI works with it, or hears by name
what it cannot have. Record again when these programs have new versions; nothing else needs them.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
MODEL, QUESTION = "tiny", {"role": "user", "content": "绿萝怎么浇水？"}
TALK = [QUESTION, {"role": "assistant", "content": "看土。"}, {"role": "user", "content": "冬天呢？"}]
TOOL = {"type": "function", "function": {"name": "look_up", "description": "x", "parameters": {"type": "object"}}}
recorded: list[dict] = []
now = {"client": "", "call": ""}


def answer(path: str, body: dict) -> tuple[str, bytes]:
    """Return the type and the text of an answer in OpenAI's form."""
    head = {"id": "x-1", "created": 1, "model": MODEL}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    is_chat = path.endswith("/chat/completions")
    if path.endswith("/models"):
        return "application/json", json.dumps({"object": "list", "data": [head | {"object": "model"}]}).encode()
    said = {"message": {"role": "assistant", "content": "好"}} if is_chat else {"text": "好", "logprobs": None}
    kind = "chat.completion" if is_chat else "text_completion"
    prompts = body.get("prompt")
    count = len(prompts) if isinstance(prompts, list) else 1
    if not body.get("stream"):
        choices = [{"index": i, "finish_reason": "stop", **said} for i in range(count)]
        return "application/json", json.dumps(head | {"object": kind, "choices": choices, "usage": usage}).encode()
    part = {"delta": said["message"]} if is_chat else said
    kind = "chat.completion.chunk" if is_chat else kind
    events = [head | {"object": kind, "choices": [{"index": 0, "finish_reason": "stop", **part}]}]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(head | {"object": kind, "choices": [], "usage": usage})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode()


class Recorder(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:  # noqa: N802
        self.reply({})

    def do_POST(self) -> None:  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        names = {key: self.headers[f"X-{key}"] or now[key] for key in ("client", "call")}  # programs in node send them
        recorded.append({**names, "path": self.path, "type": self.headers["Content-Type"], "body": body})
        self.reply(body)

    def reply(self, body: dict) -> None:
        kind, data = answer(self.path, body)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


# ---- the programs ----


def use_openai(base: str) -> None:
    import openai

    client = openai.OpenAI(base_url=base, api_key="x")
    chat, plain = client.chat.completions.create, client.completions.create
    yield "a conversation", lambda: chat(model=MODEL, messages=TALK)
    yield "a stream", lambda: list(chat(model=MODEL, messages=TALK, stream=True))
    yield "a helper's stream", lambda: use_stream(client)
    usage = {"include_usage": True, "include_obfuscation": False}
    yield "a stream with usage", lambda: list(chat(model=MODEL, messages=TALK, stream=True, stream_options=usage))
    yield (
        "all at neutral values",
        lambda: chat(
            model=MODEL, messages=[{"role": "developer", "content": "短"}, *TALK], response_format={"type": "text"},
            tools=[], tool_choice="none", parallel_tool_calls=False, functions=[], store=False, metadata={},
            service_tier="auto", modalities=["text"], safety_identifier="me", prompt_cache_key="k", logit_bias={},
            stop=[], seed=1764265000123, user="me", n=1, logprobs=False, verbosity="medium", top_p=1, temperature=1,
        ),
    )  # fmt: skip
    held = {"refusal": None, "annotations": [], "tool_calls": [], "audio": None} | TALK[1]
    yield "a history as it is held", lambda: chat(model=MODEL, messages=[QUESTION, held, TALK[2]])
    yield "tools", lambda: chat(model=MODEL, messages=TALK, tools=[TOOL])
    yield "json", lambda: chat(model=MODEL, messages=TALK, response_format={"type": "json_object"})
    yield "a completion", lambda: plain(model=MODEL, prompt="绿萝", suffix="", echo=False, best_of=1, logit_bias={})
    yield "ids", lambda: plain(model=MODEL, prompt=[5, 6, 7], max_tokens=5)
    yield "lists of ids", lambda: plain(model=MODEL, prompt=[[5, 6], [7]], max_tokens=5)


def use_stream(client) -> None:
    with client.chat.completions.stream(model=MODEL, messages=TALK) as stream:
        stream.get_final_completion()


def use_litellm(base: str) -> None:
    import litellm

    litellm.telemetry = False
    ask = partial(litellm.completion, api_base=base, api_key="x")
    for name in (f"openai/{MODEL}", f"hosted_vllm/{MODEL}", f"lm_studio/{MODEL}"):
        yield f"{name}, a conversation", partial(ask, model=name, messages=TALK)
        yield f"{name}, a stream", lambda name=name: list(ask(model=name, messages=TALK, stream=True))
    name = f"openai/{MODEL}"

    def go_on() -> None:
        held = dict(ask(model=name, messages=[QUESTION]).choices[0].message)
        ask(model=name, messages=[QUESTION, held, TALK[2]])

    yield "a history as it is held", go_on
    cached = {"role": "system", "content": [{"type": "text", "text": "短", "cache_control": {"type": "ephemeral"}}]}
    yield "a system line to keep", lambda: ask(model=name, messages=[cached, *TALK])
    yield (
        "a text",
        lambda: litellm.text_completion(
            model=f"text-completion-openai/{MODEL}", prompt="绿萝", api_base=base, api_key="x"
        ),
    )


def use_langchain(base: str) -> None:
    from langchain_openai import ChatOpenAI, OpenAI

    near = {"base_url": base, "api_key": "x", "model": MODEL}
    yield "a conversation", lambda: ChatOpenAI(**near).invoke("绿萝怎么浇水？")
    yield "a stream", lambda: list(ChatOpenAI(**near).stream("绿萝怎么浇水？"))
    talk = [("system", "短"), ("human", "绿萝怎么浇水？"), ("ai", "看土。"), ("human", "冬天呢？"), ("human", "快说")]
    yield "two questions in a row", lambda: ChatOpenAI(**near, temperature=0, max_tokens=20).invoke(talk)
    model = ChatOpenAI(**near)
    yield "its own history", lambda: model.invoke([("human", "绿萝"), model.invoke("绿萝"), ("human", "冬天呢？")])
    yield "tools", lambda: ChatOpenAI(**near).bind_tools([TOOL]).invoke("绿萝")
    yield "a text", lambda: OpenAI(**near).invoke("绿萝")
    yield "a text, streamed", lambda: list(OpenAI(**near).stream("绿萝"))
    yield "several texts", lambda: OpenAI(**near, n=2, best_of=2).generate(["绿萝", "春天"])


def use_llm(base: str) -> None:
    import llm
    from llm.default_plugins.openai_models import Chat, Completion

    os.environ["OPENAI_API_KEY"] = "x"
    chat = Chat("tiny", model_name=MODEL, api_base=base)
    yield "a conversation", lambda: chat.prompt("绿萝怎么浇水？", stream=False, key="x").text()
    yield "a stream", lambda: chat.prompt("绿萝怎么浇水？", system="短", key="x").text()
    talk = llm.Conversation(model=chat)
    yield "two turns", lambda: [talk.prompt(text, key="x").text() for text in ("绿萝", "冬天呢？")]
    text = Completion("tiny-text", model_name=MODEL, api_base=base)
    yield "a text", lambda: text.prompt("绿萝", stream=False, key="x").text()


def main() -> int:
    """Record all of them."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/v1"
    programs = {"openai": use_openai, "litellm": use_litellm, "langchain-openai": use_langchain, "llm": use_llm}
    for name, calls in programs.items():
        now["client"] = f"{name} {importlib.metadata.version(name)}"
        for now["call"], call in calls(base):
            try:
                call()
            except Exception as error:  # what it makes of the answer is its own affair: the body was kept
                print(f"{now['client']}, {now['call']}: {type(error).__name__}: {error}", file=sys.stderr)
    subprocess.run(["node", "record.mjs", base], cwd=HERE, check=True)
    Path(sys.argv[1]).write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", "utf-8")
    print(f"{len(recorded)} requests of {len({each['client'] for each in recorded})} programs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
