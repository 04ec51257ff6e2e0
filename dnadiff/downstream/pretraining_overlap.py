"""Which items of a task overlap the pretraining data of a network, judged by shared k-mers on either strand.

This needs no coordinates, and it also finds copies elsewhere in a genome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnadiff.config import Config
from dnadiff.data.intervals import num_tokens
from dnadiff.data.run_data import run_data
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.downstream.items import Items
from dnadiff.kmers import KmerSet
from dnadiff.likelihood.held_out import MAX_KMERS, NOVELTY

MIN_OVERLAP = 0.5  # an item is inside the pretraining data if at least this fraction of its bases is in k-mers of the training part


def pretraining_kmers(
    config: Config, tokenizer: DNATokenizer, trust: Sequence[str] = (), file: str | bool = True, k: int = NOVELTY
) -> KmerSet:
    """The k-mers of the training part of a run; its data is read again.

    Args:
        config: of the run, which has the split of the data.
        file: FASTA file of the data; True is the path in the configuration.

    Raises:
        FileNotFoundError: if the files no longer exist.
        ValueError: if the model does not name its data, or they were downloaded, are not a genome, or have too many k-mers to keep in memory.
    """
    if not config.get("data"):
        raise ValueError(
            "pretraining_overlap=true compares with the data of the pretraining, which published weights do not name; set it to false"
        )
    described = config["data"]
    if isinstance(described, Mapping) and file is not True:
        described = {**described, "path": file}
    data = run_data(described, tokenizer, trust)
    data.prepare()
    size = num_tokens(data.intervals["train"])
    if size > MAX_KMERS:
        raise ValueError(
            f"the pretraining part has {size:,} bases, more than the {MAX_KMERS:,} whose k-mers fit in memory; set pretraining_overlap=false"
        )
    return KmerSet([tokenizer.bases(ids) for ids in data.sequences("train")], k)


def overlap_fractions(items: Items, kmers: KmerSet, tokenizer: DNATokenizer) -> np.ndarray:
    """The fraction of the bases of each item that are in a k-mer of the set, (S,); 0 for items shorter than k."""
    rows = zip(items.ids.numpy(), items.lengths.tolist())
    return np.array([kmers.covered(tokenizer.bases(ids[:length])).mean() for ids, length in rows])


def overlap_subsets(items: Items, kmers: KmerSet, tokenizer: DNATokenizer) -> dict[str, np.ndarray]:
    """Masks (S,) bool of the items inside and outside the pretraining data, by name."""
    inside = overlap_fractions(items, kmers, tokenizer) >= MIN_OVERLAP
    return {"inside pretraining": inside, "outside pretraining": ~inside}
