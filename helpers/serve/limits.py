"""The limits of a server in one table: a field here is also an option of `python -m helpers.serve`."""

import argparse
from dataclasses import dataclass, field, fields
from typing import Any


def _limit(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may ask for, how many may come, and how long each step may take.

    Raises ValueError for a count below 1, or a time that is not above 0.
    """

    # one request
    max_body_bytes: int = _limit(64 * 1024, "bytes of a request's body")
    max_context: int = _limit(2000, "characters of a request's prompts together, or of one message")
    max_messages: int = _limit(200, "messages of a conversation")
    max_prompt_tokens: int = _limit(4096, "tokens of a request's prompts together")
    max_length: int = _limit(500, "new tokens per text")
    max_samples: int = _limit(10, "texts per request; never more than max_rows")
    # all requests
    max_rows: int = _limit(16, "texts written at once, in one batch")
    max_queue: int = _limit(64, "requests that may wait for a place in the batch")
    max_concurrent: int = _limit(32, "requests per client that are not yet answered")
    # times
    header_seconds: float = _limit(8.0, "seconds within which a whole header must arrive, also the next one")
    body_seconds: float = _limit(5.0, "seconds within which a body must arrive")
    queue_seconds: float = _limit(30.0, "seconds that a request may wait for a place in the batch")
    text_seconds: float = _limit(120.0, "seconds from a request to its whole text")
    grace_seconds: float = _limit(25.0, "seconds that requests have to finish when the server stops")

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:  # as NaN is not
                least = "1 or more" if limit.type is int else "above 0"
                raise ValueError(f"{limit.name} is {value}: it must be {least}")

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add one option per limit to a command: --max-length for `max_length`."""
        group = parser.add_argument_group("limits")
        for limit in fields(cls):
            assert isinstance(limit.type, type)  # not a string: this module evaluates its annotations
            option = f"--{limit.name.replace('_', '-')}"
            meaning = f"{limit.metadata['meaning']}; default {limit.default:g}"
            group.add_argument(option, type=limit.type, default=limit.default, help=meaning, metavar="N")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> "Limits":
        """Return the limits that a command line asks for."""
        return cls(**{limit.name: getattr(options, limit.name) for limit in fields(cls)})


DEFAULT_LIMITS = Limits()
