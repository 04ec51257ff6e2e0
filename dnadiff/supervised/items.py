"""Labeled sequences as tensors, and the batches cut from them.

Tasks (`tasks`, `labeled`) read files; models and baselines see only the classes of this
module.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dnadiff.data.kmers import NOVELTY, canonical, reverse_complement
from dnadiff.data.records import Interval, padded_groups
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab, complemented
from dnadiff.fields import Json, JsonDict
from dnadiff.progress import log
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.targets import TaskTarget

if TYPE_CHECKING:
    from dnadiff.data.genome.inputs import SequenceInput
    from dnadiff.supervised.classifier import SequenceClassifier


_LARGE = 1 << 30  # bytes of padded sequences, from which mostly padding is reported


@dataclass(frozen=True)
class Items:
    """Sequences with their labels, right-padded into one tensor.

    Attributes:
        ids: (S, L) uint8 token ids.
        lengths: (S,) int64; the rest of a row is padding.
        labels: (S,) int64 class numbers, or (S, K) float32 values of K targets, NaN where one is
            missing.
        groups: (S,) int64; items of one group stay in the same part when a set is divided. None:
            every item is its own group.
        pieces: (S, 3) int64, the record, start and end of each item in `source`, which has the
            columns of an alignment there; None: none.
    """

    ids: Tensor
    lengths: Tensor
    labels: Tensor
    groups: Tensor | None = None
    pieces: Tensor | None = None
    source: SequenceInput | None = None

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[ndarray],
        labels: Sequence[int] | ndarray,
        pad_id: int,
        groups: ndarray | None = None,
        pieces: Sequence[tuple[int, int, int]] = (),
        source: SequenceInput | None = None,
    ) -> Items:
        """Items of arrays of token ids `(L_i,)`, padded to the longest of them."""
        lengths = torch.tensor([len(s) for s in sequences], dtype=torch.int64)
        longest = int(lengths.max()) if len(sequences) else 0
        if (size := len(sequences) * longest) > max(_LARGE, 4 * int(lengths.sum())):
            log.warning(
                f"{len(sequences):,} sequences are padded to the {longest:,} bases of the longest "
                f"one and take {size / 1e9:.1f} GB; "
                "cut them (task.max_length), or leave out the longest"
            )
        ids = torch.full((len(sequences), longest), pad_id, dtype=torch.uint8)
        every = torch.from_numpy(np.concatenate([*sequences, np.empty(0, np.uint8)]))
        ids[torch.arange(longest) < lengths[:, None]] = every
        dtype = torch.float32 if np.ndim(labels) > 1 else torch.int64
        group_ids = None if groups is None else torch.as_tensor(groups, dtype=torch.int64)
        found = torch.as_tensor(np.asarray(labels), dtype=dtype)
        places = None if source is None else torch.tensor(pieces)
        return cls(ids, lengths, found, group_ids, places, source)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What there is of each item."""
        return self.ids, self.lengths, self.labels, self.groups, self.pieces

    def select(self, index: Tensor) -> Items:
        """The items at `index` (item numbers or a boolean mask)."""
        chosen = (None if x is None else x[index] for x in self.tensors)
        return Items(*chosen, self.source)  # type: ignore

    def concatenate(self, other: Items, pad_id: int) -> Items:
        """These items followed by those of `other`."""
        rows = pad_sequence([*self.ids, *other.ids], batch_first=True, padding_value=pad_id)
        pairs = zip(self.tensors[1:], other.tensors[1:])
        rest = (None if x is None or y is None else torch.cat([x, y]) for x, y in pairs)
        return Items(rows, *rest, self.source)  # type: ignore

    def columns(self, index: Tensor) -> Tensor | None:
        """The columns (B, L, CHANNELS) of an alignment for the items at `index (B,)`; None without
        an alignment."""
        if self.source is None or self.pieces is None:
            return None
        return self.source.columns(Interval(*piece) for piece in self.pieces[index].tolist())


@dataclass(frozen=True)
class TaskData:
    """A task that is ready for training: every model gets the same.

    Attributes:
        classes: class names, sorted; a label is an index into this list. For another target the
            names of its outputs.
        valid: items for choosing the epoch and the hyperparameters.
        test: items that are scored once.
        stranded: True if the class depends on the strand; otherwise models train on and score both
            strands.
        notes: facts that help to interpret the results, ready for JSON.
        target: what is predicted; None: one of the classes.
    """

    name: str
    classes: list[str]
    train: Items
    valid: Items
    test: Items
    stranded: bool = False
    notes: JsonDict = field(default_factory=dict)
    target: TaskTarget = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.target is None:
            object.__setattr__(self, "target", ClassTarget(self.classes))

    @property
    def parts(self) -> dict[str, Items]:
        """The parts by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def max_length(self) -> int:
        """Tokens in the longest sequence."""
        return max(int(items.lengths.max()) for items in self.parts.values() if len(items))

    @property
    def min_length(self) -> int:
        """Tokens in the shortest sequence."""
        return min(int(items.lengths.min()) for items in self.parts.values() if len(items))

    def counts(self) -> dict[str, dict[str, int]]:
        """Items of each class in each part; for another target all of them."""
        return {part: self.target.counts(items.labels) for part, items in self.parts.items()}


class ItemBatch(NamedTuple):
    """A batch of items: `ids (B, L)` int64, `valid (B, L)` bool or None if nothing is padded,
    columns of an alignment `cond (B, L, CHANNELS)` or None, `labels` (B,) int64 or (B, K)
    float32, empty if they are not known."""

    ids: Tensor
    valid: Tensor | None = None
    cond: Tensor | None = None
    labels: Tensor = torch.empty(0)

    def first(self, number: int) -> ItemBatch:
        """The first `number` items."""
        return ItemBatch._make(None if x is None else x[:number] for x in self)

    def to(self, device: torch.device) -> ItemBatch:
        """The batch on a device."""
        return ItemBatch._make(None if x is None else x.to(device) for x in self)


def flipped_rows(rows: Tensor, lengths: Tensor, padding: int) -> Tensor:
    """Right-padded rows (B, L) or (B, L, D) with `lengths (B,)` tokens from their last token to
    their first; the padding stays on the right."""
    place = lengths[:, None] - 1 - torch.arange(rows.shape[1], device=rows.device)
    place = (place if rows.ndim == 2 else place[..., None]).expand_as(rows)
    return rows.gather(1, place.clamp(min=0)).masked_fill(place < 0, padding)


def reverse_complement_rows(ids: Tensor, lengths: Tensor, vocab: Vocab) -> Tensor:
    """Reverse complement (B, L) int64 of right-padded rows `ids (B, L)` with `lengths (B,)` tokens;
    the padding stays on the right."""
    complement = torch.tensor(vocab.complement, device=ids.device)
    return flipped_rows(complement[ids.long()], lengths, vocab.pad_id)


def reverse_complement_columns(cond: Tensor, lengths: Tensor) -> Tensor:
    """The columns (B, L, CHANNELS) of an alignment for `reverse_complement_rows`."""
    return flipped_rows(complemented(cond), lengths, 0)


def make_batch(
    items: Items, index: Tensor, vocab: Vocab, reverse: Tensor | None = None
) -> ItemBatch:
    """The items at `index (B,)`, trimmed to the longest of them; rows with `reverse (B,)` True are
    reverse-complemented."""
    lengths = items.lengths[index]
    longest = int(lengths.max())
    ids = items.ids[index, :longest].long()
    cond = items.columns(index)
    if reverse is not None:
        ids = torch.where(reverse[:, None], reverse_complement_rows(ids, lengths, vocab), ids)
        if cond is not None:
            other = reverse_complement_columns(cond, lengths)
            cond = torch.where(reverse[:, None, None], other, cond)
    valid = None if int(lengths.min()) == longest else torch.arange(longest) < lengths[:, None]
    return ItemBatch(ids, valid, cond, items.labels[index])


def strand_batches(
    items: Items, batch_size: int, vocab: Vocab, both_strands: bool
) -> Iterator[tuple[Tensor, list[ItemBatch]]]:
    """Batches of similar length for scoring: item numbers (B,), and the batch for each strand to
    read."""
    lengths = items.lengths.tolist()
    order = items.lengths.argsort(stable=True).tolist()
    for number in padded_groups(order, lengths.__getitem__, batch_size):
        index = torch.tensor(number)
        batches = [make_batch(items, index, vocab)]
        if both_strands:
            reverse = torch.ones(len(index), dtype=torch.bool)
            batches.append(make_batch(items, index, vocab, reverse))
        yield index, batches


@dataclass(eq=False)
class ShuffledBatches:
    """One epoch of training batches in random order, a function of (seed, epoch) alone.

    If lengths differ, the items of `bucket_batches` batches at a time are sorted by length before
    they are cut into batches, and the batches are then shuffled: there is hardly any padding. Items
    of one length are in plain random order. With `both_strands`, each item is reverse-complemented
    with probability 1/2, and with `other_strand` exactly those items that would not be.
    """

    bucket_batches = 32

    items: Items
    batch_size: int
    vocab: Vocab
    seed: int
    epoch: int
    both_strands: bool
    other_strand: bool = False

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def __iter__(self) -> Iterator[ItemBatch]:
        key = hash64(self.seed, "batches", self.epoch)
        generator = torch.Generator().manual_seed(key % 2**63)
        order = torch.randperm(len(self.items), generator=generator)
        reverse = (torch.rand(len(self.items), generator=generator) < 0.5) ^ self.other_strand
        lengths = self.items.lengths
        batches = list(order.split(self.batch_size))
        if len(lengths) and not bool((lengths == lengths[0]).all()):
            buckets = [
                bucket[lengths[bucket].argsort(stable=True)]
                for bucket in order.split(self.batch_size * self.bucket_batches)
            ]
            batches = [index for bucket in buckets for index in bucket.split(self.batch_size)]
            shuffled = torch.randperm(len(batches), generator=generator)
            batches = [batches[i] for i in shuffled.tolist()]
        for index in batches:
            flipped = reverse[index] if self.both_strands else None
            yield make_batch(self.items, index, self.vocab, flipped)


def log_task(data: TaskData, tested: Tensor, subsets: Mapping[str, ndarray]) -> list[str]:
    """Log what is to be known of a task before its results, and return these lines: its size, the
    labels and what predicting always the same would score, labels that conflict, and what the test
    part shares with training.

    Args:
        tested: labels of the tested items.
        subsets: masks of tested items; `inside training` are those that share most of their k-mers
            with it.
    """
    counts = {part: sum(of_class.values()) for part, of_class in data.counts().items()}
    sizes = ", ".join(f"{part} {n:,}" for part, n in counts.items())
    lines = [f"task: {data.name}, {data.target.summary}; {sizes} sequences"]
    lines.append(data.target.balance(data.train.labels, tested))
    notes = data.notes
    if left_out := notes.get("left_out_for_a_shared_kmer"):
        numbers = ", ".join(f"{n} {name}" for name, n in left_out["test"].items())
        lines.append(
            f"left out of test because they share a {notes['shared_kmer']}-mer with training on "
            f"either strand: {numbers}"
        )
    differing = notes.get("sequences_with_different_labels", {"sequences": 0, "rows": 0})
    copies = notes.get("test_sequences_also_in_training", 0)
    either = "" if data.stranded else ", either strand"
    near = int(subsets.get("inside training", np.zeros(1)).sum())
    most = f"; {near:,} have most of their {NOVELTY}-mers in common with it" if near else ""
    lines.append(
        f"{differing['sequences']:,} sequences occur with different labels "
        f"({differing['rows']:,} rows{either}); {copies:,} of {counts['test']:,} test sequences "
        f"are also in the training or validation part{most}, on either strand"
    )
    for line in lines:
        log.info(line)
    return lines


def cluster_copies(sequences: Sequence[ndarray]) -> ndarray:
    """The cluster of each sequence, (S,) int64: sequences that are equal on either strand, numbered
    in order of appearance."""
    return numbered(min(one.tobytes(), reverse_complement(one).tobytes()) for one in sequences)


def numbered(keys: Iterable[bytes]) -> ndarray:
    """The number of each key, (S,) int64, in order of appearance."""
    import pandas

    return pandas.factorize(np.array([*keys], object))[0].astype(np.int64)


def conflicts(copies: ndarray, labels: ndarray) -> tuple[int, int]:
    """The number of sequences that occur with different labels, and of their items; missing values
    do not differ from others.

    Args:
        copies: (S,) the same number for items of one sequence.
        labels: as in `Items`.
    """
    import pandas

    values = pandas.DataFrame(labels.reshape(len(labels), -1)).groupby(copies)
    differs = (values.min() < values.max()).any(axis=1).to_numpy()
    return int(differs.sum()), int(differs[copies].sum())


def _components(first: ndarray, second: ndarray, size: int) -> ndarray:
    """The connected component of each of `size` nodes, of a graph with edges from `first (E,)` to
    `second (E,)`."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    edges = coo_matrix((np.ones(len(first), bool), (first, second)), shape=(size, size))
    return connected_components(edges, directed=False)[1].astype(np.int64)


def cluster_by_shared_kmers(sequences: Sequence[ndarray], k: int) -> ndarray:
    """The cluster of each sequence, (S,) int64: connected components of the graph in which
    sequences share a k-mer on either strand.

    Copies share a cluster whatever their length. Memory: about 32 bytes per base. ValueError if k
    is outside 1..31.
    """
    copies = cluster_copies(sequences)
    _, first = np.unique(copies, return_index=True)
    kmers = [np.empty(0, np.uint64)]
    owners = [np.empty(0, np.int64)]
    for i in first:
        found, known = canonical(sequences[i], k)
        kmers.append(found[known])
        owners.append(np.full(int(known.sum()), copies[i]))
    every = np.concatenate(kmers)
    owner = np.concatenate(owners)
    order = np.argsort(every, kind="stable")
    same = np.flatnonzero(np.diff(every[order]) == 0)
    return _components(owner[order][same], owner[order][same + 1], len(first))[copies]


def connect(first: ndarray, second: ndarray) -> ndarray:
    """The cluster of each item, (S,) int64: items that share a cluster number in either `(S,)` are
    together, and so on."""
    size = int(first.max()) + 1
    found = _components(first, size + second, size + int(second.max()) + 1)[first]
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def sample_clusters(clusters: ndarray, fraction: float, random: np.random.Generator) -> ndarray:
    """A mask (S,) of random complete clusters with at most `fraction` in (0, 1) of the items
    together, but neither none nor all of them.

    A cluster that would exceed the fraction is skipped; if all would, the smallest is taken.

    Raises:
        ValueError: if there are fewer than two clusters.
    """
    names, sizes = np.unique(clusters, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"{len(names)} cluster of items cannot be divided; two or more are needed")
    target = max(1, round(fraction * len(clusters)))
    count = 0
    chosen: list[int] = []
    for number in random.permutation(len(names)):
        if count + sizes[number] <= target and len(chosen) < len(names) - 1:
            chosen.append(number)
            count += sizes[number]
    return np.isin(clusters, names[chosen or [int(np.argmin(sizes))]])


def assign_folds(
    clusters: ndarray, labels: ndarray, num_folds: int, random: np.random.Generator
) -> ndarray:
    """The fold of each item, (S,) int64: clusters stay together, and folds have about equal size
    and class frequencies.

    Larger clusters are placed first, each into the fold with the fewest items of the cluster's most
    frequent class.

    Raises:
        ValueError: if there are fewer clusters than folds.
    """
    names, index, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(names) < num_folds:
        raise ValueError(
            f"{len(names)} groups of sequences cannot fill {num_folds} folds; give more "
            f"sequences, or set task.folds to {len(names)} or less"
        )
    composition = np.zeros((len(names), int(labels.max()) + 1), np.int64)
    np.add.at(composition, (index, labels), 1)
    order = random.permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    counts = np.zeros((num_folds, composition.shape[1]), np.int64)
    fold = np.empty(len(names), np.int64)
    for number in order:
        label = int(composition[number].argmax())
        fold[number] = min(range(num_folds), key=lambda f: (counts[f, label], counts[f].sum()))
        counts[fold[number]] += composition[number]
    return fold[index]


EVALUATION = 4  # batches for scoring are so many times larger than those for training


# A callback for progress, such as `dnadiff.progress.Progress.update`, with steps and tokens to add
# to the counts, and notes (name=text) that are displayed until replaced.
Report: TypeAlias = Callable[..., None]


def no_report(steps: int = 1, tokens: int = 0, **notes: str) -> None:
    """Discard the progress."""


class Budget:
    """A wall-clock budget that starts now; without `minutes`, it has no end."""

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_limited = minutes is not None
        self.clock = clock
        self.end = math.inf if minutes is None else clock() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds; negative after the end."""
        return self.end - self.clock()

    def part(self, share: float) -> Budget:
        """A budget of a part of what is left."""
        minutes = share * self.left / 60 if self.is_limited else None
        return Budget(minutes, self.clock)


class TaskModel(ABC):
    """Predicts what the target of a task asks of sequences.

    Attributes:
        random: False if every seed gives the same result on the same items; the model then runs
            once per division of the data.
        fit_info: plain values that the last call recorded, such as the settings tried on validation
            or the speed.
        trained: the classifier of the last call; None for a model without one.
        budget: of time, which a model that fits others shares among them; None: as its settings
            say.
        members: further models that a call fits, by their rows in a study.
        valid_predictions: predictions (V, C) of the validation items under the model that the last
            call used; None if it has none.
    """

    random = True
    fit_info: Mapping[str, Json] = MappingProxyType({})
    valid_predictions: Tensor | None = None
    trained: SequenceClassifier | None = None
    budget: Budget | None = None
    members: Mapping[str, TaskModel] = MappingProxyType({})

    def describe(self) -> JsonDict:
        """Everything the predictions depend on, except task and seed. Stored predictions are reused
        only if it is unchanged."""
        return {"kind": type(self).__name__}

    def check(self, data: TaskData) -> None:
        """ValueError if the task does not fit the model; called before any model is fitted."""

    def num_steps(self, data: TaskData) -> int:
        """Upper bound on the steps that one call reports, for the progress display."""
        return 0

    def fit_rows(
        self, row: str, data: TaskData, seed: int, report: Report = no_report
    ) -> dict[str, Prediction]:
        """What a fit computes, for the `row` of the model and those of its members."""
        start = time.monotonic()
        found = self.fit_predict(data, seed, report).to(torch.float64)
        seconds = time.monotonic() - start
        valid, info = self.valid_predictions, [dict(self.fit_info)]
        own = Prediction(found, seconds, info, valid_predictions=valid, classifier=self.trained)
        return {row: own}

    @abstractmethod
    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        """Fit on the training and validation items; predictions (S, C) of the test items, see
        `TaskTarget`. The same seed gives the same."""


class Prediction(NamedTuple):
    """Predictions (S, C) of the tested items (of classes, log-probabilities), the seconds of fit
    and prediction, `TaskModel.fit_info` of each round.

    `weights` is the SHA-256 of the file of the network's weights, if kept; `folds` (S,) are those
    of a cross-validation, with a model each. `valid_predictions` are those of the validation items
    of all rounds, in their order; None for a model that does not have them. `classifier` is that
    of the last round, until it is written.
    """

    predictions: Tensor
    seconds: float
    fit_info: list[JsonDict]
    weights: str | None = None
    valid_predictions: Tensor | None = None
    folds: ndarray | None = None
    classifier: SequenceClassifier | None = None


class Job(NamedTuple):
    """What a prediction is made from.

    Attributes:
        members: rows that are computed with that of the model.
        about: everything else that it depends on.
        labels, folds: (S,) of the tested items; folds of a cross-validation.
        train_items: that the model is trained on with this seed (of several rounds the mean); None
            is the training part of the task.
    """

    data: TaskData
    model: str
    seed: int
    about: JsonDict
    labels: Tensor
    train_items: int | None = None
    folds: ndarray | None = None
    members: Collection[str] = ()
