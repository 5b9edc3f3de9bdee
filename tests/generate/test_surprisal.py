"""The scale of colours for probability: its levels (show/test_show_notebook.py: it costs no import of torch)."""

from helpers.generate.surprisal import LEVELS, level


def test_each_level_begins_at_its_own_bound():
    assert [level(p) for p in (1, 0.5, 0.49, 0.2, 0.05, 0.01, 0.0099, 0)] == [0, 0, 1, 1, 2, 3, 4, 4]
    assert list(LEVELS) == sorted(LEVELS, reverse=True) and level(0) == len(LEVELS)
