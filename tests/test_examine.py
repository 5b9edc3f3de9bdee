"""Pairs and choices are scored as the library and lm-eval score them; our own pairs are right."""

from importlib.resources import files

import models
import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from helpers import examine, paths
from helpers.model.huggingface import save_model

PAIRS = [("看土，干透了再浇。", "看土，再浇干透了。"), ("冬天少浇。", "冬天浇少。"), ("怎么浇？", "怎么光？")]
QUESTIONS = 'question,A,B,C,D,answer\n"怎么""浇""？",看土,今天,冬天,不浇,B\n 水 ,热,光,水,很,D\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, tok = tmp_path_factory.mktemp("model"), models.plants_tokenizer()
    save_model(folder, models.plants_model("llama", tok))
    tok.save_pretrained(folder)
    rows = "".join(f'{{"sentence_good": "{good}", "sentence_bad": "{bad}"}}\n' for good, bad in PAIRS)
    (folder / "pairs.jsonl").write_text(rows, "utf-8")
    (folder / "questions.csv").write_text(QUESTIONS, "utf-8-sig")
    return folder


def examined(folder, monkeypatch, capsys, *arguments):  # returns the scores of the items, stdout, stderr
    scores, score = [], examine.log_likelihoods
    monkeypatch.setattr(examine.generate, "load", lambda *_, load=examine.generate.load: load(folder))
    monkeypatch.setattr(examine, "log_likelihoods", lambda *given: scores.append(score(*given)) or scores[-1])
    examine.main([*map(str, arguments)])
    return torch.tensor([each for each in scores if len(each) > 1]), *capsys.readouterr()


@pytest.mark.parametrize(("task", "file"), [("pairs", "pairs.jsonl"), ("choice", "questions.csv")])
def test_texts_have_the_log_probabilities_that_the_library_gives_them(folder, monkeypatch, capsys, task, file):
    scores, printed, _ = examined(folder, monkeypatch, capsys, "--task", task, folder / file)
    tok, library = models.plants_tokenizer(), AutoModelForCausalLM.from_pretrained(folder)
    for (_, context, texts, _), found in zip(examine.items_of(folder / file, task), scores, strict=True):
        for text, score in zip(texts, found.tolist(), strict=True):
            ids = tok(context + text, return_tensors="pt").input_ids[0]
            new = ids[len(tok(context).input_ids) :]
            logits = library(ids[None, -models.N_CTX - 1 : -1]).logits[0, -len(new) :]
            assert score == pytest.approx(-cross_entropy(logits, new, reduction="sum").item(), abs=1e-3)
    assert printed.splitlines()[1] in ("33.3%\t 6.1% … 79.2%\t50%\t3\tpairs", "50.0%\t 9.5% … 90.5%\t25%\t2\tquestions")


def test_what_is_not_in_the_form_is_named(folder, monkeypatch, capsys):
    (folder / "other.txt").write_bytes("甲,乙\n丙,丁\n".encode("gb18030"))
    for task, form in examine.FORMS.items():
        said = examined(folder, monkeypatch, capsys, "--task", task, folder / "other.txt")[-1]
        assert "other.txt, row 0" in said and form in said


def test_our_own_pairs_are_a_hundred_and_those_of_the_grammar_right_by_its_facts():
    own = [*examine.items_of(paths.repo_root() / "data" / "examine" / "pairs.jsonl", "pairs")]
    assert len({text for _, _, texts, _ in own for text in texts}) == 2 * len(own) == 200
    asked = {q.prompt: q for q in examine.built_in.examination(0, 200)}
    for kind, _, texts, _ in examine.built_in_pairs():
        marks = [examine.built_in.mark(asked[f"{q}\n"], answer) for q, answer in (text.split("\n") for text in texts)]
        assert marks == [True, False] or "facts" in kind


@pytest.mark.outside
def test_lm_eval_has_the_same_scores_and_the_same_share(folder, monkeypatch, capsys):
    lm_eval, hf = (pytest.importorskip(name) for name in ("lm_eval", "lm_eval.models.huggingface"))
    config = yaml.safe_load((files(lm_eval) / "tasks/ceval/_default_ceval_yaml").read_text("utf-8"))
    file = str(folder / "questions.csv")  # solved, they are longer than the context: both cut them
    config |= {"task": "mine", "dataset_path": "csv", "num_fewshot": 2, "description": "选出\n\n"}
    config |= {"dataset_kwargs": {"data_files": {"dev": file, "val": file}, "cache_dir": str(folder / "cache")}}
    theirs = lm_eval.simple_evaluate(hf.HFLM(str(folder), device="cpu"), tasks=[config], bootstrap_iters=0)
    options = f"--task choice --description 选出 --shots {file} {file}".split()
    scores, printed, _ = examined(folder, monkeypatch, capsys, *options)
    assert torch.allclose(scores, torch.tensor([[a[0][0] for a in one["resps"]] for one in theirs["samples"]["mine"]]))
    assert printed.splitlines()[1].startswith(f"{theirs['results']['mine']['acc,none']:.1%}\t")
