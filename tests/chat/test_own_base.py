"""The commands of docs/writing.md for a base that others have trained, on a small folder of the same form."""

import json
import os
import re
import subprocess
import sys

import pytest
from chats import qwen_folder
from openai import OpenAI

from helpers import paths


@pytest.mark.slow
def test_one_types_three_commands(tmp_path):
    rows = [{"instruction": f"{n} 号窗口办什么？", "output": f"办第 {n} 类证。"} for n in range(60)]
    (tmp_path / "desk.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    theirs = qwen_folder(tmp_path / "Qwen2.5-0.5B-Instruct")
    environment = os.environ | {"PYTHONPATH": str(paths.repo_root()), "RUNS_DIR": str(tmp_path / "runs")}
    lines = (paths.repo_root() / "docs" / "writing.md").read_text("utf-8").splitlines()
    typed = [line.split()[1:] for line in lines if re.match("python.* --run desk", line)]
    first, second, third = ([sys.executable, *words] for words in typed)
    for command in (first, [*second, "-p", "lr", "3e-2"]):  # random weights have everything to learn
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
        assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    before, after = re.findall(r"bits per char ([\d.]+)", done.stdout)
    assert float(after) < float(before) - 1
    copy = (tmp_path / "runs" / "desk" / "notebooks" / "chat.ipynb").read_text("utf-8")
    assert re.search(r"ahead: .*training needs .* GiB", copy) and "号窗口办什么？  办第" in copy
    assert "part  questions" not in copy, "an examination on house plants"
    asked = [{"role": "user", "content": "7 号窗口办什么？"}]
    with subprocess.Popen([*third, "--port", "0"], env=environment, stdout=subprocess.PIPE, encoding="utf-8") as server:
        try:
            address = next(found[0] for line in server.stdout if (found := re.search("(?<=answers at )[^ ]+", line)))
            client = OpenAI(base_url=f"{address}/v1", api_key="none")
            answer = client.chat.completions.create(model="desk", messages=asked, max_tokens=3)
        finally:
            server.terminate()
    ids = theirs.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)  # with its system line
    assert answer.usage.prompt_tokens == len(ids)
