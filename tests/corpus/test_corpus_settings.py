"""What can be set of a corpus: senseless settings are refused, by their names."""

import pytest

from helpers.corpus.settings import CorpusSettings


@pytest.mark.parametrize("settings", [
    {"document": "page"}, {"text_key": "{a"}, {"rules": "-HTML"}, {"val_fraction": 0}, {"near_duplicates": 2.0},
    {"min_length": 9, "max_length": 5}, {"min_chinese": 30.0}, {"max_documents": 1}, {"max_documents": -1},
    {"max_lenght": 5},
])  # fmt: skip
def test_senseless_settings_are_refused(settings):
    with pytest.raises((ValueError, TypeError), match=next(iter(settings))):
        CorpusSettings(**settings)
