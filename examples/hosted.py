"""Set the course up for a kernel that others run: Colab, Kaggle, ModelScope. A notebook's first cell runs this there.

The platform's kernel, widgets and torch stay as they are, where torch is new enough: a kernel whose packages change
under it may crash, and its page fits its own widgets. That is why constraints.txt is not used, and why this package
itself is not installed: the cell makes its folder the working folder, where Python finds `helpers`.
"""

import re
import subprocess
import sys
from pathlib import Path

THEIRS = {"ipykernel", "ipywidgets", "jupyter-client", "jupyterlab"}

if not (3, 11) <= sys.version_info < (3, 15):
    sys.exit(f"Python 3.11 to 3.14 is needed, and this is {sys.version.split()[0]}: choose another image or runtime")

import tomllib  # noqa: E402  only Python 3.11 and newer have it

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
lines = project["dependencies"] + project["optional-dependencies"]["text"]
ours = [line for line in lines if re.match(r"[\w-]+", line)[0] not in THEIRS]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", "--quiet", *ours]))
