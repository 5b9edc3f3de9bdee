"""The files that others' machines read, held to the project: the workflow of hosted CI, and the Dockerfile."""

import re
import shlex
import tomllib

import pytest
import yaml

from helpers import paths

ROOT = paths.repo_root()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
DOCKERFILE = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text("utf-8"))


def steps(job):
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def docker(instruction):
    """Return the arguments of an instruction, one string for each time that it stands in the Dockerfile."""
    return re.findall(rf"^{instruction} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_hosted_ci_runs_on_three_systems_with_the_oldest_and_the_newest_python():
    from test_wheels import NEWEST, OLDEST

    matrix = WORKFLOW["jobs"]["unit"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == [OLDEST, NEWEST]
    assert PROJECT["requires-python"] == f">={OLDEST}"


def test_hosted_ci_says_what_make_says():
    """Windows has no make, so the commands stand there themselves."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    everything = re.search(r"^EVERYTHING := (.*)$", makefile, re.MULTILINE)[1]
    commands = "\n".join(steps("unit"))
    assert f'-e ".[{everything}]" -c constraints.txt' in commands
    for same in (
        "-m ipykernel install --sys-prefix --name python3",
        '-m pytest tests -m "not slow and not outside" -q',
    ):
        assert same in commands and same in makefile
    assert "python -m helpers.run --run tiny --preset micro" in commands


def test_hosted_ci_runs_the_whole_once_a_week():
    events = WORKFLOW[True]  # YAML reads the key `on` as a truth value
    assert re.fullmatch(r"\d+ \d+ \* \* \d", events["schedule"][0]["cron"])
    assert ".ci/run" in steps("whole") and (ROOT / ".ci" / "run").is_file()
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_image_runs_without_rights_and_keeps_one_volume():
    instructions = re.findall(r"^([A-Z]+) ", DOCKERFILE, re.MULTILINE)
    user = docker("USER")
    assert user and user[-1] != "root" and docker("VOLUME") == ["/data"]
    after = instructions[instructions.index("USER") :]
    assert "apt-get" not in " ".join(DOCKERFILE.split("USER ")[1:]) and "RUN" in after  # pip runs as that user
    (environment,) = docker("ENV")
    assert environment.count("=/data/") == 2  # runs, and what the Hub's library keeps


def test_the_image_copies_what_there_is_and_installs_what_a_run_needs():
    for arguments in docker("COPY"):
        *sources, _ = [word for word in shlex.split(arguments) if not word.startswith("--")]
        assert sources and all((ROOT / source).exists() for source in sources)
    (extras,) = re.findall(r'-e "\.\[([a-z,]+)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]) and "dev" not in extras


@pytest.mark.parametrize("command", re.findall(r"python -m (helpers\.\w+)", DOCKERFILE))
def test_the_commands_of_the_image_are_ours(command):
    assert (ROOT / command.replace(".", "/") / "__main__.py").is_file()
