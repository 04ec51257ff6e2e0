"""Which items a network has met in its pretraining: by the words that they share with the pretraining's training part, either strand.

This needs no coordinates, and finds copies elsewhere in a genome too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnadiff.config import PACKAGE, build
from dnadiff.downstream.items import Items
from dnadiff.kmers import KmerSet
from dnadiff.likelihood.held_out import MAX_KMERS, NOVELTY, without_download

SEEN_FROM = 0.5  # share of an item's bases that lie in words of the training part, from which on the item counts as seen


def pretraining_words(config: Mapping[str, Any], tokenizer: Any, trust: Sequence[str] = (), k: int = NOVELTY) -> KmerSet:
    """The words of the training part of a run, read again from the data its configuration names.

    Args:
        config: of the run.
        tokenizer: knows which base a token id is.
        trust: further packages whose classes the configuration may name.
        k: bases in a word.

    Raises:
        FileNotFoundError: if they are no longer there.
        ValueError: if they were downloaded, are no genome, or have too many words to keep.
    """
    data = build(without_download(config["data"]), trust=(PACKAGE, *trust))
    data.prepare()
    size = sum(interval.end - interval.start for interval in data.intervals["train"])
    if size > MAX_KMERS:
        raise ValueError(
            f"the pretraining part has {size:,} bases, more than the {MAX_KMERS:,} whose words fit; set pretraining_overlap=false"
        )
    return KmerSet([tokenizer.bases(ids) for ids in data.sequences("train")], k)


def seen_shares(items: Items, words: KmerSet, tokenizer: Any) -> np.ndarray:
    """The share of the bases of each item that lie in a word of the set, (S,); 0 for items shorter than a word."""
    rows = zip(items.ids.numpy(), items.lengths.tolist())
    return np.array([words.covered(tokenizer.bases(ids[:length])).mean() for ids, length in rows])


def subsets(items: Items, words: KmerSet, tokenizer: Any) -> dict[str, np.ndarray]:
    """Items inside and outside what was seen in pretraining: name to (S,) bool."""
    inside = seen_shares(items, words, tokenizer) >= SEEN_FROM
    return {"inside pretraining": inside, "outside pretraining": ~inside}
