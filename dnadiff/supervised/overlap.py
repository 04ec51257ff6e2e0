"""Which items of a task overlap the pretraining data of a network, or the training part of the
task, by shared k-mers on either strand.

This needs no coordinates, and it also finds copies elsewhere in a genome.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from dnadiff.data.base import run_data
from dnadiff.data.records import num_tokens
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import Config
from dnadiff.genomics.kmers import MAX_KMERS, NOVELTY, KmerSet
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.protocol import FewItems, FixedSplit, KFold

MIN_OVERLAP = (
    0.5  # an item is inside data if at least this fraction of its bases is in k-mers of the data
)
# bases of the largest training part of a task whose k-mers are stored: 1.6 GB while the set is
# built
_MAX_TRAINING = 100_000_000
PRETRAINING, TRAINING = "pretraining", "training"  # data that items can be inside of
log = logging.getLogger("dnadiff")


def pretraining_kmers(
    config: Config,
    tokenizer: DNATokenizer,
    trust: Sequence[str] = (),
    file: str | bool = True,
    k: int = NOVELTY,
) -> KmerSet:
    """The k-mers of the training part of a run; its data is read again.

    Args:
        config: of the run, which has the split of the data.
        file: FASTA file of the data; True is the path in the configuration.

    Raises:
        FileNotFoundError: if the files no longer exist.
        ValueError: if the model does not name its data, or they were downloaded, are not a genome,
            or have too many k-mers to keep in memory.
    """
    if not config.get("data"):
        raise ValueError(
            "pretraining_overlap=true compares with the data of the pretraining, which published "
            "weights do not name; set it to false"
        )
    described = config["data"]
    if isinstance(described, Mapping) and file is not True:
        described = {**described, "path": file}
    data = run_data(described, tokenizer, trust)
    data.prepare()
    size = num_tokens(data.intervals["train"])
    if size > MAX_KMERS:
        raise ValueError(
            f"the pretraining part has {size:,} bases, more than the {MAX_KMERS:,} whose k-mers "
            "fit in memory; set pretraining_overlap=false"
        )
    return KmerSet([tokenizer.bases(ids) for ids in data.sequences("train")], k)


def overlap_fractions(items: Items, kmers: KmerSet, tokenizer: DNATokenizer) -> np.ndarray:
    """The fraction of the bases of each item that are in a k-mer of the set, (S,); 0 for items
    shorter than k."""
    rows = zip(items.ids.numpy(), items.lengths.tolist())
    return np.array([kmers.covered(tokenizer.bases(ids[:length])).mean() for ids, length in rows])


def overlap_subsets(
    items: Items, kmers: KmerSet, tokenizer: DNATokenizer, data: str
) -> dict[str, np.ndarray]:
    """Masks (S,) bool of the items inside and outside `data`, by name."""
    inside = overlap_fractions(items, kmers, tokenizer) >= MIN_OVERLAP
    return {f"inside {data}": inside, f"outside {data}": ~inside}


def tested_subsets(
    data: TaskData, protocol: FixedSplit, tokenizer: DNATokenizer, pretraining: KmerSet | None
) -> dict[str, np.ndarray]:
    """Masks (S,) bool of the tested items inside and outside the `pretraining` data, and the
    training part if it has any of them."""
    found = (
        {}
        if pretraining is None
        else overlap_subsets(protocol.tested(data), pretraining, tokenizer, PRETRAINING)
    )
    return found | training_subsets(data, protocol, tokenizer)


def training_subsets(
    data: TaskData, protocol: FixedSplit, tokenizer: DNATokenizer, k: int = NOVELTY
) -> dict[str, np.ndarray]:
    """Masks (S,) bool of the test items inside and outside the training and validation parts; empty
    if none is inside.

    It is also empty where each fold or seed has a different training part (`KFold`, `FewItems`),
    and for very large training parts.
    """
    if isinstance(protocol, KFold | FewItems):
        return {}
    parts = (data.train, data.valid)
    if sum(int(part.lengths.sum()) for part in parts) > _MAX_TRAINING:
        log.info(
            "test sequences are not compared with the training part, which has more than "
            f"{_MAX_TRAINING:,} bases"
        )
        return {}
    rows = (zip(part.ids.numpy(), part.lengths.tolist()) for part in parts)
    kmers = KmerSet([tokenizer.bases(ids[:length]) for part in rows for ids, length in part], k)
    subsets = overlap_subsets(protocol.tested(data), kmers, tokenizer, TRAINING)
    return subsets if next(iter(subsets.values())).any() else {}


def training_remark(inside: int, tested: int) -> str:
    """What a study says if test items are inside the training part."""
    return (
        f"{inside:,} of {tested:,} test sequences overlap the training part (shared {NOVELTY}-mers "
        "cover half of them): "
        "expect the score outside it on new sequences"
    )
