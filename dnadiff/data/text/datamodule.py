"""The data module for text: documents of local files or the Hugging Face Hub, tokenized once, in
windows of one length: wrapped (concatenated and cut into blocks), padded (one document per window),
or cut from a stream.

A stream is for corpora too large to store: documents are read in their own order, once per epoch,
and tokenized during training. Its state records the document and token at which the next block
begins, so that a resumed run sees exactly the tokens that an uninterrupted run would have seen.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy import ndarray

from dnadiff.data.base import (
    ALONE,
    About,
    Loader,
    LoaderState,
    ProcessRank,
    SequenceDataModule,
    named,
)
from dnadiff.data.records import (
    Ends,
    Integers,
    Interval,
    Intervals,
    PaddedCutter,
    StoredRecords,
    Tile,
    TokenTable,
    between,
    num_tokens,
)
from dnadiff.data.splits import PARTS, FractionSplit, Parts
from dnadiff.data.text.corpus import (
    Detokenizer,
    DocumentRange,
    Documents,
    Encoder,
    Files,
    Hub,
    HubPart,
    Paths,
    TokenizedDocuments,
    detokenize,
    tokenize,
)
from dnadiff.data.text.pretrained import Characters, TokenizerSource
from dnadiff.data.tokenizer import DNATokenizer, TextTokenizer, Tokenizer
from dnadiff.data.windows import (
    Batch,
    Cut,
    IntervalWindows,
    SampledWindows,
    TiledWindows,
    UniformWindows,
    in_random_order,
)
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, checked_dataclass
from dnadiff.formats.documents import DocumentKind
from dnadiff.store.disk import json_hash

TRAIN, VALID, TEST = PARTS
_MANY = 100  # from this number of documents on, a split divides documents, not tokens


@checked_dataclass
class TextDataModule(SequenceDataModule):
    """Text as windows of tokens. Parts are read and tokenized when they are first needed.

    Args:
        path: a file, several files, or patterns, which are the part `path_is`; or
            `{train: ..., valid: ..., test: ...}`. None: see `hub`.
        length: tokens in a window, those at its ends included.
        split: divides a single path into parts: documents if there are 100 or more or they are
            padded, otherwise tokens.
        tokenizer: a tokenizer, or a source to load it from; None: the characters of the text. A
            trained model's own replaces it.
        detokenizer: rules that undo the word tokenization of a corpus: wikitext, ptb, lm1b,
            lambada, scientific_papers.
        wrap: concatenate documents and cut them into blocks; false: each document is a window,
            padded or truncated.
        windows: of wrapped training text: `uniform` over all starts, or consecutive `blocks`, each
            once per epoch, as published.
        streaming: tokenize training text during training, in its own order and without a cache; see
            `StreamLoader`.
        num_proc: number of tokenizing processes; None: the number of processor cores.

        documents, column: see `Files`.
        path_is: the part that a single path contains: all, train or test.
        valid_documents: use the last documents of the training part, this many, for validation.
        num_documents: documents of the training part; required to split validation off a stream.
        insert_eos: insert the end-of-text token after each document, if documents are wrapped;
            None: if the tokenizer has one.
        insert_valid_eos: the same for validation and test; None: as `insert_eos`.
        insert_special_tokens: begin and end every window with the tokens for that; None: if the
            tokenizer has both.

    The other arguments are those of `SequenceDataModule`.

    Raises:
        ValueError: for settings that contradict each other.
    """

    files: ClassVar[type[Files]] = Files  # which read documents
    n_policy = "every token is counted, those that begin and end a text included; padding is not"

    path: Paths | Mapping[str, Paths] | None
    augment_rc: None = field(default=None, init=False)
    # batches of padded text have a multiple of so many columns
    bucket: int | None = field(default=None, init=False)
    # the id after a source, which does not count
    separator: int | None = field(default=None, init=False)
    tokenizer: InitVar[TextTokenizer | TokenizerSource | None] = None
    hub: Hub | None = None
    documents: DocumentKind = "file"
    column: str | Sequence[str] = "text"
    detokenizer: Detokenizer | None = None
    wrap: bool = True
    insert_eos: bool | None = None
    insert_valid_eos: bool | None = None
    insert_special_tokens: bool | None = None
    windows: Literal["uniform", "blocks"] = "uniform"
    path_is: Literal["all", "train", "test"] = "all"
    valid_documents: PositiveInt | None = None
    num_documents: PositiveInt | None = None
    streaming: bool = False
    num_proc: PositiveInt | None = None

    def __post_init__(self, tokenizer: TextTokenizer | TokenizerSource | None) -> None:
        path = self.path
        if path is None and self.hub is None:
            raise ValueError(
                "path names no file; set data.path to a text file, or to {train: ..., valid: ...}"
            )
        if isinstance(path, Mapping) and (not path or set(path) - set(PARTS)):
            raise ValueError(
                f"path has the parts {', '.join(map(str, path)) or 'none'}; expected some of "
                f"{', '.join(PARTS)}"
            )
        self.split = self.split or FractionSplit()
        super().__post_init__()
        self.hub = self.hub if path is None else None
        self._given = tokenizer
        self._paths: Mapping[str, Paths | None] = (
            path if isinstance(path, Mapping) else {self.path_is: path}
        )
        given = self._paths if self.hub is None else self.hub.splits
        # The names of what has documents: of the parts, or `all` for a path that a split divides
        self.sources = [source for source in ("all", *PARTS) if given.get(source) is not None]
        self.is_divided = "all" in self.sources
        # Whether the last documents of the training part are used for validation
        self.splits_off_validation = (
            self.valid_documents is not None and TRAIN in self.sources and VALID not in self.sources
        )
        if self.streaming and self.is_divided:
            raise ValueError(
                "streaming=true needs separate parts; set data.path={train: ..., valid: ...}, or "
                "data.path_is=train"
            )
        if self.valid_documents is not None and self.is_divided:
            raise ValueError(
                f"valid_documents is {self.valid_documents}, but a single path with all of the "
                "data is divided by data.split; set data.path_is=train, or "
                "data.valid_documents=null"
            )
        if self.streaming and self.splits_off_validation and self.num_documents is None:
            raise ValueError(
                "streaming=true with valid_documents needs the number of documents; set "
                "data.num_documents, or give a valid part"
            )
        if self.streaming and not self.wrap:
            raise ValueError(
                "streaming=true wraps documents; set data.wrap=true, or data.streaming=false"
            )
        if self.streaming and self.epoch_size is not None:
            raise ValueError(
                "an epoch of streaming=true is the whole corpus, but epoch_size is "
                f"{self.epoch_size}; set data.epoch_size=null"
            )

    def path_names(self) -> list[str]:
        return super().path_names() or [f"Hugging Face Hub: {self.hub and self.hub.id}"]

    # Sources and tokens

    @property
    def parts(self) -> list[str]:
        available = [*self.sources, *[VALID] * self.splits_off_validation]
        return [part for part in PARTS if self.is_divided or part in available]

    def source_of(self, part: str) -> str:
        """The name of the source that contains a part; raises ValueError if there is no such
        part."""
        if part not in PARTS:
            raise ValueError(f"split is {part!r}; expected one of {', '.join(PARTS)}")
        if part not in self.parts:
            remedy = "".join(f"part={other}, or " for other in self.parts)
            raise ValueError(
                f"{self.name} has no {part} part; set {remedy}data.path={{{part}: FILE}}"
            )
        return "all" if self.is_divided else part if part in self.sources else TRAIN

    def documents_in(self, source: str, keep_line_ends: bool = False) -> Documents:
        """The documents of a source. Raises FileNotFoundError if a file does not exist."""
        if self.hub is not None:
            return HubPart(self.hub, source, self.name, self.streaming)
        paths = self._paths[source]
        assert paths is not None  # `sources` leaves those out
        return self.files(paths, self.documents, self.column, keep_line_ends)

    def _tokenized_in(self, source: str) -> Documents:
        return self.documents_in(source, keep_line_ends=self.tokenizer.eos_id is None)

    def documents_read(self, part: str) -> tuple[str, str | None, Documents]:
        """The source that contains a part, the part itself if only its documents are read (None:
        all of the source), and the documents."""
        source = self.source_of(part)
        documents = self._tokenized_in(source)
        if not self.streaming or source != TRAIN or not self.splits_off_validation:
            return source, None, documents
        assert self.num_documents is not None  # checked by the constructor
        edge = self._first_valid_document(self.num_documents)
        end = self.num_documents
        first, last = (edge, end) if part == VALID else (0, edge)
        return source, part, DocumentRange(documents, first, last)

    def _first_valid_document(self, number: int) -> int:
        """The first document of the validation part, of `number` in the training part; raises
        ValueError if training has none."""
        assert self.valid_documents is not None  # `splits_off_validation`
        if self.valid_documents >= number:
            raise ValueError(
                f"{self.name} has {number:,} documents and valid_documents is "
                f"{self.valid_documents:,}: none is left for training; set data.valid_documents, "
                "or give the validation part its own file, {valid: FILE}"
            )
        return number - self.valid_documents

    def eos_of(self, part: str) -> int | None:
        """The id after each document of a part; None: no token is inserted."""
        held_out = part != TRAIN and self.insert_valid_eos is not None
        insert = self.insert_valid_eos if held_out else self.insert_eos
        return self.tokenizer.eos_id if insert is not False and self.wrap else None

    def _encoder(self, eos_id: int | None) -> Encoder:
        tokenizer: TextTokenizer = self.tokenizer  # type: ignore[assignment]
        return Encoder(tokenizer, self.detokenizer, eos_id)

    def tokens(self, part: str) -> TokenizedDocuments:
        """The tokenized documents that contain a part."""
        source, only, documents = self.documents_read(part)
        key = source, only, self.eos_of(part)
        if key not in self._opened:
            name = self.name if self.is_divided else f"{self.name} ({only or source})"
            try:
                encoder = self._encoder(self.eos_of(part))
                self._opened[key] = tokenize(documents, encoder, name, self.num_proc)
            except ValueError as error:
                raise named(error, self.name) from None
        return self._opened[key]

    def documents_of(self, part: str) -> Sequence[Interval] | None:
        """The intervals of documents in `tokens(part)` that belong to a part; None if the split
        divides tokens, not documents."""
        number = len(self.tokens(part))
        if self.is_divided:
            if not self.wrap or number >= _MANY:
                return self.split([self.name], [number])[part]
            # equal fractions of two different streams are not the same text
            if self.eos_of(part) != self.eos_of(TRAIN):
                raise ValueError(
                    f"insert_valid_eos={str(self.insert_valid_eos).lower()} differs from training, "
                    f"and the split divides {number} documents by position; give separate parts, "
                    f"data.path={{train: FILE, valid: FILE, test: FILE}}, or {_MANY} documents"
                )
            return None
        if not self.splits_off_validation or self.documents_read(part)[:2] != (TRAIN, None):
            return [Interval(0, 0, number)]
        edge = self._first_valid_document(number)
        return [Interval(0, edge, number)] if part == VALID else [Interval(0, 0, edge)]

    @property
    def ends(self) -> Ends:
        """The tokens at the ends of every window."""
        bos = self.tokenizer.bos_id
        eos = self.tokenizer.eos_id
        if bos is None or eos is None or self.insert_special_tokens is False:
            return None
        return bos, eos

    # What the base class asks for

    def expect(self, tokenizer: Tokenizer) -> None:
        if isinstance(tokenizer, DNATokenizer):
            raise ValueError(
                f"the model was trained on {tokenizer.name}, but these data are text "
                f"({self.name}); choose data or a model of the same vocabulary"
            )
        self._given = tokenizer  # type: ignore[assignment]  # all others are tokenizers of text

    def prepare(self) -> None:
        # The other checks of the base class would tokenize the corpus.
        if self._names:
            return
        for source in self.sources:
            self.documents_in(source)  # missing files are reported
        given = Characters() if self._given is None else self._given
        if isinstance(given, TokenizerSource):
            given = given.load(
                lambda: (
                    detokenize(text, self.detokenizer)
                    for source in self.sources
                    for text in self.documents_in(source, keep_line_ends=True)
                )
            )
        self._tokenizer = given
        self._check_special_tokens()
        self._opened: dict[tuple[str, str | None, int | None], TokenizedDocuments] = {}
        self._names = self.sources
        if self.is_divided:
            self._check_windows(PARTS)

    def _check_special_tokens(self) -> None:
        tokenizer = self._tokenizer
        has = f"the tokenizer {tokenizer.name} has no token that"
        if (self.insert_eos or self.insert_valid_eos) and self.wrap and tokenizer.eos_id is None:
            key = "insert_eos" if self.insert_eos else "insert_valid_eos"
            raise ValueError(
                f"{has} ends a text; set data.{key}=false, or name one by tokenizer.eos"
            )
        if self.insert_special_tokens and None in (tokenizer.bos_id, tokenizer.eos_id):
            missing = "begins" if tokenizer.bos_id is None else "ends"
            raise ValueError(
                f"{has} {missing} a text; set data.insert_special_tokens=false, or name one by "
                "tokenizer.bos and tokenizer.eos"
            )

    def _check_countable(self) -> None:
        """Texts have no letter that is never counted."""

    def check_training(self) -> None:
        if missing := [part for part in (TRAIN, VALID) if part not in self.parts]:
            cut = ", or data.valid_documents=N for the last N documents of train"
            raise ValueError(
                f"training needs a train and a valid part, but {self.name} has only "
                f"{', '.join(self.parts)}; "
                f"set data.path={{train: FILE, valid: FILE}}{cut if missing == [VALID] else ''}"
            )
        self.prepare()
        self._check_windows((VALID,) if self.streaming else (TRAIN, VALID))

    def check_step(self, world_size: int, accumulated: int) -> None:
        if self.streaming:
            process = ProcessRank(world_size=world_size, accumulated=accumulated)
            next(iter(self._stream_loader(process)))

    @property
    def intervals(self) -> Parts:
        return {part: self._part(part) for part in self.parts}

    def _part(self, split: str) -> Sequence[Interval]:
        """The intervals of tokens in `tokens(split)` that belong to a part."""
        tokens = self.tokens(split)
        documents = self.documents_of(split)
        if documents is None:
            return self.split([self.name], [len(tokens.tokens)])[split]
        return [Interval(0, tokens.starts_at(i.start), tokens.starts_at(i.end)) for i in documents]

    def sequences(self, split: str) -> list[ndarray]:
        return [self.tokens(split).tokens[i.start : i.end] for i in self._part(split)]

    @property
    def digest(self) -> str:
        """SHA-256 of the CRC-32s of the tokenized files of training (unless it is streamed) and
        validation, and of the split."""
        wanted = (VALID,) if self.streaming else (TRAIN, VALID)
        digests = [self.tokens(part).digest for part in wanted if part in self.parts]
        return json_hash([*digests, self._split_hash()])

    # Windows and loaders. Batches have the same keys, and `valid`.

    def train_windows(self) -> SampledWindows:
        if not self.wrap:
            documents = self._documents_to_pad(TRAIN)
            how = self.vocab, self.ends, self.bucket, self.separator
            cut = PaddedCutter(self.tokens(TRAIN), self.length, *how)
            return PaddedDocuments(documents, cut, self.seed, self.epoch_size or len(documents))
        where = self._stream(TRAIN), self._part(TRAIN), self._text_length(self.length)
        once = self.windows == "blocks"
        kind = IntervalWindows if once else UniformWindows
        size = self.epoch_size or 0 if once else self._epoch_size(where[-1])
        return kind(*where, size, self.vocab, self.seed, ends=self.ends)

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        length = length or self.length
        inside = self._text_length(length)
        if self.wrap:
            where = self._stream(split), self._part(split), inside
            return TiledWindows(*where, self.vocab, ends=self.ends)
        tokens = self.tokens(split)
        documents = self._documents_to_pad(split)
        cut = PaddedCutter(tokens, length, self.vocab, self.ends, None, self.separator)
        zeros = np.zeros_like(documents)
        windows = Intervals(documents, zeros, zeros + length)
        return PaddedTiles(tokens, windows, length, self.vocab, cut=cut)

    def _text_length(self, length: int) -> int:
        """The tokens of the text in a window."""
        inside = length - 2 * (self.ends is not None)
        if inside < 1:
            raise ValueError(
                f"length {length} leaves no room between the tokens at the ends of a window; "
                "increase data.length"
            )
        return inside

    def _stream(self, part: str) -> StoredRecords:
        """All tokenized documents as one record."""
        tokens = self.tokens(part)
        zero = np.zeros(1, np.int64)
        return StoredRecords([tokens.stored], zero, zero, zero + len(tokens.tokens))

    def _documents_to_pad(self, part: str) -> Integers:
        numbers = [np.arange(i.start, i.end) for i in self.documents_of(part) or ()]
        if not any(map(len, numbers)):
            raise ValueError(
                "no document is left for this part; choose another data.split or "
                "data.valid_documents, or, if each line of a .txt is a "
                "document, data.documents=line"
            )
        return np.concatenate(numbers)

    def _train_loader(self) -> Loader:
        return self._stream_loader(self.process) if self.streaming else super()._train_loader()

    def _stream_loader(self, process: ProcessRank) -> StreamLoader:
        *_, documents = self.documents_read(TRAIN)
        encode = self._encoder(self.eos_of(TRAIN))
        how = self.length, self.batch_size, self.vocab, self.ends, process
        return StreamLoader(documents.since, encode, *how)

    # Reports

    def describe(self) -> About:
        # Only what has been read is counted.
        self.prepare()
        opened = [
            part
            for part in self.parts
            if (*self.documents_read(part)[:2], self.eos_of(part)) in self._opened
        ]
        # without the same documents with other end-of-text tokens
        once = {key[:2]: tokens for key, tokens in self._opened.items()}.values()
        cut = {} if self.wrap else {"cut_documents": {part: self._num_cut(part) for part in opened}}
        return {
            "name": self.name,
            "path": ", ".join(self.paths),
            "records": sum(len(tokens) for tokens in once),
            "tokens": sum(len(tokens.tokens) for tokens in once),
            "split": self._describe_split(),
            "split_hash": self._split_hash(),
            "split_tokens": {part: num_tokens(self._part(part)) for part in opened},
            "window": self.length,
            "layout": self.layout(),
            **cut,
            "tokenizer": f"{self.tokenizer.name}, {self.vocab.size:,} tokens",
            "detokenizer": self.detokenizer,
            "n_policy": self.n_policy,
        }

    def _num_cut(self, part: str) -> int:
        """Number of documents that are longer than a window and therefore truncated."""
        lengths = np.diff(self.tokens(part).ends, prepend=0)[self._documents_to_pad(part)]
        return int((lengths > self._text_length(self.length)).sum())

    def _describe_split(self) -> str:
        """How the documents are divided into parts."""
        if self.is_divided:
            return self.split.describe()
        cut = (
            f"; the last {self.valid_documents:,} documents of train are valid"
            if self.splits_off_validation
            else ""
        )
        return f"parts of their own ({', '.join(self.sources)}){cut}"

    def _split_hash(self) -> str:
        """A hash of everything that determines which tokens are in which part."""
        hashed = {}
        for source in self.sources:
            documents = self._tokenized_in(source)
            ends = {self.eos_of(TRAIN if self.is_divided else source): None}
            if sum(self.source_of(part) == source for part in self.parts) > 1:
                ends[self.eos_of(VALID)] = None
            hashed[source] = "".join(self._encoder(end).key(documents) for end in ends)
        ends_of_windows = list(self.ends or (None, None))
        how = [self._describe_split(), self.wrap, ends_of_windows, sorted(hashed.items())]
        return json_hash(how)[:16]

    def layout(self, length: int | None = None) -> str:
        """How documents become windows of `length` tokens (None: the module's length). Numbers of
        different layouts are not comparable."""
        length = length or self.length
        show = self.tokenizer.decode
        begin, end = self.ends or ((), ())
        around = f", {show([begin])} and {show([end])} at the ends" if self.ends else ""
        if not self.wrap:
            return f"padded: each document a window of {length} tokens, padded or cut{around}"
        without = [part for part in self.parts if self.eos_of(part) is None]
        between = ""
        if self.tokenizer.eos_id is not None and len(without) < len(self.parts):
            exception = f" (not in {' and '.join(without)})" if without else ""
            between = f", {show([self.tokenizer.eos_id])} after each document{exception}"
        return (
            f"wrapped: documents one after the other in windows of {length} tokens{around}{between}"
        )


# The default of the field of this name would take its place.
TextDataModule.tokenizer = SequenceDataModule.tokenizer  # type: ignore[assignment]


@dataclass(eq=False)
class PaddedDocuments(SampledWindows):
    """Documents truncated or padded to one length, for training: each one once per epoch, in random
    order. Indices beyond the number of documents begin another order.

    Args:
        documents: numbers of those to use, ascending.
    """

    documents: Integers
    cut: Cut
    seed: int
    size: int

    def _places(self, epoch: int, index: Integers) -> tuple[Integers, Integers]:
        number = in_random_order(
            lambda turn: hash64(self.seed, "document", epoch, turn), index, len(self.documents)
        )
        return self.documents[number], np.zeros_like(index)


class PaddedTiles(TiledWindows):
    """The same documents in their own order, for evaluation."""

    records: TokenizedDocuments

    @cached_property
    def tiles(self) -> list[Tile]:
        """The place where each document begins."""
        return [Tile(0, self.records.starts_at(number), 0) for number in self._record.tolist()]


_AHEAD = 64  # documents tokenized at once
Place = tuple[int, int]  # number of a document, and of a token in it


@dataclass(eq=False)
class StreamLoader(Loader):
    """Batches of blocks from documents that are read once per epoch.

    Each of several processes takes every `world_size`-th block. Blocks at the end of an epoch that
    do not fill the batches of an optimizer step on every process are dropped.

    Args:
        since: documents from a given number on, in order.
        encode: token ids of documents, end-of-text tokens included.
        length: tokens in a block, `ends` included.
        batch_size: blocks in a batch, on this process.

    Raises:
        ValueError: during iteration, if the documents do not fill the batches of one optimizer
            step.
    """

    since: Callable[[int], Iterator[str]]
    encode: Callable[[list[str]], list[ndarray]]
    length: int
    batch_size: int
    vocab: Vocab
    ends: Ends
    process: ProcessRank = ALONE

    def __post_init__(self) -> None:
        self.token_table = TokenTable(self.vocab)
        self._restart(0, 0)

    def state_dict(self) -> LoaderState:
        """Where to resume: epoch, its finished batches, and the document and token at which the
        next batch begins."""
        # the end is known if batches are limited
        done, end = self.process.finished(self._returned, math.inf)
        if done >= end or (self._complete and done >= self._returned):
            return {"epoch": self.epoch + 1, "batch": 0, "document": 0, "token": 0}
        document, token = next(place for batch, place in self._places if batch == done)
        return {"epoch": self.epoch, "batch": done, "document": document, "token": token}

    def load_state_dict(self, state: LoaderState) -> None:
        super().load_state_dict(state)
        self._restart(state["document"], state["token"])

    def _restart(self, document: int, token: int) -> None:
        self._complete = False
        # start of each batch of this epoch
        self._places = deque([(self._returned, (document, token))], maxlen=1024)

    def __iter__(self) -> Iterator[Batch]:
        if self._begin():
            self._restart(0, 0)
        self._complete = False
        number = self._returned
        together = self.batch_size * self.process.world_size
        step: list[tuple[ndarray, Place]] = []  # blocks, and the place after each
        for block in self._blocks(*self._places[-1][1]):
            step.append(block)
            if len(step) < together * self.process.accumulated:
                continue
            for first in range(0, len(step), together):
                own = range(self.process.rank, together, self.process.world_size)
                text = np.stack([step[first + row][0] for row in own])
                ids = between(self.ends, text)
                index = number * together + np.array(own)
                number += 1
                self._returned = number
                self._places.append((number, step[first + together - 1][1]))
                weight = self.token_table.is_emitted(ids)
                arrays = {"ids": ids, "weight": weight, "index": index}
                yield {name: torch.from_numpy(array) for name, array in arrays.items()}
            step = []
        if number == 0:
            raise ValueError(
                f"the stream ended before the first {self.process.accumulated * together} windows "
                f"of {self.length} tokens, which one optimizer step needs; give more text"
            )
        self._complete = True

    def _blocks(self, document: int, token: int) -> Iterator[tuple[ndarray, Place]]:
        """The blocks from a token of a document on, and the place after each."""
        size = self.length - 2 * (self.ends is not None)
        texts, held = self.since(document), list[ndarray]()  # `held` begins with `document`
        while some := list(itertools.islice(texts, _AHEAD)):
            held += self.encode(some)
            text = np.concatenate(held)
            ends = np.cumsum([len(ids) for ids in held])
            first = document
            for end in range(token + size, len(text) + 1, size):
                last = int(np.searchsorted(ends, end))  # the document that `end` is in
                start = int(ends[last - 1]) if last else 0
                document = first + last
                token = end - start
                if end == ends[last]:
                    document += 1
                    token = 0
                yield text[end - size : end], (document, token)
            held = held[document - first :]
