"""A dozen scenes in a real Chromium: the service's page over an engine that is held, JupyterLab over a micro run."""

import contextlib
import copy
import json
import math
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest
import torch
from displays import until as wait_until
from families import CONFIGS, V, lively
from models import LOOK_UP
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from service import FakeEngine, chat_tokenizer, in_thread, tiny_engine, tools_tokenizer

from helpers import paths
from helpers.corpus import built_in
from helpers.generate import generate, sampling
from helpers.generate.generate import TRY, TRY_FOLDER
from helpers.generate.settings import Chunk, Settings, TokenLogprob
from helpers.generate.surprisal import LEVELS
from helpers.model.eight_bits import write_packed
from helpers.serve.app import ABOUT
from helpers.show.metrics_file import read_metrics
from helpers.vocab.tokenizer import build_bpe, build_bytes, encode, load_tokenizer

api = pytest.importorskip("playwright.sync_api", reason="browsers are driven with playwright: pip install playwright")
expect = api.expect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("these scenes are played in Chromium, and none is installed", allow_module_level=True)

pytestmark = pytest.mark.slow
DEMO = runpy.run_path(str(TRY_FOLDER / "serve.py"))
CONTRAST = Path(__file__).with_name("contrast.js").read_text("utf-8")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
BEGINNING = "植物浇水"
QUESTION = "多久浇水一次？"
HTML = "<img src=x onerror=alert(1)> & <b>"


@pytest.fixture(scope="module")
def browser():
    # without a network, Chromium is not to ask for its maker's news
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    """Return a function that serves an engine and opens its page; afterwards no page may have complained."""
    with contextlib.ExitStack() as stack:
        problems, hosts = [], set()

        def open_page(engine, about=ABOUT, **context):
            url = stack.enter_context(in_thread(engine, about=about))
            page = stack.enter_context(contextlib.closing(browser.new_context(**context))).new_page()
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
            page.goto(f"{url}/")
            expect(page.locator("#model")).not_to_be_empty()
            return page

        yield open_page
    assert not problems and len(hosts) == 1, "the page calls no other host"


def set_slider(page, name, value):
    page.locator(f"[name={name}]").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', {bubbles: true})) }", value
    )


def start(page, beginning=BEGINNING, **values):
    page.fill("[name=prompt]", beginning)
    for name, value in values.items():
        set_slider(page, name, value)
    page.click("#go")


def ask(page, question=QUESTION):
    page.fill("#question", question)
    page.keyboard.press("Enter")


def finished(page, where="#results"):
    """Return the texts when no more is written."""
    expect(page.locator(where)).not_to_have_attribute("aria-busy", re.compile(".*"))
    return page.locator(f"{where} .text").all_text_contents()


def answered(page, act, where="#results"):
    """Do something that asks the service; return the texts when they are written, and what it was asked."""
    with page.expect_response(lambda response: response.request.method == "POST") as response:
        act()
    return finished(page, where), json.loads(response.value.request.post_data)


def stopped(page, engine, act, where="#results"):
    """Do something that cancels a held request; return the texts when the page has said so."""
    act()
    wait_until(lambda: engine.futures[0].cancelled())
    expect(page.locator("#status")).to_contain_text("已取消")
    return finished(page, where)


# ---- the service's page: continuations ----


def test_texts_stream_in_side_by_side_and_each_token_has_its_colour(open_page):
    engine = FakeEngine(held=True)
    page = open_page(engine, viewport={"width": 1360, "height": 850})
    start(page, n=2)
    wait_until(lambda: engine.asked)
    chances = (0.9, 0.3, 0.1, 0.02, 0.001)  # one for each level
    for letter, p in zip("甲乙丙丁戊", chances, strict=True):
        token = TokenLogprob(0, letter, math.log(p), 1, ((letter, math.log(p)),))
        engine.listeners[0](Chunk(0, letter, (token,), None))
    expect(page.locator("#results .text >> nth=0")).to_have_text(BEGINNING + "甲乙丙丁戊")
    spans = page.locator("#results .text >> nth=0 >> span")
    assert [spans.nth(i).get_attribute("class") for i in range(5)] == [f"p{i}" for i in range(len(LEVELS) + 1)]
    grounds = spans.evaluate_all("spans => spans.map(span => getComputedStyle(span).backgroundColor)")
    assert len(set(grounds)) == 5
    tops = {item.bounding_box()["y"] for item in page.locator("#results > li").all()}
    assert len(tops) == 1 and page.locator(".writing").count() == 2, "side by side, and both go on"
    engine.release()
    assert finished(page) == [f"{BEGINNING}甲乙丙丁戊，第0份", f"{BEGINNING}，第1份"]
    assert "2 份写好" in page.inner_text("#status")


def test_what_is_sent_is_what_the_sliders_say_and_equal_seeds_give_equal_texts(open_page):
    with tiny_engine() as engine:
        page = open_page(engine)
        wanted = {"n": 2, "max_tokens": 9, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2}
        page.fill("#seed", "5")
        assert page.get_by_role("slider", name="温度").count() == 1  # for those who do not see it
        first, sent = answered(page, lambda: start(page, **wanted))
        assert answered(page, lambda: page.click("#go")) == (first, sent) and len(first) == 2
    assert sent.items() >= (wanted | {"prompt": BEGINNING, "seed": 5}).items()


def test_each_view_begins_with_settings_that_suit_the_model_and_keeps_what_is_chosen(open_page):
    page = open_page(FakeEngine(tokenizer=chat_tokenizer()))
    assert page.locator("[role=log]").count() == 1  # answers are announced

    def settings():
        return [page.input_value(f"[name={name}]") for name in ("temperature", "top_k", "top_p")]

    def turn_to(view):
        page.click(f"nav [data-view={view}]")
        return settings()

    expect(page.locator("[name=temperature]")).to_have_value("0.2")
    assert turn_to("texts") == ["0.8", "30", "0.95"]
    set_slider(page, "temperature", 1.5)
    assert turn_to("chat") == ["0.2", "30", "0.95"] and turn_to("texts") == ["1.5", "30", "0.95"]


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_a_text_can_be_cancelled_and_what_was_written_stays(open_page, how):
    engine = FakeEngine(held=True)
    page = open_page(engine)
    start(page, n=2)
    wait_until(lambda: engine.asked)
    engine.write(0, 0, "好的")
    expect(page.locator("#results .text >> nth=0")).to_have_text(f"{BEGINNING}好的")
    texts = stopped(page, engine, lambda: page.click("#cancel") if how == "button" else page.keyboard.press("Escape"))
    assert texts == [f"{BEGINNING}好的", BEGINNING] and page.locator(".cut").count() == 2


def test_a_refusal_is_told_in_words(open_page):
    engine = FakeEngine(room=0)
    page = open_page(engine)
    start(page)
    expect(page.locator("#error")).to_contain_text("429 · 人太多")
    engine.room = 1
    page.evaluate("document.querySelector('[name=n]').max = 99")
    start(page, n=99)
    expect(page.locator("#error")).to_contain_text("less than or equal to 10")


# ---- a conversation ----


def test_questions_and_answers_take_turns_in_the_settings_that_were_chosen(open_page):
    with tiny_engine(chat_tokenizer()) as engine:
        page = open_page(engine)
        expect(page.locator("#form")).to_be_hidden()  # where the model holds a conversation, that comes first
        page.click("summary")
        page.fill("#system", "浇水")
        page.fill("#seed", "5")
        _, first = answered(page, lambda: ask(page), "#turns")
        turns, second = answered(page, lambda: ask(page, "春天？"), "#turns")
    assert len(turns) == 4 and turns[::2] == [QUESTION, "春天？"] and all(turns)
    asked = [{"role": "system", "content": "浇水"}, {"role": "user", "content": QUESTION}]
    assert first["messages"] == asked and first["seed"] == 5
    answer = {"role": "assistant", "content": turns[1]}
    assert second["messages"] == [*asked, answer, {"role": "user", "content": "春天？"}]


def test_an_answer_can_be_stopped_and_the_conversation_goes_on(open_page):
    engine = FakeEngine(held=True, tokenizer=chat_tokenizer())
    page = open_page(engine)
    ask(page)
    wait_until(lambda: engine.asked)
    engine.write(0, 0, "好的")
    expect(page.locator(".assistant .text")).to_have_text("好的")
    assert stopped(page, engine, lambda: page.click("#halt"), "#turns") == [QUESTION, "好的"]
    engine.held = False
    turns, _ = answered(page, lambda: ask(page, "春天？"), "#turns")
    assert turns[2:] == ["春天？", "，第0份"]


def test_the_page_looks_up_what_the_model_asks_and_asks_on(open_page):
    def call(name, arguments):
        return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)

    wishes = [call("look_up", {"plant": "绿萝", "topic": "水"}), call("add", {"a": 1, "b": 2.5}), "看土。"]
    wishes += [call("look_up", {"plant": "constructor", "topic": "name"})] * 4
    definitions = [LOOK_UP, {"type": "function", "function": {"name": "add"}}]
    about = ABOUT | {"tools": {"definitions": definitions, "table": {"绿萝": {"水": "少浇"}}}}
    page = open_page(FakeEngine(tokenizer=tools_tokenizer(), answers=wishes, window=999), about=about)
    asked = []
    page.on("request", lambda request: asked.append(json.loads(request.post_data)))
    ask(page)
    assert finished(page, "#turns") == [QUESTION, "看土。"]
    assert [each["content"] for each in asked[2]["messages"] if each["role"] == "tool"] == ["少浇", "3.5"]
    assert asked[2]["tools"] == definitions and page.locator("#turns details").count() == 2
    ask(page)
    assert finished(page, "#turns")[2:] == [QUESTION, wishes[-1]], "after three calls it has to answer"
    expect(page.locator("#turns details p").last).to_contain_text("→ 错误：表里没有")


# ---- any text, any screen ----


def test_a_text_is_shown_as_text(open_page):
    page = open_page(FakeEngine(tokenizer=chat_tokenizer()))
    turns, _ = answered(page, lambda: ask(page, HTML), "#turns")
    page.click("nav [data-view=texts]")
    texts, _ = answered(page, lambda: start(page, HTML, n=1))
    assert turns[0] == HTML and texts[0].startswith(HTML)
    assert page.locator("#results img, #turns img").count() == 0


def test_a_phone_needs_no_sideways_scrolling_and_all_words_are_readable_in_light_and_dark(open_page):
    page = open_page(FakeEngine(tokenizer=chat_tokenizer()), **PHONE)
    long = "很长的一行" * 10 + "a" * 40
    answered(page, lambda: ask(page, long), "#turns")
    for view in ("chat", "texts"):
        page.click(f"nav [data-view={view}]")
        if view == "texts":
            answered(page, lambda: start(page, long, n=2))
        page.evaluate("complain('错误', 'an error')")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRAST, "body") == []
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (scheme == "dark")


# ---- the page without a server ----

ODD = [
    "",
    " ",
    "🪴👨‍👩‍👧龘",
    "<bos><eos> <0x41>",
    "café naïve",
    "\u200b\ufeff\n\n\t",
    "ﬁ①㍿",
    "\U0010ffff\ue0fa",
    "1+1=2？！",
]


@pytest.fixture
def open_static(browser):
    """Return a function that opens the page of a static folder; afterwards it has asked its host only, by GET."""
    with contextlib.ExitStack() as stack:
        asked = set()

        def open_static(files, **context):
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(DEMO["Handler"], files=files)))
            threading.Thread(target=server.serve_forever).start()
            stack.callback(server.shutdown)
            page = stack.enter_context(contextlib.closing(browser.new_context(**context))).new_page()
            page.on("request", lambda request: asked.add(request.url.split("/")[2] + request.method))
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
            return page

        yield open_static
    assert len(asked) == 1 and asked.pop().endswith("GET")


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNS_DIR", str(tmp_path_factory.mktemp("runs")))
        return generate.load(TRY, "chat")


def compute(page, body, *given):
    """Run JavaScript with gpt.js as `gpt`, the model's folder as `folder`, and the given values as `given`."""
    load = """async (given) => {
        const gpt = await import("./gpt.js");
        const folder = async (name) => (await fetch(name)).json();
        const weights = async () => gpt.readTensors(await (await fetch("model.safetensors")).arrayBuffer());"""
    return page.evaluate(load + body + "}", given)


@pytest.mark.parametrize("kind", ["words", "bpe", "bytes"])
def test_the_browser_cuts_two_thousand_texts_as_python_does(open_static, tmp_path, kind):
    texts = [each.text for each in built_in.draw_documents(1000)]
    made = {"bpe": lambda: build_bpe(texts, 1500), "bytes": build_bytes, "words": lambda: load_tokenizer(TRY_FOLDER)}[
        kind
    ]()
    (tmp_path / "tokenizer.json").write_text(made.backend_tokenizer.to_str(), "utf-8")
    page = open_static(DEMO["demo_files"]() | {"tokenizer.json": tmp_path / "tokenizer.json"})
    dice = random.Random(0)
    letters = sorted({*"".join(texts + ODD)})
    texts += ODD + ["".join(dice.choices(letters, k=dice.randrange(1, 30))) for _ in range(1000)]
    ids, back = compute(page, """
        const tokenizer = new gpt.Tokenizer(await folder("tokenizer.json"));
        const ids = given[0].map((text) => tokenizer.encode(text));
        const text = (all, written = new gpt.Detokenizer(tokenizer)) => all.map((id) => written.push(id)).join("");
        return [ids, ids.map((all) => text(all))];""", texts)  # fmt: skip
    assert ids == [encode(made, text) for text in texts]
    assert back == texts


@pytest.mark.parametrize("name", ["trained", *(name for name in CONFIGS if "moe" not in name and "window" not in name)])
def test_the_browser_computes_the_logits_of_every_dense_family(open_static, tmp_path, tried, name):
    net = tried[0] if name == "trained" else lively(name).float()
    write_packed(tmp_path, net, {}, exact=True)
    page = open_static(DEMO["demo_files"]() | {file.name: file for file in tmp_path.iterdir()})
    ids = torch.randint(V, (1, 40), generator=torch.Generator().manual_seed(1))
    rows = compute(page, """
        const { config } = await folder("model.json");
        const model = new gpt.GPT(config, await weights());
        const cache = new gpt.Cache(config, 40);
        return given[0].map((id) => [...model.step(id, cache)]);""", ids[0].tolist())  # fmt: skip
    exact = copy.deepcopy(net).double()(ids)[0]
    own_error = float((net(ids)[0] - exact).abs().max())  # of fp32: the small models' weights are far too large
    torch.testing.assert_close(torch.tensor(rows), exact, atol=max(1e-4, 3 * own_error), rtol=0, check_dtype=False)


def test_the_browsers_filters_leave_what_pythons_leave(open_static):
    page, dice = open_static(DEMO["demo_files"]()), torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(50, 200, generator=dice, dtype=torch.float64)
    for settings in (
        {"temperature": 0.7}, {"temperature": 0}, {"top_k": 5}, {"top_p": 0.8}, {"top_p": 0.0}, {"min_p": 0.1},
        {"repetition_penalty": 1.5}, {"temperature": 1.4, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    ):  # fmt: skip
        found = compute(page, """
            const [logits, seen, settings] = given;
            return logits.map((row) => {
                const p = Array(row.length).fill(0);
                const { left, p: shares, gone } = gpt.filtered(row, seen, settings);
                left.forEach((id, i) => (p[id] = shares[i]));
                if (row.some((_, id) => (gone(id) === null) !== left.includes(id))) throw Error("gone");
                return p;
            });""", logits.tolist(), [3, 7, 7], settings)  # fmt: skip
        more = {} if settings.get("top_p") != 0.0 else {"temperature": 0.0}
        wanted = sampling.apply_filters(logits, torch.tensor([[3, 7, 7]] * 50), **settings | more).softmax(-1)
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, atol=1e-9, rtol=1e-6)


def test_two_hundred_texts_of_the_browser_are_pythons_also_beyond_the_window(open_static, tried):
    page, (model, tokenizer) = open_static(DEMO["demo_files"]()), tried
    drawn = enumerate(built_in.draw_documents(190, seed=5))
    prompts = [each.text[: 3 + n % 40] for n, each in drawn] + ODD + ["绿萝" * 99]
    for some, length in ((prompts[:3] + prompts[-1:], 150), (prompts, 12)):
        texts = page.evaluate("""async ([prompts, length]) => {
            const texts = [];
            for (const prompt of prompts) {
                let text = prompt;
                const body = { prompt, n: 1, max_tokens: length, temperature: 0, seed: 0 };
                for await (const { choices } of askWorker("v1/completions", body))
                    for (const each of choices) text += each.text;
                texts.push(text);
            }
            return texts;
        }""", [some, length])  # fmt: skip
        wanted = generate.generate_batch(model, tokenizer, some, Settings(max_new_tokens=length, temperature=0.0))
        assert texts == [each.text for each in wanted]


CANCEL_AT_THE_FIRST_TOKEN = """() => new MutationObserver((_, observer) => {
    if (!document.querySelector("#results .text span")) return;
    observer.disconnect();
    document.querySelector("#cancel").click();
}).observe(document.querySelector("#results"), { childList: true, subtree: true })"""


def test_without_a_server_the_page_answers_colours_and_stops(open_static):
    page = open_static(DEMO["demo_files"](), **PHONE)
    ask(page, "绿萝怎么浇水？")
    assert len(finished(page, "#turns")) == 2
    ask(page, "那冬天呢？")
    assert len(finished(page, "#turns")) == 4
    ask(page, "水" * 300)
    expect(page.locator("#error")).to_contain_text("问题太长")
    page.click("nav [data-view=texts]")
    page.evaluate(CANCEL_AT_THE_FIRST_TOKEN)  # a click from here could come after the last
    start(page, n=3, max_tokens=200)
    expect(page.locator("#status")).to_contain_text("已取消，已写的留着")
    assert all(text.startswith(BEGINNING) for text in finished(page))
    start(page, n=2, max_tokens=20, top_k=2)
    finished(page)
    page.locator("#results .text >> nth=0 >> span >> nth=1").focus()
    expect(page.locator("#tip .chosen")).to_have_count(1)
    expect(page.locator("#tip .removed").first).to_contain_text("top-")


# ---- JupyterLab ----

TINY = {"n_embd": 32, "n_layer": 2, "n_head": 2, "batch_size": 8, "gradient_accumulation": 1, "log_step": 5}
LONG = {**TINY, "epochs": 400, "eval_step": 50, "sample_step": 200, "checkpoint_step": 50, "warmup_steps": 4}
MINUTES = 300_000  # milliseconds: a slow machine gets time
ENDED = "all cells have run"


def notebook_copy(stage, folder, **parameters):
    """Write a copy of a notebook with other parameters, without outputs, and with a last cell that says it has run."""
    book = parameterize_notebook(load_notebook_node(str(paths.notebook(stage))), parameters)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    book.cells.append(nbformat.v4.new_code_cell(f"print('{ENDED[:3]}' + '{ENDED[3:]}')"))
    nbformat.write(book, folder / f"{stage}.ipynb")


def write_settings(folder):
    """Write JupyterLab's own settings: all cells in the page at all times, and no question about news."""
    for plugin, values in (
        ("apputils-extension/notification", {"fetchNews": "false"}),
        ("notebook-extension/tracker", {"windowingMode": "none"}),
    ):
        file = folder / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Start JupyterLab on two notebooks of a micro run; return its address."""
    folder = tmp_path_factory.mktemp("lab")
    environment = {name: value for name, value in os.environ.items() if name not in ("HEADLESS", "TQDM_DISABLE")}
    environment |= {f"JUPYTER{kind}_DIR": str(folder / kind) for kind in ("_CONFIG", "_DATA", "LAB_WORKSPACES")}
    environment |= {"RUNS_DIR": str(folder / "runs"), "PYTHONPATH": str(paths.repo_root())}
    environment |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "PYTHONUNBUFFERED": "1"}
    write_settings(folder / "settings")
    command = [sys.executable, "-m", "helpers.run", "corpus", "vocab", "tokenize", "train", "--run", "sample"]
    headless = {"HEADLESS": "1", "TQDM_DISABLE": "1"}
    subprocess.run([*command, "--preset", "micro"], env=environment | headless, check=True, capture_output=True)
    (folder / "runs" / "lab").mkdir()
    for room in ("corpus", "vocab", "tokens"):
        (folder / "runs" / "lab" / room).symlink_to(folder / "runs" / "sample" / room)
    (folder / "notebooks").mkdir()
    notebook_copy("generate", folder / "notebooks", run="sample", samples=2, max_new_tokens=10, questions=8)
    notebook_copy("train", folder / "notebooks", run="lab", **LONG)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root",
               f"--ServerApp.root_dir={folder / 'notebooks'}", "--IdentityProvider.token=token"]  # fmt: skip
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+/lab", line) for line in server.stderr)))
    threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNS_DIR", str(folder / "runs"))
        yield found[0]
    server.terminate()  # it ends its kernels, too
    server.wait()


@pytest.fixture
def run_all(lab, browser):
    """Return a function that opens a notebook and runs all of its cells; afterwards, no page may have failed."""
    errors = []
    with contextlib.closing(browser.new_context(viewport={"width": 1400, "height": 1000})) as context:

        def connected(page, stage):
            sessions = page.request.get(f"{lab.removesuffix('/lab')}/api/sessions?token=token").json()
            kernels = [session["kernel"] for session in sessions if session["path"] == f"{stage}.ipynb"]
            return any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in kernels)

        def run_all(stage):
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"{lab}/tree/{stage}.ipynb?token=token&reset")
            while not connected(page, stage):  # the page shows "idle" before it has its kernel, too
                page.wait_for_timeout(200)
            menu(page, "Run", "Run All Cells")
            return page

        yield run_all
    assert not errors


def menu(page, bar, *entries):
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{bar}$")).click()
    for entry in entries:
        page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{entry}$")).last.click()


def has_run(page):
    """Wait until the last cell has run; an error would have ended the others before."""
    said = page.locator(".jp-OutputArea-output", has_text=re.compile(f"^{ENDED}"))
    failure = page.locator("[data-mime-type='application/vnd.jupyter.error']")
    expect(said.or_(failure).first).to_be_attached(timeout=MINUTES)
    assert failure.all_text_contents() == []


@pytest.mark.outside
@pytest.mark.timeout(1800)
def test_the_dashboards_stop_button_ends_the_training_and_the_cells_after_it_run(run_all):
    page = run_all("train")
    stop = page.locator(".jupyter-button", has_text="Stop")
    expect(stop).to_be_visible(timeout=MINUTES)
    file = paths.room("lab", "train") / "metrics.jsonl"
    wait_until(lambda: file.is_file() and len(read_metrics(file)) > 10, 300)
    stop.click()
    has_run(page)
    expect(page.get_by_text(re.compile(r"^stopped at step [\d,]+ of [\d,]+"))).to_be_visible()
    assert stop.count() == 0 and read_metrics(file)[-1]["reason"] == "stopped"


@pytest.mark.outside
@pytest.mark.timeout(1800)
def test_the_panel_follows_its_sliders_and_writes_and_is_readable_in_light_and_dark(run_all):
    page = run_all("generate")
    has_run(page)
    panel = page.locator(".jp-CodeCell", has_text="show.sampling_panel(").locator(".widget-vbox").first
    bars = panel.locator(".widget-html", has_text="before the filters")
    before = bars.inner_text()
    panel.locator(".widget-inline-hbox", has_text="temperature").locator(".noUi-handle").focus()
    page.keyboard.press("End")
    expect(bars).not_to_have_text(before)
    panel.locator("textarea").fill("绿萝")
    panel.get_by_role("button", name="Generate").click()
    expect(panel.get_by_text(re.compile(r"\d+ characters in"))).to_be_visible(timeout=MINUTES)
    assert panel.locator("blockquote").inner_text().startswith("绿萝")
    assert page.evaluate(CONTRAST, ".jp-OutputArea-output") == []  # every word of ours
    menu(page, "Settings", "Theme", "JupyterLab Dark")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false", timeout=MINUTES)
    assert page.evaluate(CONTRAST, ".jp-OutputArea-output") == []
