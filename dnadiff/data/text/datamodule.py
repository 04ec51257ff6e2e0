"""The data module for text: documents of local files or the Hugging Face Hub, tokenized once, in
windows of one length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from typing_extensions import override

from dnadiff.data.base import ProcessRank, SequenceDataModule, StartMethod
from dnadiff.data.intervals import Interval, num_tokens
from dnadiff.data.splits import PARTS, FractionSplit, Parts, Split
from dnadiff.data.text.corpus import Corpus, Hub, Paths
from dnadiff.data.text.packing import (
    BlockCutter,
    Ends,
    PaddedDocuments,
    PaddedDocumentTiles,
    StreamLoader,
    TiledBlocks,
    TokenStream,
)
from dnadiff.data.text.pretrained import Characters, TokenizerSource
from dnadiff.data.text.tokenized import (
    DETOKENIZERS,
    TRAIN,
    VALID,
    Detokenizer,
    SpecialTokens,
    TokenizedParts,
    encode_documents,
    named,
)
from dnadiff.data.tokenizer import DNATokenizer, TextTokenizer
from dnadiff.data.windows import IntervalWindows, RandomWindows, UniformWindows
from dnadiff.fields import Natural, PositiveInt, checked
from dnadiff.formats.documents import DocumentKind

if TYPE_CHECKING:
    from dnadiff.data.base import TrainLoader
    from dnadiff.data.tokenizer import Tokenizer
    from dnadiff.fields import Json

WINDOWS: dict[str, type[RandomWindows]] = {"uniform": UniformWindows, "blocks": IntervalWindows}


@checked
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

    The other arguments are those of `SequenceDataModule`, `Corpus` and `SpecialTokens`.

    Raises:
        ValueError: for settings that contradict each other.
    """

    n_policy = "every token is counted, those that begin and end a text included; padding is not"

    def __init__(
        self,
        path: Paths | Mapping[str, Paths] | None,
        length: PositiveInt,
        batch_size: PositiveInt,
        *,
        tokenizer: TextTokenizer | TokenizerSource | None = None,
        hub: Hub | None = None,
        split: Split | None = None,
        documents: DocumentKind = "file",
        column: str | Sequence[str] = "text",
        detokenizer: Detokenizer | None = None,
        wrap: bool = True,
        insert_eos: bool | None = None,
        insert_valid_eos: bool | None = None,
        insert_special_tokens: bool | None = None,
        windows: Literal["uniform", "blocks"] = "uniform",
        path_is: Literal["all", "train", "test"] = "all",
        valid_documents: PositiveInt | None = None,
        num_documents: PositiveInt | None = None,
        streaming: bool = False,
        num_proc: PositiveInt | None = None,
        num_workers: Natural = 0,
        start_method: StartMethod | None = None,
        epoch_size: PositiveInt | None = None,
        seed: Natural = 0,
        max_valid_windows: PositiveInt = 256,
        name: str | None = None,
    ) -> None:
        super().__init__(
            f"Hugging Face Hub: {hub.id if hub else None}" if path is None else path,
            length,
            batch_size,
            split or FractionSplit(),
            seed,
            num_workers,
            epoch_size,
            max_valid_windows,
            False,
            name,  # type: ignore[arg-type]  # the base class replaces None
            start_method,
        )
        self.path, self.streaming, self.num_proc = path, streaming, num_proc
        self.corpus = Corpus(
            self.name,
            path,
            hub,
            documents,
            column,
            path_is,
            valid_documents,
            num_documents,
            streaming,
        )
        self.special_tokens = SpecialTokens(
            wrap, insert_eos, insert_valid_eos, insert_special_tokens
        )
        if streaming and not wrap:
            raise ValueError(
                "streaming=true wraps documents; set data.wrap=true, or data.streaming=false"
            )
        if streaming and epoch_size is not None:
            raise ValueError(
                f"an epoch of streaming=true is the whole corpus, but epoch_size is {epoch_size}; "
                "set data.epoch_size=null"
            )
        self.detokenizer, self.wrap = detokenizer, wrap
        self._windows, self._given = WINDOWS[windows], tokenizer

    @property
    @override
    def parts(self) -> list[str]:
        return self.corpus.parts

    @override
    def prepare(self) -> None:
        # The other checks of the base class would tokenize the corpus.
        if self._names is not None:
            return
        for source in self.corpus.sources:
            self.corpus.documents_in(source)  # missing files are reported
        given = Characters() if self._given is None else self._given
        self._tokenizer = (
            given.load(self._all_texts) if isinstance(given, TokenizerSource) else given
        )
        self.special_tokens.check(self._tokenizer)
        self._parts = TokenizedParts(
            self.corpus,
            self.split,
            self._tokenizer,
            self.special_tokens,
            self.detokenizer,
            self.num_proc,
        )
        self._names = self.corpus.sources
        if self.corpus.is_divided:
            self._check_windows(PARTS)

    @override
    def check_training(self) -> None:
        self.corpus.check_trainable()
        self.prepare()
        self._check_windows((VALID,) if self.streaming else (TRAIN, VALID))

    @override
    def check_step(self, world_size: int, accumulated: int) -> None:
        if self.streaming:
            next(
                iter(
                    self._stream_loader(ProcessRank(world_size=world_size, accumulated=accumulated))
                )
            )

    def _check_windows(self, parts: Sequence[str]) -> None:
        try:
            for part in parts:
                if part == TRAIN:
                    self.train_batches()
                else:
                    self.test_windows(part)
        except ValueError as error:
            self._names = None
            raise named(error, self.name) from None

    def _all_texts(self) -> Iterator[str]:
        for source in self.corpus.sources:
            documents = self.corpus.documents_in(source, keep_line_ends=True)
            yield from (
                documents
                if self.detokenizer is None
                else map(DETOKENIZERS[self.detokenizer], documents)
            )

    @override
    def expect(self, tokenizer: Tokenizer) -> None:
        if isinstance(tokenizer, DNATokenizer):
            raise ValueError(
                f"the model was trained on {tokenizer.name}, but these data are text "
                f"({self.name}); choose data or a model of the same vocabulary"
            )
        self._given = tokenizer  # type: ignore[assignment]  # all others are tokenizers of text

    @property
    def tokenized(self) -> TokenizedParts:
        """The tokenized documents of each part."""
        self.prepare()
        return self._parts

    @property
    def ends(self) -> Ends:
        """The tokens at the ends of every window."""
        return self.special_tokens.ends(self.tokenized.tokenizer)

    @property
    @override
    def records(self) -> list[np.ndarray]:
        return [tokens.tokens for tokens in self.tokenized.opened.values()]

    @property
    @override
    def intervals(self) -> Parts:
        return {part: self._part(part) for part in self.parts}

    @override
    def _part(self, split: str) -> Sequence[Interval]:
        return self.tokenized.intervals(split)

    @override
    def sequences(self, split: str) -> list[np.ndarray]:
        return [self.tokenized.tokens(split).tokens[i.start : i.end] for i in self._part(split)]

    @property
    @override
    def digest(self) -> str:
        return self.tokenized.digest()

    # Batches have the same keys, and `valid`.
    @override
    def train_windows(self) -> RandomWindows | PaddedDocuments:  # type: ignore[override]
        return self.train_batches()

    @override
    def train_batches(self) -> RandomWindows | PaddedDocuments:
        if not self.wrap:
            return self._padded(TRAIN, self.length, self.epoch_size)
        records, intervals = TokenStream(self.tokenized.tokens(TRAIN)), self._part(TRAIN)
        length = self._text_length(self.length)
        size = self.epoch_size or (
            None if self._windows is IntervalWindows else max(1, num_tokens(intervals) // length)
        )
        cut = BlockCutter(records, self.length, self.vocab, self.ends)
        return self._windows(records, intervals, length, size, self.vocab, self.seed, cut=cut)

    @override
    def test_windows(  # type: ignore[override]  # items have the same keys, and `valid`
        self, split: str = "test", length: int | None = None
    ) -> TiledBlocks | PaddedDocumentTiles:
        length = self.length if length is None else length
        self._text_length(length)
        if not self.wrap:
            return PaddedDocumentTiles(self._padded(split, length))
        return TiledBlocks(
            TokenStream(self.tokenized.tokens(split)),
            self._part(split),
            length,
            self.vocab,
            self.ends,
        )

    # Has the same state_dict methods.
    @override
    def train_dataloader(self) -> TrainLoader | StreamLoader:  # type: ignore[override]
        if not self.streaming:
            return super().train_dataloader()
        # its state is saved by the base class
        self._loader = loader = self._stream_loader(self.process)  # type: ignore[assignment]
        if self._resume is not None:
            loader.load_state_dict(self._resume)
            self._resume = None
        return loader

    def _stream_loader(self, process: ProcessRank) -> StreamLoader:
        *_, documents = self.tokenized.documents(TRAIN)
        encode = partial(
            encode_documents,
            self.tokenized.tokenizer,
            self.detokenizer,
            self.tokenized.eos_of(TRAIN),
        )
        return StreamLoader(
            documents.since, encode, self.length, self.batch_size, self.vocab, self.ends, *process
        )

    def _padded(self, part: str, length: int, size: int | None = None) -> PaddedDocuments:
        numbers = [np.arange(i.start, i.end) for i in self.tokenized.documents_of(part) or ()]
        chosen = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        return PaddedDocuments(
            self.tokenized.tokens(part), chosen, length, self.vocab, self.ends, self.seed, size
        )

    def _text_length(self, length: int) -> int:
        if length <= self.ends.size:
            raise ValueError(
                f"length {length} leaves no room between the tokens at the ends of a window; "
                "increase data.length"
            )
        return length - self.ends.size

    @override
    def describe(self) -> dict[str, Json]:
        # Only what has been read is counted.
        opened, once = (
            [part for part in self.parts if self.tokenized.is_opened(part)],
            self.tokenized.counted_once(),
        )
        cut = (
            {}
            if self.wrap
            else {
                "cut_documents": {part: self._padded(part, self.length).num_cut for part in opened}
            }
        )
        return {
            "name": self.name,
            "path": ", ".join(self.paths),
            "records": sum(len(tokens) for tokens in once),
            "tokens": sum(len(tokens.tokens) for tokens in once),
            "split": self.tokenized.describe_split(),
            "split_hash": self.tokenized.split_hash(),
            "split_tokens": {part: num_tokens(self._part(part)) for part in opened},
            "window": self.length,
            "layout": self.layout(),
            **cut,
            "tokenizer": f"{self._tokenizer.name}, {self.vocab.size:,} tokens",
            "detokenizer": self.detokenizer,
            "n_policy": self.n_policy,
        }

    def layout(self, length: int | None = None) -> str:
        """How documents become windows of `length` tokens (None: the module's length). Numbers of
        different layouts are not comparable."""
        return self.special_tokens.layout(
            self.tokenized.tokenizer, self.length if length is None else length, self.parts
        )
