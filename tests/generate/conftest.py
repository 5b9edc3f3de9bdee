"""The vocabulary and the random models that several tests of room 05 write with."""

import models
import pytest

from helpers.model.config import ARCHITECTURES


@pytest.fixture(scope="session")
def tok():
    return models.plants_tokenizer()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def net(request, tok):
    return models.plants_model(request.param, tok)


@pytest.fixture(scope="module")
def small(tok):
    """One model, where the architecture does not matter."""
    return models.plants_model("llama", tok)
