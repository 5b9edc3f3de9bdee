"""What can be known of a GPU without one: the benchmark's rehearsal, its imports, devices, graph breaks, waits.

A stand-in for a card: a backend whose tensors lie in the CPU's memory, but call themselves "card:0". Every operation
on them is seen: one that mixes them with the CPU's tensors is an error, as on a GPU, and one whose result the host must
wait for is counted with its place in the source. torch knows one such backend per process, so it has a child process.
"""

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models import make_trainer, plants_model, plants_tokenizer, tiny

from benchmarks import gpu
from helpers import paths
from helpers.device import DEVICES, autocast
from helpers.generate.batch import DecodeBatch, Row
from helpers.generate.settings import Settings
from helpers.train.loss import Loss

CPU = torch.device("cpu")
CARRIED = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
SERVICE = ("aiohttp", "psutil", "prometheus-client", "pydantic")  # needed by the part of that name only
IMPORT_NAMES = {"pyyaml": "yaml", "pillow": "PIL"}  # of packages whose modules have another name
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def python(*arguments, timeout=2000, **environment):
    """Run Python in the repository with one thread; return the finished process."""
    here = str(paths.repo_root())
    path = os.pathsep.join([here, str(Path(__file__).parent), *filter(None, [environment.pop("PYTHONPATH", "")])])
    command = [sys.executable, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | environment
    done = subprocess.run(command, capture_output=True, text=True, cwd=here, env=environment, timeout=timeout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


# ---- the benchmark ----


REHEARSE = ("-m", "benchmarks.gpu", "--rehearse", "--minutes", "30")  # on a busy machine it takes some of them


def faults_of(figures, path=""):
    """Return what is an error, or was skipped, anywhere in figures."""
    if isinstance(figures, dict):
        found = [f"{path}/{name}: {figures[name]}" for name in ("error", "skipped") if name in figures]
        return found + [fault for name, each in figures.items() for fault in faults_of(each, f"{path}/{name}")]
    return [f"{path}: {figures}"] if isinstance(figures, str) and figures.startswith("error") else []


def check_rehearsal(figures):
    """Check what is true of figures at any scale."""
    assert figures["train"]["parts_ms"]["muon"] > 0 and figures["train"]["operators"]["busy"] > 0
    assert figures["train"]["loss"] == pytest.approx(figures["train_eager"]["loss"], rel=0.01)
    assert figures["resume"]["bit_for_bit"] and figures["resume"]["stopped_differs_by"] > 0
    for dtype, difference in (("fp32", 1e-4), ("bf16", 0.05)):
        assert figures["decode"][dtype]["greedy_tokens_equal"] == 1, "the static decoder writes another text"
        assert figures["decode"][dtype]["greedy_logits_differ_by"] < difference
    for name, kinds in (("alone", 5), ("two_ddp", 1), ("two_fsdp", 1)):
        found = figures["processes"][name]
        assert len(set(found) - {"skipped"}) == kinds
        assert max(each["losses_differ_by"] for each in found.values()) < 0.01
        assert max(each["resumed_loss_differs_by"] for each in found.values()) < 0.01


@pytest.mark.slow
def test_without_a_gpu_the_benchmark_has_no_figures_and_no_aims():
    done = python("-m", "benchmarks.gpu", timeout=120, CUDA_VISIBLE_DEVICES="")
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["aims"] == found["figures"] == {} and found["benchmark"] == "gpu"
    assert "no GPU" in done.stderr


def names_of(requirement):
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0].lower())


def brought_along(packages):
    """Return packages with all that they themselves need."""
    found, waiting = set(), list(packages)
    while waiting:
        if (name := waiting.pop()) in found:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another platform
            continue
        found.add(name)
        waiting += [names_of(each) for each in needs if "extra ==" not in each]
    return found


def refusing(folder, *also_there):
    """Return `python` for processes that find no package of the course but the five and those that are `also_there`."""
    project = tomllib.loads((paths.repo_root() / "pyproject.toml").read_text("utf-8"))["project"]
    listed = sum(project["optional-dependencies"].values(), project["dependencies"])
    refused = sorted({names_of(each) for each in listed} - brought_along([*CARRIED, *also_there]))
    assert {"papermill", "thulac", "tensorboard", "pydivsufsort", "rensa"} <= set(refused)
    modules = [IMPORT_NAMES.get(name, name.replace("-", "_")) for name in refused]
    (folder / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        f"refused, find = {modules!r}, PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        "    return None if name.split('.')[0] in refused else find(name, path, target)\n"
        "PathFinder.find_spec = staticmethod(find_spec)\n",
        "utf-8",
    )
    found = functools.partial(python, PYTHONPATH=str(folder))
    found("-c", "import sys\ntry:\n    import thulac\nexcept ModuleNotFoundError:\n    sys.exit(0)\nsys.exit(1)")
    return found


@pytest.mark.slow
def test_the_rehearsal_goes_through_every_part_with_few_packages(run, tmp_path):
    """The five, and those of the service; no other is found, in the benchmark's own processes either."""
    done = refusing(tmp_path, *SERVICE)(*REHEARSE, "--run", run, OUT=str(tmp_path))
    found = json.loads(done.stdout.splitlines()[-1])
    assert faults_of(found["figures"]) == []
    assert list(found["figures"]) == list(gpu.PARTS) and found["aims"] == {}
    assert json.loads((tmp_path / "gpu.json").read_text("utf-8"))["figures"] == found["figures"]
    check_rehearsal(found["figures"])
    assert found["figures"]["service"]["load"]["1"]["answered_ms"]
    assert not (tmp_path / run / "model").exists(), "the run itself is left alone"


@pytest.mark.slow
def test_without_aiohttp_the_service_is_left_out(run, tmp_path):
    done = refusing(tmp_path)(*REHEARSE, "--run", run, "--parts", "rates", "engine", "service")
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert faults_of(figures) == ["/service/skipped: the package aiohttp is not installed"]


@pytest.mark.gpu
@pytest.mark.slow
@needs_gpu
def test_the_rehearsal_goes_through_every_part_on_a_card(run):
    done = python(*REHEARSE, "--run", run, "--device", "cuda")
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert figures["decode"]["fp32"]["greedy_tokens_equal"] == 1
    assert figures["synchronisations"]["token_waits"] <= 2


def test_the_benchmark_measures_the_preset():
    bench = gpu.Bench("none", CPU, gpu.REAL, Path(), 0.0)
    settings, wanted = gpu.preset_settings(bench), gpu.preset()
    assert {name: getattr(settings, name) for name in wanted} == wanted
    assert (bench.scale.n_ctx, bench.scale.vocab, settings.compile) == (1024, 50_000, True)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H200", 989), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA GeForce RTX 4090", 165), ("NVIDIA X1", None),
    ],
)  # fmt: skip
def test_a_card_has_the_rate_of_its_data_sheet(monkeypatch, name, rate):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert gpu.data_sheet(torch.device("cuda:0")) == rate
    assert gpu.data_sheet(CPU) is None


def test_the_aim_is_a_share_of_the_data_sheet():
    bench = gpu.Bench("none", CPU, gpu.REAL, Path(), 0.0)
    for share, met in ((0.5, True), (0.4, False)):
        bench.figures["train"] = {"share_of_data_sheet": share}
        assert bench.result()["aims"] == {"share_of_data_sheet": {"value": share, "aim": 0.45, "met": met}}
    bench.figures["train"] = {"error": "it broke", "share_of_data_sheet": None}
    assert bench.result()["aims"] == {}


def test_one_fault_loses_nothing_else(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(gpu.signal, "setitimer", lambda *_: None)  # pytest's own timer
    bench = gpu.Bench("none", CPU, gpu.REHEARSAL, tmp_path, gpu.time.perf_counter() + 60)

    def broken(bench, figures):
        figures["before"] = 1
        raise ValueError("it broke")

    def absent(bench, figures):
        raise ModuleNotFoundError("no such thing", name="aiohttp")

    def late(bench, figures):
        raise gpu.OutOfTime("too late")

    for name, part in {"broken": broken, "absent": absent, "late": late, "rates": gpu.rates}.items():
        bench.measure(name, 5, part)
    assert bench.figures["broken"]["error"] == "ValueError: it broke" and bench.figures["broken"]["before"] == 1
    assert bench.figures["absent"]["skipped"] == "the package aiohttp is not installed"
    assert bench.figures["late"]["error"] == "OutOfTime: too late"
    assert bench.figures["rates"]["product_tflops"] > 0
    bench.end = gpu.time.perf_counter() + 1
    bench.measure("last", 5, gpu.rates)
    assert bench.figures["last"]["skipped"] == "no time was left"
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert json.loads((tmp_path / "gpu.json").read_text("utf-8"))["figures"] == bench.figures


def test_waits_are_counted_where_a_card_warns_of_them(monkeypatch):
    """The text of the warning is torch's own."""
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    bench = gpu.Bench("none", torch.device("cuda:0"), gpu.REAL, Path(), 0.0)
    with gpu.waits(bench) as places:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert modes == ["warn", "default"]
    ((place, count),) = places.items()
    assert count == 3 and re.fullmatch(r".*tests/test_gpu_ready\.py:\d+", place)


# ---- imports ----


# ---- compiled ----


@pytest.fixture
def compiled(monkeypatch, one_thread):
    """Return (loss, counter) of a tiny model whose body is compiled; the counter counts how often."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))

    def make(architecture):
        return Loss(tiny(architecture=architecture, n_ctx=64), compile=True).train(), counter

    yield make
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("architecture, dropout", [("gpt2", 0.0), ("llama", 0.0), ("llama", 0.1)])
def test_the_compiled_body_has_no_graph_break(architecture, dropout):
    torch._dynamo.reset()
    body = Loss(tiny(architecture=architecture, dropout=dropout).train())._body
    found = torch._dynamo.explain(body)(torch.zeros(2, 8, dtype=torch.long))
    assert (found.graph_count, found.graph_break_count) == (1, 0), [str(each.reason) for each in found.break_reasons]


@pytest.mark.slow
def test_a_graph_break_would_be_seen():
    torch._dynamo.reset()
    loss = Loss(tiny())
    body = loss._body

    def broken(inputs):
        hidden, _ = body(inputs)
        torch._dynamo.graph_break()
        return hidden * 2

    assert torch._dynamo.explain(broken)(torch.zeros(2, 8, dtype=torch.long)).graph_break_count > 0


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_what_is_compiled_once_serves_again(compiled, architecture):
    loss, counter = compiled(architecture)

    def batch(size, width):
        ids = torch.full((size, width), 7)
        with autocast("bf16", CPU):
            loss(ids, ids).objective.backward()
        return counter.frame_count

    assert [batch(4, 16), batch(4, 16), batch(4, 16)] == [1, 1, 1]
    # validation computes without gradients: a second graph, once
    loss.eval()
    with torch.no_grad():
        for _ in range(2):
            ids = torch.full((4, 16), 7)
            with autocast("bf16", CPU):
                loss(ids, ids)
    loss.train()
    assert [counter.frame_count, batch(4, 16)] == [2, 2]
    # a second width makes the width a variable, a second size the size, and one window is a case of its own
    widths = [batch(*shape) for shape in ((4, 24), (4, 40), (2, 40), (3, 64), (1, 24), (1, 40), (4, 16))]
    assert widths == [3, 3, 4, 4, 5, 5, 5]


# ---- the stand-in for a card ----


def on_stand_in(name):
    """Run one of the functions below in a child process; return what it returned, as JSON has it."""
    done = python("-W", "ignore", __file__, name)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_an_update_stays_on_its_device():
    """The losses are the CPU's, and the host waits for a few numbers per update."""
    found = on_stand_in("train")
    for optimizer, figures in found.items():
        assert figures["losses"] == pytest.approx(figures["cpu"], rel=1e-5), optimizer
        # per micro-batch: which labels count, and whether the library's model needs a mask; per update: the loss, the
        # right guesses and the gradient's norm
        assert figures["waits_in_all"] <= 2 * figures["micro_batches"] + 3 * figures["updates"], figures["waits"]


@pytest.mark.slow
def test_a_token_stays_on_its_device():
    """The tokens are the CPU's, and the host waits for few numbers per token."""
    found = on_stand_in("decode")
    assert found.keys() == {"gpt2", "llama"}
    # the tokens themselves, and whether all logits were numbers; the temperature and top_k ask whether they have
    # anything to do, and no_repeat_ngram for its sizes
    most = {"greedy": 2, "plain": 2, "filtered": 4, "looking_back": 3}
    for architecture, cases in found.items():
        for name, figures in cases.items():
            assert figures["tokens"] == figures["cpu"], (architecture, name)
            assert figures["waits_per_token"] <= most[name], figures["waits"]


@pytest.mark.slow
def test_the_static_decoder_waits_once_per_text():
    found = on_stand_in("static")
    assert found["written"] == found["cpu"] and found["waits"] == 1


@pytest.mark.slow
def test_a_tensor_on_the_wrong_device_is_seen():
    found = on_stand_in("mistakes")
    assert set(found) == {"labels left behind", "a filter's numbers on the CPU", "Muon's momentum on the CPU", "none"}
    assert found.pop("none") == ""
    assert all("two devices" in message for message in found.values()), found


@pytest.mark.slow
def test_without_64_bit_numbers_it_learns_and_writes_the_same():
    """As on Apple's GPUs, where every such number is an error. Training, validation, and all filters of sampling."""
    found = on_stand_in("apple")
    assert "float64" in found.pop("refused")
    for optimizer, figures in found["train"].items():
        assert figures["losses"] == pytest.approx(figures["cpu"], rel=1e-5), optimizer
    assert found["validation"]["card"] == pytest.approx(found["validation"]["cpu"], rel=1e-5)
    for architecture, cases in found["decode"].items():
        for name, figures in cases.items():
            assert figures["tokens"] == figures["cpu"], (architecture, name)


# ---- in the child process ----

TOO_WIDE = set()  # types of numbers that the stand-in does not have


def stand_in():
    """Set up the backend "card" in this process; return its Counters of waits and uploads, by place."""
    from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
    from torch.utils._pytree import tree_leaves, tree_map
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    class Module(_DummyBackendModule):
        def get_amp_supported_dtype(self):
            return [torch.bfloat16]

    _setup_privateuseone_for_python_backend("card", backend_module=Module())
    DEVICES.add("card")
    waits, uploads = Counter(), Counter()
    ANSWERS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::_unique2"}
    COPIES = {"aten::_to_copy", "aten::copy_"}
    INDEXED = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}

    def note(counter, name):
        frame = sys._getframe()
        while frame and not re.search(r"/(helpers|benchmarks)/", frame.f_code.co_filename):
            frame = frame.f_back
        at = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "elsewhere"
        counter[f"{at} {name.removeprefix('aten::')}"] += 1

    class Card(torch.Tensor):
        """A tensor of the card; `inner` holds its numbers."""

        __torch_function__ = torch._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                device="card:0",
            )  # fmt: skip
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return compute(func, args, kwargs or {})

        # what torch does in C++ without asking the tensor's class
        def tolist(self):
            return self.cpu().tolist()

        def new_tensor(self, data, **kwargs):
            return torch.tensor(data, **{"dtype": self.dtype, "device": self.device} | kwargs)

        def __getitem__(self, index):
            return super().__getitem__(on_card(index))

        def __setitem__(self, index, value):
            super().__setitem__(on_card(index), value)

    def on_card(index):
        if isinstance(index, tuple):
            return tuple(map(on_card, index))
        return torch.tensor(index).to("card") if isinstance(index, list | range) else index

    def compute(func, args, kwargs):
        with factories:  # without gradients torch hands over operations that consist of others
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        name = func._schema.name
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        cards = [each for each in tensors if isinstance(each, Card)]
        others = [each for each in tensors if not isinstance(each, Card) and each.dim()]
        if name in INDEXED:  # a GPU takes indexes from the CPU: it fetches them
            indexes = [each for each in args[1] if each is not None]
            if any(each.dtype == torch.bool and isinstance(each, Card) for each in indexes):
                note(waits, name)
            for each in indexes:
                if cards and not isinstance(each, Card):
                    note(uploads, name)
                    others = [other for other in others if other is not each]
        if cards and others and name not in COPIES:
            raise RuntimeError(f"{name}: tensors on two devices, card and CPU")
        wanted = kwargs.get("device")
        lands_on_card = bool(cards) if wanted is None else torch.device(wanted).type == "card"
        if name == "aten::copy_":
            lands_on_card = isinstance(args[0], Card)
        if name in ANSWERS and cards or name in COPIES and cards and not lands_on_card:
            note(waits, name)
        if name in COPIES and lands_on_card and others:
            note(uploads, name)
        inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, Card) else x, (args, kwargs))
        if wanted is not None:
            inner_kwargs["device"] = "cpu"
        out = func(*inner_args, **inner_kwargs)
        if not lands_on_card:
            return out
        if any(isinstance(each, torch.Tensor) and each.dtype in TOO_WIDE for each in tree_leaves(out)):
            raise TypeError(
                f"{name}: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't have it"
            )
        with torch.inference_mode(torch.is_inference_mode_enabled() and all(each.is_inference() for each in cards)):
            # else a view of a weight, taken while a text is written, could not share the weight's version
            out = tree_map(lambda x: Card(x) if isinstance(x, torch.Tensor) else x, out)
        return return_and_correct_aliasing(func, args, kwargs, out) if cards else out

    class Factories(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return compute(func, args, kwargs or {})

    def move(module, *args, **kwargs):
        """Move a module to the card; tied weights stay one."""
        place = kwargs.get("device", args[0] if args else None)
        if not isinstance(place, str | torch.device) or torch.device(place).type != "card":
            return there(module, *args, **kwargs)
        moved = {}
        for part in module.modules():
            for tensors in (part._parameters, part._buffers):
                for name, old in tensors.items():
                    if old is not None and not isinstance(old.data, Card):
                        if id(old) not in moved:
                            new = Card(old.detach())
                            if isinstance(old, torch.nn.Parameter):
                                new = torch.nn.Parameter(new, old.requires_grad)
                            moved[id(old)] = new
                        tensors[name] = moved[id(old)]
        return module

    # a list becomes a tensor in C++, which knows nothing of Python's backends
    plain, there = torch.tensor, torch.nn.Module.to

    def tensor(data, *args, device=None, **kwargs):
        made = plain(data, *args, **kwargs)
        return made.to(device) if device is not None and torch.device(device).type == "card" else made

    def as_tensor(data, dtype=None, device=None):
        if isinstance(data, torch.Tensor):
            return data.to(device=device or data.device, dtype=dtype or data.dtype)
        return tensor(data, dtype=dtype, device=device)

    torch.tensor, torch.as_tensor, torch.nn.Module.to = tensor, as_tensor, move
    factories = Factories()
    factories.__enter__()
    return waits, uploads


def child_train(waits, uploads):
    import tempfile

    gpu.without_curves()
    figures = {}
    for optimizer in ("muon", "adamw"):
        figures[optimizer] = {}
        for device in ("cpu", "card"):
            with tempfile.TemporaryDirectory() as folder:
                model = tiny(architecture="llama")
                trainer = make_trainer(Path(folder), model, optimizer=optimizer, device=device)
                waits.clear()
                losses = [trainer.step().loss for _ in range(3)]  # of two micro-batches each
                figures[optimizer]["cpu" if device == "cpu" else "losses"] = losses
        figures[optimizer] |= {"updates": 3, "micro_batches": 6}
        figures[optimizer] |= {"waits": dict(waits), "waits_in_all": sum(waits.values())}
    return figures


CASES = {
    "greedy": dict(temperature=0.0),
    "plain": dict(),
    "filtered": dict(temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, typical_p=0.95),
    "looking_back": dict(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1, no_repeat_ngram=3),
}


def child_decode(waits, uploads, made_on_cpu=()):
    from helpers.generate import batch as decoding
    from helpers.generate.batch import DecodeBatch, Row
    from helpers.generate.settings import Settings

    decoding.MADE_ON_CPU = set(made_on_cpu)  # both places make their random numbers alike
    steps, figures = 12, {}
    for architecture in ("gpt2", "llama"):
        figures[architecture] = {}
        tok = plants_tokenizer()
        models = {"cpu": plants_model(architecture, tok), "tokens": plants_model(architecture, tok).to("card")}
        for name, case in CASES.items():
            figures[architecture][name] = {}
            for place, model in models.items():
                batch = DecodeBatch(model, tok)
                batch.eos = -1
                rows = [Row([1, 7 + n], Settings(seed=0, **case), n) for n in range(3)]
                batch.add(rows)
                batch.step()
                waits.clear()
                uploads.clear()
                for _ in range(steps):
                    batch.step()
                figures[architecture][name][place] = [row.new for row in rows]
            figures[architecture][name] |= {
                "waits": dict(waits),
                "waits_per_token": sum(waits.values()) / steps,
                "uploads": dict(uploads),
                "uploads_per_token": sum(uploads.values()) / steps,
            }
    return figures


def child_apple(waits, uploads):
    import tempfile

    from helpers import device

    TOO_WIDE.add(torch.float64)
    figures = {"validation": {}}
    try:
        child_decode(waits, uploads, ("cpu", "card"))
    except TypeError as error:
        figures["refused"] = str(error)
    device.WITHOUT_FLOAT64.add("card")
    figures |= {"train": child_train(waits, uploads), "decode": child_decode(waits, uploads, ("cpu", "card"))}
    for place in ("cpu", "card"):
        with tempfile.TemporaryDirectory() as folder:
            trainer = make_trainer(Path(folder), tiny(architecture="llama"), device=place)
            figures["validation"][place] = trainer.milestones.score()
    return figures


def child_static(waits, uploads):
    tok = plants_tokenizer()
    written = {}
    for place, device in (("cpu", "cpu"), ("written", "card")):
        model = plants_model("llama", tok)
        decoder = gpu.StaticDecoder(model.to("card") if device == "card" else model, tok, [1, 7, 8], 2, 8, greedy=True)
        decoder.write()
        waits.clear()
        written[place] = decoder.write()
    return written | {"waits": sum(waits.values())}


def child_mistakes(waits, uploads):
    from helpers.generate import sampling
    from helpers.train.optim import Muon

    logits, ids = torch.randn(2, 9).to("card"), torch.zeros(2, 4, dtype=torch.long).to("card")
    loss = Loss(tiny(architecture="llama").to("card"))

    def labels_left_behind():
        loss(ids + 7, torch.full((2, 4), 7))

    def column_on_cpu():
        real = sampling._column
        sampling._column = lambda setting, logits: torch.full((len(logits), 1), float(setting), dtype=torch.float64)
        try:
            sampling.filtered(logits, ids, temperature=0.5)
        finally:
            sampling._column = real

    def momentum_on_cpu():
        weight = torch.nn.Parameter(torch.randn(4, 4).to("card"))
        weight.grad = torch.randn(4, 4).to("card")
        muon = Muon([weight], lr=0.1)
        muon.state[weight]["momentum_buffer"] = torch.zeros(4, 4)
        muon.step()

    def none():
        loss(ids + 7, ids + 7).objective.backward()
        sampling.filtered(logits, ids, temperature=0.5)

    found = {}
    mistakes = {
        "labels left behind": labels_left_behind, "a filter's numbers on the CPU": column_on_cpu,
        "Muon's momentum on the CPU": momentum_on_cpu, "none": none,
    }  # fmt: skip
    for name, mistake in mistakes.items():
        try:
            mistake()
            found[name] = ""
        except RuntimeError as error:
            found[name] = str(error)
    return found


# ---- on a GPU ----


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "moe"])
def test_a_gpu_writes_the_cpus_text(architecture):
    """The likeliest tokens; past the first size of the cache, so that its graphs are recorded anew."""
    tok = plants_tokenizer()
    wanted = Settings(max_new_tokens=90, seed=3)
    texts = []
    for device in ("cpu", "cuda"):
        model = plants_model(architecture, tok, n_ctx=128).to(device)
        texts.append(gpu.our_writer(model, tok, [1, 7, 8], 3, 90, temperature=0.0)())
    assert texts[0] == texts[1]
    # a row's text is its own: in a batch of five, of which some have left
    rows = [Row([1, 7, 8], replace(wanted, max_new_tokens=30 * n or 90), 0) for n in (1, 0, 2, 0, 0)]
    batch = DecodeBatch(model, tok)
    batch.eos = -1
    batch.add(rows)
    while batch.rows:
        batch.step()
    assert [len(row.new) for row in rows] == [30, 90, 60, 90, 90]
    assert all(row.new == rows[1].new[: len(row.new)] for row in rows) and len(set(rows[1].new)) > 3


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_static_decoder_writes_the_cpus_text(architecture):
    tok = plants_tokenizer()
    texts = []
    for device in ("cpu", "cuda"):
        model = plants_model(architecture, tok).to(device)
        texts.append(gpu.our_writer(model, tok, [1, 7, 8], 2, 12, temperature=0.0)())
        static = gpu.StaticDecoder(model, tok, [1, 7, 8], 2, 12, greedy=True)
        if device == "cuda":
            static.capture()
        texts.append(static.write())
    assert all(text == texts[0] for text in texts)


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_learns_what_the_cpu_learns(tmp_path):
    losses = {}
    for device in ("cpu", "cuda"):
        trainer = make_trainer(tmp_path / device, tiny(architecture="llama"), optimizer="muon", device=device)
        losses[device] = [trainer.step().loss for _ in range(4)]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    result = globals()[f"child_{sys.argv[1]}"](*stand_in())
    print(json.dumps(result), flush=True)
    os._exit(0)  # the engine of autograd has a thread for the card, which Python's own end does not join
