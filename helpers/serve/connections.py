"""Connections: the listener, its limit on open connections, and the timeout of a header and of a slow reader.

Some methods override internals of aiohttp, which has no public setting for them: the timeout of a client that does
not read, and the form of an answer to broken HTTP.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import hdrs, web

from helpers.serve.auth import HEADERS
from helpers.serve.limits import DEFAULT_LIMITS, Limits
from helpers.serve.overload import Shedder, whole_post


class Connection(web.RequestHandler):
    """A connection that is closed when nothing, or too little, comes or goes.

    aiohttp closes a connection on which no whole header arrives within the keep-alive time, also before the first
    request. Added here: a client that does not read is disconnected; a header that breaks the rules of HTTP is
    answered in JSON, and logged without its text, which may hold a key.
    """

    __slots__ = ("_listener", "_wire", "_timer", "_in_pieces")

    def __init__(self, listener: "Listener", server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=listener.limits.header_seconds,
            lingering_time=1.0,  # how long to go on reading from a refused client, so that it can read the refusal
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # the request line may hold text; aiohttp takes None
            max_headers=64,
        )
        self._listener = listener
        self._wire: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None  # aborts the connection, unless the client reads before
        self._in_pieces = False  # once something came that was not one whole request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        self._listener.connections.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; where the queue is full, a whole request is answered here."""
        path = None if self._in_pieces else whole_post(data)
        # only here can a request begin: all before it were whole, and aiohttp waits for the next one
        waits = self._waiter is not None and not self._waiter.done() and not self._messages
        if path is None:
            self._in_pieces |= bool(data)  # aiohttp calls with nothing where it reads on after a pause
        elif waits and self._wire is not None and not self._wire.get_write_buffer_size():  # the client reads
            if refusal := self._listener.shedder.refusal(path):
                self._wire.write(refusal)
                self._next_keepalive_close_time = asyncio.get_running_loop().time() + self.keepalive_timeout
                return
        super().data_received(data)

    def pause_writing(self) -> None:  # the client reads too slowly, or not at all
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer()

    def force_close(self) -> None:
        super().force_close()
        # a closed transport still waits until everything in its buffer is sent
        if self._wire is not None and self._wire.get_write_buffer_size():
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None and self._wire is not None:
            seconds = self._listener.limits.write_seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wire.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is not HTTP, or a failure that no handler caught; the answer quotes neither."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: there is no way to say that it failed")
        message = "this is not valid HTTP" if status < 500 else "the server failed"
        self._listener.on_broken(status, exc)
        response = self._listener.refuse(request.path, status, message)
        response.headers.update(HEADERS)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, response: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; one that aiohttp makes itself (to an unknown Expect header) becomes JSON, too."""
        if isinstance(response, web.HTTPException):
            message = f"{response.reason}: send a simpler request"
            response = self._listener.refuse(request.path, response.status, message)
            response.force_close()
        return await super().finish_response(request, response, start_time)


def in_bytes(answer: web.Response, *, close: bool = False) -> bytes:
    """Return a JSON answer as it goes over the wire; `close`: the connection ends after it."""
    assert isinstance(answer.body, bytes)
    headers = HEADERS | dict(answer.headers) | {hdrs.CONTENT_LENGTH: str(len(answer.body))}
    if close:
        headers[hdrs.CONNECTION] = "close"
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body


class _RejectedConnection(asyncio.Protocol):
    """A connection above the limit: it gets an answer and is closed."""

    def __init__(self, response: bytes) -> None:
        self._response = response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._response)
        transport.close()


class Listener:
    """Accepts connections on a port, at most max_connections at a time.

    refuse(path, status, message) makes the answer to broken HTTP. on_broken(status, error) is called for each, and
    for each rejected connection, without an error. `shedder` refuses requests while the queue is full.
    """

    def __init__(
        self,
        refuse: Callable[[str, int, str], web.Response],
        on_broken: Callable[[int, BaseException | None], None],
        shedder: Shedder,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.refuse, self.on_broken, self.shedder, self.limits = refuse, on_broken, shedder, limits
        self.connections: set[Connection] = set()  # those that are open
        self._listening: asyncio.Server | None = None

    async def open(self, server: web.Server, listening: socket.socket) -> None:
        """Accept the connections that arrive at a bound socket."""
        # an answer in bytes, made once: a rejected connection must cost next to nothing
        answer = self.refuse("/", 503, "too many connections are open: try again in a moment")
        answer.headers[hdrs.RETRY_AFTER] = "1"
        full = in_bytes(answer, close=True)

        def connection() -> asyncio.BaseProtocol:
            # counted here: of a crowd that is accepted in one go, aiohttp does not know the first when the last is here
            if len(self.connections) >= self.limits.max_connections:
                self.on_broken(503, None)
                return _RejectedConnection(full)
            made = Connection(self, server)
            self.connections.add(made)
            return made

        self._listening = await asyncio.get_running_loop().create_server(connection, sock=listening, backlog=1024)

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        if self._listening is not None:
            self._listening.close()


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a socket bound to the address; `shared`: other processes may share it (SO_REUSEPORT). Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":  # there SO_REUSEADDR would let a second server take a port that is in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening
