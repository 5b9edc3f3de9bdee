"""The limits: each is a field with a meaning, a default, and an option of the command."""

import argparse
from dataclasses import fields

import pytest

from helpers.serve.limits import DEFAULT_LIMITS, Limits


@pytest.mark.parametrize("limit", fields(Limits), ids=lambda limit: limit.name)
def test_every_limit_is_an_option(limit):
    parser = argparse.ArgumentParser()
    Limits.add_options(parser)
    option = "--" + limit.name.replace("_", "-")
    assert Limits.from_options(parser.parse_args([])) == DEFAULT_LIMITS
    assert vars(Limits.from_options(parser.parse_args([option, "7"]))) == vars(DEFAULT_LIMITS) | {limit.name: 7}
    assert option in parser.format_help() and len(limit.metadata["meaning"]) > 10


@pytest.mark.parametrize("name", [limit.name for limit in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_of_nothing_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}: it must be"):
        Limits(**{name: value})
