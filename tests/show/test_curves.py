"""Curves: their names at the right end can be read, a live run has few panels, runs are compared by any name."""

import math

import pytest
from displays import full_rows, png_of, rows_of

from helpers.show import curves
from helpers.show import notebook as show


def test_names_of_lines_do_not_cover_each_other():
    places = curves.spread_out([0.5, 0.51, 0.0, 0.52, 0.99, 1.0], 0.06, 0.0, 1.0)
    ordered = sorted(places)
    assert min(b - a for a, b in zip(ordered, ordered[1:], strict=False)) >= 0.06 - 1e-9
    assert 0 <= ordered[0] and ordered[-1] <= 1
    assert places.index(min(places)) == 2 and places[0] < places[1] < places[3] < places[4] < places[5]


def test_a_live_figure_has_fewer_panels():
    whole, live = (curves.run_figure(full_rows(50), None, {}, live) for live in (False, True))
    assert len(live.axes) == 1 + curves.LIVE < len(whole.axes) == 1 + len(curves.PANELS)
    assert len(curves.run_figure([], None, {}).axes) == 1


def test_the_words_of_a_figure_are_its_right_end():
    assert curves.describe_loss(rows_of(10), 0.95) == "bits per character: training 1.90, validation 2.00, floor 0.95"
    assert curves.describe_loss([], None) == "bits per character: nothing measured yet"


def test_numbers_are_short():
    assert [curves.short(value) for value in (999.4, 999.6, -999.7, 999_700)] == ["999", "1k", "-1k", "1M"]
    assert [curves.short(value) for value in (0.00012, 3400, -12e6, 2.5e9)] == ["0.00012", "3.4k", "-12M", "2.5G"]


def test_experts_load_is_told_in_fair_shares():
    assert [curves.busiest({"expert_load": load}) for load in ([[0.5, 0.5, 0, 0], [0.25] * 4], "?")] == [2.0, None]


# ---- any numbers ----

TWO = {"training": [(0, 6.0), (100, 0.5)], "validation": [(0, 6.0), (50, 2.25), (100, math.nan), (200, 3.5)]}


def test_any_curves_are_drawn_and_told_in_words(shown):
    show.curves(TWO)
    assert png_of(shown[0])
    assert shown[0]["data"]["text/plain"] == (
        "training: 6.00 at 0, lowest 0.50 at 100, 0.50 at 100; validation: 6.00 at 0, lowest 2.25 at 50, 3.50 at 200"
    )
    show.curves({"nothing": [], "gap": [(1, math.nan)]})
    assert shown[1]["data"]["text/plain"] == "nothing: nothing measured; gap: nothing measured"


def test_curves_differ_in_more_than_their_colour_and_are_named_at_their_ends(drawn):
    show.curves(TWO, "nats")
    (ax,) = drawn[0].axes
    lines = [line for line in ax.lines if line.get_marker() not in ("", "None")]
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 2
    assert {note.get_text() for note in ax.texts} == {"training 0.50", "validation 3.50"}
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("updates", "nats")
    with pytest.raises(ValueError, match="训练"):
        show.curves({"训练": []}, "nats")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [((-1.0, -0.5), (-1.15, 0)), ((-1.0, 2.0), (-1.15, 2.3)), ((0.5, 1.0), (0, 1.15)), ((0.0, 0.0), (0, 1))],
)
def test_a_panel_stands_upright_with_zero_in_it(drawn, values, wanted):
    show.panels([{"step": i, "x": x} for i, x in enumerate(values)], {"x": "x"})
    (ax,) = drawn[0].axes
    assert ax.get_ylim() == pytest.approx(wanted)


PANELS = [{"step": i, "reward": i / 10, **({"kl": 0.5} if i > 4 else {})} for i in range(1, 9)]


def test_a_panel_for_each_field_is_told_in_words(shown):
    show.panels(PANELS, {"reward": "reward", "KL": "kl", "nothing": "missing"})
    assert png_of(shown[0])
    assert shown[0]["data"]["text/plain"] == "reward: 0.1 to 0.8; KL: 0.5 to 0.5; nothing: nothing measured"


def test_a_panel_has_the_steps_that_its_field_has(drawn):
    show.panels(PANELS, {"reward": "reward", "KL": "kl"})
    axes = drawn[0].axes
    assert [ax.get_title(loc="left") for ax in axes] == ["reward  0.8", "KL  0.5"]
    assert axes[0].lines[0].get_xdata().tolist() == list(range(1, 9)) and axes[1].lines[0].get_xdata()[0] == 5
