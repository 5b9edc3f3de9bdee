"""wording: phrases that many messages share."""

import pytest

from helpers.wording import did_you_mean, duration


@pytest.mark.parametrize(
    "seconds, words",
    [(0, "0 s"), (0.4, "0 s"), (6.6, "7 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (245, "4 min 05 s"),
     (3599.7, "1 h 00 min"), (3720, "1 h 02 min"), (7800, "2 h 10 min")],
)  # fmt: skip
def test_durations_read_like_speech(seconds, words):
    assert duration(seconds) == words


def test_a_close_match_is_suggested_and_else_all_are_listed():
    assert did_you_mean("epoch", iter(["lr", "epochs"])) == "; did you mean 'epochs'?"
    assert did_you_mean("x", ["lr", "epochs"]) == "; there is: lr, epochs"
