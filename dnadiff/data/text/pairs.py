"""Text to text: pairs of a source and a target, each pair a window in which the loss is on the
target.

A window is the source, a token that separates, the target, and tokens that end it up to a multiple
of `bucket`: a sampler chooses among few lengths, and the model where the target ends. The source
has weight 0, so that it is never masked and never counted. A tokenizer with an end token separates
and ends by that one; characters do so by the control characters that ASCII has for it.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy import ndarray
from typing_extensions import TypedDict

from dnadiff.data.splits import PARTS, Split
from dnadiff.data.text.corpus import Documents, Encoder, Files, Paths
from dnadiff.data.text.datamodule import TextDataModule
from dnadiff.data.text.pretrained import TokenizerSource
from dnadiff.data.tokenizer import END, SEPARATOR, TextTokenizer, marks
from dnadiff.data.windows import TiledWindows
from dnadiff.fields import Config, Natural, PositiveInt, checked
from dnadiff.formats.documents import read_sides
from dnadiff.store.disk import json_hash

COLUMNS = ("source", "target")
_MOST = 100_000  # pairs whose lengths are counted


class Pairs(Files):
    """The pairs of files, each as one text with a `SEPARATOR` in the middle and an `END`."""

    def since(self, number: int) -> Iterator[str]:
        return (SEPARATOR.join(pair) + END for _, pair in self.placed(number))

    def placed(self, number: int) -> Iterator[tuple[str, list[str]]]:
        """File with line, and both sides, of pairs from `number` on."""
        every = itertools.chain.from_iterable(read_sides(p, self.columns) for p in self.paths)
        return itertools.islice(every, number, None)


@dataclass(frozen=True)
class PairEncoder(Encoder):
    """The ids of windows, of `Pairs`; `bucket` as of `PairsDataModule`."""

    bucket: int = 1

    def __call__(self, texts: list[str]) -> list[ndarray]:
        separator, end = marks(self.tokenizer)
        sides = zip(*(text.removesuffix(END).split(SEPARATOR, 1) for text in texts))
        found = []
        for source, target in zip(*map(self.tokenizer.encode_batch, sides)):
            ends = [end] * (self.bucket - len(target) % self.bucket)  # one or more
            ids = np.concatenate([source, [separator], target, ends])
            found.append(ids.astype(self.tokenizer.dtype))
        return found

    def key(self, documents: Documents) -> str:
        return json_hash([super().key(documents), self.bucket])[:32]


def target_lengths(
    counts: Sequence[Sequence[int]], bucket: int, source: int, room: int
) -> list[int]:
    """Lengths of at most `room` tokens of the target of a source, the most probable first; empty if
    there are none.

    They are as frequent as in training, where a source whose length differs by k buckets has the
    weight 2^-k.

    Args:
        counts: `PairsDataModule.lengths`.
        source: its tokens and the separator.
    """
    mass: dict[int, float] = defaultdict(float)
    for of_source, length, count in counts:
        if length <= room:
            mass[length] += count * 0.5 ** abs(of_source - source // bucket)
    return sorted(mass, key=lambda length: -mass[length])


class TextOptions(TypedDict, total=False):
    """Arguments of `TextDataModule` that pairs have too."""

    tokenizer: TextTokenizer | TokenizerSource | None
    split: Split | None
    valid_documents: PositiveInt | None
    num_workers: Natural
    epoch_size: PositiveInt | None
    seed: Natural
    max_valid_windows: PositiveInt
    name: str | None


@checked
class PairsDataModule(TextDataModule):
    """Pairs of a source and a target; see the module for their windows. Pairs that are longer than
    a window are cut; sources must leave room for a token of the target.

    Args:
        path: files with a source, a tab and a target in each line, or of JSON lines or a table with
            the columns `source` and `target`; or `{train: ..., valid: ..., test: ...}`.
        length: the most tokens of a window.
        bucket: targets and their end tokens have a multiple of so many tokens.
        lengths: what a checkpoint has from its training: full buckets of a source with its
            separator, tokens of a target with its ends, and how many pairs have both.
        text: see `TextOptions`.
    """

    files = Pairs
    n_policy = "tokens of the target and those that end it are counted; sources are not"

    def __init__(
        self,
        path: Paths | Mapping[str, Paths],
        length: PositiveInt,
        batch_size: PositiveInt,
        bucket: PositiveInt = 8,
        lengths: Sequence[Sequence[int]] | None = None,
        **text: Unpack[TextOptions],
    ) -> None:
        super().__init__(
            path,
            length,
            batch_size,
            wrap=False,
            insert_special_tokens=False,
            column=COLUMNS,
            **text,  # type: ignore[arg-type]  # the base class replaces None
        )
        self.bucket: int = bucket

    def _encoder(self, eos_id: int | None) -> Encoder:
        tokenizer: TextTokenizer = self.tokenizer  # type: ignore[assignment]
        return PairEncoder(tokenizer, None, None, self.bucket)

    def _check_special_tokens(self) -> None:
        self.separator, _ = marks(self._tokenizer)

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        found = super().test_windows(split, length)
        self._check_sources(length or self.length)
        return found

    def _check_sources(self, length: int) -> None:
        """Refuse a source that leaves no room in a window, in any part that has been read."""
        for (part, *_), tokens in self._opened.items():
            starts = tokens.ends - np.diff(tokens.ends, prepend=0)
            places = np.flatnonzero(tokens.tokens == self.separator)
            sizes = places[np.searchsorted(places, starts)] + 1 - starts
            for number in np.flatnonzero(sizes >= length)[:1].tolist():
                pairs: Pairs = self.documents_in(part)  # type: ignore[assignment]
                where, _ = next(pairs.placed(number))
                raise ValueError(
                    f"{where} has a source of {sizes[number]} tokens with its separator, which "
                    f"leaves nothing of {length} for the target; shorten or remove it, or "
                    "increase data.length"
                )

    def check_corruption(self, protocol: str) -> None:
        if protocol == "mdlm":
            raise ValueError(
                "protocol=mdlm masks every token, and the sources of pairs are always visible; set "
                "protocol=count"
            )

    def measured(self) -> Config:
        pairs = self.test_windows(PARTS[0])
        counts = Counter[tuple[int, int]]()
        for number in range(min(len(pairs), _MOST)):
            window = pairs[number]
            target = int(window["weight"].sum())
            counts[int(window["valid"].sum() - target) // self.bucket, target] += 1
        return {"lengths": [[*sizes, count] for sizes, count in sorted(counts.items())]}
