"""Connections: the listener, its limit on open connections, and the timeout of a header and of a slow reader.

Some methods override internals of aiohttp, which has no public setting for them: the timeout of a client that does
not read, and the form of an answer to broken HTTP.
"""

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

from helpers.serve.auth import HEADERS
from helpers.serve.limits import DEFAULT_LIMITS, Limits


class Connection(web.RequestHandler):
    """A connection that is closed when nothing, or too little, comes or goes.

    aiohttp closes a connection on which no whole header arrives within the keep-alive time, also before the first
    request. Added here: a client that does not read is disconnected; a header that breaks the rules of HTTP is
    answered in JSON, and logged without its text, which may hold a key.
    """

    __slots__ = ("_listener", "_wire", "_timer")

    def __init__(self, listener: "Listener", server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=listener.limits.header_seconds,
            lingering_time=1.0,  # for so long, what a refused client still sends is read: else it could not read why
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # the request line may hold text; aiohttp takes None
            max_headers=64,
        )
        self._listener = listener
        self._wire: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None  # aborts the connection, unless the client reads before

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

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
        message = "this is not HTTP as the standard has it" if status < 500 else "the server failed"
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
            message = f"{response.reason}: ask in a plainer way"
            response = self._listener.refuse(request.path, response.status, message)
            response.force_close()
        return await super().finish_response(request, response, start_time)


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
    for each rejected connection, without an error.
    """

    def __init__(
        self,
        refuse: Callable[[str, int, str], web.Response],
        on_broken: Callable[[int, BaseException | None], None],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.refuse, self.on_broken, self.limits = refuse, on_broken, limits
        self._listening: asyncio.Server | None = None

    async def open(self, server: web.Server, listening: socket.socket) -> None:
        """Accept the connections that arrive at a bound socket."""
        # an answer in bytes, made once: a rejected connection must cost next to nothing
        body = self.refuse("/", 503, "too many connections are open: try again in a moment").body
        assert isinstance(body, bytes)
        full = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        full += b"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

        def connection() -> asyncio.BaseProtocol:
            if len(server.connections) < self.limits.max_connections:
                return Connection(self, server)
            self.on_broken(503, None)
            return _RejectedConnection(full)

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
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening
