"""What is for the eyes: safe HTML, the same output twice, a dashboard and a panel whose buttons work while they run."""

import asyncio
import base64
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from helpers.generate import explain, generate, memorization
from helpers.generate.diversity import Cell
from helpers.generate.settings import Chunk, Settings, TokenLogprob
from helpers.show import curves, dashboard, experts, figures, metrics_file, panel, runs, series, text
from helpers.show import notebook as show
from helpers.tokens.windows import count_windows

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Everything displayed, as a list of {data, metadata, transient, update}."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("HEADLESS", raising=False)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    publisher = CapturingDisplayPublisher()
    monkeypatch.setattr(shell, "display_pub", publisher)
    yield publisher.outputs
    InteractiveShell.clear_instance()


def until(condition, seconds: float = 10) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


# ---------------------------------------------------------------- text


class Page(HTMLParser):
    """Collects tags, attribute names and text of a fragment."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = set(), set(), "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.words += data


HOSTILE = st.text(max_size=12) | st.sampled_from(
    ["<script>alert(1)</script>", "<b", "&amp;", "]]>", '" onload="x', "'"]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOSTILE, HOSTILE)
def test_any_text_is_shown_as_text(shown, one, two):
    shown.clear()
    show.table([[one, 1], [two, 2.5]], ["text", one])
    show.documents([one, two])
    show.pieces({one: [one, two], "tokenizer": [two]})
    show.probabilities([(one, 0.5, 0.9), (two, 0.1, 0)])
    show.samples([one + two, two], prompt=one)
    show.labels([one, two], [two, None])
    show.samples_over_time([{"event": "sample", "step": 1, "text": one}])
    show.spikes([{"event": "spike", "step": 1, "windows": [{"index": two, "loss": 2.0, "text": one}]}])
    for output in shown:
        page = Page(output["data"]["text/html"])
        assert page.tags <= {"table", "thead", "tbody", "tr", "td", "th", "div", "span", "code", "br"}
        assert page.attributes <= {"style"}
        assert page.open == []
        assert output["data"]["text/plain"].strip()
    assert text.visible(one) in Page(shown[2]["data"]["text/html"]).words


def test_blanks_and_newlines_can_be_seen(shown):
    show.pieces({"cut": ["好", " ", "\u3000", "\n", "\t", "\u200b", "养"]})
    assert shown[0]["data"]["text/plain"] == "cut (7): 好|␣|␣|↵|⇥|‹200B›|养"


def test_table_aligns_chinese_in_plain_text(shown):
    show.table([["龙血树", 12345, True], ["a", 7, False]], ["word", "times", "seen"])
    assert shown[0]["data"]["text/plain"].splitlines() == [
        "word     times  seen",
        "龙血树  12,345  True",
        "a            7  False",
    ]
    assert text.number(0.123456) == "0.1235"
    assert text.number(123456.7) == "123,457"
    with pytest.raises(ValueError, match="2 columns got a row of 1"):
        show.table([["a"]], ["one", "two"])


def test_documents_reads_no_more_than_it_shows(shown):
    def endless():
        yield "字" * 1000
        yield "二"
        raise AssertionError("read too far")

    show.documents(endless(), limit=2, characters=10)
    assert shown[0]["data"]["text/plain"] == f"[1 · 1,000 characters]\n{'字' * 10} …\n\n[2 · 1 characters]\n二"


def test_removed_tokens_are_told_from_unlikely_ones(shown):
    show.probabilities([("太阳", 0.5, 1.0), ("阴", 0.0001, 0.0)])
    words = Page(shown[0]["data"]["text/html"]).words
    assert "< 0.1 %" in words and "–" in words and "100.0 %" in words


def test_the_prompt_is_dimmed_only_where_it_is(shown):
    show.samples(["问\n答"], prompt="问\n")
    assert '<span style="opacity:.55">问\n</span>答' in shown[0]["data"]["text/html"]
    assert text.continuation("别的", "问") == "别的"


def test_labels_need_one_label_an_input(shown):
    with pytest.raises(ValueError, match="2 inputs and 1 labels"):
        show.labels(["a", "b"], ["b"])
    show.labels(["我"] * 100, [None] * 100)
    assert shown[0]["data"]["text/plain"].count("我") == 100


# ---------------------------------------------------------------- see through


def step(text: str, p: float, *filters: explain.Filter, others=()) -> explain.Step:
    bits = -math.log2(p)
    return explain.Step(7, text, p, 3, bits, bits / len(text) if text else None, tuple(others), filters)


def took(name: str, removed: int, lost: float, chosen: float, *likeliest) -> explain.Filter:
    return explain.Filter(name, removed, lost, chosen, likeliest)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOSTILE, HOSTILE)
def test_any_text_can_be_seen_through(shown, one, two):
    shown.clear()
    work = took("top_k", 3, 0.25, 0.5, (one, 0.2), (two, 0.05))
    show.explained(
        [step(one, 0.5, work, others=[(two, 0.5)]), step("", 0.25, work), step(two, 0.001, work)], prompt=one
    )
    show.filters([step(one, 0.5, work), step(two, 0.5, work)])
    stretches = (memorization.Stretch(0, len(one), 7, 2),) if one else ()
    show.copied([memorization.Copied(one + two, len(one), stretches, 8, 0, 0)])
    show.attention([one, two], [[1.0, 0.0], [0.5, 0.5]], title=two)
    for output in shown:
        page = Page(output["data"]["text/html"])
        assert page.tags <= {"table", "thead", "tbody", "tr", "td", "th", "div", "span"}
        assert page.attributes <= {"style", "title"} and page.open == []
        assert output["data"]["text/plain"].strip()
    assert Page(shown[0]["data"]["text/html"]).words.startswith(one + one + two)
    assert one + two in Page(shown[2]["data"]["text/html"]).words


def test_each_character_has_the_colour_of_its_own_chance(shown):
    """Three characters that share a word's bits are each more likely than the word; three bytes are one character."""
    steps = [step("好", 0.6), step("龟背竹", 0.001), step("", 0.5), step("", 0.5), step("🌱", 0.02), step("", 0.3)]
    show.explained(steps, prompt="问\n")
    html = shown[0]["data"]["text/html"]
    grounds = re.findall(r'<span(?: style="background:rgba\([\d,]+,([\d.]+)\)[^"]*")? title="[^"]*">(.*?)</span>', html)
    # 0.001 ** (1/3) = 0.1, and 0.5 × 0.5 × 0.02 = 0.005
    assert grounds == [("", "好"), ("0.34", "龟背竹"), ("0.7", "🌱"), ("0.18", "■")]
    assert '<span style="opacity:.55">问\n</span>' in html
    lines = shown[0]["data"]["text/plain"].splitlines()
    assert lines[0].split() == ["text", "probability", "rank", "bits", "likeliest"] and len(lines) == 7
    assert lines[1].split()[:2] == ["好", "60.0"]


def test_the_mouse_tells_what_the_filters_did(shown):
    work = (took("top_k", 2000, 0.123, 0.7, ("很", 0.05)), took("temperature", 0, 0.0, 0.8))
    show.explained([step("水", 0.6, *work, others=[("水", 0.6), ("", 0.2)])])
    (title,) = re.findall('title="([^"]*)"', shown[0]["data"]["text/html"])
    assert title.splitlines() == [
        "60.0 %, number 3 of the model's choices, 0.74 bits".replace("'", "&#x27;"),
        "likeliest: 水 60.0 %, ■ 20.0 %",
        "top_k: 70.0 %; took away 2,000 tokens with 12.3 %: 很 5.0 % …",
        "temperature: 80.0 %",
    ]


def test_filters_are_summed_up_over_the_text(shown):
    show.filters([
        step("绿", 0.5, took("top_k", 10, 0.2, 0.6, ("很", 0.1)), took("top_p", 0, 0.0, 0.6)),
        step("萝", 0.25, took("top_k", 20, 0.4, 0.35, ("大", 0.3)), took("top_p", 0, 0.0, 0.35)),
    ])  # fmt: skip
    lines = [re.split(r"\s{2,}", line) for line in shown[0]["data"]["text/plain"].splitlines()[1:]]
    assert lines == [["top_k", "15", "30.0 %", "+10.0", "绿▸ 大 30.0 %"], ["top_p", "0", "–", "+0.0"]]
    show.filters([])
    show.filters([step("绿", 0.5)])


def test_copied_stretches_are_marked_whole_and_neighbours_apart(shown):
    stretches = (
        memorization.Stretch(1, 4, 5, 2), memorization.Stretch(3, 8, 12345, 1), memorization.Stretch(8, 10, 0, 3),
    )  # fmt: skip
    show.copied([memorization.Copied("零一二三四五六七八九十", 5, stretches, 2, 10, 4)])
    data = shown[0]["data"]
    assert (
        data["text/plain"]
        == "[longest stretch 5 characters · 40.0 % of its 2-grams known]\n零【一二】【三四五六七】【八九】十"
    )
    hues = re.findall(r"background:rgba\((\d+),", data["text/html"].split("known</div>")[1])
    assert len(hues) == 3 and hues[0] != hues[1] != hues[2]
    assert 'title="5 characters, 1 times, first in document 12,345">三四五六七<' in data["text/html"]
    show.copied([])
    show.copied([memorization.Copied("", 0, (), 8, 0, 0)])


def test_the_grid_has_a_table_a_measure(shown):
    cells = [Cell(t, p, 0.1 + t, 0.01, 5.0 + p, 0.5) for t in (0.5, 1.0) for p in (0.9, 1.0)]
    show.grid(cells)
    plain = shown[0]["data"]["text/plain"]
    assert plain.split("\n\n")[0].splitlines() == [
        "diversity: n-grams that differ", "t \\ p   0.9     1", "  0.5  0.60  0.60", "    1  1.10  1.10",
    ]  # fmt: skip
    assert plain.count("t \\ p") == 4
    assert Page(shown[0]["data"]["text/html"]).open == []
    show.grid([Cell(1.0, 1.0, 0.5, 0.0, None, None)])  # without an index: two measures
    assert shown[1]["data"]["text/plain"].count("t \\ p") == 2


def test_attention_shows_the_last_tokens_and_where_each_looks(shown):
    size = 50
    weights = [[1.0 if j == max(0, i - 1) else 0.0 for j in range(size)] for i in range(size)]
    names = [f"词{i}" for i in range(size)]
    show.attention(names, weights, "layer 0, head 1")
    lines = shown[0]["data"]["text/plain"].splitlines()
    assert lines[0] == "layer 0, head 1 (the last 40 of 50 tokens)" and len(lines) == 41
    assert lines[1] == "词10 → 词9 100.0 %" and lines[-1] == "词49 → 词48 100.0 %"
    html = shown[0]["data"]["text/html"]
    assert html.count("<td") == 40 * 41 / 2 and len(html) < 100_000
    with pytest.raises(ValueError, match="2 tokens and 1 rows"):
        show.attention(["一", "二"], [[1.0]])


# ---------------------------------------------------------------- figures


def rows_of(steps: int, total: int = 1000) -> list[dict]:
    rows = [{"event": "start", "total_steps": total}]
    for step in range(1, steps + 1):
        bits = 1 + 9 / step
        rows.append({"event": "step", "step": step, "bits_per_char": bits, "lr": 1e-3, "tokens_per_second": 5000.0,
                     "seconds_left": 100.0})  # fmt: skip
        if step % 10 == 0:
            rows.append({"event": "validation", "step": step, "bits_per_char": bits + 0.1})
    return rows


def full_rows(steps: int = 1000, layers: int = 2) -> list[dict]:
    """Rows with every field that a run may write."""
    rows = [{"event": "start", "step": 0, "total_steps": steps, "processes": 2}]
    for step in range(1, steps + 1):
        bits = 1.2 + 9 / step + 0.05 * math.sin(step)
        load = [[0.25 + 0.1 * math.sin(step / 50 + layer), 0.25, 0.25, 0.25 - 0.1 * math.sin(step / 50 + layer)]
                for layer in range(layers)]  # fmt: skip
        rows.append({
            "event": "step", "step": step, "total_steps": steps, "epoch": step / 500, "loss": bits, "accuracy": 0.3,
            "bits_per_char": bits, "lr": 1e-3 * (1 - step / steps), "grad_norm": 0.5 + 8 / step, "update_ratio": 1e-3,
            "tokens_per_second": 5e4, "mfu": 0.4, "memory": 2.1e9, "seconds": 0.12 * step, "train_seconds": 0.1 * step,
            "seconds_left": 0.1 * (steps - step), "skipped": 0, "scale": 65536.0, "expert_load": load,
        })  # fmt: skip
        if step % 100 == 0:
            rows.append({"event": "validation", "step": step, "bits_per_char": bits + 0.1})
    windows = [{"index": 7, "loss": 5.5, "text": "乱码<##>"}, {"index": 9, "loss": 3.0, "text": "第二"}]
    return [*rows, {"event": "spike", "step": steps, "loss": 4.0, "usual": 1.0, "windows": windows}]


def draw_all() -> None:
    counts = Counter({f"w{i}": 5000 // (i + 1) for i in range(2000)})
    show.length_histogram([20, 30, 30, 45])
    show.length_histogram(i**2 for i in range(1, 500))
    show.zipf(counts)
    show.coverage(counts, vocab_size=500)
    show.schedule([0.1 * step for step in range(10)])
    show.window_diagram(2300, 512, 384)
    show.window_diagram(10**6, 256, 256)
    show.loss_curve(rows_of(900), floor=0.95, baselines={"unigram": 7.8, "bigram": 4.2})
    figures.show_figure(curves.run_figure(full_rows(500), 0.95, {"unigram": 7.8}), "a run")
    figures.show_figure(runs.compare_figure({f"run {i}": full_rows(101 + i) for i in range(9)}), "nine runs")
    show.expert_load(full_rows(500))


def test_figures_are_small_and_the_same_twice(shown):
    draw_all()
    first = [output["data"] for output in shown]
    shown.clear()
    draw_all()
    assert [output["data"] for output in shown] == first
    for data in first:
        png = base64.b64decode(data["image/png"])
        assert png.startswith(PNG) and len(png) < 60_000
        assert data["text/plain"] and "object at 0x" not in data["text/plain"]


def test_figures_of_nearly_nothing(shown):
    show.length_histogram([])
    show.length_histogram([7])
    show.zipf(Counter())
    show.zipf(Counter(a=1))
    show.coverage(Counter())
    show.coverage(Counter(a=1), vocab_size=100)
    show.schedule([])
    show.window_diagram(2, 8, 8)
    show.loss_curve([])
    show.loss_curve([{"event": "step", "step": 1, "bits_per_char": float("nan")}], floor=1.0)
    for axis in series.AXES:
        show.compare({"none": [], "one": rows_of(1)}, x=axis)
    show.compare({})
    show.expert_load([])
    show.expert_load(full_rows(1, layers=1))
    pictures = [output["data"]["image/png"] for output in shown if "image/png" in output["data"]]
    assert len(pictures) == 16
    assert all(base64.b64decode(picture).startswith(PNG) for picture in pictures)


@pytest.mark.parametrize(
    ("n_tokens", "n_ctx", "stride"), [(2300, 512, 384), (513, 512, 512), (514, 512, 512), (2, 9, 3)]
)
def test_window_diagram_counts_as_the_windows_do(shown, n_tokens, n_ctx, stride):

    show.window_diagram(n_tokens, n_ctx, stride)
    assert shown[0]["data"]["text/plain"].startswith(f"{count_windows(n_tokens, n_ctx, stride)} windows")


def test_a_long_run_is_averaged_not_sampled():
    rows = [{"event": "step", "step": i, "bits_per_char": float(i % 2)} for i in range(10_000)]
    steps, values = series.series(rows, "step", "bits_per_char", points=100)
    assert len(steps) == len(values) == 100
    assert values == pytest.approx(0.5)


def test_names_of_lines_do_not_cover_each_other():
    places = curves.spread([0.5, 0.51, 0.0, 0.52, 0.99, 1.0], 0.06, 0.0, 1.0)
    ordered = sorted(places)
    assert min(b - a for a, b in zip(ordered, ordered[1:], strict=False)) >= 0.06 - 1e-9
    assert 0 <= ordered[0] and ordered[-1] <= 1
    assert places.index(min(places)) == 2 and places[0] < places[1] < places[3] < places[4] < places[5]


# ---------------------------------------------------------------- metrics


@given(st.lists(st.integers(1, 60), max_size=20))
def test_a_file_that_grows_in_any_pieces_is_read_once(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    rows = [{"event": "sample", "step": i, "text": "绿萝\n浇水" * i} for i in range(5)]
    whole = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    tail, new = metrics_file.Tail(path), []
    assert tail.read() == []  # the file is not there yet
    with open(path, "wb", buffering=0) as file:
        for size in [*sizes, len(whole)]:
            piece, whole = whole[:size], whole[size:]
            file.write(piece)
            new += tail.read()
    assert new == tail.rows == rows == show.read_metrics(path)


def test_steps_taken_again_replace_the_older_ones(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"event": "start", "total_steps": 9, "step": 0},
        *({"event": "step", "step": i, "run": 1} for i in (2, 4, 6)),
    ]
    rows += [
        {"event": "end", "step": 6},
        {"event": "resume", "step": 4},
        {"event": "start", "total_steps": 9, "step": 4},
    ]
    rows += [{"event": "step", "step": 6, "run": 2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "st')
    read = show.read_metrics(path)
    assert [(row["step"], row["run"]) for row in read if row["event"] == "step"] == [(2, 1), (4, 1), (6, 2)]
    assert metrics_file.last(read, "end") == {}


def test_a_file_begun_anew_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n{"event": "step", "step": 2}\n')
    tail = metrics_file.Tail(path)
    tail.read()
    path.write_text('{"event": "step", "step": 1}\n')
    assert tail.read() == tail.rows == [{"event": "step", "step": 1}]


def test_missing_metrics_name_the_notebook(tmp_path):
    with pytest.raises(FileNotFoundError, match="04_train"):
        show.loss_curve(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("line", ["[1]", "3", "null", '"end"', "\\x00\\x00", '{"event": "step", "st', "\\xff{}"])
def test_a_line_that_is_no_row_is_passed_over(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    raw = line.encode("latin-1").decode("unicode_escape").encode("latin-1")
    path.write_bytes(b'{"event": "step", "step": 1}\n' + raw + b'\n{"event": "step", "step": 2}\n')
    assert [row["step"] for row in show.read_metrics(path)] == [1, 2]
    path.write_bytes(b"")
    assert show.read_metrics(path) == []


def test_a_file_that_vanishes_and_comes_back_longer(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n')
    tail = metrics_file.Tail(path)
    tail.read()
    path.rename(tmp_path / "previous.jsonl")
    assert tail.read() == [] and len(tail.rows) == 1  # what was read stays
    rows = [{"event": "step", "step": step, "run": 2} for step in (1, 2, 3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tail.read() == tail.rows == rows


def test_a_run_is_found_by_file_folder_and_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    file = tmp_path / "mine" / "model" / "metrics.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"event": "step", "step": 5}\n')
    for run in (file, str(file), file.parent, tmp_path / "mine", "mine"):
        assert metrics_file.locate(run) == file
        assert show.read_metrics(run) == [{"event": "step", "step": 5}]
    assert metrics_file.locate("not_yet") == tmp_path / "not_yet" / "model" / "metrics.jsonl"
    with pytest.raises(FileNotFoundError, match="no folder and no metrics.jsonl"):
        show.attach("runs/of/nobody")


NUMBERS = """step total_steps loss bits_per_char lr grad_norm update_ratio tokens_per_second mfu memory seconds
train_seconds seconds_left skipped scale usual in_a_row micro_batch epoch accuracy""".split()
ODD = [None, True, 0, -1, 3, 7.5, 1e-9, 1e15, math.nan, math.inf, -math.inf, "12"]
OTHERS = {
    "expert_load": [None, 1.0, [], [[]], [[0.5, None]], [[1.0], [2, 3]], [[0.5, 0.5]], "?"],
    "windows": [None, [], [{}], [{"index": None, "loss": math.nan, "text": None}]],
    "text": [None, "", "<b>", 3], "reason": [None, "", "full"], "complaints": [None, [], ["damaged"]],
}  # fmt: skip
EVENTS = """start step step step step epoch validation validation sample spike skipped out_of_memory checkpoint
checkpoint_failed resume end unheard_of""".split()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(12))
def test_no_row_however_odd_breaks_the_dashboard(shown, tmp_path, seed):
    """Every field missing, null, NaN, infinite, negative or a word now and then; a reader must not fall over it."""
    chance = random.Random(seed)
    rows = []
    for i in range(chance.randrange(30)):
        row = {"event": chance.choice(EVENTS), "step": i}
        row |= {name: chance.choice([*ODD, 1.5, 2.5, 3.5]) for name in NUMBERS if chance.random() < 0.3}
        row |= {name: chance.choice(values) for name, values in OTHERS.items() if chance.random() < 0.3}
        rows.append({name: value for name, value in row.items() if name != "step" or chance.random() < 0.9})
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # NaN and Infinity as Python writes them
    read = show.read_metrics(path)
    for line in (
        metrics_file.progress(read),
        metrics_file.summary(read, 10, 1.0),
        dashboard.bar(read, 0),
        *metrics_file.troubles(read),
    ):
        assert isinstance(line, str) and line
    show.samples_over_time(read)
    show.spikes(read)
    show.expert_load(read)
    show.compare({"odd": read}, x=chance.choice(list(series.AXES)))
    figures.png(curves.run_figure(read, 1.0))


def test_a_nan_is_a_gap_and_hides_no_number():
    rows = [{"event": "step", "step": i, "grad_norm": math.nan if i == 3 else 1.0 + (i == 5)} for i in range(1, 9)]
    steps, values = series.series(rows, "step", "grad_norm")
    assert list(steps) == list(range(1, 9)) and math.isnan(values[2])
    _, values = series.series(rows, "step", "grad_norm", points=4)
    assert list(values) == [1.0, 1.0, 1.5, 1.0]
    *_, low, high = series.banded(rows, "step", "grad_norm", points=4)  # the step that stood out is still seen
    assert list(low) == [1.0] * 4 and list(high) == [1.0, 1.0, 2.0, 1.0]
    assert series.newest([*rows, {"event": "step", "step": 9, "grad_norm": None}], "step", "grad_norm") == 1.0


def test_seconds_of_several_sessions_only_grow():
    rows = [{"event": "step", "step": 10 * i, "train_seconds": t, "tokens_per_second": 100.0}
            for i, t in enumerate((1.0, 2.0, 0.5, 1.5), 1)]  # fmt: skip
    steps, at = series.places(rows, "train_seconds")
    assert list(steps) == [0, 10, 20, 30, 40] and list(at) == [0, 1, 2, 2.5, 3.5]
    _, tokens = series.places(rows, "tokens")
    assert list(tokens) == pytest.approx([0, 100, 200, 250, 350])
    old = [{"event": "step", "step": 1, "seconds": 3.0}]  # rows of before: no train_seconds
    assert list(series.places(old, "train_seconds")[1]) == [0, 3]
    assert series.places(old, "tokens") is None
    with pytest.raises(ValueError, match="choose one of step, train_seconds, tokens"):
        series.places(rows, "hours")


# ---------------------------------------------------------------- in words


def test_what_goes_wrong_is_said_in_words():
    rows = [
        {"event": "resume", "step": 0, "complaints": ["step-00000060: model.safetensors has another checksum"]},
        {"event": "skipped", "step": 3, "reason": "loss or gradient is not finite", "in_a_row": 1},
        {"event": "skipped", "step": 4, "reason": "loss or gradient is not finite", "in_a_row": 2},
        {"event": "out_of_memory", "step": 5, "micro_batch": 4},
        {"event": "checkpoint_failed", "step": 6, "reason": "[Errno 28] No space left on device"},
    ]
    words = metrics_file.troubles(rows)
    assert words == [
        "2 updates skipped, no weight changed, last at step 4 (loss or gradient is not finite)",
        "out of memory at step 5: a micro-batch now has 4 windows",
        "checkpoint not saved, at step 6 ([Errno 28] No space left on device); training goes on",
        "resumed at step 0: step-00000060: model.safetensors has another checksum",
    ]
    rows += [{"event": "checkpoint", "step": 8, "path": "step-8"}, {"event": "step", "step": 9, "skipped": 5}]
    words = metrics_file.troubles(rows)
    assert words[0].startswith("5 updates skipped")  # three of them before a resume: their rows are gone
    assert words[2].endswith("saved again at step 8")
    assert metrics_file.troubles(rows_of(50)) == []


def test_the_line_of_facts_has_speed_memory_and_a_total_that_changes():
    rows = [
        {"event": "start", "step": 0, "total_steps": None},
        {"event": "step", "step": 5, "total_steps": 900, "tokens_per_second": 51234.5, "mfu": 0.413, "memory": 7.4e8,
         "seconds_left": 61.0},
    ]  # fmt: skip
    words = "step 5 of 900 · 51,234 tokens/s (41 % of the machine's peak) · 740 MB · 1 min 01 s left"
    assert metrics_file.progress(rows, 77) == words
    assert metrics_file.progress([*rows, {"event": "step", "step": 6, "total_steps": 850}], 77) == "step 6 of 850"
    assert metrics_file.progress(rows[:1]) == "step 0"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"step": 9, "reason": "finished", "seconds": 4.0}, "finished at step 9 of 20 · 4 s"),  # a time budget
        ({"step": 9, "reason": "stopped"}, "stopped at step 9 of 20"),
        ({"step": 9, "reason": "gradient not finite"}, "ended (gradient not finite) at step 9 of 20"),
        (None, "broke off at step 8 of 20"),
    ],
)
def test_how_a_run_ended_is_said(end, words):
    rows = [{"event": "step", "step": 8, "total_steps": 20}]
    assert metrics_file.summary(rows + ([{"event": "end", **end}] if end else [])) == words


# ---------------------------------------------------------------- runs beside each other, and looking back


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
    assert text.plain(name) in shown[1]["data"]["text/plain"]


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


def test_samples_go_from_the_first_to_the_last(shown):
    rows = rows_of(100)
    rows += [{"event": "sample", "step": step, "text": f"<{step}>" + "字" * 500} for step in range(1, 101)]
    show.samples_over_time(rows, limit=4, characters=20)
    words = shown[0]["data"]["text/plain"]
    assert [int(found) for found in re.findall(r"\[step (\d+)", words)] == [1, 5, 22, 100]
    assert "[step 100 · 1.19 bits/char]\n<100>" in words and words.count("字 …") == 4
    assert "&lt;100&gt;" in shown[0]["data"]["text/html"]


def test_a_spike_shows_the_text_it_came_from(shown):
    show.spikes(full_rows(20))
    words = shown[0]["data"]["text/plain"]
    assert words.splitlines()[1].split() == ["20", "4.00", "1.00"]
    assert "[step 20 · window 7 · loss 5.50]\n乱码<##>" in words and words.index("乱码") < words.index("第二")
    assert "乱码&lt;##&gt;" in shown[0]["data"]["text/html"]
    shown.clear()
    show.spikes(rows_of(5))
    assert shown[0]["data"]["text/plain"] == "no spike"


def test_experts_load_is_told_in_fair_shares(shown):
    rows = [{"event": "step", "step": 1, "expert_load": [[0.5, 0.5, 0, 0], [0.25] * 4]}]
    show.expert_load(rows)
    assert shown[0]["data"]["text/plain"] == "load of 4 experts in 2 layers, fair share 1: 0.00 … 2.00"
    assert experts.busiest(rows[0]) == 2.0 and experts.busiest({"expert_load": "?"}) is None


# ---------------------------------------------------------------- dashboard


class FakeTraining:
    """A run that writes rows until it is asked to stop or has taken all its steps."""

    def __init__(self, folder, total_steps: int, fails: bool = False):
        self.metrics_path, self.total_steps, self.fails = folder / "metrics.jsonl", total_steps, fails
        self.stops, self.error = 0, None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self.stops += 1

    def wait(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)
        if self.error:
            raise self.error

    def _work(self) -> None:
        step = 0
        with open(self.metrics_path, "w", encoding="utf-8") as file:
            for row in rows_of(self.total_steps, self.total_steps):
                step = row.get("step", 0)
                file.write(json.dumps(row) + "\n")
                file.flush()
                if self.stops:
                    break
                time.sleep(0.002)
            if self.fails:
                self.error = RuntimeError("the gradient is not finite")
                return
            file.write(json.dumps({"event": "sample", "step": step, "text": "叶子<黄>"}) + "\n")
            file.write(json.dumps({"event": "end", "step": step, "reason": "", "seconds": 65.0}) + "\n")


async def steps_written(training: FakeTraining, steps: int = 20) -> None:
    """Wait until a run has written some steps."""
    while not training.metrics_path.exists() or len(training.metrics_path.read_bytes().splitlines()) < steps:
        await asyncio.sleep(0.01)


def final(shown) -> dict:
    """Return what is left on the page: display id -> data, updates applied."""
    page = {}
    for i, output in enumerate(shown):
        page[(output["transient"] or {}).get("display_id", i)] = output["data"]
    return page


def check_left_behind(shown, words: str) -> None:
    left = [data for data in final(shown).values() if data]
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in left)
    assert [next(iter(data)) for data in left] == ["text/html", "image/png", "text/html"]
    assert words in left[0]["text/plain"]
    assert "叶子&lt;黄&gt;" in left[2]["text/html"]


@pytest.fixture
def views(monkeypatch):
    """The live dashboards that `watch` makes."""
    made = []

    class Kept(dashboard.Live):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(dashboard, "Live", Kept)
    return made


def test_headless_prints_lines_and_leaves_the_figure(shown, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADLESS", "1")
    training = FakeTraining(tmp_path, 40)
    assert asyncio.run(show.watch(training, floor=1.1, baselines={"unigram": 8.0}, interval=0.001)) is None
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 7  # the four validations at most, the first step, the end
    assert lines[-1] == "finished at step 40 of 40 · 1 min 05 s · validation 1.325 bits/char, 20 % above the floor"
    assert [next(iter(output["data"])) for output in shown] == ["image/png", "text/html"]
    assert training.stops == 0


def test_live_leaves_no_widget(shown, tmp_path):
    asyncio.run(show.watch(FakeTraining(tmp_path, 40), floor=1.1, interval=0.01))
    assert "application/vnd.jupyter.widget-view+json" in shown[0]["data"]
    check_left_behind(shown, "finished at step 40 of 40")


def test_stop_button_works_while_the_cell_runs(shown, tmp_path, views):
    training = FakeTraining(tmp_path, 5_000)

    async def watch_and_click():
        watching = asyncio.create_task(show.watch(training, interval=0.01))
        await steps_written(training)
        assert not watching.done()
        views[0].button.click()
        assert views[0].button.disabled
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_click())
    assert training.stops == 1 and not training.running
    check_left_behind(shown, "stopped at step")


@pytest.mark.parametrize("live", [True, False])
def test_the_kernels_stop_saves_and_ends_cleanly(shown, tmp_path, live):
    training = FakeTraining(tmp_path, 5_000)

    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(training, interval=0.01, live=live))
        await steps_written(training)
        watching.cancel()
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_cancel())
    assert training.stops == 1 and not training.running
    assert any("image/png" in data for data in final(shown).values())


def test_a_keyboard_interrupt_stops_the_run_too(shown, tmp_path, monkeypatch):
    training, sleep, calls = FakeTraining(tmp_path, 5_000), asyncio.sleep, []

    async def interrupted(seconds):
        calls.append(seconds)
        if len(calls) == 3:
            raise KeyboardInterrupt
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", interrupted)
    asyncio.run(show.watch(training, interval=0.01))
    assert training.stops == 1 and not training.running


def test_asked_twice_the_watching_ends_at_once(shown, tmp_path, monkeypatch):
    training = FakeTraining(tmp_path, 5_000)
    monkeypatch.setattr(training, "stop", lambda: None)  # a run that takes long to save

    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(training, interval=0.01))
        for _ in range(2):
            await asyncio.sleep(0.1)
            watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_cancel())
    assert training.running
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in final(shown).values())
    training.stops = 1
    training.wait(10)


def test_the_error_of_the_run_is_the_error_of_the_cell(shown, tmp_path):
    with pytest.raises(RuntimeError, match="not finite"):
        asyncio.run(show.watch(FakeTraining(tmp_path, 20, fails=True), interval=0.01))
    assert any("image/png" in data for data in final(shown).values())


def test_pictures_take_a_small_share_of_the_time(shown, tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "REDRAW", 0.0)
    view = dashboard.Live(SimpleNamespace(total_steps=10, metrics_path=tmp_path), None, {})
    rows = rows_of(5)
    view.draw(rows)  # the first one is not counted
    began = time.thread_time()
    view.draw(rows)
    cost = time.thread_time() - began
    assert view.due - time.monotonic() == pytest.approx(cost / 0.05, rel=0.3)
    before = len(shown)
    view.update(rows, rows)  # too soon
    assert len(shown) == before and view.stale
    view.due = 0.0
    view.update(rows, [])  # nothing new since, but that picture is still owed
    assert len(shown) > before and not view.stale
    view.close(rows)


# a run in another process: it writes rows until somebody puts a STOP beside them
ELSEWHERE = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with open(folder / "metrics.jsonl", "w") as file:
    def write(**row):
        print(json.dumps(row), file=file, flush=True)
    write(event="start", step=0, total_steps=100_000)
    for step in range(1, 100_000):
        write(event="step", step=step, bits_per_char=1 + 9 / step, lr=0.001)
        time.sleep(0.005)
        if (folder / "STOP").exists():
            break
    write(event="end", step=step, reason="stopped", seconds=1.0)
"""


@pytest.fixture
def elsewhere(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ELSEWHERE, str(tmp_path)])
    until(lambda: (tmp_path / "metrics.jsonl").exists())
    yield process
    process.kill()
    process.wait()


def test_a_run_of_another_process_is_watched_and_stopped(shown, tmp_path, elsewhere, views):
    async def watch_and_click():
        watching = asyncio.create_task(show.watch(show.attach(tmp_path / "metrics.jsonl"), interval=0.01))
        await steps_written(SimpleNamespace(metrics_path=tmp_path / "metrics.jsonl"))
        assert not watching.done() and elsewhere.poll() is None
        views[0].button.click()
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_click())
    assert elsewhere.wait(10) == 0 and (tmp_path / "STOP").exists()
    left = [data for data in final(shown).values() if data]
    assert re.match(r"stopped at step \d+ of 100,000 · 1 s$", left[0]["text/plain"])


@pytest.mark.parametrize("live", [True, False])
def test_the_kernels_stop_leaves_a_run_of_another_process_alone(shown, tmp_path, elsewhere, live, capsys):
    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(show.attach(tmp_path), interval=0.01, live=live))
        await steps_written(SimpleNamespace(metrics_path=tmp_path / "metrics.jsonl"))
        watching.cancel()
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_cancel())
    assert elsewhere.poll() is None and not (tmp_path / "STOP").exists()
    words = [data for data in final(shown).values() if data][0]["text/plain"] if live else capsys.readouterr().out
    assert "no longer watched, the run goes on" in words and "broke off" not in words


def test_a_killed_run_is_given_up_and_said(shown, tmp_path, elsewhere):
    until(lambda: len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) > 5)
    elsewhere.kill()
    began = time.monotonic()
    asyncio.run(show.watch(show.attach(tmp_path, patience=0.5), interval=0.01))
    assert time.monotonic() - began < 8
    words = [data for data in final(shown).values() if data][0]["text/plain"]
    assert words.startswith("broke off at step ") and "the run was killed or hangs" in words


def test_a_finished_run_is_shown_at_once(shown, tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [*rows_of(40, 40), {"event": "end", "step": 40, "reason": "finished", "seconds": 9.0},
            {"event": "sample", "step": 40, "text": "叶子<黄>"}]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    attached = show.attach(path)
    assert not attached.running and attached.complaint == ""
    asyncio.run(asyncio.wait_for(show.watch(attached), 10))
    check_left_behind(shown, "finished at step 40 of 40 · 9 s")
    path.write_text(path.read_text() + '{"event": "resume", "step": 40}\n')  # and goes on
    assert attached.running and attached.quiet < 5


def test_an_old_file_without_an_end_is_given_up_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n')
    os.utime(path, (time.time() - 900, time.time() - 900))
    attached = show.attach(path)
    assert not attached.running and "no new row for 15 min" in attached.complaint
    path.rename(tmp_path / "elsewhere.jsonl")  # a file that vanishes changes nothing
    assert not attached.running and attached.wait() is None


def test_a_run_that_never_starts_is_said(shown, tmp_path, capsys):
    asyncio.run(show.watch(show.attach(tmp_path / "metrics.jsonl", patience=0.1), interval=0.01, live=False))
    assert "no metrics.jsonl came in 0 s: is the run started, is the name right?" in capsys.readouterr().out


def test_a_stop_that_cannot_be_asked_is_said(shown, tmp_path):
    attached = show.attach(tmp_path / "metrics.jsonl")
    attached.metrics_path = tmp_path / "gone" / "metrics.jsonl"
    view = dashboard.Live(attached, None, {})
    view.button.click()
    assert not view.button.disabled and "cannot ask the run to stop" in view.line.value
    view.close([])


def test_troubles_are_seen_live_and_headless(shown, tmp_path, capsys):
    training = SimpleNamespace(total_steps=10, metrics_path=tmp_path)
    rows = [{"event": "step", "step": 1}, {"event": "checkpoint_failed", "step": 1, "reason": "<disk> full"}]
    view = dashboard.Live(training, None, {})
    view.update(rows, rows)
    assert "⚠ checkpoint not saved, at step 1 (&lt;disk&gt; full)" in view.line.value
    view.close(rows)
    assert "⚠ checkpoint not saved" in final(shown)[next(iter(final(shown)))]["text/html"]
    lines = dashboard.Lines(training, None, {})
    many = [{"event": "skipped", "step": step, "reason": "NaN"} for step in range(2, 500)]
    for i in range(len(many)):
        lines.update(many[: i + 1], many[i : i + 1])
    out = capsys.readouterr().out
    assert out == "  1 update skipped, no weight changed, at step 2 (NaN)\n"  # not 498 lines
    lines.update([*many, *rows_of(3)], [{"event": "resume", "step": 2, "complaints": []}])
    assert capsys.readouterr().out == ""
    lines.close(many)
    assert "497 updates skipped, no weight changed, last at step 499" in capsys.readouterr().out


def test_a_long_silence_is_said(shown, tmp_path, monkeypatch):
    view = dashboard.Live(SimpleNamespace(total_steps=10, metrics_path=tmp_path), None, {})
    rows = rows_of(5)
    view.update(rows, rows)
    assert "no new row" not in view.line.value
    view.heard = time.monotonic() - 125
    view.update(rows, [])
    assert "no new row for 2 min 05 s" in view.line.value
    view.close(rows)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.7, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations_are_words(seconds, words):
    assert metrics_file.duration(seconds) == words


# ---------------------------------------------------------------- panel


def piece(text: str, *words: tuple[str, float]) -> Chunk:
    """A piece of a text; `words` are (text, probability) of its tokens, where they differ from the piece."""
    other = ((text[::-1], math.log(0.25)), ("", -9.0))
    choices = [TokenLogprob(7, word, math.log(p), 2, other) for word, p in words or [(text, 0.5)]]
    return Chunk(0, text, tuple(choices), None)


@pytest.fixture
def play(shown, monkeypatch):
    """A panel over a fake model; `play.stream` is what it streams."""
    import torch

    state = SimpleNamespace(forwards=0, stream=lambda prompt, settings, stop: iter([piece("好"), piece("的")]))

    def next_logits(model, tokenizer, prompt):
        state.forwards += 1
        return torch.tensor([[1, 2]]), torch.tensor([[0.0, 1.0, 2.0, 3.0]])

    monkeypatch.setattr(panel, "PAUSE", 0.01)
    monkeypatch.setattr(panel, "FRAME", 0.0)
    monkeypatch.setattr(generate, "next_logits", next_logits)
    monkeypatch.setattr(generate, "stream_chunks", lambda model, tokenizer, *rest: state.stream(*rest))
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=64))
    names = lambda ids: [["甲", "[CLS]", "<乙>", "丙"][i] for i in ids]  # noqa: E731
    tokenizer = SimpleNamespace(convert_ids_to_tokens=names)
    state.panel = panel.Panel(model, tokenizer, "问 <b>\n")
    until(lambda: "丙" in state.panel.bars.value)
    return state


def test_text_streams_into_the_panel(play):
    play.panel.generate.click()
    until(lambda: not play.panel.generate.disabled)
    words = Page(play.panel.text.value).words
    assert words == "问 <b>\n好的"
    assert play.panel.note.value.startswith("2 characters in ")
    assert play.panel.cancel.disabled


def test_the_panel_colours_what_it_wrote_by_probability(play):
    """A sure word stays plain; the bytes of a rare character share a colour; under the mouse are the alternatives."""
    rare = piece("<🌱>", ("<", 0.9), ("\ufffd", 0.1), ("\ufffd", 0.1), ("🌱>", 0.9))
    play.stream = lambda prompt, settings, stop: iter([piece("好的", ("好", 0.9), ("的", 0.02)), rare])
    play.panel.generate.click()
    until(lambda: not play.panel.generate.disabled)
    html = play.panel.text.value
    page = Page(html)
    assert page.words == "问 <b>\n好的<🌱>" and page.open == [] and page.tags == {"div", "span"}
    assert re.search('<span title="90.0 %, number 2; likeliest: [^"]*">好</span>', html)
    assert re.search(r'<span style="background:rgba\([^"]*,0.5\)[^"]*" title="2.0 %[^"]*, ■ [^"]*">的</span>', html)
    assert re.search(r'<span style="background:rgba\([^"]*,0.18\)[^"]*" title="90.0 %[^"]*">&lt;🌱&gt;</span>', html)
    assert "probability of a character" in Page(play.panel.legend.value).words


def test_cancel_works_in_the_middle_of_a_text(play):
    def endless(prompt, settings, stop):
        while not stop.is_set():
            yield piece("字")
            time.sleep(0.005)

    play.stream = endless
    began = time.monotonic()
    play.panel.generate.click()
    assert time.monotonic() - began < 1  # the callback left the work to a thread
    assert play.panel.generate.disabled and not play.panel.cancel.disabled
    worker = play.panel.worker
    until(lambda: play.panel.text.value.count(">字<") >= 3)
    assert "▌" in play.panel.text.value
    play.panel.generate.click()  # while a text is being written, nothing new begins
    assert play.panel.worker is worker
    play.panel.cancel.click()
    worker.join(5)
    assert not worker.is_alive()
    assert play.panel.note.value.startswith("cancelled: ")
    assert "▌" not in play.panel.text.value and not play.panel.generate.disabled


def test_errors_are_told_in_the_panel(play):
    def broken(prompt, settings, stop):
        yield piece("好")
        raise ValueError("the prompt is <too> long")

    play.stream = broken
    play.panel.generate.click()
    until(lambda: not play.panel.generate.disabled)
    assert Page(play.panel.note.value).words == "the prompt is <too> long"
    assert Page(play.panel.text.value).words.endswith("好")


def test_sliders_redraw_the_bars_without_a_new_forward(play):
    before = play.panel.bars.value
    assert "&lt;乙&gt;" in before and "[CLS]" in before
    play.panel.settings["top_k"].value = 1
    until(lambda: play.panel.bars.value != before)
    assert "100.0 %" in play.panel.bars.value
    assert play.forwards == 1
    play.panel.prompt.value = "别的"
    until(lambda: play.forwards == 2)


def test_settings_are_those_of_the_sliders(play):
    got = []
    play.stream = lambda prompt, settings, stop: got.append((prompt, settings)) or iter(())
    play.panel.settings["seed"].value = 7
    play.panel.settings["temperature"].value = 0.5
    play.panel.settings["min_p"].value = 0.1
    play.panel.generate.click()
    until(lambda: not play.panel.generate.disabled)
    assert got == [("问 <b>\n", Settings(64, 0.5, 0, 0.95, 1.0, 7, min_p=0.1, logprobs=panel.ALTERNATIVES))]


def test_headless_the_panel_is_a_sentence(play, monkeypatch):
    assert "application/vnd.jupyter.widget-view+json" in play.panel.box._repr_mimebundle_()
    monkeypatch.setitem(os.environ, "HEADLESS", "1")
    assert list(play.panel.box._repr_mimebundle_()) == ["text/plain"]
