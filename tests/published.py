"""The published notebooks, and whether they are as git has them."""

import subprocess
from pathlib import Path


def changed_notebooks(root: Path) -> list[str]:
    """Return the published notebooks that are not as git has them; none where there is no git."""
    command = ["git", "-C", str(root), "diff", "--name-only", "HEAD", "--", "notebooks"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
    except FileNotFoundError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
