"""Beam search: keep several beginnings at every step, return the likeliest whole texts; nothing is drawn.

Greedy decoding takes the likeliest token each time and may miss a likelier text that begins less well. Where many texts
are possible, the likeliest ones are dull and repetitive (Holtzman et al. 2020): beams are for answers, not for stories.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate import inference, sampling
from helpers.generate.batch import banned, prompt_ids, window_start
from helpers.generate.detokenize import Detokenizer
from helpers.generate.settings import Sample, Settings

_Path = tuple[list[int], float]  # a beginning: its new ids, and the log probability of all of them together


@dataclass(frozen=True)
class Beam(Sample):
    """A text of the search."""

    score: float = 0.0  # its log probability (nats), divided by its length to the power of the length penalty


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

    length_penalty: 0 compares texts by their probability, which favours short ones; 1 by the mean over their tokens;
    more favours long ones. Of the settings only max_new_tokens counts: there are no filters and no seed. Raises
    ValueError for stop, sentence, logprobs and a constraint, and for a model whose logits are not numbers. (Graves
    2012; scores and end condition as in transformers.)
    """
    if beams < 1:
        raise ValueError(f"beams is {beams}: keep 1 or more")
    if settings.stop or settings.sentence or settings.constraint or settings.logprobs is not None:
        raise ValueError("beam search knows no stop, sentence, logprobs or constraint: generate without beams")
    inference.check_eval(model)
    reader = _Reader(model, banned(model, tokenizer), prompt_ids(tokenizer, prompt))
    eos, end = tokenizer.eos_token_id, settings.max_new_tokens
    paths: list[_Path] = [([], 0.0)]
    finished: list[Beam] = []
    if end == 0:
        return [_beam(tokenizer, prompt, [], "length", 0.0)]
    for length in range(1, end + 1):
        # 1. the log probability of every beginning with every next token
        logprobs = reader.read(paths)  # (P, V)
        total = logprobs + torch.tensor([[logprob] for _, logprob in paths], device=logprobs.device)  # (P, V)
        # 2. the best of them; each beginning ends with one token at most, so that of twice as many enough go on
        best = total.flatten().topk(min(2 * beams, total.numel()))
        going: list[_Path] = []
        parents: list[int] = []
        for rank, (logprob, place) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            parent, token = divmod(place, total.shape[1])
            if logprob == -torch.inf:
                break
            new = paths[parent][0]
            if token == eos or length == end:
                if rank < beams:
                    text, reason = (new, "end") if token == eos else ([*new, token], "length")
                    finished.append(_beam(tokenizer, prompt, text, reason, logprob / length**length_penalty))
            elif len(going) < beams:
                going.append(([*new, token], logprob))
                parents.append(parent)
        # 3. stop when no beginning scores better than the finished texts
        finished = sorted(finished, key=lambda beam: -beam.score)[:beams]
        if not going or (len(finished) == beams and going[0][1] / length**length_penalty <= finished[-1].score):
            break
        paths = going
        reader.keep(parents)
    return finished


class _Reader:
    """The model's view of the beginnings, which all have one length: a cache that is reordered with them."""

    def __init__(self, model: PreTrainedModel, never: Tensor, prompt: list[int]) -> None:
        self.model, self.never, self.prompt = model, never, prompt
        self._n_ctx = inference.context_length(model.config)
        self._cache, self._start = DynamicCache(), 0

    def read(self, paths: list[_Path]) -> Tensor:
        """Return the log probabilities (P, V) of what follows each beginning."""
        ids = torch.tensor([self.prompt + ids for ids, _ in paths], device=self.model.device)  # (P, T)
        start = window_start(ids.shape[1], self._n_ctx)
        if start > self._start:  # the window slides: what is left in it is read again
            self._cache, self._start = DynamicCache(), start
        new = ids[:, start + self._cache.get_seq_length() :]  # (P, N)
        logits = self.model(input_ids=new, past_key_values=self._cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        logits = logits.float().masked_fill(self.never, -torch.inf)
        sampling.check_numbers(logits.amax(-1))
        return logits.log_softmax(-1)

    def keep(self, parents: list[int]) -> None:
        """Go on with these rows, in this order; a row may occur several times."""
        self._cache.batch_select_indices(torch.tensor(parents, device=self.model.device))


def _beam(tokenizer: PreTrainedTokenizerFast, prompt: str, new: list[int], reason: str, score: float) -> Beam:
    written = Detokenizer(tokenizer, before=prompt_ids(tokenizer, prompt)).extend(new)
    return Beam(prompt + written.text, reason != "length", new[: written.tokens], reason, score=score)
