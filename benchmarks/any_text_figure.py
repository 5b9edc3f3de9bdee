"""The table and the figure of benchmarks/README.md: what `any_text` found for all texts, from its kept reports.

    python -m benchmarks.any_text_figure

Prints the table as Markdown and draws reports/any-text.svg.
"""

import json
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.machine import REPORTS

KINDS = {"words": "words", "characters": "characters", "bpe": "BPE", "nanoGPT": "nanoGPT"}


def kept() -> list[dict[str, Any]]:
    """Return the reports of `any_text`, the longest text first."""
    files = REPORTS.glob("any-text-*.json")
    reports = [json.loads(file.read_text("utf-8")) | {"name": file.stem.removeprefix("any-text-")} for file in files]
    return sorted(reports, key=lambda each: -each["text"]["characters"])


def seconds(report: dict[str, Any]) -> list[float]:
    """Return the training times of a report."""
    return [float(name.split(", ")[1].removesuffix(" s")) for name in report["figures"] if name.startswith("nanoGPT, ")]


def bits(report: dict[str, Any], kind: str, time: float) -> float:
    """Return the bits per character that a model reached in a training time."""
    return report["figures"][f"{kind}, {time:g} s"]["bits_per_character"]["mean"]


def by_counting(report: dict[str, Any]) -> float:
    """Return the bits per character of the best model that counts."""
    figures = report["figures"]
    return min(min(figures[f"counting {unit}"].values()) for unit in ("words", "characters"))


def table(reports: list[dict[str, Any]]) -> str:
    """Return the table: a row for each text and time; what the rule takes is bold."""
    lines = [
        "| text, characters | seconds | words | characters | BPE | nanoGPT | the rule saves | counting |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for report in reports:
        rule, name = report["figures"]["kind by rule"], f"{report['text']['title']}, {report['text']['characters']:,}"
        for time in seconds(report):
            values = {kind: bits(report, kind, time) for kind in KINDS}
            cells = [f"**{value:.2f}**" if kind == rule else f"{value:.2f}" for kind, value in values.items()]
            fewer = 1 - values[rule] / values["nanoGPT"]
            lines.append(f"| {name} | {time:g} | {' | '.join(cells)} | {fewer:.1%} | {by_counting(report):.2f} |")
            name = ""
    return "\n".join(lines)


def draw(reports: list[dict[str, Any]]) -> None:
    """Draw a panel for each text: bits per character over training time; English names, a machine may lack others."""
    plt.rcParams["svg.hashsalt"] = "any-text"  # the same reports make the same file
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for axis, report in zip(axes.flat, reports, strict=False):
        times = seconds(report)
        for kind, label in KINDS.items():
            style = {"color": "0.5", "linestyle": "--"} if kind == "nanoGPT" else {}
            axis.plot(times, [bits(report, kind, time) for time in times], marker="o", label=label, **style)
        axis.axhline(by_counting(report), color="0.7", linewidth=1, label="counting")
        axis.set_title(f"{report['name']} ({report['text']['characters']:,})", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(times, [f"{time:g} s" for time in times])
    axes[0, 0].set_ylabel("bits per character")
    axes[1, 0].set_ylabel("bits per character")
    axes[0, 1].legend(fontsize=8)
    figure.savefig(REPORTS / "any-text.svg", metadata={"Date": None})


if __name__ == "__main__":
    texts = kept()
    print(table(texts))
    draw(texts)
