"""The commands and the Python of README.md and docs/ are typed here on small texts: `TOGETHER` and what follows it.

They are typed letter by letter, but for names, ports and sizes: `Desk.smaller`. Other tests do a few: the side doors
are run by test_notebooks.py, a page is made and served by serve/test_static.py, papermill runs in run/test_sweep.py,
STOP is touched in train/test_job.py, llama.cpp's file is made in generate/test_gguf.py, a report is published in
test_report.py, MiniMind's texts are read in test_source_systems.py; `.ci/run`, Makefile and Dockerfile set up and test.
Whatever is named, test_advice.py has it read by its parser.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers import paths

pytestmark = [pytest.mark.outside, pytest.mark.timeout(1200)]
ROOT = paths.repo_root()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCS = "\n".join(page.read_text("utf-8") for page in PAGES)
SHELL = ("make ", "python -m", "curl", "torchrun", "cat >", "CHINESE_GPT_API_KEY=")

# what is typed here, in this order, and what the docs say comes out (a pattern of the last lines)
TOGETHER = {
    "make run": r"06_serve",
    "make run RUN=songci CORPUS=songci.jsonl": r"06_serve",
    'make run RUN=novels CORPUS="/path/to/a folder of 小说"': r"06_serve",
    "make run RUN=clinic CORPUS=dialogues.csv PRESET=clinic.yaml": r"06_serve",
    "make run RUN=clinic CORPUS=dialogues.csv": r"06_serve",
}
ONE_BY_ONE = {
    "make help": r"make TARGET",
    "python -m helpers.run chat --run clinic": r"chat ",
    "cat > lr.yaml <<'END'": "",
    "python -m helpers.run sweep lr.yaml --run songci --corpus songci.txt -p max_minutes 5": r"songci-1",
    "python -m helpers.run --run songci --corpus songci.txt -p epochs 3": r"04_train .*steps",
    "python -m helpers.run train generate --run songci -p lr 5e-4": r"04_train .*steps",
    "python -m helpers.run parameters train": r"n_embd",
    'python -m helpers.generate --run songci "明月" -n 3 --temperature 0.9': r"(?s:.+\n\n){2}.+",
    "python -m helpers.generate --run songci": r"\w",
    "python -m helpers.generate --run clinic --chat": r"",
    "python -m helpers.examine --run songci --task pairs": r"100\tall",
    "python -m helpers.train runs/songci/model/parameters.json": r"",
    "torchrun --nproc-per-node 8 --max-restarts 3 -m helpers.train runs/songci/model/parameters.json": r"",
}
SERVERS = {  # a server, and what is asked of it
    "make lab": [],
    "make serve RUN=songci": [
        "curl -s http://127.0.0.1:5005/generate -H 'Content-Type: application/json' "
        '-d \'{"context": "明月", "maxlength": 50, "samples": 3}\''
    ],
    "python -m helpers.serve --run clinic": [],
    "CHINESE_GPT_API_KEY=… python -m helpers.serve --run songci --host 0.0.0.0 --allow-host poems.example.org": [
        'curl -s http://poems.example.org:5005/v1/models -H "Authorization: Bearer …"'
    ],
}

# every kind of tokens goes through all six rooms
KINDS = {"sample": "words", "songci": "auto", "novels": "bpe", "clinic": "characters", "forum": "bytes"}
VERSES = (
    "春江潮水连海平，海上明月共潮生。", "滟滟随波千万里，何处春江无月明。", "江流宛转绕芳甸，月照花林皆似霰。",
    "空里流霜不觉飞，汀上白沙看不见。", "江天一色无纤尘，皎皎空中孤月轮。", "江畔何人初见月，江月何年初照人。",
    "人生代代无穷已，江月年年望相似。", "不知江月待何人，但见长江送流水。", "白云一片去悠悠，青枫浦上不胜愁。",
    "谁家今夜扁舟子，何处相思明月楼。", "可怜楼上月裴回，应照离人妆镜台。", "玉户帘中卷不去，捣衣砧上拂还来。",
)  # fmt: skip  # Zhang Ruoxu, 8th century


def blocks(language: str) -> list[str]:
    """Return the docs' blocks of code in a language; "" is the shell, or no language at all."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def commands() -> list[str]:
    """Return the docs' shell commands in order, without their comments; of a here-document its first line."""
    shell = re.sub(r"\\\n\s*", "", "".join(blocks("")))
    typed = [re.sub(r"\s{2,}#.*$", "", line) for line in shell.splitlines()]
    prose = re.sub(r"^```.*?^```", "", DOCS, flags=re.MULTILINE | re.DOTALL)
    inline = [re.sub(r"\s+", " ", each) for each in re.findall(r"`([^`]+)`", prose)]
    return list(dict.fromkeys(each.strip() for each in typed + inline if each.startswith(SHELL)))


class Desk:
    """A reader's desk: texts and runs. The repository is the real one; nothing is written there."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.write_texts()
        micro = (ROOT / "presets" / "micro.yaml").read_text("utf-8")
        micro = micro.replace("warmup_steps: 4", "warmup_steps: 1")  # of two processes, an epoch has few updates
        for run, kind in KINDS.items():
            (folder / f"{run}.yaml").write_text(micro.replace("kind: words", f"kind: {kind}"), "utf-8")
        forum, key = folder / "forum.yaml", '  text_key: "{title}\\n{ask}\\n{answer}"\n'
        forum.write_text(forum.read_text("utf-8").replace("corpus:\n", f"corpus:\n{key}"), "utf-8")
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("RUN", "CORPUS", "MAKEFLAGS")
        }
        config = {"ServerApp": {"allow_root": True, "open_browser": False}}  # containers often have no other user
        (folder / "jupyter_server_config.json").write_text(json.dumps(config), "utf-8")
        self.environment |= {
            "JUPYTER_CONFIG_DIR": str(folder),
            "JUPYTER_DATA_DIR": str(folder / "jupyter"),  # whose keys are the user's: none of ours may stay there
            "RUNS_DIR": str(folder / "runs"),
            "VIRTUAL_ENV": sys.prefix,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "HEADLESS": "1",
        }
        self.smaller = {
            "/path/to/a folder of 小说": str(folder / "a folder of 小说"),
            # the docs have two tables of that name: this one has columns of its own
            "RUN=clinic CORPUS=dialogues.csv PRESET=clinic.yaml": f"RUN=forum CORPUS={folder}/forum.csv "
            f"PRESET={folder}/forum.yaml",
            "runs/": f"{folder / 'runs'}/",
            **{
                name: str(folder / name)
                for name in ("songci.jsonl", "songci.txt", "dialogues.csv", "lr.yaml", "train.json")
            },
            "poems.example.org:5005/v1/models": "127.0.0.1:5005/v1/models -H 'Host: poems.example.org'",
            "--nproc-per-node 8": "--nproc-per-node 2",
            "KEY=…": f"KEY={'k' * 40}",
            "Bearer …": f"Bearer {'k' * 40}",
            "-p max_minutes 5": "-p max_minutes 0.05",
        }

    def write_texts(self) -> None:
        """Write a text for each name that the docs' commands have."""
        poems = ["\n".join(VERSES[(n + k) % 12] for k in (0, 3, 7 - n % 5)) for n in range(240)]
        rows = [f"第{n}个问题,绿萝第{n}天怎么浇水,每隔{n}天浇一次水就好" for n in range(60)]
        novel = "\n\n".join(f"第{n}回\n" + "".join(VERSES[(n * k) % 12] for k in range(1, 9)) for n in range(60))
        (self.folder / "a folder of 小说").mkdir()
        for name, text in {
            "songci.txt": "\n\n".join(poems),
            "songci.jsonl": "\n".join(json.dumps({"text": poem}, ensure_ascii=False) for poem in poems),
            "forum.csv": "\n".join(["title,ask,answer", *rows]),
            "dialogues.csv": "\n".join(["question,answer", *(row.partition(",")[2] for row in rows)]),
            "a folder of 小说/一.txt": novel,
            "a folder of 小说/二.txt": novel.replace("江", "河"),
        }.items():
            (self.folder / name).write_text(text + "\n", "utf-8")

    def small(self, command: str) -> str:
        """Return a command with names, ports and sizes of this desk."""
        pattern = "|".join(map(re.escape, sorted(self.smaller, key=len, reverse=True)))
        command = re.sub(pattern, lambda found: self.smaller[found[0]], command)
        if re.search(r"helpers\.run (?!parameters)", command):
            run = (re.findall(r"--run (\w+)", command) or ["sample"])[0]
            command += f" --preset {self.folder / run}.yaml"
        if command.startswith("make run") and "PRESET=" not in command:
            run = (re.findall(r"RUN=(\w+)", command) or ["sample"])[0]
            command += f" PRESET={self.folder / run}.yaml"
        return command

    def type(self, command: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Type a command, and then what it asks for."""
        return subprocess.run(
            ["bash", "-c", self.small(command)], cwd=ROOT, env=self.environment, input=typed, capture_output=True,
            encoding="utf-8", timeout=600,
        )  # fmt: skip

    @contextmanager
    def served(self, command: str, ready: str, seconds: float = 90) -> Iterator[str]:
        """Start what runs until it is stopped; yield what it printed when it is ready. Ctrl-C ends it."""
        file = self.folder / "server.log"
        with open(file, "w") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self.small(command)}" if "=…" not in command else self.small(command)],
                cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + seconds
            while not re.search(ready, printed := file.read_text("utf-8")):
                assert process.poll() is None and time.monotonic() < deadline, f"{command}:\n{printed}"
                time.sleep(0.1)
            yield printed
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A desk on which the four runs have been made."""
    made = Desk(tmp_path_factory.mktemp("desk"))
    with ThreadPoolExecutor(2) as pool:
        made.runs = dict(zip(TOGETHER, pool.map(made.type, TOGETHER), strict=True))
    return made


def check(command, done, promise):
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert re.search(promise, done.stdout), f"{command}\n{done.stdout[-3000:]}"


def test_what_is_typed_here_stands_in_the_docs():
    assert {*TOGETHER, *ONE_BY_ONE, *SERVERS, *sum(SERVERS.values(), [])} <= set(commands())


@pytest.mark.parametrize("command", TOGETHER)
def test_a_course_is_run(desk, command):
    check(command, desk.runs[command], TOGETHER[command])
    name = (re.findall(r"RUN=(\w+)", desk.small(command)) or ["sample"])[0]
    assert (desk.folder / "runs" / name / "report.html").stat().st_size > 100_000
    vocab = json.loads((desk.folder / "runs" / name / "vocab" / "manifest.json").read_text("utf-8"))
    assert KINDS[name] in ("auto", vocab["parameters"]["kind"])


@pytest.mark.parametrize("command", ONE_BY_ONE)
def test_a_command_does_what_is_said(desk, command):
    typed = {"python -m helpers.generate --run songci": "春江\n明月\n"}.get(command, "")
    if command.endswith("--chat"):
        typed = "绿萝怎么浇水？\n/new\n多久一次？\n"
    whole = command
    if command.startswith("cat >"):
        (whole,) = re.findall(rf"^{re.escape(command)}\n.*?\nEND$", "".join(blocks("")), re.MULTILINE | re.DOTALL)
        whole = whole.replace("[3.0e-3, 1.0e-2, 3.0e-2]", "[1.0e-2]").replace("[128, 192]", "[32]")
    check(command, desk.type(whole, typed), ONE_BY_ONE[command])


@pytest.mark.parametrize("command", SERVERS)
def test_a_server_answers(desk, command):
    ready = r"http://[\w.]+:\d+/lab\?token=\w+" if command == "make lab" else r"answers at http://[\w.]+:\d+"
    with desk.served(command, ready) as printed:
        for question in SERVERS[command]:
            done = desk.type(question)
            answer = json.loads(done.stdout)
            if "generate" in question:
                assert len(answer) == 3 and all(text.startswith("明月") for text in answer)
            else:
                assert answer["data"][0]["id"] == "songci"
        if not SERVERS[command]:
            address = re.search(ready, printed)[0].removeprefix("answers at ")
            with urllib.request.urlopen(address, timeout=20) as page:
                assert page.status == 200
        if command == "make lab":  # whose drawings, SVG, JupyterLab shows only in a notebook that it trusts
            address = address.replace("/lab?", "/api/contents/notebooks/04_train.ipynb?")
            with urllib.request.urlopen(address, timeout=20) as answer:
                cells = json.load(answer)["content"]["cells"]
            assert all(cell["metadata"]["trusted"] for cell in cells if cell["cell_type"] == "code")
        if command == "python -m helpers.serve --run clinic":
            (code,) = [block for block in blocks("python") if "chat.completions" in block]
            client = 'OpenAI(base_url="http://127.0.0.1:5005/v1", api_key="none")'
            run_python(desk, f"from openai import OpenAI\nclient = {client}\n{code}")
        elif command == "make serve RUN=songci":
            (code,) = [block for block in blocks("python") if "client.completions" in block]
            assert run_python(desk, code).strip()


def run_python(desk, code: str) -> str:
    """Run a block of Python as it stands in the docs, and return what it printed."""
    code = code.replace('"runs/', f'"{desk.folder}/runs/')
    done = subprocess.run([sys.executable, "-c", code], env=desk.environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, code + done.stderr
    return done.stdout


def test_the_python_of_the_docs_runs(desk):
    (poem,) = [block for block in blocks("python") if "quatrain" in block]
    written = re.findall(r"\w+", run_python(desk, poem))
    assert [line[0] for line in written] == list("春江花月") and {len(line) for line in written} == {7}
    (plain,) = [block for block in blocks("python") if "AutoModelForCausalLM" in block]
    run_python(desk, plain)
    assert len(blocks("python")) == 4, "the other two are asked of servers"
