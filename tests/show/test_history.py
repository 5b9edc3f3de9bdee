"""A run in texts: its samples over time, and the text behind a loss spike."""

import re

from displays import full_rows, rows_of, stripped

from helpers.show import notebook as show


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
    assert "nats per token" in words and "A spike (尖峰) is an update whose loss" in words.splitlines()[-1]
    lines = stripped(shown[0]["data"]["text/html"]).splitlines()
    assert lines[:2] == ["step\tloss (nats per token)\tusually", "20\t4.00\t1.00"]
    assert lines[2:4] == ["step 20 · window 7 · loss 5.50", "乱码<##>"]
    shown.clear()
    show.spikes(rows_of(5))
    assert shown[0]["data"]["text/plain"] == "no spike"
