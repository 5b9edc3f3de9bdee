"""Connections: the listener, its limits and timeouts."""

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

from helpers.serve.auth import HEADERS


class Connection(web.RequestHandler):
    """A connection that ends when nothing, or not enough, comes or goes.

    aiohttp closes a connection on which no whole header has arrived when the keep-alive time is over, the first one
    too. Added here: a client that does not read is cut off, and a header that breaks HTTP's rules is answered in JSON
    and logged without its text, which may hold a key.
    """

    __slots__ = ("_door", "_wire", "_cut")

    def __init__(self, door: "Listener", server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=door.header_seconds,
            lingering_time=1.0,  # what a refused client still sends is thrown away for so long, that it reads why
            auto_decompress=False,
            access_log=None,  # the request line may hold text
            max_headers=64,
        )
        self._door, self._wire, self._cut = door, None, None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._uncut()
        super().connection_lost(exc)

    def pause_writing(self) -> None:  # the client reads too slowly, or not at all
        super().pause_writing()
        self._cut_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._uncut()

    def force_close(self) -> None:
        super().force_close()
        # a closed transport still waits until all it holds is sent
        if self._wire is not None and self._wire.get_write_buffer_size():
            self._cut_later()

    def _cut_later(self) -> None:
        if self._cut is None:
            self._cut = asyncio.get_running_loop().call_later(self._door.write_seconds, self._wire.abort)

    def _uncut(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP, or a failure that no handler caught; neither its text nor ours is told."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: there is no way to say that it failed")
        words = "this is not HTTP as the standard has it" if status < 500 else "the server failed"
        self._door.on_broken(status, words, exc)
        response = self._door.form(request.path, status, words)
        response.headers.update(HEADERS)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, response: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; one that aiohttp gives past the application (to an Expect it does not know) in our form."""
        if isinstance(response, web.HTTPException):
            response = self._door.form(request.path, response.status, f"{response.reason}: ask in a plainer way")
            response.force_close()
        return await super().finish_response(request, response, start_time)


class _RejectedConnection(asyncio.Protocol):
    """A connection too many: told so, and closed."""

    def __init__(self, response: bytes) -> None:
        self._response = response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._response)
        transport.close()


class Listener:
    """Listens on a port, and lets in at most max_connections at a time.

    header_seconds: within which a whole header must come, also the next one on a connection kept alive.
    write_seconds: after which a client that does not read is cut off. form(path, status, words) makes the answer
    to what is not HTTP; on_broken(status, words, error) hears of it.
    """

    def __init__(
        self,
        form: Callable[[str, int, str], web.Response],
        on_broken: Callable[[int, str, BaseException | None], None],
        max_connections: int = 900,
        header_seconds: float = 8.0,
        write_seconds: float = 20.0,
    ) -> None:
        self.form, self.on_broken = form, on_broken
        self.max_connections = max_connections
        self.header_seconds, self.write_seconds = header_seconds, write_seconds
        self._listening: asyncio.Server | None = None

    async def open(self, server: web.Server, listening: socket.socket) -> None:
        """Let connections in that arrive at a bound socket."""
        body = self.form("/", 503, "too many connections are open: try again in a moment").body
        full = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        full += b"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

        def connection() -> asyncio.BaseProtocol:
            if len(server.connections) < self.max_connections:
                return Connection(self, server)
            self.on_broken(503, "too many connections", None)
            return _RejectedConnection(full)

        self._listening = await asyncio.get_running_loop().create_server(connection, sock=listening, backlog=1024)

    def close(self) -> None:
        """Let nobody in any more; connections that are open stay."""
        if self._listening is not None:
            self._listening.close()


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a socket bound to the address; `shared`: other processes may share it (SO_REUSEPORT). Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made
