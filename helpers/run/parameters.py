"""Which notebooks run, and with which parameters: defaults, presets, the command line; checked before anything runs.

Knows the notebooks by name and by their parameters, and nothing of what they do.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from helpers import paths
from helpers.corpus.find import resolve_source
from helpers.manifest import notebook_parameters
from helpers.run.model_config import read_model_config
from helpers.run.old_names import explain
from helpers.wording import did_you_mean

_FILES = ("vocab_file",)  # parameters that name files which the user brings


class Refused(ValueError):
    """The command cannot be run as it was given; nothing has been started."""


def choose_stages(words: list[str]) -> list[str]:
    """Return the stages and side doors that the words name (`train`, `04`, `04_train`), in the course's order.

    Without words, the six stages. Raises Refused for a word that names none.
    """
    if not words:
        return list(paths.STAGES)
    names: dict[str, str] = {}
    for stage, (notebook, _) in paths.NOTEBOOKS.items():
        names |= {stage: stage, notebook: stage, f"{notebook}.ipynb": stage}
        if stage in paths.STAGES:
            names[notebook[:2]] = stage
    for word in words:
        if word not in names:
            raise Refused(f"no stage is called '{word}'{did_you_mean(word, paths.NOTEBOOKS)}")
    chosen = {names[word] for word in words}
    return [stage for stage in paths.NOTEBOOKS if stage in chosen]


def _check_type(where: str, name: str, value: Any, default: Any) -> Any:
    """Return `value` if it has the type of the notebook's default (an int is accepted for a float), else refuse it."""
    if default is None or type(value) is type(default):
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    hint = "; put it in quotes" if isinstance(default, str) else ""
    if isinstance(default, float) and re.match(r"[-.\d]+e", str(value), re.IGNORECASE):
        hint = "; YAML reads a number like 1e-3 as text: write 1.0e-3"
    raise Refused(
        f"{where}: {name} is {value!r}, {type(value).__name__}, but the notebook's "
        f"default {default!r} is {type(default).__name__}{hint}"
    )


class _OneValuePerKey(yaml.SafeLoader):
    """YAML whose keys stand once each: a second `train:` section would take the first one's place without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):  # what else is no key, and refused below
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> Any:
    """Return what a YAML file holds. Raises OSError; Refused for what is no YAML, and where a key stands twice."""
    try:
        return yaml.load(path.read_text("utf-8"), _OneValuePerKey)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(f"{path.name} is not readable YAML: {' '.join(str(error).split())}") from None


def read_preset(name: str) -> dict[str, dict]:
    """Return {stage: {parameter: value}} of presets/<name>.yaml, of a YAML file, or of GPT-2's model_config.json.

    Raises Refused for what is none of them.
    """
    folder = paths.repo_root() / "presets"
    path = Path(name) if name.endswith((".yaml", ".yml", ".json")) else folder / f"{name}.yaml"
    if not path.is_file():
        raise Refused(f"no preset '{name}'{did_you_mean(name, sorted(file.stem for file in folder.glob('*.yaml')))}")
    if path.suffix == ".json":
        try:
            return read_model_config(path)
        except ValueError as error:
            raise Refused(str(error)) from None
    sections = load_yaml(path) or {}
    if not isinstance(sections, dict):
        raise Refused(f"{path.name}: expected one section per stage, like `train:` with `epochs: 2` indented below it")
    for stage, section in sections.items():
        if stage not in paths.NOTEBOOKS:
            raise Refused(f"{path.name}: no stage is called '{stage}'{did_you_mean(str(stage), paths.NOTEBOOKS)}")
        if not isinstance(section or {}, dict):
            raise Refused(f"{path.name}: under `{stage}:` expected lines like `name: value`, found {section!r}")
    return {stage: section or {} for stage, section in sections.items()}


def _parse_value(text: str, default: Any) -> Any:
    """Return a word of the command line as a value of the default's type; what cannot be read stays text."""
    if isinstance(default, str):
        return text
    try:
        return type(default)(text) if type(default) in (int, float) else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return text


def _resolve(name: str, given: str) -> str:
    """Return the absolute path of a file, a folder or a pattern, else refuse it."""
    path = Path(os.path.abspath(os.path.expanduser(given)))
    if not path.exists() and not any(sign in given for sign in "*?["):
        raise Refused(f"{name}: {path} does not exist")
    return str(path)


def plan(
    stages: list[str], run: str, corpus: str | None, presets: Sequence[str], settings: Iterable[tuple[str, Any]],
    combination: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return {stage: {parameter: value}}, complete and checked: defaults, then presets, then --corpus, then -p.

    `settings` are the pairs of -p, (name, text), `combination` is a sweep's, {name: value}. Raises Refused at the first
    name or type that no notebook has.
    """
    # 1. the defaults; every section of a preset is checked, also those of stages that do not run today
    try:
        paths.run_dir(run)
    except ValueError as error:
        raise Refused(str(error)) from None
    defaults = {stage: notebook_parameters(stage) for stage in paths.NOTEBOOKS}
    values = {stage: dict(names) for stage, names in defaults.items()}

    def put(where: str, stage: str, name: str, value: Any) -> None:
        if name not in defaults[stage]:
            hint = explain(str(name), [known for known in defaults[stage] if known != "run"])
            raise Refused(f"{where}: {paths.notebook(stage).stem} has no parameter '{name}'{hint}")
        values[stage][name] = _check_type(where, name, value, defaults[stage][name])

    # 2. what the command says, the later over the earlier
    sections = [(preset, *section) for preset in presets for section in read_preset(preset).items()]
    for preset, stage, section in sections:
        for name, value in section.items():
            if name == "run":
                raise Refused(f"preset {preset}: a run is named on the command line, with --run")
            put(f"preset {preset}, {stage}", stage, name, value)
    if corpus is not None:
        if "corpus" not in stages:
            raise Refused("--corpus: notebook 01 is not to run, so this text would not be read: name 'corpus' too")
        put("--corpus", "corpus", "source", corpus)
    asked = [("-p", *pair) for pair in settings] + [("--sweep", *pair) for pair in (combination or {}).items()]
    for flag, name, value in asked:
        if name == "run":
            raise Refused(f"{flag} run: name the run with --run")
        owners = [stage for stage in stages if name in defaults[stage]]
        if not owners:
            known = sorted({name for stage in stages for name in defaults[stage]} - {"run"})
            raise Refused(f"{flag} {name}: no notebook that is to run has it{explain(name, known)}")
        for stage in owners:
            read = _parse_value(value, defaults[stage][name]) if isinstance(value, str) else value
            put(f"{flag} {name}", stage, name, read)
    # 3. the run, and the corpus and other files as the kernel will find them, wherever it works
    for stage in stages:
        values[stage]["run"] = run
        for name in _FILES:
            if given := values[stage].get(name):
                values[stage][name] = _resolve(name, given)
    if "corpus" in stages and "source" in values["corpus"]:
        try:
            values["corpus"]["source"] = resolve_source(values["corpus"]["source"])
        except ValueError as error:
            raise Refused(f"corpus: {error}") from None
    return {stage: values[stage] for stage in stages}
