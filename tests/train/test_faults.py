"""Never loses work: every fault is really made, and what comes out equals a run without it, to the bit.

Each fault once, from a table; many times, at other moments, with FAULTS=full (`make test-faults`).
"""

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import faults
import models
import pytest
import torch
from displays import until
from faults import DEFAULTS, FULL, Children, debris, everything, final, newest, seen
from models import rows

from helpers import paths
from helpers.model.gpt import GPT
from helpers.train import checkpoint, distributed, job, trainer
from helpers.train.log import MetricsLog
from helpers.train.settings import TrainSettings

pytestmark = pytest.mark.slow
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or asks the kernel for a limit")


def fit(folder, shape: dict | None = None, world: int = 1, **changes) -> list[dict]:
    """Train the small run in `world` new processes to its end, or as far as `stop_after` updates."""
    return faults.run(faults.job, str(folder), shape or {}, changes, world=world)


# ---------------------------------------------------------------- 1: resume is exact


CASES = [("fp32", 1, 2), ("bf16", 4, 1), ("fp16", 4, 2)]
if FULL:
    CASES = [(p, a, w) for p in ("fp32", "bf16", "fp16") for a in (1, 4) for w in (1, 2)]


@pytest.mark.parametrize(("precision", "accumulation", "world"), CASES)
def test_a_resumed_run_equals_an_unbroken_one(tmp_path, precision, accumulation, world):
    """Weights, moments, scaler, rate, position, and the windows of the next eight updates; dropout is on.

    The stops are random; the steps before and after an epoch's edge are always among those drawn from. Each part
    is a process of its own.
    """
    same = dict(precision=precision, gradient_accumulation=accumulation, epochs=3, checkpoint_step=1, keep=99)
    same |= dict(optimizer="muon" if accumulation == 4 else "adamw", batch_size=max(1, 4 // accumulation // world))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    steps = fit(whole, world=world, **same)[0]["steps"]
    an_epoch = steps // 3
    chance = random.Random(f"{precision}{accumulation}{world}")
    for number in range(3 if FULL else 1):
        stop = chance.choice([an_epoch - 1, an_epoch, an_epoch + 1]) if number == 0 else chance.randrange(1, steps)
        shutil.rmtree(parts, ignore_errors=True)
        fit(parts, world=world, stop_after=stop, **same)
        assert newest(parts).name == f"step-{stop:08d}"
        fit(parts, {"seed": 7}, world=world, **same)  # its own first weights are others
        assert rows(parts, "resume")[0]["step"] == stop
        # step by step: the update after the stop, eight later, and the last
        for step in {stop + 1, min(stop + 8, steps), steps}:
            assert everything(parts, step) == everything(whole, step), f"stopped at {stop}, differs at {step}"
        for rank in range(world):
            (unbroken,), (before, after) = seen(whole, rank), seen(parts, rank)
            assert before + after == unbroken
        rates = [[row["lr"] for row in rows(folder, "step")] for folder in (whole, parts)]
        assert rates[0] == rates[1]
        assert final(parts) == final(whole)


def test_two_one_two_processes_see_each_window_once_an_epoch(tmp_path):
    """World size 2 → 1 → 2 across resumes, inside epochs of 50 windows; no process is ever without one."""
    for world, stop in ((2, 2), (1, 4), (2, 0)):
        fit(tmp_path / "m", world=world, stop_after=stop, batch_size=2, epochs=3, size=400)
    first, second = seen(tmp_path / "m", 0), seen(tmp_path / "m", 1)
    updates = [one + two for part in (0, 2) for one, two in zip(first[part], second[part // 2], strict=True)]
    at = len(first[0])
    shown = [window for update in [*updates[:at], *first[1], *updates[at:]] for window in update]
    assert [sorted(shown[at : at + 50]) for at in (0, 50, 100)] == [list(range(50))] * 3 and len(shown) == 150


def relative(one: dict, two: dict) -> float:
    """Return the largest relative difference of two sets of weights, by tensor."""
    return float(torch.stack([(one[name] - two[name]).norm() / two[name].norm() for name in two]).max())


@pytest.mark.parametrize(("optimizer", "tolerance"), [("adamw", 1e-6), ("muon", 1e-4)])
def test_two_processes_equal_one_with_the_doubled_batch(tmp_path, optimizer, tolerance):
    """After 20 updates, relative to each tensor's norm. LLaMA-like: GPT-2's key biases have gradient 0, and AdamW
    blows up the rounding noise in them."""
    shape = dict(architecture="llama", dropout=0.0)
    same = dict(epochs=5, lr=1e-3, checkpoint_step=0, optimizer=optimizer)
    assert fit(tmp_path / "one", shape, batch_size=8, **same)[0]["steps"] == 20
    fit(tmp_path / "two", shape, world=2, batch_size=4, **same)
    assert relative(faults.weights(tmp_path / "two"), faults.weights(tmp_path / "one")) <= tolerance


# ---------------------------------------------------------------- 2: kill −9


def fit_and_die(folder: str, at: int, changes: dict) -> None:
    """Train, and die at the `at`-th touch of the disk inside a save: a write, a flush, a rename, a removal."""
    touched = []

    def deadly(name, real):
        def touch(*args, **kwargs):
            touched.append(name)
            if len(touched) == at:
                faults.die()
            answer = real(*args, **kwargs)
            touched.append(name)
            if len(touched) == at:
                faults.die()
            return answer

        return touch

    for place, name in (
        (checkpoint, "save_file"), (os, "fsync"), (os, "mkdir"), (os, "rename"), (os, "unlink"), (os, "rmdir"),
    ):  # fmt: skip
        setattr(place, name, deadly(name, getattr(place, name)))
    faults.fit(folder, **changes)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> str:
    """Return the digest of the weights that a run without faults ends with."""
    folder = tmp_path_factory.mktemp("unbroken") / "m"
    fit(folder)
    return final(folder)


def assert_goes_on(folder: Path, unbroken: str) -> None:
    """Resume a killed run to its end: at most one interval of saving is lost, and the end is the unbroken run's."""
    reached = steps_done(folder) if (folder / "metrics.jsonl").exists() else 0
    fit(folder)
    resumed = rows(folder, "resume")
    assert reached - (resumed[-1]["step"] if resumed else 0) <= DEFAULTS["checkpoint_step"]
    assert final(folder) == unbroken
    assert not debris(folder)


@pytest.mark.parametrize("step", random.Random(0).sample(range(20), 20 if FULL else 2))
def test_killed_at_any_moment_it_goes_on(tmp_path, unbroken, step):
    folder = tmp_path / "m"
    process = Children(faults.job, str(folder), {}, {})
    wait_for(folder, lambda: steps_done(folder) >= step)
    process.kill()
    assert_goes_on(folder, unbroken)


@pytest.mark.parametrize("at", random.Random(1).sample(range(1, 500), 10 if FULL else 3))
def test_killed_inside_a_save_it_goes_on(tmp_path, unbroken, at):
    """The moments are drawn from all touches of the disk: some 1,000 in this run."""
    assert Children(fit_and_die, str(tmp_path / "m"), at, {}).wait() == [-signal.SIGKILL]
    assert_goes_on(tmp_path / "m", unbroken)


# ---------------------------------------------------------------- 3: damage


FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "checksums.json")


KINDS = ("truncate", "flip", "empty", "remove", "an older one's", "another run's")


def damage(kind: str, file: Path, others: dict[str, Path]) -> None:
    data = bytearray(file.read_bytes())
    if kind == "remove":
        file.unlink()
    elif kind in others:
        shutil.copy(others[kind] / file.name, file)
    else:
        flipped = data[:-3] + bytes([data[-3] ^ 64]) + data[-2:]
        file.write_bytes({"truncate": data[:-7], "flip": flipped, "empty": b""}[kind])


def test_damage_to_the_newest_is_found_and_named_and_the_one_before_is_used(tmp_path):
    """A changed list of checksums may accuse the file that it lists: both are named then."""
    model = faults.model_of()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for step, identity in ((1, "a"), (2, "a"), (3, "b")):
        optimizer.step()
        state = {"identity": identity, "position": step, "val_loss": 1.0 / step}
        checkpoint.save(tmp_path / identity, step, model, [optimizer], state)
    others = {KINDS[-2]: tmp_path / "a" / "step-00000001", KINDS[-1]: tmp_path / "b" / "step-00000003"}
    for kind in KINDS:
        for name in FILES:
            shutil.copytree(tmp_path / "a", root := tmp_path / "c")
            damage(kind, root / "step-00000002" / name, others)
            folder, state, complaints = checkpoint.latest(root, "a")
            assert (folder.name, state["position"], len(complaints)) == ("step-00000001", 1, 1)
            assert name in complaints[0] and "step-00000002" in complaints[0], (kind, name, complaints)
            shutil.rmtree(root)
    shutil.rmtree(tmp_path / "a" / "step-00000002")
    shutil.copytree(others[KINDS[-1]], tmp_path / "a" / "step-00000002")  # whole
    assert "other data or parameters" in checkpoint.latest(tmp_path / "a", "a")[2][0]


def test_a_run_whose_newest_is_damaged_says_so_and_ends_the_same(tmp_path, unbroken):
    folder = tmp_path / "m"
    fit(folder, stop_after=7)
    damage("flip", newest(folder) / "optimizer.safetensors", {})
    fit(folder)
    (resumed,) = rows(folder, "resume")
    assert resumed["step"] == 6
    assert "step-00000007" in resumed["complaints"][0] and "optimizer.safetensors" in resumed["complaints"][0]
    assert final(folder) == unbroken


# ---------------------------------------------------------------- 4: a full disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1.5 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = sys.platform == "linux" and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(place)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fit_without_room(folder: str, since: int, leave: int) -> list[str]:
    """Train; from update `since` until a checkpoint has failed only `leave` bytes are free; return the debris then.

    leave -1: the disk has room, but no file may grow beyond 16 kB.
    """
    ballast, found = Path(folder).parent / "ballast", []

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def watch(update: int) -> bool:
        if update == since and leave < 0:
            limit(16_000)
        elif update == since:
            disk = os.statvfs(ballast.parent)
            ballast.write_bytes(bytes(max(0, disk.f_bavail * disk.f_frsize - leave)))
        elif update == FAILS_AT[since] + 1:
            found.extend(debris(folder))
            limit(resource.RLIM_INFINITY)
            ballast.unlink(missing_ok=True)
        return False

    faults.fit(folder, stop=watch)
    return found


FAILS_AT = {3: 4, 7: 7}  # checkpoints come after each second update, and after the seventh, an epoch's last


@LINUX
@pytest.mark.parametrize(("since", "leave"), [(3, 40_000), (7, 40_000), (3, 0), (3, -1), (7, -1)])
def test_a_full_disk_costs_one_checkpoint(request, tmp_path, unbroken, since, leave):
    """A real file system with little or nothing left, or files that may not grow, also where an epoch's folder is due:
    training goes on, says so, leaves nothing, and saves when there is room."""
    folder = (tmp_path if leave < 0 else request.getfixturevalue("small_disk")) / "m"
    (found,) = faults.run(fit_without_room, str(folder), since, leave)
    saved, (failed, *_) = [row["step"] for row in rows(folder, "checkpoint")], rows(folder, "checkpoint_failed")
    assert failed["step"] == FAILS_AT[since] not in saved and FAILS_AT[since] + (2 if since == 3 else 1) in saved
    assert found == [] == debris(folder)
    assert final(folder) == unbroken and (leave < 0 or "No space left" in failed["reason"])


def log_with_small_files(folder: str) -> list[int]:
    """Log 100 updates while no file may grow beyond 4 kB, then an end without that bound."""
    log = MetricsLog(Path(folder), writes=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
    for step in range(100):
        log.write("step", step=step, loss=1.5)
        if step == 50:
            with contextlib.suppress(OSError):
                log.board.flush()  # its thread writes when it likes: now
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log.write("end", step=100)
    log.close()
    return [] if log.board is None else [1]


@LINUX
def test_a_full_disk_costs_tensorboards_curves_and_not_the_run(tmp_path):
    """TensorBoard's own thread meets the full disk, and raises what it met at every later row."""
    assert faults.run(log_with_small_files, str(tmp_path)) == [[]]
    steps = [row["step"] for row in rows(tmp_path, "step")]
    assert steps == sorted(set(steps)) and len(steps) > 50 and rows(tmp_path, "end") == [{"event": "end", "step": 100}]


# ---------------------------------------------------------------- 5: not finite


def fit_with_nan(folder: str, where: str, bad: list[int], changes: dict) -> list[str]:
    """Train with a NaN on the last process in the updates `bad`; return a digest of the weights before each update."""
    rank, size = distributed.world()
    model = faults.model_of()
    seen_weights = []

    def now(value: torch.Tensor) -> torch.Tensor:
        here = len(seen_weights) + 1 in bad and rank == size - 1
        return value * float("nan" if where != "inf" else "inf") if here else value

    if where == "gradient":  # of one matrix
        model.layers[0].mlp.up_proj.weight.register_hook(now)
    else:  # of the loss, by way of the hidden states
        model.norm.register_forward_hook(lambda module, args, out: now(out) if model.training else None)

    def note(update: int) -> bool:
        seen_weights.append(hash_of(model))
        return False

    try:
        faults.fit(folder, model=model, stop=note, **changes)
    finally:
        Path(folder, f"weights-{rank}.json").write_text(json.dumps([*seen_weights, hash_of(model)]), "utf-8")
    return []


def hash_of(model) -> str:
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(("where", "precision"), [("gradient", "fp32"), ("loss", "bf16"), ("inf", "fp32")])
def test_a_gradient_or_loss_that_is_not_finite_changes_no_weight(tmp_path, where, precision):
    """On one process of two: neither takes the step, and both count it."""
    folder, bad = tmp_path / "m", [3, 4, 7]
    faults.run(fit_with_nan, str(folder), where, bad, {"precision": precision, "batch_size": 2}, world=2)
    before = [json.loads((folder / f"weights-{rank}.json").read_text("utf-8")) for rank in (0, 1)]
    assert before[0] == before[1]
    changed = [a != b for a, b in zip(before[0], before[0][1:], strict=False)]
    assert changed == [update not in bad for update in range(1, len(changed) + 1)]
    assert [row["step"] for row in rows(folder, "skipped")] == bad
    assert [row["in_a_row"] for row in rows(folder, "skipped")] == [1, 2, 1]
    assert rows(folder, "step")[-1]["skipped"] == 3


def test_a_run_that_stays_not_finite_ends_with_an_error(tmp_path):
    folder = tmp_path / "m"
    bad = list(range(6, 100))
    process = Children(fit_with_nan, str(folder), "gradient", bad, {"batch_size": 2, "epochs": 9}, world=2)
    codes = process.wait()
    assert all(code > 0 for code in codes) and "Diverged" in process.said()
    assert len(rows(folder, "skipped")) == trainer.SKIPS_IN_A_ROW
    path, state, _ = checkpoint.latest(folder / "checkpoints", "a")
    model = faults.model_of(seed=1)
    checkpoint.restore(path, model, trainer.optim.make_optimizers(model, TrainSettings(optimizer="adamw")))
    assert all(p.isfinite().all() for p in model.parameters())
    history = json.loads((folder / "weights-0.json").read_text("utf-8"))
    assert hash_of(model) == history[5] == history[-1]  # as the fifth update, the last good one, left them


# ---------------------------------------------------------------- 6: asked to stop


@pytest.fixture
def room(run) -> TrainSettings:
    """The settings of a run whose corpus, vocabulary and tokens are ready."""
    return models.settings(run, checkpoint_step=2, gradient_accumulation=1, dropout=0.1)


def shell(settings: TrainSettings, pace: float, slow_from: int, slow: float) -> None:
    """`python -m helpers.train` in this process; an update takes `pace` seconds more, from `slow_from` on `slow`."""
    real, updates = GPT.init_weights, []

    def build(*args):
        model = real(*args)

        def wait(*_) -> None:
            if model.training:
                updates.append(1)
                if len(updates) >= slow_from:
                    Path(paths.room("t", "train"), "slow").touch()
                time.sleep(slow if len(updates) >= slow_from else pace)

        model.embed_tokens.register_forward_pre_hook(wait)
        return model

    GPT.init_weights = build
    # a file of its own: another process of the run must not read it half written
    file = Path(paths.run_dir("t"), f"asked-{os.environ.get('RANK', 0)}.json")
    file.write_text(json.dumps(asdict(settings)), "utf-8")
    sys.argv = ["train", str(file)]
    job.train_from_shell()


def start_shell(settings: TrainSettings, pace: float = 0.05, slow_from: int = 10**9, world: int = 1):
    env = {"RUNS_DIR": os.environ["RUNS_DIR"]}
    if world > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        env |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return Children(shell, settings, pace, slow_from, 600, world=world, env=env)


def wait_for(folder: Path, condition, timeout: float = 240) -> None:
    """Wait until a condition on a run's rows holds."""
    until((folder / "metrics.jsonl").exists, timeout)
    until(condition, timeout)


def steps_done(folder: Path) -> int:
    return max((row["step"] for row in rows(folder, "step")), default=0)


@pytest.mark.parametrize(
    ("asked", "code", "world"),
    [(signal.SIGTERM, 143, 1), (signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 2), ("a file STOP", 0, 1)],
)
def test_who_is_asked_saves_and_ends_at_the_next_step(room, asked, code, world):
    """With two processes the signal reaches one of them; both end in the same update."""
    folder = paths.room("t", "train")
    process = start_shell(replace(room, epochs=40, checkpoint_step=0, eval_step=0), world=world)
    wait_for(folder, lambda: steps_done(folder) >= 3)
    if code:
        os.kill(process.processes[-1].pid, asked)
    else:
        (folder / "STOP").touch()
    at = steps_done(folder)
    assert process.wait()[-1] == code, process.said()
    ended = rows(folder, "end")[-1]
    assert ended["reason"] == "stopped" and ended["step"] <= at + 2  # one may have been done before it was read here
    assert newest(folder).name == f"step-{ended['step']:08d}"
    checkpoint.verify_checkpoint(newest(folder))


def test_a_second_signal_ends_at_once(room):
    """The fourth update takes ten minutes: the first signal leaves it its time, a second one does not."""
    folder = paths.room("t", "train")
    process = start_shell(replace(room, epochs=40), slow_from=4)
    wait_for(folder, lambda: (folder / "slow").exists())
    os.kill(process.processes[0].pid, signal.SIGTERM)
    time.sleep(0.3)
    assert process.processes[0].is_alive()
    while process.processes[0].is_alive():  # one that comes before the first was noticed is no second one
        os.kill(process.processes[0].pid, signal.SIGTERM)
        process.processes[0].join(0.5)
    assert process.wait() == [-signal.SIGTERM]


# ---------------------------------------------------------------- 7: out of memory


def fit_in_little_memory(folder: str, most: int, changes: dict) -> None:
    """Train where a micro-batch of more than `most` windows runs out of memory."""
    model = faults.model_of(architecture="llama", dropout=0.0)

    def weigh(module, args) -> None:
        if model.training and len(args[0]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    model.embed_tokens.register_forward_pre_hook(weigh)
    faults.fit(folder, model=model, **changes)


def test_out_of_memory_halves_the_micro_batch_and_changes_no_update(tmp_path):
    same = dict(lr=1e-3, batch_size=8, epochs=2)
    fit(tmp_path / "roomy", dict(architecture="llama", dropout=0.0), **same)
    faults.run(fit_in_little_memory, str(tmp_path / "tight"), 2, same)
    (row,) = rows(tmp_path / "tight", "out_of_memory")
    assert row["micro_batch"] == 2
    roomy, tight = ([row["step"] for row in rows(tmp_path / name, "step")] for name in ("roomy", "tight"))
    assert roomy == tight
    assert relative(faults.weights(tmp_path / "tight"), faults.weights(tmp_path / "roomy")) < 1e-6
    assert all(len(batch) <= 2 for batch in seen(tmp_path / "tight")[0][3:])


def test_at_a_single_window_it_says_so(tmp_path):
    process = Children(fit_in_little_memory, str(tmp_path / "m"), 0, {})
    assert process.wait() == [1]
    assert "memory runs out at a single window" in process.said()


# ---------------------------------------------------------------- 8: a process of several dies


def workers(launcher: int | None = None) -> dict[int, int]:
    """Return {rank: process id} of the training processes that this one, or another launcher, started."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text("utf-8").rsplit(")", 1)[1].split()[1])
            if parent == (launcher or os.getpid()) and b"helpers.train" in (place / "cmdline").read_bytes():
                env = (place / "environ").read_bytes().split(b"\0")
                found[int(next(e for e in env if e.startswith(b"RANK=")).split(b"=")[1])] = int(place.name)
        except (OSError, StopIteration):
            continue  # it ended meanwhile
    return found


def kill_at(folder: Path, step: int) -> threading.Event:
    """Kill −9 the second process when the run has done `step` updates; the event that is returned says that it is."""
    done = threading.Event()

    def watch() -> None:
        wait_for(folder, lambda: steps_done(folder) >= step)
        os.kill(workers()[1], signal.SIGKILL)
        done.set()

    threading.Thread(target=watch, daemon=True).start()
    return done


@LINUX
def test_a_killed_process_of_two_costs_nothing_or_ends_the_run(room):
    """One restart allowed: the launcher goes on from the last checkpoint. Killed again, none is left: an error, and no
    process stays. Started anew, it ends as a run that was never broken, to the bit."""
    given = replace(room, epochs=30, batch_size=2, devices=2, checkpoint_step=5, gradient_accumulation=2)
    folder = paths.room("t", "train")
    whole = start_shell(given, pace=0, world=2)
    assert whole.wait() == [0, 0], whole.said()
    wanted, steps = final(folder), rows(folder, "end")[-1]["step"]
    shutil.rmtree(folder)
    first = kill_at(folder, steps // 4)
    training = job.start_training(replace(given, restarts=1))
    wait_for(folder, lambda: first.is_set() and rows(folder, "resume"))
    kill_at(folder, steps // 2)
    with pytest.raises(RuntimeError, match="training processes failed"):
        training.wait()
    assert not workers()
    reached = steps_done(folder)
    last = start_shell(given, pace=0, world=2)
    assert last.wait() == [0, 0], last.said()
    one, two = (row["step"] for row in rows(folder, "resume"))
    assert one >= steps // 4 - 5 and reached - two <= 5
    assert final(folder) == wanted
    if FULL:  # and with nothing but the launcher
        shutil.rmtree(folder)
        kill_at(folder, steps // 4)
        assert job.start_training(replace(given, restarts=1)).wait()["steps"] == steps
        assert final(folder) == wanted and len(rows(folder, "resume")) == 1


@LINUX
def test_workers_whose_launcher_is_killed_save_and_end(room):
    """Nobody would ever end them: they notice, save, and leave with nothing running; the next start goes on there."""
    given = replace(room, epochs=10_000, batch_size=2, devices=2, checkpoint_step=0)
    folder = paths.room("t", "train")
    code = f"from helpers.train import job; from helpers.train.settings import *; job.start_training({given}).wait()"
    launcher = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        wait_for(folder, lambda: steps_done(folder) >= 20)
        found = workers(launcher.pid)
        assert sorted(found) == [0, 1]
        launcher.kill()
        launcher.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in found.values()))  # of their own
    finally:
        for pid in workers(launcher.pid).values():
            os.kill(pid, signal.SIGKILL)
        launcher.kill()
    reached = rows(folder, "end")[-1]
    assert reached["reason"] == "stopped"
    state = json.loads((newest(folder) / "state.json").read_text("utf-8"))
    assert state["progress"]["step"] == reached["step"] >= 20
