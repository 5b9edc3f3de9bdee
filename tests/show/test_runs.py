"""Runs compared: in one figure and a table, finished or under way."""

import asyncio
import json

import pytest
from displays import FakeTraining, final, full_rows, rows_of, steps_written

from helpers.show import notebook as show
from helpers.show import text


def test_compare_names_what_differs(shown, tmp_path):
    for name, changes in (("slow", {"lr": 1e-4, "seed": 1}), ("quick", {"lr": 3e-3, "seed": 1})):
        (tmp_path / name).mkdir()
        rows = "".join(json.dumps(row) + "\n" for row in full_rows(200 if name == "slow" else 300))
        (tmp_path / name / "metrics.jsonl").write_text(rows)
        (tmp_path / name / "parameters.json").write_text(json.dumps({"run": name, "log_step": 5} | changes))
    show.compare({"slow": tmp_path / "slow", "quick": str(tmp_path / "quick")}, floor=1.0, x="train_seconds")
    picture, table = (output["data"] for output in shown)
    assert picture["text/plain"] == "validation bits per character: slow 1.301, quick 1.280"
    assert [line.replace("␣", " ").split() for line in table["text/plain"].splitlines()[1:]] == [
        ["slow", "200", "20", "s", "1.201", "1.301", "50,000", "0.58", "lr", "0.0001"],
        ["quick", "300", "30", "s", "1.180", "1.280", "50,000", "0.553", "lr", "0.003"],
    ]


@pytest.mark.filterwarnings("error")  # matplotlib warns of letters that its font lacks
@pytest.mark.parametrize("name", ["我的模型", "a" * 99, "$x$ ^ _", ""])
def test_any_name_of_a_run_can_be_compared(shown, name):
    show.compare({name: rows_of(3), "other": rows_of(3)})
    assert text.visible_at_edges(name) in shown[1]["data"]["text/plain"]


def test_runs_under_way_are_compared_until_all_have_ended(shown, tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()

    async def train_and_follow():
        first = FakeTraining(folders[0], 20)
        following = asyncio.create_task(
            show.follow({folder.name: folder for folder in folders}, interval=0.05)  # the second has not begun
        )
        await asyncio.sleep(0.3)
        assert not first.running and not following.done()
        FakeTraining(folders[1], 30)
        await asyncio.wait_for(following, 10)

    asyncio.run(train_and_follow())
    picture, table = final(shown).values()
    assert picture["text/plain"] == "validation bits per character: one 1.550, two 1.400"
    assert [line.split()[:2] for line in table["text/plain"].splitlines()[1:]] == [["one", "20"], ["two", "30"]]


def test_stopping_the_cell_ends_only_the_following(shown, tmp_path):
    training = FakeTraining(tmp_path, 5_000)

    async def follow_and_cancel():
        following = asyncio.create_task(show.follow({"one": tmp_path}, interval=0.05))
        await steps_written(training)
        following.cancel()
        await asyncio.wait_for(following, 10)

    asyncio.run(follow_and_cancel())
    assert training.running and not (tmp_path / "STOP").exists()
    training.stops = 1
    training.wait(10)
