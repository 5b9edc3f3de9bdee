"""Room 05 in a terminal: prompts from the command line, a pipe or the keyboard; Ctrl-C; conversations; scores."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time

import models
import pytest

from helpers import paths
from helpers.generate import generate, terminal
from helpers.generate.dialogue import Dialogue
from helpers.generate.settings import RANGES, Settings, default_settings
from helpers.vocab.chat import ANSWER_SAMPLING, TEXT_SAMPLING

# a child with a tiny model, which writes until it is stopped, whenever a text ends; its arguments are the command's
CHILD = """
import sys, models
from helpers.generate import generate, terminal
tok = models.plants_chat_tokenizer()
net = models.plants_model("gpt2", tok)
real = generate.stream_text
def endless(*arguments, **options):
    import time
    while not arguments[-1].is_set():
        for text in real(*arguments, **options):
            time.sleep(0.02)
            yield text
generate.load, generate.stream_text = lambda run, model="base": (net, tok), endless
sys.exit(terminal.terminal_main(["--run", "any", *sys.argv[1:]]))
"""


@pytest.fixture(autouse=True)
def loaded(monkeypatch, small, tok):
    monkeypatch.setattr(generate, "load", lambda run, model="base": (small, tok))


def command(*arguments):
    return terminal.terminal_main(["--run", "any", *arguments])


def typed(monkeypatch, text, terminal=False):
    """Let a pipe bring a text, or somebody type its lines at a terminal, and then Ctrl-D."""
    stream, lines = io.StringIO(text), iter(text.split("\n"))
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdin", stream)

    def line(_):
        for each in lines:
            return each
        raise EOFError

    monkeypatch.setattr("builtins.input", line)


def test_a_prompt_of_the_command_line_is_continued_as_generate_does(capsys, small, tok):
    assert command("绿萝", "--seed", "3", "--max-new-tokens", "9", "--temperature", "0.5", "-n", "3") == 0
    settings = Settings(seed=3, max_new_tokens=9, **(TEXT_SAMPLING | {"temperature": 0.5}))
    samples = generate.generate(small, tok, "绿萝", settings, samples=3)
    assert capsys.readouterr().out == "\n\n".join(sample.text[2:] for sample in samples) + "\n"
    assert len({sample.text for sample in samples}) == 3


@pytest.mark.parametrize(("line", "prompt"), [(True, "绿萝\n"), (False, "绿萝")])
def test_a_pipe_is_the_prompt(capsys, monkeypatch, small, tok, line, prompt):
    typed(monkeypatch, "绿萝\n")
    assert command("--temperature", "0", "--max-new-tokens", "9", *["--line"] * line) == 0
    sample = generate.generate(small, tok, prompt, Settings(temperature=0, max_new_tokens=9))[0]
    assert capsys.readouterr().out == sample.text[len(prompt) :] + "\n"


def test_a_pipe_in_another_encoding_is_an_error(capsys, monkeypatch, small):
    """Taken for UTF-8 it would be a text of question marks, and the model would go on with it."""
    for chat in ([], ["--chat"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("明月\n".encode("gbk"))))
        monkeypatch.setattr(generate, "load", lambda *run: (small, models.plants_chat_tokenizer()))
        assert command(*chat) == 1
        found = capsys.readouterr()
        assert "the pipe is not UTF-8" in found.err and "iconv -f GB18030" in found.err and found.out == ""


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_a_mark_at_the_beginning_of_a_pipe_is_no_text(capsys, monkeypatch, small, chat):
    monkeypatch.setattr(generate, "load", lambda *run: (small, models.plants_chat_tokenizer()))
    said = []
    for mark in ("", "\ufeff"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{mark}绿萝\n".encode())))
        assert command("--seed", "3", "--max-new-tokens", "9", *chat) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


@pytest.mark.parametrize(
    ("noted", "chat", "wanted"),
    [
        (None, False, TEXT_SAMPLING), (None, True, ANSWER_SAMPLING), ("no JSON", True, ANSWER_SAMPLING),
        ("[1]", False, TEXT_SAMPLING), ('{"eos_token_id": 2}', False, TEXT_SAMPLING),
        ('{"repetition_penalty": 1.1}', True, ANSWER_SAMPLING | {"repetition_penalty": 1.1}),
        ('{"do_sample": true, "temperature": 0.6, "top_k": 20}', True, dict(temperature=0.6, top_k=20)),
        ('{"do_sample": false, "no_repeat_ngram_size": 3}', False, dict(temperature=0, no_repeat_ngram=3)),
        ('{"do_sample": true, "temperature": "warm", "top_k": -1, "min_p": 0.1}', False, dict(min_p=0.1)),
    ],
)  # fmt: skip
def test_a_model_says_itself_how_it_is_sampled(noted, chat, wanted, tmp_path):
    if noted:
        (tmp_path / "generation_config.json").write_text(noted, "utf-8")
    off = {name: values.off for name, values in RANGES.items()}
    assert default_settings(tmp_path, chat) == off | wanted


def test_what_the_models_folder_says_holds_where_no_option_does(capsys, monkeypatch, small, tok, tmp_path):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    (folder := paths.room("any", "train") / "final_model").mkdir(parents=True)
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.0, "top_k": 5}', "utf-8")
    for option, temperature in ([], 0), (["--temperature", "2"], 2):
        assert command("绿萝", "--seed", "3", "--max-new-tokens", "9", *option) == 0
        settings = Settings(temperature=temperature, top_k=5, seed=3, max_new_tokens=9)
        assert capsys.readouterr().out == generate.generate(small, tok, "绿萝", settings)[0].text[2:] + "\n"


def test_each_sampling_setting_is_an_option(capsys):
    with pytest.raises(SystemExit):
        command("--help")
    said = " ".join(capsys.readouterr().out.split())
    for name, values in RANGES.items():
        option = name.replace("_", "-")
        assert f"--{option} {name.upper()} {values.meaning}: {values}".replace("-", "") in said.replace("-", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "200"], "temperature is 200.0"),
        (["-n", "0"], "--samples is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--stop", "。", "--stop", ""], "none of them empty"),
        (["--chat", "-n", "2"], "leave out --samples"),
        (["--system", "简短"], "leave out --system"),
        (["--chat"], "this model has no chat template"),
    ],
)
def test_what_cannot_be_done_is_said(capsys, arguments, message):
    assert command("看", *arguments) == 1
    found = capsys.readouterr()
    assert message in found.err and found.out == "" and "Traceback" not in found.err


def test_ctrl_c_while_the_model_is_loaded_ends_the_program_without_a_traceback(monkeypatch, capsys):
    def interrupted(run, model="base"):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "load", interrupted)
    assert command("看") == terminal.INTERRUPTED and capsys.readouterr().out == "\n"


# ---- conversations ----


@pytest.fixture
def chatting(monkeypatch, small):
    """A run whose model has a chat template; a list of what was loaded."""
    asked, tok = [], models.plants_chat_tokenizer()
    monkeypatch.setattr(generate, "latest_model", lambda run: "chat")
    monkeypatch.setattr(generate, "load", lambda run, model: asked.append((run, model)) or (small, tok))
    return asked


def answers(small, *questions, system=""):
    talk = Dialogue(small, models.plants_chat_tokenizer(), system)
    settings = Settings(seed=3, max_new_tokens=5, **ANSWER_SAMPLING)
    return ["".join(talk.ask(question, settings)) for question in questions]


CHAT = ["--chat", "--seed", "3", "--max-new-tokens", "5"]


def test_one_question_is_answered_by_the_runs_latest_model(capsys, small, chatting):
    assert command(*CHAT, "怎么浇水？", "--system", "看土") == 0
    assert capsys.readouterr().out == answers(small, "怎么浇水？", system="看土")[0] + "\n"
    assert chatting == [("any", "chat")]


@pytest.mark.parametrize("typing", [False, True])
def test_lines_are_one_conversation_until_it_starts_again(capsys, monkeypatch, small, chatting, typing):
    typed(monkeypatch, "看土？\n\n怎么\n/new\n怎么", terminal=typing)
    assert command(*CHAT) == 0
    said = capsys.readouterr()
    wanted = [*answers(small, "看土？", "怎么"), *answers(small, "怎么")]
    assert said.out == "".join(text + "\n" for text in wanted) + "\n" * typing
    assert ("Ctrl-D ends" in said.err) == typing


@pytest.mark.parametrize("typing", [False, True])
def test_a_question_that_is_too_long_ends_a_pipe_and_not_what_is_typed(capsys, monkeypatch, small, chatting, typing):
    typed(monkeypatch, "土" * 40 + "\n怎么", terminal=typing)
    assert command(*CHAT) == (0 if typing else 1)
    said = capsys.readouterr()
    assert "ask in fewer words" in said.err
    assert said.out == (answers(small, "怎么")[0] + "\n\n" if typing else "")


def test_a_full_context_is_said(capsys, monkeypatch, chatting):
    typed(monkeypatch, "怎么浇水？\n" * 4)
    assert command(*CHAT) == 0
    assert "(the context is full: written without the oldest 2 messages)" in capsys.readouterr().err


# ---- in a process of its own ----


def child(*arguments, **pipes):
    here = [str(paths.repo_root()), str(paths.repo_root() / "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(here), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], env=environment, **pipes)


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error():
    process = child(
        "绿萝", "-n", "50", "--seed", "1", "--max-new-tokens", "40", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.read(4)
    process.stdout.close()
    assert process.wait(300) == 0 and b"Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals as Unix has them")
def test_ctrl_c_ends_the_text_of_a_pipe():
    process = child(
        "绿萝", "--max-new-tokens", "5000", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == terminal.INTERRUPTED
    assert process.stdout.read().endswith(b"\n") and b"Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal")
@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_ctrl_c_ends_the_text_and_not_the_program(chat):
    import pty

    ours, theirs = pty.openpty()
    command = [*chat, "--max-new-tokens", "5000", "--repetition-penalty", "0.5"]
    process = child(*command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = ""

    def wait_for(pattern):
        nonlocal seen
        end = time.monotonic() + 300
        while not re.search(pattern, seen):
            assert time.monotonic() < end and process.poll() is None, seen
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 4096).decode("utf-8", "replace")
        seen = ""

    try:
        for prompt in ("绿萝", "冬天"):  # the second one shows that the program goes on
            wait_for("› ")
            os.write(ours, f"{prompt}\n".encode())
            wait_for(f"{prompt}\r\n.+")
            process.send_signal(signal.SIGINT)
        wait_for("› ")
        os.write(ours, b"\x04")  # Ctrl-D
        assert process.wait(300) == 0
    finally:
        process.kill()
        os.close(ours)
