"""What every test module gets without asking: a runs folder of its own, so that no test sees the user's runs."""

import asyncio
import inspect
import os
import sys
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # as the Makefile does; read when torch is imported
# a machine that stands still for a moment is no fault of the code: how long an example takes is not judged
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="module", autouse=True)
def own_runs_dir(tmp_path_factory):
    """Point RUNS_DIR at a fresh folder for the tests of one module.

    What is left in the environment is taken away: it would reach all that come after, the notebooks' kernels too. A
    number of threads that stayed there once made the training in notebook 04 take twice as long.
    """
    before = environment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNS_DIR", str(tmp_path_factory.mktemp("runs")))
        yield
    for name in environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def environment():
    """Return all environment variables but pytest's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread of torch for the tests of this process: tensors this small are only slowed down by a second one.

    What a test starts, a notebook's kernel above all, has as many as it likes.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a few short documents, ready to be trained."""
    import models  # torch and transformers: only for the tests that ask

    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    return models.make_run()


@pytest.fixture
def chat_run(tmp_path, monkeypatch):
    """A run whose base model is ready to be taught to answer."""
    from chats import make_chat_run  # as in `run`

    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    return make_chat_run()


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Make a repository of stand-in notebooks, and work in a folder that is not it."""
    from house import make_house

    from helpers import paths

    root = tmp_path / "house"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("HEADLESS", "")  # helpers.run.main sets these: they are restored afterwards
    monkeypatch.setenv("TQDM_DISABLE", "")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setattr(paths, "repo_root", lambda: root)
    make_house(root)
    return root


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run an async test in an event loop of its own."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        arguments = inspect.signature(pyfuncitem.obj).parameters
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
        return True


class WholeFiles(LoadScopeScheduling):
    """Deals the tests out to processes by whole files: what a file has made is shared by its tests."""

    def _split_scope(self, nodeid):
        return nodeid.split("::")[0]


def pytest_xdist_make_scheduler(config, log):
    """Deal the tests out by `WholeFiles`, in their order."""
    config.option.loadscopereorder = False
    return WholeFiles(config, log)
