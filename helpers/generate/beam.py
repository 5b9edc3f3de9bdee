"""Beam search: of several beginnings kept at every step, the likeliest whole text in the end; nothing is drawn.

Greedy decoding takes the likeliest token each time, and may miss a likelier text that begins less well. Likely texts
of an open kind are dull and repeat themselves (Holtzman et al. 2020): beams are for answers, not for stories.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate import sampling
from helpers.generate.batch import Row, banned, filters, prompt_ids, window_start
from helpers.generate.constraints import State
from helpers.generate.settings import Sample, Settings

LOOKING_BACK = ("penalty", "presence", "frequency", "ngram")  # filters that mean something where nothing is drawn


@dataclass(frozen=True)
class Beam(Sample):
    """A text that was found; score: its log probability (nats), divided by its length to the length penalty."""

    score: float = 0.0


@dataclass
class _Path:
    """A beginning: its new ids, the log probability of them all, and where it stands in the constraint."""

    ids: list[int]
    logprob: float
    state: State | None


@torch.inference_mode()
def search(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    settings: Settings,
    beams: int = 4,
    length_penalty: float = 1.0,
) -> list[Beam]:
    """Return the best `beams` continuations of a prompt, the best one first; fewer if there are no more.

    length_penalty: 0 compares texts of any length by their probability, which favours short ones; 1 by the mean of
    their tokens; more favours long ones. Of the settings temperature, top_k, top_p, min_p, typical_p and seed have no
    part in it. Raises ValueError for stop, sentence and logprobs, which it does not know. (Graves 2012; with the end
    condition of transformers, whose scores these are.)
    """
    if beams < 1:
        raise ValueError(f"beams is {beams}: keep 1 or more")
    if settings.stop or settings.sentence or settings.logprobs is not None:
        raise ValueError("beam search knows no stop, sentence or logprobs: leave them out, or generate without beams")
    if model.training:
        raise ValueError("the model is in training mode, dropout would blur its text: call model.eval() first")
    reader = _Reader(model, banned(model, tokenizer), prompt_ids(tokenizer, prompt))
    active = {name: value for name, value in filters([settings], model.device).items() if name in LOOKING_BACK}
    eos, end = tokenizer.eos_token_id, settings.max_new_tokens
    begin = settings.constraint and settings.constraint.begin(tokenizer, eos, end)
    paths, found = [_Path([], 0.0, begin)], []
    if end == 0:
        return [_beam(tokenizer, prompt, settings, paths[0].ids, "length", 0.0)]
    for length in range(1, end + 1):
        logprobs, ids = reader.read(paths)  # (P, V), (P, T)
        written = torch.tensor([path.ids for path in paths], dtype=torch.long, device=ids.device)  # (P, length - 1)
        allowed = _allowed(paths, logprobs)
        logprobs = sampling.filtered(logprobs, ids, written, allowed=allowed, **active)
        total = logprobs + torch.tensor([[path.logprob] for path in paths], device=logprobs.device)
        # each beginning has one end: among twice as many there are enough that go on
        best = total.flatten().topk(min(2 * beams, total.numel()))
        going, parents = [], []
        for rank, (logprob, place) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            parent, token = divmod(place, total.shape[1])
            if logprob == -torch.inf:
                break
            path = _extended(paths[parent], token, logprob)
            reason = _reason(path, eos, end)
            if reason and rank < beams:
                new = path.ids[:-1] if reason == "end" else path.ids
                found.append(_beam(tokenizer, prompt, settings, new, reason, logprob / length**length_penalty))
            elif not reason and len(going) < beams:
                going.append(path)
                parents.append(parent)
        found = sorted(found, key=lambda beam: -beam.score)[:beams]
        if not going or (len(found) == beams and going[0].logprob / length**length_penalty <= found[-1].score):
            break
        paths = going
        reader.keep(parents)
    return found


class _Reader:
    """The model's view of the beginnings, which are all of one length: a cache that is reordered with them."""

    def __init__(self, model: PreTrainedModel, never: Tensor, prompt: list[int]) -> None:
        self.model, self.never, self.prompt = model, never, prompt
        self._cache, self._start = DynamicCache(), 0

    def read(self, paths: list[_Path]) -> tuple[Tensor, Tensor]:
        """Return the log probabilities (P, V) of what follows, and the ids (P, T) that the model sees."""
        ids = torch.tensor([self.prompt + path.ids for path in paths], device=self.model.device)  # (P, T)
        start = window_start(ids.shape[1], self.model.config.max_position_embeddings)
        if start > self._start:  # the window slides: what is left in it is read anew
            self._cache, self._start = DynamicCache(), start
        ids = ids[:, start:]
        new = ids[:, self._cache.get_seq_length() :]  # (P, N)
        logits = self.model(input_ids=new, past_key_values=self._cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        return logits.float().masked_fill(self.never, -torch.inf).log_softmax(-1), ids

    def keep(self, parents: list[int]) -> None:
        """Go on with these rows, in this order; one may come several times."""
        self._cache.batch_select_indices(torch.tensor(parents, device=self.model.device))


def _allowed(paths: list[_Path], logprobs: Tensor) -> Tensor | None:
    if paths[0].state is None:
        return None
    masks = torch.stack([path.state.allowed() for path in paths])  # (P, length of the tokenizer)
    return torch.nn.functional.pad(masks, (0, logprobs.shape[1] - masks.shape[1])).to(logprobs.device)


def _extended(path: _Path, token: int, logprob: float) -> _Path:
    state = copy.copy(path.state)
    if state:
        state.advance(token)
    return _Path([*path.ids, token], logprob, state)


def _reason(path: _Path, eos: int, end: int) -> str | None:
    if path.ids[-1] == eos:
        return "end"
    if path.state and path.state.done:
        return "stop"
    return "length" if len(path.ids) == end else None


def _beam(tokenizer, prompt: str, settings: Settings, new: list[int], reason: str, score: float) -> Beam:
    row = Row(prompt_ids(tokenizer, prompt), settings)
    row.ids += new
    row.reason = reason
    return Beam(**vars(row.result(tokenizer, prompt)), score=score)
