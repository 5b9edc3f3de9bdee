"""The grid of temperature and top-p measures what it says."""

from dataclasses import replace

import pytest
from models import PLANTS

from helpers.generate import generate
from helpers.generate.diversity import distinct, grid
from helpers.generate.memorization import Index
from helpers.generate.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_grid_measures_what_it_says(small, tok):
    index = Index([PLANTS])
    settings = Settings(max_new_tokens=12, seed=3)
    cells = grid(small, tok, ["水", "土"], [0.0, 2.0], [0.5, 1.0], index, samples=4, settings=settings, n=2)
    assert [(cell.temperature, cell.top_p) for cell in cells] == [(0.0, 0.5), (0.0, 1.0), (2.0, 0.5), (2.0, 1.0)]
    for cell in cells:
        wanted = replace(settings, temperature=cell.temperature, top_p=cell.top_p)
        groups = [[s.text[1:] for s in generate.generate(small, tok, p, wanted, 4)] for p in ("水", "土")]
        grams = [[text[i : i + 2] for i in range(len(text) - 1)] for group in groups for text in group]
        pooled = [sum(grams[:4], []), sum(grams[4:], [])]
        assert cell.diversity == pytest.approx(sum(len(set(all_)) / len(all_) for all_ in pooled) / 2)
        assert cell.repetition == pytest.approx(sum(1 - len(set(g)) / len(g) for g in grams) / 8)
        copied = [index.copied(text) for group in groups for text in group]
        assert cell.longest == pytest.approx(sum(each.longest for each in copied) / 8)
        assert cell.share == sum(each.known for each in copied) / sum(each.ngrams for each in copied)
    assert cells[0].diversity <= 0.25 < cells[3].diversity  # greedily all four texts of a prompt are one


def test_a_grid_without_an_index_or_with_empty_texts(small, tok):
    (cell,) = grid(small, tok, [""], [1.0], [1.0], settings=Settings(max_new_tokens=0), samples=2)
    assert (cell.diversity, cell.repetition, cell.longest, cell.share) == (1, 0, None, None)
    with pytest.raises(ValueError, match="no prompt"):
        grid(small, tok, [], [1.0], [1.0])


@pytest.mark.parametrize("n", [0, -1])
def test_ngrams_have_a_character(small, tok, n):
    for measure in (lambda: grid(small, tok, ["水"], [], [], n=n), lambda: distinct(["水土"], n)):
        with pytest.raises(ValueError, match=f"n is {n}: an n-gram has 1 character or more"):
            measure()
