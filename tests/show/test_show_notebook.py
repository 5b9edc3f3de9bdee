"""What notebooks import: every name that they use, and no torch for a notebook that shows only a figure."""

import re
import subprocess
import sys

from helpers import paths
from helpers.show import notebook as show


def test_every_name_that_a_notebook_uses_is_there():
    text = "".join(path.read_text("utf-8") for path in (paths.repo_root() / "notebooks").rglob("*.ipynb"))
    names = set(re.findall(r"\bshow\.([a-z_]+)\(", text))
    assert len(names) > 20 and all(callable(getattr(show, name)) for name in names)


def test_a_notebook_with_figures_loads_no_torch():
    """Seconds of every start: only the sampling panel needs it."""
    code = "import sys; import helpers.show.notebook; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
