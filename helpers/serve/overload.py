"""Load shedding: while the queue is full, a request is refused before HTTP is parsed for it.

In a flood most requests are refused, and while a refusal goes through parser, middlewares and routes, the engine waits
for Python. What is refused here skips all of these. It must be plain: a POST to a route that writes text, in one piece,
whole. Everything else goes the long way. Knows no sockets.
"""

import re
from collections.abc import Callable, Mapping

_START = re.compile(rb"POST (/[A-Za-z0-9/_.-]*) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*([0-9]{1,9})[ \t]*(?=\r\n)")
# with these a request has another length, wants another answer, or wants more than an answer; and a header that goes on
# in the next line (obsolete, and refused by the parser) could hide one of them
_SPECIAL = re.compile(
    rb"\r\n(?:transfer-encoding|expect|upgrade|origin|connection(?!: ?keep-alive\r))[^a-z0-9-]|\n[ \t]"
)


def whole_post(data: bytes) -> bytes | None:
    """Return the path if `data` is one POST request, no less and no more, with nothing unusual in it; else None."""
    start = _START.match(data)
    head, end_of_head, body = data.partition(b"\r\n\r\n")
    head = head.lower() + b"\r\n"
    lengths = _LENGTH.findall(head)
    if not (start and end_of_head) or len(lengths) != 1 or int(lengths[0]) != len(body) or _SPECIAL.search(head):
        return None
    return start[1]


class Shedder:
    """Decides which requests are refused at once: those for a route in `refusals` while `overloaded` says so.

    refusals: path -> the whole answer, in bytes. on_refused(path) is called for each.
    """

    def __init__(
        self, overloaded: Callable[[], bool], refusals: Mapping[bytes, bytes], on_refused: Callable[[str], None]
    ) -> None:
        self._overloaded, self._refusals, self._on_refused = overloaded, refusals, on_refused

    def refusal(self, path: bytes) -> bytes | None:
        """Return the answer to a request for `path` that is refused at once, or None: then it goes the long way."""
        if path not in self._refusals or not self._overloaded():
            return None
        self._on_refused(path.decode())
        return self._refusals[path]
