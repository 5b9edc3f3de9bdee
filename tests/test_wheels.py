"""Every pinned package has a wheel for the machines that the README names: nobody needs a compiler.

The package index is asked; nothing is installed and nothing but descriptions is downloaded.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import paths

pytestmark = pytest.mark.outside
OLDEST, NEWEST = "3.11", "3.14"
LINUX = [f"manylinux_2_{minor}" for minor in (28, 27, 26, 24, 17, 12, 5)] + ["manylinux2014", "manylinux1"]
MACHINES = {
    "Linux": [f"{tag}_x86_64" for tag in LINUX],
    "Linux on ARM": [f"{tag}_aarch64" for tag in LINUX],
    "macOS on Apple silicon": ["macosx_14_0_arm64"],
    "Windows": ["win_amd64"],
}


def lacking(python: str, machine: str, folder) -> str:
    """Return what pip says if it cannot install the pinned versions for another machine; "" if it can.

    Its Python is the first of that version: a Debian may have it for years. Without dependencies, for all of them are
    pinned: pip would ask this machine, not that one, which it needs.
    """
    pins = folder / "pins.txt"
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--ignore-installed", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}.0",
        f"--target={folder / 'nowhere'}", *(f"--platform={tag}" for tag in MACHINES[machine]), f"--requirement={pins}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "\n".join(errors or [done.stderr[-500:]]) if done.returncode else ""


def test_every_pinned_version_has_a_wheel_for_every_machine(tmp_path):
    pins = (paths.repo_root() / "constraints.txt").read_text("utf-8")
    (tmp_path / "pins.txt").write_text(pins, "utf-8")
    wanted = [(python, machine) for python in (OLDEST, NEWEST) for machine in MACHINES]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda pair: lacking(*pair, tmp_path), wanted)
    assert not {pair: answer for pair, answer in zip(wanted, answers, strict=True) if answer}


def test_a_version_that_no_machine_has_is_found(tmp_path):
    (tmp_path / "pins.txt").write_text("tqdm==0.0.1\n", "utf-8")
    assert "tqdm==0.0.1" in lacking(OLDEST, "Windows", tmp_path)


def test_the_readme_says_which_pythons():
    assert f"Python {OLDEST} to {NEWEST}" in (paths.repo_root() / "README.md").read_text("utf-8")
