"""Answer over HTTP: `make_app(engine)` is the application, `python -m helpers.serve --run NAME` serves a trained run.

Knows requests, limits and answers. Knows no token and no tensor: text goes to the engine, text comes back.
"""

import argparse
import asyncio
import json
import logging
import socket
import sys
from collections.abc import Iterable
from functools import partial
from importlib import resources
from typing import Annotated
from urllib.parse import urlsplit

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from helpers import generate, paths
from helpers.engine import Engine, Full

log = logging.getLogger(__name__)

ENGINE = web.AppKey("engine", Engine)
REQUEST = web.AppKey("request", type[BaseModel])
ORIGINS = web.AppKey("origins", frozenset)
TIMEOUT = web.AppKey("timeout", float)

PAGE = {  # address -> file in helpers/page, type
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    # a notebook on this machine may show the page in a frame, nobody else; the page loads from this server only
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


# ---- what a request may be ----


def request_model(max_context: int, max_length: int, max_samples: int) -> type[BaseModel]:
    """Return the pydantic model of a request body: exact types, no unknown key, every number within its limits.

    `max_context` counts characters; `max_length` counts new tokens.
    """
    off = generate.Settings()  # a key that is left out means what the helper's own default means

    class GenerateRequest(BaseModel):
        model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

        context: Annotated[str, Field(min_length=1, max_length=max_context)]
        maxlength: Annotated[int, Field(ge=1, le=max_length)] = min(50, max_length)
        samples: Annotated[int, Field(ge=1, le=max_samples)] = min(5, max_samples)
        temperature: Annotated[float, Field(ge=0, le=2)] = off.temperature
        top_k: Annotated[int, Field(ge=0, le=1000)] = off.top_k
        top_p: Annotated[float, Field(ge=0, le=1)] = off.top_p
        repetition_penalty: Annotated[float, Field(ge=1, le=2)] = off.repetition_penalty
        seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None

        def settings(self) -> generate.Settings:
            chosen = self.model_dump(exclude={"context", "maxlength", "samples"})
            return generate.Settings(max_new_tokens=self.maxlength, **chosen)

    return GenerateRequest


def reason(error: ValidationError, keys: Iterable[str]) -> str:
    """Return one sentence for a person whose request does not fit the model; at most three faults are told."""
    sentences = []
    for fault in error.errors(include_url=False, include_input=False)[:3]:
        key = "'" + ".".join(map(str, fault["loc"]))[:40] + "'"
        match fault["type"]:
            case "json_invalid":
                sentences.append(f"the body is not JSON: {fault['ctx']['error']}")
            case "model_type":
                sentences.append('the body must be a JSON object, such as {"context": "你好"}')
            case "missing":
                sentences.append(f"{key} is missing")
            case "extra_forbidden":
                sentences.append(f"{key} is not known: the keys are {', '.join(keys)}")
            case "string_too_short":
                sentences.append(f"{key} is empty: give at least one character to start from")
            case _:
                sentences.append(f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "; ".join(sentences)


# ---- answers ----


def answer(data, status: int = 200, **headers: str) -> web.Response:
    """Return a JSON response in UTF-8; Chinese stays readable."""
    return web.json_response(data, status=status, headers=headers, dumps=partial(json.dumps, ensure_ascii=False))


def refuse(status: int, why: str, **headers: str) -> web.Response:
    """Return a refusal: {"error": the reason in words}."""
    return answer({"error": why}, status, **headers)


@web.middleware
async def reasons_in_json(request: web.Request, handler) -> web.StreamResponse:
    """Turn aiohttp's own refusals into JSON; a failure of ours is logged and told without its details."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return refuse(405, f"{request.method} does not work here: use {allowed}", Allow=allowed)
    except web.HTTPNotFound:
        return refuse(404, "there is nothing at this address: send POST /generate, or open / in a browser")
    except web.HTTPRequestEntityTooLarge:
        return refuse(413, f"the body is larger than {request.client_max_size} bytes")
    except web.HTTPException as error:
        return refuse(error.status, error.reason)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return refuse(500, "the server failed; the reason is in its log")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every answer carries, refusals too: a browser on a named origin may read those as well."""
    response.headers.update(HEADERS)
    response.headers["Vary"] = "Origin"
    if request.headers.get("Origin") in request.app[ORIGINS]:
        response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]


# ---- routes ----


async def post_generate(request: web.Request) -> web.Response:
    """Answer {"context", "maxlength", "samples", …} with a list of strings; each starts with the context.

    The event loop only waits here: tokens are computed in the engine's thread. If the client goes away,
    aiohttp cancels this coroutine, which cancels the future, which takes the rows out of the engine's batch.
    """
    if request.content_type != "application/json" or request.charset not in (None, "utf-8", "UTF-8"):
        return refuse(415, "the body must be JSON in UTF-8: send the header Content-Type: application/json")
    if "Content-Encoding" in request.headers:
        return refuse(415, "the body must not be compressed")
    model, timeout = request.app[REQUEST], request.app[TIMEOUT]
    try:
        async with asyncio.timeout(timeout):
            wanted = model.model_validate_json(await request.read())
            future = request.app[ENGINE].submit(wanted.context, wanted.settings(), wanted.samples)
            return answer(await asyncio.wrap_future(future))
    except ValidationError as error:
        return refuse(400, reason(error, model.model_fields))
    except Full:
        return refuse(429, "too many requests are waiting: try again in a moment", **{"Retry-After": "1"})
    except TimeoutError:
        return refuse(503, f"no answer within {timeout:g} seconds: ask for fewer tokens or samples")


async def allow_origin(request: web.Request) -> web.Response:
    """Answer a browser's preflight: may a page of that origin call /generate?"""
    if request.headers.get("Origin") not in request.app[ORIGINS]:
        return refuse(403, "pages of this origin may not call: start the server with --origin and the page's origin")
    allowed = {"Allow-Methods": "POST", "Allow-Headers": "Content-Type", "Max-Age": "600"}
    return web.Response(status=204, headers={f"Access-Control-{name}": value for name, value in allowed.items()})


async def get_healthz(request: web.Request) -> web.Response:
    """Say that the event loop is alive."""
    return answer({"status": "ok"})


async def get_schema(request: web.Request) -> web.Response:
    """Tell what /generate takes, as JSON Schema; the page sets its sliders by it."""
    return answer(request.app[REQUEST].model_json_schema())


async def get_page(request: web.Request) -> web.Response:
    """Send a file of the page."""
    name, content_type = PAGE[request.path]
    text = resources.files("helpers").joinpath("page", name).read_text("utf-8")
    return web.Response(text=text, content_type=content_type)


def make_app(
    engine: Engine,
    *,
    origins: Iterable[str] = (),
    max_body: int = 64 * 1024,
    max_context: int = 2000,
    max_length: int = 500,
    max_samples: int = 10,
    timeout: float = 120.0,
) -> web.Application:
    """Return the application over a started engine; whoever made the engine closes it.

    `origins`: the foreign origins (`https://example.org`, exact) whose pages may call /generate; none by default.
    Limits: `max_body` in bytes, `max_context` in characters, `max_length` in new tokens, `timeout` in seconds.
    """
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}" or "*" in origin:
            raise ValueError(f"'{origin}' is not an origin: write it like https://example.org, without a path")
    app = web.Application(middlewares=[reasons_in_json], client_max_size=max_body)
    app[ENGINE] = engine
    app[REQUEST] = request_model(max_context, max_length, min(max_samples, engine.max_rows))
    app[ORIGINS] = frozenset(origins)
    app[TIMEOUT] = timeout
    app.on_response_prepare.append(add_headers)
    app.router.add_post("/generate", post_generate)
    app.router.add_route("OPTIONS", "/generate", allow_origin)
    app.router.add_get("/healthz", get_healthz)
    app.router.add_get("/schema", get_schema)
    for path in PAGE:
        app.router.add_get(path, get_page)
    return app


# ---- a server: inside a running event loop (a notebook, a test), or a process of its own ----


def url(host: str, port: int) -> str:
    """Return the address of a server; an IPv6 host stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl(address: str) -> str:
    """Return a shell command that asks the server at `address` for text."""
    body = '{"context": "你好", "maxlength": 50, "samples": 5}'
    return f"curl {address}/generate -H 'Content-Type: application/json' -d '{body}'"


async def start(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> tuple[web.AppRunner, str]:
    """Serve `app` in the running event loop; return (runner, URL). Port 0 takes any free port; OSError: it is taken."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=app[TIMEOUT])
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, url(host, runner.addresses[0][1])


async def stop(runner: web.AppRunner) -> None:
    """Take no new request, let the running ones finish, close the port."""
    await runner.cleanup()


def main(arguments: list[str] | None = None) -> int:
    """Serve a trained run until SIGINT or SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m helpers.serve", description="Serve a trained run over HTTP.")
    parser.add_argument("--run", required=True, help="the run whose model answers")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine can call")
    parser.add_argument("--port", type=int, default=5005, help="default 5005; 0 takes any free port")
    parser.add_argument("--origin", action="append", default=[], help="a web origin whose pages may call; repeatable")
    options = parser.parse_args(arguments)
    try:  # the port before the model: it is the quicker to fail
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listening = socket.create_server((options.host, options.port), family=family)
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {options.host}:{options.port} ({error}): choose another --port", file=sys.stderr)
        return 1
    with listening:
        try:
            engine = Engine(*generate.load(options.run))
            app = make_app(engine, origins=options.origin)
        except (paths.RoomError, ValueError) as error:
            print(error, file=sys.stderr)
            return 1
        address = url(options.host, listening.getsockname()[1])
        print(f"run '{options.run}' answers at {address} until Ctrl-C. Try: {curl(address)}", flush=True)
        engine.start()
        try:
            web.run_app(app, sock=listening, handler_cancellation=True, shutdown_timeout=app[TIMEOUT], print=None)
        finally:
            engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
