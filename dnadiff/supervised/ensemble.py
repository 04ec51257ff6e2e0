"""Fine-tuned networks of one task, one for each seed, applied to new sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dnadiff.checks import optional_integer
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import DNASequence, is_sequence
from dnadiff.supervised.classifier import Classifier
from dnadiff.supervised.items import Items
from dnadiff.supervised.sequences import LengthLimits, Query, chunks
from dnadiff.supervised.targets.base import TaskTarget
from dnadiff.supervised.targets.predicted import ClassProbabilities as ClassProbabilities
from dnadiff.supervised.targets.predicted import Predicted


@dataclass(frozen=True)
class SeedClassifier:
    """The classifier of one seed, in evaluation mode, with the SHA-256 of its weights and the
    `folder` that it came from."""

    seed: int
    classifier: Classifier
    sha256: str
    folder: Path


def limits_of(classifiers: Sequence[Classifier]) -> LengthLimits:
    """The lengths of sequences that all classifiers accept, whose heads may differ."""
    longest = [one.max_length for one in classifiers if one.max_length is not None]
    fixed = [one.head for one in classifiers if one.head.fixed_length is not None]
    if not fixed:
        return LengthLimits(min(longest, default=None))
    return LengthLimits(min(longest), fixed[0].fixed_length, fixed[0].name)


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

    def __init__(
        self,
        target: TaskTarget,
        members: Sequence[SeedClassifier],
        tokenizer: DNATokenizer,
        path: Path,
        task: str,
        longest: int,
        batch_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.target, self.members, self.tokenizer, self.path = (
            target,
            tuple(members),
            tokenizer,
            path,
        )
        self.task, self.longest, self.batch_size, self.device = (
            task,
            longest,
            batch_size,
            torch.device(device),
        )
        for member in self.members:
            member.classifier.to(device).eval()
        self.stranded, self.limits = (
            self.members[0].classifier.stranded,
            limits_of([member.classifier for member in members]),
        )
        self.head_inputs = self.members[0].classifier.inputs

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or of what else is predicted."""
        return self.target.names

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each classifier."""
        return tuple(member.seed for member in self.members)

    def predict(self, sequences: Sequence[DNASequence], batch_size: int | None = None) -> Predicted:
        """Predictions of sequences of any lengths: class probabilities, or for a regression
        `values`.

        Args:
            sequences: letters in either case, or records of Biopython or pyfaidx; N is read.
            batch_size: None is that of the task's test items: the same items then get the same
                numbers.

        Raises:
            ValueError: for a letter that is not a nucleotide, an empty sequence, or one of a length
                that the networks do not accept.
        """
        if is_sequence(sequences):
            raise ValueError("sequences is a single sequence; put it into a list: [sequence]")
        queries = (
            Query.whole(f"sequence {i}", self.encode(f"sequence {i}", letters))
            for i, letters in enumerate(sequences)
        )
        found = [self.classify(chunk, batch_size).each_seed for chunk in chunks(queries)]
        empty = np.zeros((len(self.members), 0, self.target.num_outputs), np.float32)
        return self.target.predicted(np.concatenate([empty, *found], axis=1))

    def contrasts(
        self, name: str | None = None, batch_size: int | None = None
    ) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
        """A function from token ids of sequences (L_i,) to predictions (R, S) of one class or
        column, for each seed.

        Classes are compared by their log-odds, labels by theirs, values on the scale of the
        transform.

        Args:
            name: of the class or column; None is the only one, or the second of two classes.
            batch_size: None is that of the task's test items.

        Raises:
            ValueError: if there is none of that name, or none is given and there are several.
        """
        number = self.number_of(name)

        def predict(sequences: Sequence[np.ndarray]) -> np.ndarray:
            queries = (Query.whole(f"window {i}", ids) for i, ids in enumerate(sequences))
            found = np.concatenate(
                [self.classify(chunk, batch_size).each_seed for chunk in chunks(queries)], axis=1
            )
            return self.target.contrast(torch.from_numpy(found).double())[..., number].numpy()

        return predict

    def number_of(self, name: str | None) -> int:
        """The number of a class or column; None is the only one, or the second of two classes.
        ValueError if there is none of that name."""
        if name is None and (
            len(self.classes) == 1 or (len(self.classes) == 2 and not self.target.takes_several)
        ):
            name = self.classes[-1]
        if name not in self.classes:
            got = "is missing" if name is None else f"{name!r} is not predicted by this model"
            raise ValueError(f"target {got}; set it to {', '.join(map(repr, self.classes))}")
        return self.classes.index(name)

    def window_of(self, window: int | None) -> int:
        """The bases of a window: those of the longest sequence of the task, unless given;
        ValueError for a length that is not accepted."""
        window = (
            self.longest if window is None else optional_integer("window", window) or self.longest
        )
        self.limits.check_window(window)
        return window

    def encode(self, where: str, letters: DNASequence) -> np.ndarray:
        """Token ids (L,) of a sequence; a ValueError that begins with `where` for one that cannot
        be read."""
        try:
            ids = self.tokenizer.encode(letters)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if not len(ids):
            raise ValueError(f"{where} has an empty sequence; complete or remove it")
        return ids

    def classify(
        self,
        queries: Sequence[Query],
        batch_size: int | None = None,
        report: Callable[[int], None] = lambda tokens: None,
    ) -> Predicted:
        """The predictions for a chunk of queries; `report` is called with the tokens read after
        each seed."""
        batch_size = optional_integer("batch_size", batch_size) or self.batch_size
        for query in queries:
            self.limits.check(query.name, len(query.ids), len(query.ids))
        items = Items.from_sequences(
            [query.ids for query in queries], [0] * len(queries), self.tokenizer.vocab.pad_id
        )
        return self.target.predicted(np.stack(list(self._each_seed(items, batch_size, report))))

    def _each_seed(
        self, items: Items, batch_size: int, report: Callable[[int], None]
    ) -> Iterator[np.ndarray]:
        for member in self.members:
            yield member.classifier.predict(items, batch_size, not self.stranded).numpy()
            report(int(items.lengths.sum()))

    def __repr__(self) -> str:
        network = type(self.members[0].classifier.backbone).__name__
        return (
            f"ClassifierEnsemble({network}, {self.target.summary}, seeds "
            f"{', '.join(map(str, self.seeds))}, {self.path})"
        )
