"""The site of the course: `make site` copies the files of the repository to site/source, and builds site/html.

The notebooks are shown as they were executed. Formulas become MathML, so no page needs a script or another host.
"""

import re
import shutil
from pathlib import Path

import latex2mathml.converter

project = "Chinese GPT"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
include_patterns = [
    "*.md", "docs/*.md", "docs/zh/*.md", "docs/gallery/*.md", "benchmarks/*.md", "benchmarks/reports/*.md",
    "notebooks/**.ipynb", "api/*.md",
]  # fmt: skip
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
exclude_patterns = ["**/.ipynb_checkpoints"]
nb_execution_mode = "off"
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Chinese GPT"
html_search_language = "zh"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
templates_path = ["."]
html_copy_source = False

REFERENCE = "```{{eval-rst}}\n.. automodule:: {}\n```\n\n"


def reference(app):
    """Write a page for helpers and one for each of its packages, of their docstrings."""
    helpers, folder = Path(app.srcdir, "helpers"), Path(app.srcdir, "api")
    folder.mkdir(exist_ok=True)
    for package in [helpers, *sorted(helpers.glob("*/"))]:
        name = ".".join(package.relative_to(app.srcdir).parts)
        modules = [f"{name}.{file.stem}" for file in sorted(package.glob("[a-z]*.py"))]
        text = f"# {name}\n\n" + REFERENCE.format(name)
        (folder / f"{name}.md").write_text(
            text + "".join(f"## {each}\n\n" + REFERENCE.format(each) for each in modules)
        )


def listed(_app, what, _name, _obj, _options, lines):
    """Keep the lines of a list in a module's docstring; say nothing of a field that Python says nothing of."""
    if what == "module":
        lines[:] = [line.replace("    ", "    | ", 1) if line.startswith("    ") else line for line in lines]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def anchors(_app, _docname, source):
    """TERMS.md marks its terms in HTML, as GitHub wants it; Sphinx finds them as attributes."""

    def marked(match):
        words = match[2]
        for name in re.findall(r'id="([^"]+)"', match[1]):
            words = f"[{words}]{{#{name}}}"
        return words

    source[0] = re.sub(r'((?:<a id="[^"]+"></a>)+)([^|]+?)(?= \|)', marked, source[0])


def languages(app, pagename, _template, context, _doctree):
    """Tell a page where the same page is in the other language."""
    if pagename.startswith("README"):
        both = {"English": "README", "中文": "README.zh"}
    else:
        english = pagename.replace("/zh/", "/", 1)
        both = {"English": english, "中文": english.replace("/", "/zh/", 1)}
    if set(both.values()) <= app.env.found_docs and len(set(both.values())) == 2:
        context["languages"] = [(name, page, page == pagename) for name, page in both.items()]


def formula(visitor, node):
    """Write a formula as MathML."""
    display = "block" if node.tagname == "math_block" else "inline"
    visitor.body.append(latex2mathml.converter.convert(node.astext(), display=display))
    from docutils.nodes import SkipNode

    raise SkipNode


def demo(app, error):
    """Put the page with the trained model into the site."""
    if not error:
        shutil.copytree(Path(app.srcdir, "data", "try"), Path(app.outdir, "try"), dirs_exist_ok=True)


def setup(app):
    from docutils import nodes

    app.connect("builder-inited", reference)
    app.connect("autodoc-process-docstring", listed)
    app.connect("source-read", anchors)
    app.connect("html-page-context", languages)
    app.connect("build-finished", demo)
    app.add_node(nodes.math, html=(formula, None), override=True)
    app.add_node(nodes.math_block, html=(formula, None), override=True)
