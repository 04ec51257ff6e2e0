"""Numbers of sampled text: its generative perplexity under a causal model, the entropy of its tokens, and how much it repeats itself.

A low generative perplexity alone says little: text that repeats a phrase has one too (arXiv 2409.02908). Each is therefore computed
together with the entropy of the very tokens that were scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnadiff.bootstrap import ConfidenceInterval, ratio
from dnadiff.data.genome import pieces
from dnadiff.denoiser import CausalDenoiser, next_nll


@dataclass(frozen=True)
class Prose:
    """What is known of some texts.

    Attributes:
        nats: (S,) -log p of each under the causal model; None where there is none.
        tokens: (S,) their number.
        entropy: (S,) of each text's own distribution of tokens, nats.
        repetition: (S,) share of its words of several tokens that stand earlier in it.
    """

    nats: np.ndarray | None
    tokens: np.ndarray
    entropy: np.ndarray
    repetition: np.ndarray

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON: means over texts (perplexity: over tokens) with 95 % intervals."""
        found: dict[str, Any] = {"texts": len(self.tokens), "tokens": int(self.tokens.sum())}
        if self.nats is not None:
            nll = ratio(self.nats, self.tokens)
            found |= _named("perplexity", ConfidenceInterval(*(float(np.exp(x)) for x in nll))) | {"nll": nll.value}
        ones = np.ones(len(self.tokens))
        return found | _named("entropy", ratio(self.entropy, ones)) | _named("repetition", ratio(self.repetition, ones))


def _named(name: str, value: ConfidenceInterval) -> dict[str, float]:
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def entropy(tokens: np.ndarray) -> float:
    """Nats of the distribution of the tokens of one text; at most log of their number.

    >>> entropy(np.array([1, 1, 2, 2])) == np.log(2)
    True
    """
    share = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(share * np.log(share)).sum())


def repeated(tokens: np.ndarray, words: int) -> np.ndarray:
    """For each word of `words` tokens, by its first position, whether it begins earlier in the text: (L - words + 1,) bool.

    >>> repeated(np.array([5, 6, 7, 5, 6, 8]), 2)
    array([False, False, False,  True, False])
    """
    count = len(tokens) - words + 1
    if count < 1:
        return np.zeros(0, dtype=bool)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, words)
    first = np.unique(windows, axis=0, return_index=True)[1]  # of the first occurrence
    again = np.ones(count, dtype=bool)
    again[first] = False
    return again


def describe(texts: Sequence[np.ndarray], words: int, nats: Sequence[np.ndarray] | None = None) -> Prose:
    """Numbers of texts, each `(L,)` ids, with `nats` of each token where they are known."""
    repetition = [again.mean() if len(again := repeated(x, words)) else 0.0 for x in texts]
    total = None if nats is None else np.array([x.sum() for x in nats])
    return Prose(total, np.array([len(x) for x in texts]), np.array([entropy(x) for x in texts]), np.array(repetition))


def by_position(texts: np.ndarray, starts: Sequence[int], words: int, nats: np.ndarray | None = None) -> list[dict[str, Any]]:
    """The same for each stretch of texts of one length: from each start to the next, the last to the end.

    Repetition is the share of words that end in the stretch and stand earlier in the text, also before the stretch.

    Args:
        texts: (S, L) ids.
        starts: first positions, rising, the first 0.
        words: tokens in a word.
        nats: (S, L) of each token.
    """
    again, rows = np.stack([repeated(x, words) for x in texts]), []
    for start, end in zip(starts, [*starts[1:], texts.shape[1]]):
        part, ending = texts[:, start:end], again[:, max(0, start - words + 1) : max(0, end - words + 1)]
        total = None if nats is None else nats[:, start:end].sum(1)
        repetition = ending.mean(1) if ending.shape[1] else np.zeros(len(texts))
        prose = Prose(total, np.full(len(texts), end - start), np.array([entropy(x) for x in part]), repetition)
        rows.append({"start": int(start), "end": int(end), **prose.summary()})
    return rows


@torch.no_grad()
def token_nats(judge: CausalDenoiser, texts: Sequence[Tensor], window: int, batch_size: int = 16) -> list[np.ndarray]:
    """-log p of each token of each text `(L,)` under a causal model, nats.

    Texts longer than `window` are cut into pieces of (almost) equal length that do not know of each other, as a model of that length can take
    them.
    """
    cuts = pieces.cut([len(x) for x in texts], window)
    found = [np.zeros(len(x)) for x in texts]
    parts = [texts[p.record][p.start : p.end] for p in cuts]
    device = next(judge.parameters()).device
    for number, ids, valid in pieces.batches(parts, batch_size, judge.vocab.pad_id):
        counted = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        nll = torch.zeros(ids.shape)
        told = None if valid is None else valid.to(device)
        nll[counted] = next_nll(judge, ids.to(device), None, counted.to(device), told).float().cpu()
        for row, i in enumerate(number):
            p = cuts[i]
            found[p.record][p.start : p.end] = nll[row, : p.end - p.start].numpy()
    return found
