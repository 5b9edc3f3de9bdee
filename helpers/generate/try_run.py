"""The run `try`: the default run's models, which come with the course, for whoever has not trained one yet.

data/try holds them in 8 bits; here they become the rooms of a run, which notebooks 05 and 06, the terminal and the
service open like any other. Its corpus is drawn anew: the built-in grammar draws the same documents again.
"""

import json
import shutil

from helpers import paths
from helpers.corpus.build import build_corpus
from helpers.manifest import MANIFEST, notebook_parameters, write_manifest
from helpers.model.eight_bits import read_packed
from helpers.model.huggingface import save_model

TRY = "try"
FOLDER = paths.repo_root() / "data" / "try"
STAGES = {"base": "train", "chat": "chat"}  # which of `paths.MODELS` it holds -> the stage that trained each


def unpack() -> None:
    """Make runs/try, in some seconds, unless it is there."""
    if (paths.room(TRY, STAGES["chat"]) / MANIFEST).is_file():
        return
    # 1. the documents: texts kept out of training are what 05 and 06 begin with
    parameters = notebook_parameters("corpus") | {"run": TRY}
    report = build_corpus(**parameters)
    write_manifest(
        TRY, "corpus", parameters=parameters, inputs=report.inputs, outputs=report.outputs, result=report.result(),
        seed=parameters["seed"],
    )  # fmt: skip
    # 2. the models, as plain folders
    for name, stage in STAGES.items():
        packed, final = FOLDER / name, paths.room(TRY, stage) / "final_model"
        made = json.loads((packed / "model.json").read_text("utf-8"))["made"]
        final.mkdir(parents=True, exist_ok=True)
        save_model(final, read_packed(packed))
        for file in (FOLDER / "tokenizer.json", *packed.glob("*_*")):
            shutil.copy(file, final)
        write_manifest(
            TRY, stage, parameters=made["parameters"] | {"run": TRY}, inputs=[], outputs=sorted(final.iterdir()),
            result=made["result"], seed=made["seed"],
        )  # fmt: skip
