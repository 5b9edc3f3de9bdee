"""The state of a training run in words: its progress, how it ended, and its troubles: a loss spike, a full disk …"""

from collections.abc import Mapping, Sequence

from helpers.show.metrics_file import finite, last, planned_steps, step_of
from helpers.wording import duration


def step_and_total(step: float, total: int) -> str:
    """Return "step 3 of 10", or "step 3" if the number of steps is not known."""
    return f"step {step:,.0f} of {total:,}" if total else f"step {step:,.0f}"


def progress(rows: Sequence[Mapping], total_steps: int = 0) -> str:
    """Return the state of a run in one line; `total_steps` is used if no row has it."""
    step, validation = last(rows, "step"), last(rows, "validation")
    facts = [step_and_total(step_of(step), planned_steps(rows, total_steps))]
    for name, row in (("training", step), ("validation", validation)):
        if finite(row.get("bits_per_char")):
            facts.append(f"{name} {row['bits_per_char']:.3f} bits/char")
    if finite(step.get("tokens_per_second")):
        share = f" ({100 * step['mfu']:.0f} % of the machine's peak)" if finite(step.get("mfu")) else ""
        facts.append(f"{step['tokens_per_second']:,.0f} tokens/s{share}")
    if finite(step.get("memory")):
        memory = step["memory"]
        facts.append(f"{memory / 1e9:.1f} GB" if memory >= 1e9 else f"{memory / 1e6:.0f} MB")
    if finite(step.get("seconds_left")):
        facts.append(f"{duration(step['seconds_left'])} left")
    return " · ".join(facts)


def summary(rows: Sequence[Mapping], total_steps: int = 0, floor: float | None = None) -> str:
    """Return how a run ended, in one line."""
    end, step, validation = last(rows, "end"), last(rows, "step"), last(rows, "validation")
    total, done = planned_steps(rows, total_steps), step_of(end) or step_of(step)
    how = end.get("reason") if end else "broke off"  # without a last row: it raised an error, or was killed
    if how not in ("finished", "stopped", "broke off"):
        how = f"ended ({how})"
    facts = [f"{how} at {step_and_total(done, total)}"]
    if finite(end.get("seconds")):
        facts.append(duration(end["seconds"]))
    if finite(validation.get("bits_per_char")):
        bits = validation["bits_per_char"]
        above = f", {100 * (bits / floor - 1):.0f} % above the floor" if floor else ""
        facts.append(f"validation {bits:.3f} bits/char{above}")
    return " · ".join(facts)


def troubles(rows: Sequence[Mapping]) -> list[str]:
    """Return what went wrong so far, one sentence per kind: a spike, a skipped update, a full disk …"""
    others = [row for row in rows if row.get("event") != "step"]  # few

    def of(event: str) -> tuple[int, Mapping, str]:
        """Return how many rows an event has, the last of them, and when that was."""
        row = last(others, event)
        count = sum(other.get("event") == event for other in others)
        return count, row, f"{'last ' if count > 1 else ''}at step {step_of(row):,.0f}"

    words = []
    count, row, when = of("skipped")
    counted = last(rows, "step").get("skipped")  # more than there are rows: a resume drops some
    if n := max(count, int(counted) if finite(counted) else 0):
        detail = f", {when} ({row.get('reason') or 'no reason given'})" if count else ""
        words.append(f"{n} {'update' if n == 1 else 'updates'} skipped, no weight changed{detail}")
    count, row, when = of("out_of_memory")
    if count:
        words.append(f"out of memory {when}: a micro-batch now has {row.get('micro_batch', 'fewer')} windows")
    count, row, when = of("checkpoint_failed")
    if count:
        saved = step_of(last(others, "checkpoint"))
        since = f"saved again at step {saved:,.0f}" if saved > step_of(row) else "training goes on"
        times = f" {count} times" if count > 1 else ""
        words.append(f"checkpoint not saved{times}, {when} ({row.get('reason') or 'no reason given'}); {since}")
    count, row, when = of("spike")
    if count:
        size = "".join(f", {name} {row[key]:.2f}" for key, name in (("loss", "loss"), ("usual", "usually"))
                       if finite(row.get(key)))  # fmt: skip
        words.append(f"{count} {'spike' if count == 1 else 'spikes'} of the loss, {when}{size}")
    for row in others:
        if row.get("event") == "resume" and row.get("complaints"):
            words.append(f"resumed at step {step_of(row):,.0f}: {'; '.join(map(str, row['complaints']))}")
    return words
