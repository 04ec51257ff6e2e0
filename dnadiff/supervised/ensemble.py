"""The classifiers of all seeds of a fine-tuned run, as they are loaded, and their predictions.

Loading builds only classes of this package (`dnadiff.store.objects.build`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy import ndarray

from dnadiff.data.alignment import Alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.inputs import ArrayInput, Columns, SequenceInput
from dnadiff.data.records import padded_groups
from dnadiff.data.tokenizer import DNATokenizer, encoded
from dnadiff.fields import LARGEST, Json, JsonMap, PositiveInt, check_value
from dnadiff.formats.nucleotides import N_ID, DNASequence, several
from dnadiff.formats.regions import read_regions
from dnadiff.genomics.variants.effects import (
    AnyGenome,
    RowScorer,
    predicted_effects,
    reference_of,
)
from dnadiff.genomics.variants.variant import Alleles, Saturation
from dnadiff.progress import advance, bar, log
from dnadiff.renamed import current_name
from dnadiff.store.address import expand_user
from dnadiff.store.objects import PACKAGE, build
from dnadiff.supervised.attribution import Mutagenesis, Predict, hypothetical
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.classifier import (
    MEAN_HEAD,
    Classifier,
    HeadInputs,
    build_classifier,
    keep_first_layers,
)
from dnadiff.supervised.combined import (
    BASES,
    KMERS,
    NETWORK,
    CombinedClassifier,
    KmerClassifier,
    Pool,
)
from dnadiff.supervised.items import Items
from dnadiff.supervised.runs import DESCRIPTION, WEIGHTS, find
from dnadiff.supervised.saved import SHARED, WeightsFile, read_description
from dnadiff.supervised.targets import Label, Predicted, TaskTarget
from dnadiff.weights import tensors
from dnadiff.weights.loaded import columns_for, names_file

if TYPE_CHECKING:
    import pandas

CHUNK = 1 << 23  # tokens, padding included, that are in memory and classified together
UNLABELED = -1
NO_PREDICTION = "have no known base (all N) and no prediction (nan)"
_OF_SEED = ("items", "mean", "std", "thresholds", "targets")  # of the task and of the target


@dataclass(frozen=True)
class LengthLimits:
    """The numbers of bases that a classifier accepts.

    Attributes:
        maximum: that the network accepts; None is any.
        fixed: the only number that the head accepts; None is any.
    """

    maximum: int | None = None
    fixed: int | None = None

    def check(self, where: str, total: int, length: int) -> None:
        """Raise ValueError if `length` bases cannot be classified; they are a window of `where`, a
        sequence of `total` bases, or any that is long enough."""
        got = (
            f"{where} has {total:,} bases"
            if length == total
            else f"{where} has a window of {length:,} bases"
        )
        if self.fixed is not None and length != self.fixed:
            remedy = (
                f"set window={self.fixed}"
                if total >= self.fixed
                else "remove it, or fine-tune with head=attention, head=conv or head=mean"
            )
            raise ValueError(
                f"{got}, and the head of this classifier accepts only sequences of "
                f"{self.fixed:,}; {remedy}"
            )
        if self.fixed is None and self.maximum is not None and length > self.maximum:
            raise ValueError(
                f"{got}, more than the {self.maximum:,} that this network accepts; set "
                f"window={self.maximum} or less to cut it into windows"
            )


class Query(NamedTuple):
    """What gets one prediction: the bases `start` to `end` (0-based, half-open) of the record
    `name`.

    `ids (L,)` are its tokens, `label` is the number of its class or its values, or `UNLABELED`, and
    `record` is the number of the record among all.
    """

    name: str
    start: int
    end: int
    ids: ndarray
    label: Label = UNLABELED
    record: int = 0

    @property
    def is_unknown(self) -> bool:
        """Whether no base is known: such a query has no prediction."""
        return bool((self.ids == N_ID).all())


def chunks(queries: Iterable[Query], first: int = 0, size: int = CHUNK) -> Iterator[list[Query]]:
    """The queries from number `first` on, in lists that take at most `size` tokens when they are
    padded to the longest.

    A longer query is a chunk of its own. Chunks that start with the first query of a chunk are the
    same whatever came before.
    """
    return padded_groups(islice(queries, first, None), lambda q: len(q.ids), size, size)


@dataclass(frozen=True)
class SeedClassifier:
    """The classifier of one seed, in evaluation mode, with the SHA-256 of its weights and the
    `folder` that it came from."""

    seed: int
    classifier: Classifier | CombinedClassifier
    sha256: str
    folder: Path


@dataclass(eq=False, repr=False)
class ClassifierEnsemble:
    """What `dnadiff.load` returns for a run of `python -m dnadiff.finetune`.

    Attributes:
        target: what is predicted; each classifier has its own, fitted on the training items of its
            seed.
        classes: names of the classes, or of what else is predicted.
        members: the classifier of each seed.
        path: the folder of the run.
        task: name of the task.
        longest: bases in the longest sequence that it was trained or tested on.
        limits: the lengths of sequences that all members accept.
        head_inputs: what the heads read; the same for all members.
        batch_size: sequences in a batch, as the test items of the task were predicted.
    """

    target: TaskTarget
    members: Sequence[SeedClassifier]
    tokenizer: DNATokenizer
    path: Path
    task: str
    longest: int
    batch_size: int
    device: Any = "cpu"

    def __post_init__(self) -> None:
        self.to(self.device)
        classifiers = [one.classifier.eval() for one in self.members]
        self.stranded = classifiers[0].stranded
        self.head_inputs = classifiers[0].inputs
        longest_read = [one.max_length for one in classifiers if one.max_length is not None]
        fixed = [one.fixed_length for one in classifiers]
        self.limits = LengthLimits(min(longest_read, default=None), next(filter(None, fixed), None))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or of what else is predicted."""
        return self.target.names

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each classifier."""
        return tuple(member.seed for member in self.members)

    def columns_for(self, alignment: str | None, genome: Genome | None = None) -> Alignment | None:
        """See `dnadiff.weights.loaded.columns_for`."""
        return columns_for(self.members[0].classifier.backbone, self.path, alignment, genome)

    def predict(
        self,
        sequences: Sequence[DNASequence],
        batch_size: int | None = None,
        columns: Columns = None,
        progress: bool = False,
    ) -> Predicted:
        """Predictions of sequences of any lengths: class probabilities, or for a regression
        `values`.

        Args:
            sequences: letters in either case, or records of Biopython or pyfaidx; N is read.
            batch_size: None is that of the task's test items: the same items then get the same
                numbers.
            columns: of an alignment of related genomes, `(L_i, CHANNELS)` of each sequence, for
                networks that read one (`dnadiff.data.alignment.Alignment.columns`).
            progress: show a progress bar: a widget in a notebook, text elsewhere.

        Raises:
            TypeError: for something that is not a sequence, or not several.
            ValueError: for a letter that is not a nucleotide, an empty sequence, or one of a length
                that the networks do not accept.
        """
        named = self._encoded(sequences)
        calls = len(self.members) * (1 if self.stranded else 2)
        with bar(len(named), "predict", "sequences", progress, calls):
            found = self._each_seed(named, batch_size, columns)
            advance(len(named))
        if unknown := int(np.isnan(found).all((0, 2)).sum()):
            log.warning(f"{unknown:,} of {found.shape[1]:,} sequences {NO_PREDICTION}")
        return self.target.predicted(found)

    def _encoded(self, sequences: Sequence[DNASequence]) -> list[tuple[str, ndarray]]:
        """Names, for messages, and token ids (L_i,)."""
        named = ((f"sequence {place}", letters) for place, letters in several(sequences))
        return [(where, encoded(self.tokenizer, letters, where)) for where, letters in named]

    def _each_seed(
        self,
        sequences: Sequence[tuple[str, ndarray]],
        batch_size: int | None,
        columns: Columns,
    ) -> ndarray:
        """The predictions (R, S, K) of what `_encoded` returns."""
        source = ArrayInput([ids for _, ids in sequences], columns)
        queries = (
            Query(name, 0, len(ids), ids, record=i) for i, (name, ids) in enumerate(sequences)
        )
        empty = np.zeros((len(self.members), 0, self.target.num_outputs), np.float32)
        found = (self.classify(chunk, batch_size, source) for chunk in chunks(queries))
        return np.concatenate([empty, *(each.each_seed for each in found)], axis=1)

    def contrasts(self, name: str | None = None, batch_size: int | None = None) -> Predict:
        """A function from token ids of sequences (L_i,), and the columns of an alignment or None,
        to predictions (R, S) of one class or column, for each seed.

        Classes are compared by their log-odds, labels by theirs, values on the scale of the
        transform.

        Args:
            name: of the class or column; None is the only one, or the second of two classes.
            batch_size: None is that of the task's test items.

        Raises:
            ValueError: if there is none of that name, or none is given and there are several.
        """
        number = self.number_of(name)

        def predict(sequences: Sequence[ndarray], columns: Columns = None) -> ndarray:
            named = [(f"window {i}", ids) for i, ids in enumerate(sequences)]
            found = torch.from_numpy(self._each_seed(named, batch_size, columns)).double()
            return self.target.contrast(found)[..., number].numpy()

        return predict

    def number_of(self, name: str | None, key: str = "target") -> int:
        """The number of a class or column; None is the only one, or the second of two classes.
        ValueError, which names the `key`, if there is none of that name."""
        if name is None and (
            len(self.classes) == 1 or (len(self.classes) == 2 and not self.target.takes_several)
        ):
            name = self.classes[-1]
        if name not in self.classes:
            got = "is missing" if name is None else f"{name!r} is not predicted by this model"
            raise ValueError(f"{key} {got}; set it to {', '.join(map(repr, self.classes))}")
        return self.classes.index(name)

    def explain(self, sequences: Sequence[DNASequence], target: str | None = None) -> list[ndarray]:
        """What A, C, G and T would contribute at each position of each sequence, (L_i, 4), by
        in-silico mutagenesis (docs/explaining.md); `target` as in `contrasts`.

        The contribution of a base of the sequence is that of its letter. At other letters than A,
        C, G and T it is 0.
        """
        effects = Mutagenesis(self.contrasts(target))
        return [hypothetical(effects(ids)[0]) for _, ids in self._encoded(sequences)]

    def scorer(
        self,
        alleles: Alleles,
        alignment: Alignment | None,
        target: str | None = None,
        batch_size: int | None = None,
    ) -> RowScorer:
        """What computes the effects of variants; `target` and `batch_size` as in `contrasts`."""
        predict = self.contrasts(target, batch_size)
        return RowScorer(alleles, partial(predicted_effects, predict, alleles, alignment))

    def saturate(
        self,
        region: str | Sequence[str],
        genome: AnyGenome,
        target: str | None = None,
        deletions: bool = False,
        window: int | None = None,
        alignment: str | None = None,
    ) -> pandas.DataFrame:
        """The change of a prediction by all SNVs of a region, and by all deletions of one base if
        requested: a table with the columns of `python -m dnadiff.variants`, `REF_mismatch` and
        `reason`, which `dnadiff.plot.heat_map` draws.

        Args:
            region: `chr:1-200`, counted from 1, a BED, GTF or GFF file, or a list of these.
            genome: a sequence file, `{name: letters}`, or an open `Genome` or `pyfaidx.Fasta`.
            target: as in `contrasts`.
            window: bases around a variant that are read; None is the longest sequence of the task.
            alignment: of the genome with its relatives, for networks that read one.
        """
        reference: Any = reference_of(genome)
        regions = read_regions(region, reference.lengths, None)
        source = Saturation(regions, reference, deletions, self.stranded)
        has_fixed = self.limits.fixed is not None
        alleles = Alleles(reference, self.window_of(window), fixed_length=has_fixed)
        columns = self.columns_for(alignment, reference)
        return self.scorer(alleles, columns, target).frame(source)

    def to(self, device: torch.device | str) -> Self:
        """Move the networks to a device, such as `cuda`."""
        for member in self.members:
            member.classifier.to(device)
        self.device = torch.device(device)
        return self

    def window_of(self, window: int | None) -> int:
        """The bases of a window: those of the longest sequence of the task, unless given;
        ValueError for a length that is not accepted."""
        window = check_value("window", window, PositiveInt | None) or self.longest
        self.limits.check("variants", LARGEST, window)
        return window

    def classify(
        self,
        queries: Sequence[Query],
        batch_size: int | None = None,
        source: SequenceInput | None = None,
    ) -> Predicted:
        """The predictions for a chunk of queries, with the columns that `source` has for their
        records, NaN where no base is known."""
        batch_size = check_value("batch_size", batch_size, PositiveInt | None) or self.batch_size
        for query in queries:
            self.limits.check(query.name, len(query.ids), len(query.ids))
        ids = [query.ids for query in queries]
        labels = [0] * len(queries)
        pieces = [(query.record, query.start, query.end) for query in queries]
        pad_id = self.tokenizer.vocab.pad_id
        items = Items.from_sequences(ids, labels, pad_id, pieces=pieces, source=source)
        each_seed = np.stack(
            [
                member.classifier.predict(items, batch_size, not self.stranded).numpy()
                for member in self.members
            ]
        )
        each_seed[:, [query.is_unknown for query in queries]] = np.nan
        return self.target.predicted(each_seed)

    def __repr__(self) -> str:
        network = type(self.members[0].classifier.backbone).__name__
        return (
            f"ClassifierEnsemble({network}, {self.target.summary}, seeds "
            f"{', '.join(map(str, self.seeds))}, {self.path})"
        )


def load(
    checkpoint: str | os.PathLike[str],
    trust: Sequence[str] = (),
    device: torch.device | str = "cpu",
) -> ClassifierEnsemble:
    """The classifiers of a fine-tuned run.

    Args:
        checkpoint: see `find`.
        trust: packages besides dnadiff whose classes a description may name.
        device: of the networks.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, names classes that are not trusted, the seeds are of
            different runs, or there is no such device.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = shorten(str(error), 200)
        raise ValueError(
            f"device {device} cannot be used on this machine, or with this build of torch "
            f"({reason}); use cpu"
        ) from error
    trust = (PACKAGE, *trust)
    folders = find(checkpoint)
    described = [read_description(folder / DESCRIPTION) for folder in folders]
    first = described[0]
    present = [about["seed"] for about in described]
    shared = [_of_run(about) for about in described]
    for folder, about in zip(folders, shared):
        if different := [key for key in about if about[key] != shared[0][key]]:
            raise ValueError(
                f"{folder} is of a different run from {folders[0]} (different {different[0]}); "
                "remove one of them"
            )
    several = expand_user(checkpoint) != folders[0]  # type: ignore[arg-type]
    if several and present != first["seeds"]:
        raise ValueError(
            f"{folders[0].parent} holds the seeds {present} of a run with the seeds "
            f"{first['seeds']}: the run was interrupted; start it again"
        )
    with names_file(folders[0] / DESCRIPTION):
        tokenizer = build(first["tokenizer"], trust=trust)
        target = _target(first, trust)
    return ClassifierEnsemble(
        target,
        [_member(*of_seed, tokenizer, trust) for of_seed in zip(folders, described)],
        tokenizer,
        folders[0].parent,
        str(first["task"]["name"]),
        int(first["task"]["longest"]),
        int(first["batch_size"]),
        device,
    )


def _of_run(about: JsonMap) -> dict[str, Json]:
    """What the seeds of a run have in common: not the items of each, nor the mean and standard
    deviation of their values."""
    parts = {
        name: {key: value for key, value in (about.get(name) or {}).items() if key not in _OF_SEED}
        for name in ("task", "target")
    }
    return {key: about[key] for key in SHARED} | parts


def _target(about: JsonMap, trust: Sequence[str]) -> TaskTarget:
    if "target" not in about:
        return ClassTarget(about["classes"])  # of a version that had only these
    return build(about["target"], trust=trust)


def _member(
    folder: Path, about: JsonMap, tokenizer: DNATokenizer, trust: Sequence[str]
) -> SeedClassifier:
    path = folder / WEIGHTS
    sha256 = str(about["sha256"])
    head = about.get("head", {})
    state = WeightsFile(path, sha256).read()
    if (
        current_name(head.get("_target_", "")) == "dnadiff.supervised.heads.ConvHead"
        and not {"global_pooling", "members"} & {*head, *about}
        and not any(name.startswith("head.") and name.endswith("linear.weight") for name in state)
    ):  # the head of earlier versions, which was pooled in parts alone
        head = head | {"global_pooling": False}

    target = _target(about, trust)
    inputs = HeadInputs(**about.get("inputs", {}))
    num_outputs, stranded = len(about["classes"]), bool(about["stranded"])
    sizes = num_outputs, int(about["task"]["longest"]), stranded

    @names_file(folder / DESCRIPTION)
    def make() -> Classifier | CombinedClassifier:
        backbone = build(about["network"], vocab=tokenizer.vocab, trust=trust)
        if layer := about["pretrained"].get("columns"):
            backbone.read_columns(lambda d_model: build(layer, d_model=d_model, trust=trust))
        network = build_classifier(
            keep_first_layers(backbone, about["layer"]),
            # Runs of earlier versions have the published head, and describe it in words.
            head if "_target_" in head else MEAN_HEAD,
            inputs,
            *sizes,
            trust,
        )
        network.target = target
        if not (members := about.get("members")):
            return network
        on_bases = HeadInputs(one_hot=True, length=inputs.length)
        bases = build_classifier(
            None, members[BASES]["head"], on_bases, *sizes, trust, tokenizer.vocab
        )
        none = torch.zeros(num_outputs)
        weight = torch.zeros(num_outputs, 4 ** members[KMERS]["k"])
        kmers = KmerClassifier(tokenizer.vocab, weight, none, stranded)
        bases.target = kmers.target = target
        combined = {NETWORK: network, BASES: bases, KMERS: kmers}
        return CombinedClassifier(combined, Pool(torch.zeros(len(combined)), none))

    # A network that the file cannot fill is refused before memory is allocated.
    with tensors.without_memory(len(state), path):
        faults = tensors.misfits(make().state_dict(), state)
    tensors.refuse(faults, path)
    tensors.check_memory(state.values(), path)
    classifier = make()
    classifier.load_state_dict(state)
    return SeedClassifier(int(about["seed"]), classifier.eval(), sha256, folder)
