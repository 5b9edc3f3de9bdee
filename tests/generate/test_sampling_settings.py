"""Settings, their ranges, and the one table that room 06 and the panel read."""

import pytest

from helpers.generate import sampling
from helpers.generate.settings import DEFAULT_SETTINGS, RANGES, Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", -1), ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
     ("top_k", -1), ("top_p", 1.1), ("top_p", -0.1), ("repetition_penalty", 0), ("min_p", 2), ("typical_p", 0),
     ("presence_penalty", float("nan")), ("frequency_penalty", 101), ("no_repeat_ngram", -1), ("stop", ("",)),
     ("stop", "水"), ("logprobs", -1)],
)  # fmt: skip
def test_settings_out_of_range_are_refused_in_words(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*: it must be"):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "words"),
    [("temperature", "between 0 (greedy) and 100 (1 is off)"), ("top_p", "between 0 (greedy) and 1 (off)"),
     ("top_k", "0 (off) or more"), ("typical_p", "above 0, and at most 1 (off)"),
     ("presence_penalty", "between -100 and 100 (0 is off)")],
)  # fmt: skip
def test_a_range_in_words(name, words):
    assert str(RANGES[name]) == words


def test_every_setting_says_what_it_does_in_a_line():
    assert all(0 < len(values.meaning) < 80 and values.meaning[-1] != "." for values in RANGES.values())


def test_every_filter_has_a_range_and_every_range_a_filter():
    """And the name of the setting is the name of the filter."""
    assert RANGES.keys() == sampling.FILTERS.keys() | sampling.LOOKING_BACK
    assert all(function.__name__ == name for name, function in sampling.FILTERS.items())


def test_what_is_offered_is_accepted():
    """The default too; so a slider or a request within its range is never refused later."""
    for name, values in RANGES.items():
        assert getattr(DEFAULT_SETTINGS, name) == values.off
        inside = 0.01 if values.low_is_open else values.least
        for value in (inside, values.most, values.off, *(values.slider or ())[:2]):
            assert getattr(Settings(**{name: value}), name) == value
            assert values.least <= value <= values.most
