"""Whatever somebody's own text is like, it goes from 01 to 06, or a sentence says what is wrong with it."""

import ast
import asyncio
import inspect
import json
import random

import pytest

from helpers import paths
from helpers.manifest import open_room
from helpers.run.parameters import plan_parameters, stage_notebook

pytestmark = pytest.mark.slow
DICE = random.Random(0)
HAN = [chr(point) for point in range(0x4E00, 0x9FA0)]
WORDS = "the soil is dry so give it some water and do not let this plant stand in a cold wind at night".split()


def some(pieces, longest=40, texts=60, between=""):
    """Return texts of 5 to `longest` pieces drawn at random."""
    return [between.join(DICE.choices(pieces, k=DICE.randint(5, longest))) for _ in range(texts)]


TEXTS = {
    "two short texts without a common character": ["甲乙丙丁戊己庚辛壬癸", "子丑寅卯辰巳午未申酉"],
    "one window": ["abc abc", "abc abd"],
    "one character, over and over": ["哈" * n for n in range(2, 80)],
    "one long word": ["a" * 4999, "a" * 4999 + "b"],
    "each character once": ["".join(HAN[at : at + 100]) for at in range(0, 12_000, 100)],
    "one in English, one in Chinese": [*some(WORDS, 200, 1, " "), *some(HAN[:300], 900, 1)],
    "a word of the one begins the other": ["The soil is dry. " * 20, "The 书评：" + "".join(HAN[:1400])],
    "English": some(WORDS, 60, 80, " "),
    "codes": [*some("0123456789", 6, 98), *some("ABCDEFGH", 60, 3)],
    "punctuation": some("，。！？；：…—"),
    "emoji": some(["😀", "👨‍👩‍👧", "🌱", "👍🏽"]),
    "Thai": some("กขคงจฉชซญดตถทธนบปผพิีึืุู"),
    "code": [f"def f{n}(a):\n    return a * {n} ** 2  # <eos> {{{n}}}" for n in range(60)],
}


async def run_cells(stage, lessons, values):
    """Execute a notebook's cells as a kernel does, in this process: it takes seconds, of which a kernel needs half."""
    names = {"__name__": "__main__", "In": []}
    for cell in stage_notebook(paths.notebook(stage), lessons).cells:
        if cell.cell_type == "code":
            code = compile(cell.source, f"{stage}, {cell.id}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            names["In"].append(cell.source)
            if inspect.iscoroutine(waits := eval(code, names)):
                await waits
            names.update(values if "parameters" in cell.metadata.get("tags", []) else {})


def take_course(folder, monkeypatch, texts, lessons=False, settings=()):
    monkeypatch.setenv("RUNS_DIR", str(folder / f"lessons {lessons}"))
    for name in ("HEADLESS", "TQDM_DISABLE"):
        monkeypatch.setenv(name, "1")
    (folder / "own.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    values = plan_parameters([*paths.STAGES], "own", str(folder / "own.jsonl"), ["micro"], [*settings])
    for stage in paths.STAGES:
        asyncio.run(run_cells(stage, lessons, values[stage]))


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_a_text_of_any_kind_goes_through_all_six(texts, tmp_path, monkeypatch):
    take_course(tmp_path, monkeypatch, texts)
    assert open_room("own", "serve")["result"]["requests_per_second"] > 0


def test_lessons_pass_with_a_model_as_wide_as_by_rule_and_change_no_byte(tmp_path, monkeypatch):
    made = []
    for lessons in (True, False):
        take_course(tmp_path, monkeypatch, TEXTS["English"], lessons, [("n_embd", 128), ("n_head", 4)])
        made.append({stage: open_room("own", stage)["outputs"] for stage in ("corpus", "vocab", "tokenize", "train")})
    assert made[0] == made[1] and any("final_model" in name for name in made[0]["train"])


@pytest.mark.parametrize(("texts", "words"), [(["好", "人"], "2 too short"), (["同一段话。"] * 9, "only 1 document")])
def test_what_no_model_can_learn_from_is_told(texts, words, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=words):
        take_course(tmp_path, monkeypatch, texts)
