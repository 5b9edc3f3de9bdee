"""The page in a real browser, against the real service: what a person sees, by mouse, by keyboard and on a phone."""

import asyncio
import contextlib
import json
import re
import shutil
import threading
import time

import aiohttp
import pytest
import torch
from aiohttp import web
from service import wait_until

from helpers.generate.surprisal import level
from helpers.serve import server
from helpers.serve.app import make_app
from helpers.serve.engine import Engine
from helpers.serve.limits import Limits
from helpers.vocab import tokenizer
from helpers.vocab.chat import add_template

pytestmark = pytest.mark.slow
api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("the page is tested in Chromium, and none is installed", allow_module_level=True)

KEY = "a-key-of-forty-characters-or-so-in-all-00"
BEGINNING = "植物浇水"


class PacedEngine(Engine):
    """Takes a rest at every chunk of text, so that a browser can see the text grow; remembers its futures."""

    rest = 0.0  # seconds
    futures: list = []

    def submit(self, prompt, settings, samples=1, *, ids=None, listener=None):
        def paced(chunk):
            time.sleep(self.rest)
            listener(chunk)

        future = super().submit(prompt, settings, samples, ids=ids, listener=listener and paced)
        self.futures.append(future)
        return future


def tiny():
    """Return a random model that writes whole characters without end, sure of some and unsure of others."""
    from transformers import GPT2Config, GPT2LMHeadModel

    made = tokenizer.build_words({"植物": 3, "浇水": 2}, "你好，植物浇水多久一次？春天。\n")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(made), n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=made.bos_token_id,
        eos_token_id=made.eos_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(30)[0] = 0  # peaks in the distribution
        never = [made.eos_token_id] + [i for i in range(len(made)) if "<0x" in made.convert_ids_to_tokens(i)]
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[never, 0] = -10
        model.transformer.ln_f.bias[0] = 10  # -100 on the logits of the document's end and of bytes
    return model, made


class Site:
    """The service in a thread of its own, as its users meet it: open, behind a key, behind a proxy's prefix."""

    def __init__(self):
        self.engine = PacedEngine(*tiny()).start()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        apps = [make_app(self.engine), make_app(self.engine, api_key=KEY)]
        add_template(self.engine.tokenizer)  # an application looks for it once, when it is made
        apps.append(make_app(self.engine, Limits(max_messages=9), name="<b>园丁</b>"))
        started = [self.run(server.start_server(app)) for app in apps]
        self.runners = [runner for runner, _ in started]
        self.url, self.locked_url, self.chat_url = (url for _, url in started)
        self.prefixed_url = self.run(self._proxy()) + "/deep/inside"

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    async def _proxy(self):
        """Serve what a reverse proxy serves that knows the page under a longer address."""

        async def forward(request):
            data, headers = await request.read(), {"Content-Type": request.content_type}
            path = self.url + "/" + request.match_info["path"]
            async with aiohttp.request(request.method, path, data=data, headers=headers) as inner:
                return web.Response(status=inner.status, body=await inner.read(), content_type=inner.content_type)

        app = web.Application()
        app.router.add_route("*", "/deep/inside/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.proxy = runner
        return server.url("127.0.0.1", runner.addresses[0][1])

    def close(self):
        self.engine.close(cancel=True)
        for runner in self.runners:
            self.run(server.stop_server(runner))
        self.run(self.proxy.cleanup())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def site():
    made = Site()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(site, browser):
    """Return a function that opens the page; at the end no page may have complained or have called another host."""
    opened = []

    def open_page(url=None, rest=0.0, complaints=(), **context):
        context = browser.new_context(**context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        problems, hosts = [], set()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        opened.append((context, problems, hosts, complaints))
        site.engine.rest = rest
        site.engine.futures.clear()
        page.goto((url or site.url) + "/")
        page_until(page, "document.getElementById('model').textContent !== ''")
        return page

    yield open_page
    for context, problems, hosts, complaints in opened:
        context.close()
        assert [words for words in problems if not any(known in words for known in complaints)] == []
        assert len(hosts) == 1
    wait_until(lambda: site.engine.rows == site.engine.waiting == 0)


def page_until(page, condition, seconds=30.0):
    """Wait until a JavaScript expression is true; playwright's own way is forbidden by the page's CSP."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"it never came true: {condition}"
        page.wait_for_timeout(20)


def set_slider(page, name, value):
    page.locator(f"[name={name}]").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', {bubbles: true})) }", value
    )


def start(page, beginning=BEGINNING, **values):
    page.fill("[name=prompt]", beginning)
    for name, value in values.items():
        set_slider(page, name, value)
    page.click("#go")


def finished(page):
    page_until(page, "!document.getElementById('results').hasAttribute('aria-busy')")
    return texts(page)


def texts(page):
    return page.locator("#results .text").all_text_contents()


# ---- five continuations ----


def test_five_continuations_stream_in_side_by_side(open_page):
    page = open_page(rest=0.004, viewport={"width": 1360, "height": 850})
    page.fill("#seed", "7")
    start(page, max_tokens=40)
    page_until(page, "[...document.querySelectorAll('.text')].every(text => text.children.length > 3)")
    early = texts(page)
    assert page.get_attribute("#results", "aria-busy") == "true"
    assert page.locator(".writing").count() == 5
    late = finished(page)
    assert len(early) == len(late) == len(set(late)) == 5
    for before, after in zip(early, late, strict=True):
        assert after.startswith(before) and len(after) > len(before) > len(BEGINNING)
        assert after.startswith(BEGINNING)
    tops = {box["y"] for box in (item.bounding_box() for item in page.locator("#results > li").all())}
    assert len(tops) == 1, "side by side: in one line"
    status = page.inner_text("#status")
    assert "5 份写好" in status and "5 written" in status
    assert page.locator(".writing, .cut").count() == 0
    assert "到了长度" in page.inner_text(".foot >> nth=0")


def test_equal_seeds_give_equal_texts_and_a_random_one_can_be_kept(open_page):
    page = open_page()
    page.fill("#seed", "7")
    start(page, max_tokens=12)
    first = finished(page)
    page.click("#go")
    assert finished(page) == first
    page.fill("#seed", "")
    page.click("#go")
    second = finished(page)
    assert second != first
    page.click("#keep")  # the seed that was drawn
    assert page.input_value("#seed") in page.inner_text("#status")
    page.click("#go")
    assert finished(page) == second


def test_what_is_sent_is_what_the_sliders_say(open_page):
    page = open_page()
    wanted = {"n": 2, "max_tokens": 3, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05}
    wanted |= {"repetition_penalty": 1.2}
    page.fill("#seed", "5")
    with page.expect_request("**/v1/completions") as sent:
        start(page, **wanted)
    finished(page)
    body = json.loads(sent.value.post_data)
    assert body.items() >= (wanted | {"prompt": BEGINNING, "seed": 5, "stream": True}).items()
    assert page.locator(".sliders output").all_inner_texts()[:5] == ["2", "3", "0.5", "20", "0.9"]


def test_the_sliders_end_where_the_services_limits_are(open_page, site):
    page = open_page()
    schema = page.request.get(site.url + "/openapi.json").json()["components"]["schemas"]["CompletionRequest"]
    rules = {name: rule.get("oneOf", [rule])[0] for name, rule in schema["properties"].items()}
    for name in ("n", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        for end, limit in (("10000", "maximum"), ("-10000", "minimum")):
            set_slider(page, name, end)
            value = float(page.input_value(f"[name={name}]"))
            assert rules[name]["minimum"] <= value <= rules[name]["maximum"], (name, limit)
    assert int(page.get_attribute("[name=prompt]", "maxlength")) == rules["prompt"]["maxLength"]
    start(page, n=10_000, max_tokens=1, temperature=10_000, top_k=10_000, top_p=0, repetition_penalty=10_000)
    assert len(finished(page)) == 10  # the service took it
    assert page.is_hidden("#error")


def test_a_text_is_shown_as_text(open_page):
    """A beginning that looks like HTML stays what it is."""
    page = open_page()
    beginning = "<img src=x onerror=alert(1)> & \n第二行"
    start(page, beginning, n=1, max_tokens=2)
    assert finished(page)[0].startswith(beginning)
    assert page.locator("#results img").count() == 0


# ---- cancel and copy ----


@pytest.mark.parametrize("how", ["button", "Escape", "closing the page"])
def test_cancelling_frees_the_engine(open_page, site, how):
    page = open_page(rest=0.004)
    start(page, max_tokens=500)
    page_until(page, "document.querySelectorAll('.text span').length > 20")
    assert site.engine.rows == 5
    if how == "button":
        page.click("#cancel")
    elif how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.close()
    wait_until(lambda: site.engine.rows == 0)
    assert site.engine.futures[-1].cancelled()
    if how != "closing the page":
        assert "已取消" in page.inner_text("#status")
        assert page.locator(".cut").count() == 5 and page.locator(".text span").count() > 20
        assert page.is_disabled("#cancel")


def test_a_new_request_takes_over_from_the_one_under_way(open_page, site):
    page = open_page(rest=0.004)
    start(page, max_tokens=500)
    page_until(page, "document.querySelectorAll('.text span').length > 5")
    start(page, "春天", max_tokens=5)
    assert [text[:2] for text in finished(page)] == ["春天"] * 5
    wait_until(lambda: site.engine.rows == 0)
    assert site.engine.futures[0].cancelled() and not site.engine.futures[1].cancelled()


def test_a_continuation_can_be_copied(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    start(page, n=2, max_tokens=9)
    wanted = finished(page)[1]
    page.click("#results li >> nth=1 >> button")
    page_until(page, "document.getElementById('status').textContent.includes('Copied')")
    assert "已复制" in page.inner_text("#results li >> nth=1 >> button")
    assert page.evaluate("navigator.clipboard.readText()") == wanted


def test_without_a_clipboard_the_text_is_selected(open_page):
    """So it is on a page that came over plain http from another machine."""
    page = open_page()
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    start(page, n=1, max_tokens=9)
    wanted = finished(page)[0]
    page.click("#results button")
    page_until(page, "getSelection().toString() !== ''")
    assert page.evaluate("getSelection().toString()").strip() == wanted.strip()
    page_until(page, "document.getElementById('status').textContent.includes('Ctrl+C')")


# ---- probabilities ----


def test_each_token_has_the_colour_of_its_probability(open_page):
    page = open_page()
    page.fill("#seed", "1")
    start(page, max_tokens=30, temperature=2)
    finished(page)
    spans = page.locator(".text span").evaluate_all(
        "spans => spans.map(span => [span.textContent, Number(span.dataset.p), span.classList[0]])"
    )
    assert len(spans) > 50 and all(text for text, _, _ in spans)
    for text, p, name in spans:
        assert 0 < p <= 1 and name == f"p{level(p ** (1 / len(text)))}", "as in the notebooks"
    assert len({name for _, _, name in spans}) > 2
    colours = page.locator("#legend span").evaluate_all("spans => spans.map(s => getComputedStyle(s).backgroundColor)")
    assert len(set(colours)) == 5
    seen = re.compile(r"[!-~\u4e00-\u9fff]")  # a control character shows nothing to point at
    span = page.locator(".text .p4").filter(has_text=seen).first
    assert span.evaluate("span => getComputedStyle(span).backgroundColor") == colours[4]
    page.click("#colours")
    assert span.evaluate("span => getComputedStyle(span).backgroundColor") == "rgba(0, 0, 0, 0)"


def test_pointing_at_a_token_tells_its_rivals(open_page):
    page = open_page()
    page.fill("#seed", "1")
    start(page, n=1, max_tokens=20, temperature=2)
    finished(page)
    seen = re.compile(r"[!-~\u4e00-\u9fff]")  # a control character shows nothing to point at
    span = page.locator(".text .p4").filter(has_text=seen).first
    span.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    rows = tip.locator("li").all_inner_texts()
    assert 5 <= len(rows) <= 6, "the five likeliest, and the one that was drawn"
    shares = [float(row.split("\n")[-1].strip("<% ")) for row in rows]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 100.5
    assert tip.locator(".chosen").count() == 1
    page.mouse.move(1, 1)
    assert tip.is_hidden()


def test_a_character_of_several_byte_pieces_is_one_part(open_page):
    page = open_page()
    parts = page.evaluate(
        "([text, logprobs]) => cutAtTokens(text, logprobs).map(({ text, p }) => [text, Math.log(p)])",
        ["好龘。停", {"tokens": ["好", "<0xE9>", "<0xBE>", "<0x98>", "。", "停止"], "token_logprobs": [-1] * 6}],
    )
    assert [text for text, _ in parts] == ["好", "龘", "。", "停"]
    assert [round(p, 6) for _, p in parts] == [-1, -3, -1, -1]


# ---- keyboard, phone, dark ----


def focused(page):
    return page.evaluate(
        "() => { const e = document.activeElement; return e.name || e.id || e.className.split(' ')[0] || e.tagName }"
    )


def test_everything_works_from_the_keyboard(open_page, site):
    page = open_page(rest=0.004, permissions=["clipboard-read", "clipboard-write"])
    assert focused(page) == "prompt"
    page.keyboard.press("Control+A")
    page.keyboard.type(BEGINNING)
    page.keyboard.press("Control+Enter")
    page_until(page, "document.querySelectorAll('.text span').length > 10")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert focused(page) == "cancel"
    page.keyboard.press("Enter")
    wait_until(lambda: site.engine.rows == 0, 2)
    page_until(page, "document.activeElement.id === 'go'")  # a disabled button holds no focus
    order = []
    while "colours" not in order:
        page.keyboard.press("Tab")
        order.append(focused(page))
        if order[-1] == "n":
            page.keyboard.press("Home")
            page.keyboard.press("ArrowRight")
        if order[-1] == "max_tokens":
            page.keyboard.press("Home")
            for _ in range(9):
                page.keyboard.press("ArrowRight")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "focus is seen"
        assert len(order) < 20
    sliders = ["n", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"]
    assert order == ["SUMMARY", *sliders, "keep", "seed", "colours"]
    site.engine.rest = 0
    page.keyboard.press("Control+Enter")
    written = finished(page)
    assert len(written) == 2
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[...document.activeElement.parentElement.children].indexOf(document.activeElement)") == 3
    assert page.get_attribute(":focus", "aria-describedby") == "tip" and page.is_visible("#tip")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")
    page.keyboard.press("Tab")  # one stop a text, however long it is
    page.keyboard.press("Enter")
    page_until(page, "document.getElementById('status').textContent.includes('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == written[0]


def test_only_begin_and_end_are_announced(open_page):
    """A screen reader that reads every token aloud would drown its user."""
    page = open_page(rest=0.002)
    page.evaluate(
        """() => { window.said = [];
        const note = () => { const words = document.getElementById('status').textContent; if (words) said.push(words) };
        new MutationObserver(note).observe(document.getElementById('status'), {childList: true, subtree: true}) }"""
    )
    start(page, max_tokens=20)
    finished(page)
    assert [words[:2] for words in page.evaluate("said")] == ["正在", "5 "]
    assert page.locator("[aria-live], [role=status], [role=alert]").count() == 2


# ---- a conversation ----

QUESTION = "多久浇水一次？"


@pytest.fixture
def open_chat(open_page, site):
    return lambda **more: open_page(site.chat_url, **more)


def send(page, text=QUESTION):
    page.fill("#question", text)
    page.keyboard.press("Enter")


def answered(page):
    page_until(page, "!document.getElementById('turns').hasAttribute('aria-busy')")
    return page.locator("#turns .text").all_text_contents()


def test_a_conversation_comes_first_where_the_model_holds_one(open_page, open_chat):
    page = open_chat()
    assert page.is_visible("#conversation") and page.is_hidden("#form") and page.is_hidden("#results")
    assert focused(page) == "question"
    assert "<b>园丁</b>" in page.inner_text("#model")
    page.click("nav [data-view=texts]")
    assert page.is_hidden("#conversation") and focused(page) == "prompt"
    start(page, n=2, max_tokens=5)
    assert len(finished(page)) == 2 and "2 份写好" in page.inner_text("#status")
    page.click("nav [data-view=chat]")
    assert page.is_visible("#conversation") and page.get_attribute("nav button >> nth=0", "aria-pressed") == "true"
    other = open_page()  # without a template there is nothing to choose
    assert other.is_hidden("#conversation") and other.is_hidden("nav")


def test_questions_and_answers_take_turns(open_chat):
    page = open_chat(rest=0.01)
    page.click("summary")
    page.fill("#system", "浇水")
    page.fill("#seed", "5")
    set_slider(page, "temperature", 0.5)
    with page.expect_request("**/v1/chat/completions") as sent:
        send(page)
    page_until(page, "document.querySelectorAll('#turns .assistant.writing .text')[0]?.textContent.length > 3")
    early = page.inner_text(".assistant .text")
    first = answered(page)
    assert first[0] == QUESTION and first[1].startswith(early) and len(first[1]) > len(early)
    assert page.input_value("#question") == "" and focused(page) == "question"
    body = json.loads(sent.value.post_data)
    system = {"role": "system", "content": "浇水"}
    assert body["messages"] == [system, {"role": "user", "content": QUESTION}]
    assert (body["seed"], body["temperature"], body["stream"]) == (5, 0.5, True)
    assert not {"n", "max_tokens", "prompt"} & body.keys()
    with page.expect_request("**/v1/chat/completions") as sent:
        page.fill("#question", "春天？")
        page.click("#send")
    answered(page)
    told = json.loads(sent.value.post_data)["messages"]
    assert told == [
        *body["messages"], {"role": "assistant", "content": first[1]}, {"role": "user", "content": "春天？"},
    ]  # fmt: skip
    assert "种子 5" in page.inner_text("#status") and "seed 5" in page.inner_text("#status")
    assert "到了长度" in page.inner_text(".assistant .foot >> nth=0")  # this model never ends a turn: the window does


def test_shift_enter_breaks_a_line_and_an_input_method_keeps_its_enter(open_chat, site):
    page = open_chat()
    page.fill("#question", "你")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("好")
    assert page.input_value("#question") == "你\n好"
    for event in ("{isComposing: true}", "{keyCode: 229}"):  # Safari tells it by the code
        page.locator("#question").evaluate(
            f"e => e.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true, ...{event}}}))"
        )
    assert page.input_value("#question") == "你\n好" and site.engine.futures == []
    page.keyboard.press("Enter")
    assert answered(page)[0] == "你\n好"
    for nothing in ("", "  \n "):
        send(page, nothing)
    assert len(site.engine.futures) == 1


def test_an_answer_can_be_had_anew_also_with_a_seed_that_is_kept(open_chat):
    page = open_chat()
    page.click("summary")
    page.fill("#seed", "5")
    send(page)
    first = answered(page)
    send(page)
    third = answered(page)
    assert page.locator(".again:visible").count() == 1
    page.click(".again:visible")
    anew = answered(page)
    assert anew[:3] == third[:3] == [*first, QUESTION] and anew[3] != third[3] and len(anew) == 4


def test_an_earlier_question_can_be_edited(open_chat):
    page = open_chat()
    for _ in range(2):
        send(page)
        before = answered(page)
    page.click(".change >> nth=0")
    assert page.input_value(".editing textarea") == QUESTION and page.is_hidden(".editing .text")
    page.keyboard.press("Escape")
    assert answered(page) == before and page.locator(".editing").count() == 0 and focused(page) == "question"
    page.click(".change >> nth=0")
    page.fill(".editing textarea", "春天？")
    page.keyboard.press("Enter")
    after = answered(page)
    assert after[0] == "春天？" and len(after) == 2  # what followed is gone


@pytest.mark.parametrize("how", ["button", "Escape", "new"])
def test_an_answer_can_be_stopped(open_chat, site, how):
    page = open_chat(rest=0.1)
    send(page)
    page_until(page, "document.querySelector('.assistant .text')?.textContent.length > 2")
    send(page, "春天？")  # not yet
    assert page.input_value("#question") == "春天？"
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.click("#halt" if how == "button" else "#new")
    wait_until(lambda: site.engine.rows == 0)
    assert site.engine.futures[-1].cancelled()
    texts = answered(page)
    if how == "new":
        assert texts == [] and page.inner_text("#status") == ""
    else:
        assert len(texts[1]) > 2 and page.locator(".cut").count() == 1 and "已取消" in page.inner_text("#status")
        site.engine.rest = 0
        page.keyboard.press("Escape")
        page.focus("#question")
        page.keyboard.press("Enter")
        assert len(answered(page)) == 4  # the conversation goes on after what was written


def test_what_was_left_out_is_said(open_chat):
    """By the server, where the context is full; by the page, where a request has no place for more messages."""
    page = open_chat()
    for _ in range(6):
        with page.expect_request("**/v1/chat/completions") as sent:
            send(page)
        answered(page)
    assert len(json.loads(sent.value.post_data)["messages"]) == 9  # of eleven
    out = page.locator("#turns > .out").count()
    assert out == 10  # this model's answers fill its window
    assert f"最早的 {out} 条" in page.inner_text("#left-out") and f"oldest {out} messages" in page.inner_text(
        "#left-out"
    )
    page.click("#new")
    assert page.is_hidden("#left-out")


def test_a_refused_question_goes_back_to_where_it_was_typed(open_chat):
    page = open_chat(complaints=["status of 400", "ERR_CONNECTION_REFUSED"])
    send(page)
    before = answered(page)
    send(page, "春" * 100)
    page.wait_for_selector("#error", state="visible")
    assert "ask in fewer words" in page.inner_text("#error")
    assert answered(page) == before and page.input_value("#question") == "春" * 100
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    page.click(".again:visible")
    page_until(page, "document.getElementById('error').textContent.includes('服务器没有回答')")
    assert answered(page) == before  # the old answer is back


def test_a_conversation_is_shown_as_text(open_chat):
    page = open_chat()
    html = "<img src=x onerror=alert(1)>"
    line = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": html}, "finish_reason": None}]}
    end = {"choices": [{"index": 0, "delta": {"content": "<script>1</script>"}, "finish_reason": "stop"}]}
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in (line, end)) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    send(page, html)
    assert answered(page) == [html, html + "<script>1</script>"]
    assert page.locator("#turns img, #turns script, #model b").count() == 0


def test_a_conversation_works_from_the_keyboard(open_chat):
    page = open_chat(permissions=["clipboard-read", "clipboard-write"])
    page.keyboard.type("春天")
    page.keyboard.press("Enter")
    texts = answered(page)
    for wanted in ("again", "copy"):
        page.keyboard.press("Shift+Tab")
        assert focused(page) == wanted
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page_until(page, "document.getElementById('status').textContent.includes('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == texts[1]
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "change"
    page.keyboard.press("Enter")
    page.keyboard.type("，多久")
    page.keyboard.press("Enter")
    assert answered(page)[0] == "春天，多久"


def test_a_conversation_fits_a_phone_and_is_readable_in_light_and_dark(open_chat):
    page = open_chat(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for _ in range(2):
        send(page)
        answered(page)
    page.evaluate("new Turn('user', '很长的一行'.repeat(40) + 'a'.repeat(200))")
    page.locator(".change >> nth=0").tap()
    page.locator("summary").tap()
    page.evaluate("complain('错误', 'an error')")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = page.locator("body *").evaluate_all(
        "all => all.filter(e => e.checkVisibility() && e.getBoundingClientRect().right > 390.5).map(e => e.id)"
    )
    assert wide == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert [row for row in page.evaluate(CONTRAST) if row[0] < 4.5] == []  # WCAG 2, AA


CONTRAST = """() => {
  const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => {
    const colour = rgb(getComputedStyle(e).backgroundColor);
    return colour.length === 3 || colour[3] === 1 ? colour : ground(e.parentElement);
  };
  const words = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility()
    && !e.matches(':disabled, :disabled *') && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return words.map(e => { const two = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((a, b) => b - a);
    return [(two[0] + 0.05) / (two[1] + 0.05), e.className || e.tagName, e.textContent.slice(0, 20)] });
}"""


def test_all_words_are_readable_in_light_and_dark(open_page):
    page = open_page()
    start(page, max_tokens=20, n=3)
    finished(page)
    page.evaluate("complain('错误', 'an error')")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        measured = page.evaluate(CONTRAST)
        assert len(measured) > 50
        assert [row for row in measured if row[0] < 4.5] == []  # WCAG 2, AA
        coloured = [row for row in measured if row[1] in ("p0", "p1", "p2", "p3", "p4")]
        assert min(row[0] for row in coloured) > 7  # AAA for what is read
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(", "))) < 200) == (scheme == "dark")


def test_a_phone_needs_no_sideways_scrolling(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    start(page, "很长的一行" * 40 + "a" * 200, max_tokens=60)
    finished(page)
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        wide = page.locator("body *").evaluate_all(
            "all => all.filter(e => e.checkVisibility() && e.getBoundingClientRect().right > 390.5).map(e => e.id)"
        )
        assert wide == []
        page.locator("summary").tap()  # the settings, shut at first
    page.locator(".text span").nth(15).tap()
    page.wait_for_selector("#tip", state="visible")
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


# ---- when something is wrong ----

EVENT = {"choices": [{"index": 0, "text": "好的", "finish_reason": None, "logprobs": None}]}
ANSWERS = [
    (429, {"Retry-After": "3"}, '{"error": {"message": "full"}}', "429 · 人太多，3 秒后再试", "try again in 3 s"),
    (503, {}, '{"error": {"message": "no answer"}}', "503 · 服务器眼下做不到", "(no answer)"),
    (401, {}, '{"error": {"message": "no key"}}', "401 · 要有钥匙", "the key as the password"),
    (502, {}, "<html>a proxy's own page</html>", "502 · 服务器不接受", "Bad Gateway"),
]


def answer_once(page, **answer):
    """Let the page's next request hear this answer instead of the service's."""
    page.route("**/v1/completions", lambda route: route.fulfill(**answer), times=1)


def test_a_refusal_is_told_in_words(open_page):
    page = open_page(complaints=["Failed to load resource"])
    for status, headers, body, zh, en in ANSWERS:
        answer_once(page, status=status, headers=headers, body=body)
        start(page)
        page.wait_for_selector("#error", state="visible")
        words = page.inner_text("#error")
        assert zh in words and en in words
        assert page.locator("#results > li").count() == 0
        start(page, max_tokens=2)
        assert len(finished(page)) == 5
        assert page.is_hidden("#error")


def test_the_services_own_refusal_is_shown(open_page):
    page = open_page(complaints=["status of 400"])
    page.evaluate("document.querySelector('[name=n]').max = 99")
    start(page, n=99)
    page.wait_for_selector("#error", state="visible")
    words = page.inner_text("#error")
    assert "400" in words and "n" in words and "less than or equal to 10" in words


def test_what_was_written_stays_when_the_rest_does_not_come(open_page):
    page = open_page(complaints=["ERR_CONNECTION_REFUSED"])
    line = f"data: {json.dumps(EVENT)}\n\n"
    failed = f"data: {json.dumps({'error': {'message': 'no answer within 60 seconds'}})}\n\ndata: [DONE]\n\n"
    for rest, words in (('data: {"choi', "连接断了，已写的留着"), (failed, "no answer within 60 seconds")):
        answer_once(page, content_type="text/event-stream", body=line + rest)
        start(page, n=2)
        page.wait_for_selector("#error", state="visible")
        assert words in page.inner_text("#error")
        assert texts(page) == [BEGINNING + "好的", BEGINNING]
        assert page.locator(".cut").count() == 2
        assert "断了" in page.inner_text(".foot >> nth=0")
    page.route("**/v1/completions", lambda route: route.abort("connectionrefused"))
    start(page)
    page.wait_for_selector("#error", state="visible")
    assert "服务器没有回答" in page.inner_text("#error")
    assert texts(page) == []


# ---- where it may stand ----


def test_the_key_given_to_the_browser_opens_the_page_and_carries_its_requests(open_page, site, browser):
    page = open_page(site.locked_url, http_credentials={"username": "any", "password": KEY}, complaints=["401"])
    start(page, n=2, max_tokens=3)
    assert len(finished(page)) == 2
    with contextlib.closing(browser.new_context()) as context:
        stranger = context.new_page()
        with contextlib.suppress(api.Error):  # a browser without a dialogue shows its own error page
            assert stranger.goto(site.locked_url + "/").status == 401
        assert stranger.locator("textarea").count() == 0


def test_the_page_works_behind_a_proxys_prefix(open_page, site):
    page = open_page(site.prefixed_url)
    start(page, n=2, max_tokens=3)
    assert len(finished(page)) == 2
