"""The Lightning data module for text: documents from local files or the Hugging Face Hub, tokenised once, in windows of one length.

What a document is belongs to `documents` and `hub`, parts to `corpus`, ids to the tokenizer, the cache to `tokenised`, windows to `packing`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.base import SequenceDataModule
from dnadiff.data.loader import BatchSource
from dnadiff.data.splits import PARTS, FractionSplit, Interval, Split
from dnadiff.data.text.corpus import Corpus, DocumentRange
from dnadiff.data.text.detokenizer import detokenizer as named_rules
from dnadiff.data.text.hub import Hub
from dnadiff.data.text.packing import BlockCutter, Ends, PaddedDocuments, PaddedDocumentTiles, TiledBlocks, TokenStream
from dnadiff.data.text.pretrained import Characters
from dnadiff.data.text.special_tokens import Specials
from dnadiff.data.text.streaming import StreamLoader
from dnadiff.data.text.tokenized import Tokens, encoded, name_of, tokenised
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.data.windows import IntervalWindows, UniformWindows

WINDOWS = {"uniform": UniformWindows, "blocks": IntervalWindows}
_MANY = 100  # documents from which a split holds out whole ones


class TextDataModule(SequenceDataModule):
    """Text as windows of tokens. Parts are read and tokenised when they are asked for, not before.

    Args:
        path: a file, several, or patterns, and then `path_is` says which part they are; or `{train: ..., valid: ..., test: ...}`.
            None: what `hub` names.
        length: tokens in a window, those at its ends included.
        batch_size, seed, num_workers, epoch_size, max_valid_windows, name, start_method: see `SequenceDataModule`.
        split: cuts a single path into parts: by documents if there are 100 or more or they are padded, else by tokens.
        tokenizer: a tokenizer, or a source with `load(texts)`; None: the characters that occur. A trained model's own replaces it.
        hub, documents, column: see `Corpus`.
        detokenizer: rules that undo a corpus' word tokenization: wikitext, ptb, lm1b, lambada.
        wrap: documents one after the other, cut into blocks; false: each document is a window, padded or cut.
        insert_eos, insert_valid_eos, insert_special_tokens: see `Specials`.
        windows: of wrapped training text: `uniform` over all starts, or `blocks` side by side, each once an epoch, as published.
        path_is, valid_documents, num_documents: see `Corpus`.
        streaming: training text is tokenised while training goes on, in its own order, and not stored; see `StreamLoader`.
        num_proc: processes that tokenise; None: as many as there are processor cores.
    """

    n_policy = "every token is counted, those that begin and end a text included; padding is not"

    def __init__(
        self,
        path: Any,
        length: int,
        batch_size: int,
        split: Split | None = None,
        seed: int = 0,
        num_workers: int = 0,
        epoch_size: int | None = None,
        max_valid_windows: int = 256,
        tokenizer: Any = None,
        name: str | None = None,
        start_method: str | None = None,
        hub: Hub | None = None,
        documents: str = "file",
        column: str | Sequence[str] = "text",
        detokenizer: str | None = None,
        wrap: bool = True,
        insert_eos: bool | None = None,
        insert_valid_eos: bool | None = None,
        insert_special_tokens: bool | None = None,
        windows: str = "uniform",
        path_is: str = "all",
        valid_documents: int | None = None,
        num_documents: int | None = None,
        streaming: bool = False,
        num_proc: int | None = None,
    ) -> None:
        shown = f"Hugging Face Hub: {getattr(hub, 'id', None)}" if path is None else path
        super().__init__(shown, length, batch_size, split, seed, num_workers, epoch_size, max_valid_windows, False, name, start_method)
        if not isinstance(streaming, bool):
            raise ValueError(f"streaming is {streaming!r}; set data.streaming to true or false")
        self.path, self.split = path, split or FractionSplit()
        self.corpus = Corpus(self.name, path, hub, documents, column, path_is, valid_documents, num_documents, streaming)
        if windows not in WINDOWS:
            raise ValueError(f"windows is {windows!r}; choose {' or '.join(WINDOWS)} for data.windows")
        if num_proc is not None and (not isinstance(num_proc, int) or isinstance(num_proc, bool) or num_proc < 1):
            raise ValueError(f"num_proc is {num_proc!r}; set data.num_proc to 1 or more, a whole number, or null")
        self.specials = Specials(wrap, insert_eos, insert_valid_eos, insert_special_tokens)
        if streaming and not wrap:
            raise ValueError("streaming=true wraps documents; set data.wrap=true, or data.streaming=false")
        if streaming and epoch_size is not None:
            raise ValueError(f"streaming=true shows the whole corpus in an epoch, and epoch_size is {epoch_size}; set data.epoch_size=null")
        named_rules(detokenizer)
        self.detokenizer, self.wrap, self.streaming, self.num_proc = detokenizer, wrap, streaming, num_proc
        self._windows, self._given = WINDOWS[windows], tokenizer
        self._opened: dict[Any, Tokens] = {}

    @property
    def parts(self) -> list[str]:
        """Which of train, valid and test there are."""
        return self.corpus.parts

    def prepare(self) -> None:
        """Find the files and load the tokenizer; of a single path, check that all parts hold a window.

        Raises:
            FileNotFoundError, ValueError: from reading, splitting or cutting, in one line with the remedy.
        """
        if self._names is not None:
            return
        for place in self.corpus.places():
            self.corpus.source(place)  # files that do not exist are refused
        self._tokenizer = self._given
        if not hasattr(self._tokenizer, "encode"):
            source = Characters() if self._given is None else self._given
            self._tokenizer = source.load(lambda: self._all_texts())
        self.specials.check(self._tokenizer)
        self._names = self.corpus.places()
        if "all" in self._names:
            self._checked(PARTS)

    def check_training(self) -> None:
        """Read what training needs and check that windows fit.

        Raises:
            FileNotFoundError, ValueError: in one line with the remedy.
        """
        self.corpus.check_trainable()
        self.prepare()
        self._checked(("valid",) if self.streaming else ("train", "valid"))
        if self.streaming:
            next(iter(self._stream_loader()))

    def _checked(self, parts: Sequence[str]) -> None:
        try:
            for part in parts:
                if part == "train":
                    self.train_batches()
                else:
                    self.test_windows(part)
        except ValueError as error:
            self._names = None
            raise ValueError(str(error) if str(error).startswith(self.name) else f"{self.name}: {error}") from None

    def _all_texts(self) -> Iterator[str]:
        rules = named_rules(self.detokenizer)
        for place in self.corpus.places():
            source = self.corpus.source(place, keep_line_ends=True)
            yield from source if rules is None else map(rules, source)

    def expect(self, tokenizer: Any) -> None:
        """See `SequenceDataModule.expect`: the model's tokenizer replaces that of the data."""
        if isinstance(tokenizer, DNATokenizer):
            raise ValueError(
                f"the model was trained on {tokenizer.name}, these data are text ({self.name}); choose data or a model of the same vocabulary"
            )
        self._given = tokenizer

    # Tokens

    def _eos_of(self, part: str) -> int | None:
        return self.specials.after(self._tokenizer, part)

    @property
    def ends(self) -> Ends:
        """What every window begins and ends with."""
        return self.specials.ends(self.tokenizer)

    def _source_of(self, part: str) -> tuple[Any, Any]:
        """What stands for the documents among which a part lies, and the documents."""
        place = self.corpus.place_of(part)
        source = self.corpus.source(place, keep_line_ends=self._tokenizer.eos_id is None)
        if self.streaming and place == "train" and self.corpus.cut_off:
            number = self.corpus.num_documents
            edge = self.corpus.split_off(number)
            return (place, part), DocumentRange(source, 0, edge) if part == "train" else DocumentRange(source, edge, number)
        return (place,), source

    def tokens(self, part: str) -> Tokens:
        """The tokenised documents among which a part lies."""
        self.prepare()
        place, documents = self._source_of(part)
        key = (*place, self._eos_of(part))
        if key not in self._opened:
            name = self.name if place == ("all",) else f"{self.name} ({place[-1]})"
            try:
                self._opened[key] = tokenised(documents, self._tokenizer, self.detokenizer, key[-1], name, self.num_proc)
            except ValueError as error:
                raise ValueError(str(error) if str(error).startswith(self.name) else f"{self.name}: {error}") from None
        return self._opened[key]

    def documents_of(self, part: str) -> list[Interval] | None:
        """Which documents of `tokens(part)` belong to a part; None where a split cuts through documents."""
        tokens, number = self.tokens(part), len(self.tokens(part))
        place, _ = self._source_of(part)
        if place == ("all",):
            if not self.wrap or len(tokens) >= _MANY:
                return self.split([self.name], [number])[part]
            if self._eos_of(part) != self._eos_of("train"):  # the same share of two streams is not the same text
                raise ValueError(
                    f"insert_valid_eos={str(self.specials.insert_valid_eos).lower()} differs from training, and the split cuts {number} documents by "
                    f"position; give parts of their own, data.path={{train: FILE, valid: FILE, test: FILE}}, or {_MANY} documents"
                )
            return None
        if not self.corpus.cut_off or place != ("train",):
            return [Interval(0, 0, number)]
        edge = self.corpus.split_off(number)
        return [Interval(0, edge, number)] if part == "valid" else [Interval(0, 0, edge)]

    def _part(self, split: str) -> list[Interval]:
        """The stretches of `tokens(split)` that are a part."""
        tokens, documents = self.tokens(split), self.documents_of(split)
        if documents is None:
            return self.split([self.name], [len(tokens.tokens)])[split]
        return [Interval(0, tokens.starts_at(i.start), tokens.starts_at(i.end)) for i in documents]

    # What `SequenceDataModule` offers

    @property
    def records(self) -> list[NDArray[Any]]:
        """Token ids of what has been read so far: arrays `(length,)`."""
        return [tokens.tokens for tokens in self._opened.values()]

    @property
    def intervals(self) -> dict[str, list[Interval]]:
        """For each part that there is, stretches of its `tokens`; reads them all."""
        return {part: self._part(part) for part in self.parts}

    def sequences(self, split: str) -> list[NDArray[Any]]:
        """Token ids of each stretch of a part: arrays `(end - start,)`."""
        return [self.tokens(split).tokens[i.start : i.end] for i in self._part(split)]

    @property
    def digest(self) -> str:
        """See `SequenceDataModule.digest`; of the token ids of training and validation."""
        read = [part for part in ("train", "valid") if part in self.parts and not (self.streaming and part == "train")]
        digests = [self.tokens(part).digest for part in read]
        return hashlib.sha256(json.dumps([*digests, self._split_hash()]).encode()).hexdigest()

    def train_windows(self) -> Any:
        """The training windows as a dataset."""
        return self.train_batches()

    def train_batches(self) -> BatchSource:
        """The training windows as the loader reads them."""
        if not self.wrap:
            return self._padded("train", self.length, self.epoch_size)
        records, intervals, ends = TokenStream(self.tokens("train")), self._part("train"), self.ends
        length = self._text_length(self.length)
        size = self.epoch_size or (None if self._windows is IntervalWindows else max(1, sum(i.end - i.start for i in intervals) // length))
        return self._windows(
            records, intervals, length, size, self.vocab, self.seed, cut=BlockCutter(records, self.length, self.vocab, ends)
        )

    def test_windows(self, split: str = "test", length: int | None = None) -> Any:
        """All of a part in windows of `length` tokens or the module's own."""
        length = self.length if length is None else length
        self._text_length(length)
        if not self.wrap:
            return PaddedDocumentTiles(self._padded(split, length))
        return TiledBlocks(TokenStream(self.tokens(split)), self._part(split), length, self.vocab, self.ends)

    def train_dataloader(self) -> Any:
        """BatchSource of training windows; resumable at any batch."""
        if not self.streaming:
            return super().train_dataloader()
        self._loader = self._stream_loader()
        if self._resume is not None:
            self._loader.load_state_dict(self._resume)
            self._resume = None
        return self._loader

    def _stream_loader(self) -> StreamLoader:
        self.prepare()
        _, documents = self._source_of("train")
        encode = partial(encoded, self._tokenizer, self.detokenizer, self._eos_of("train"))
        return StreamLoader(documents.since, encode, self.length, self.batch_size, self.vocab, self.ends, *self.rank_and_progress())

    def _padded(self, part: str, length: int, size: int | None = None) -> PaddedDocuments:
        numbers = [np.arange(i.start, i.end) for i in self.documents_of(part)]
        chosen = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        return PaddedDocuments(self.tokens(part), chosen, length, self.vocab, self.ends, self.seed, size)

    def _text_length(self, length: int) -> int:
        if length <= self.ends.count:
            raise ValueError(f"length {length} leaves no room between the tokens at the ends of a window; set data.length to more")
        return length - self.ends.count

    def describe(self) -> dict[str, Any]:
        """What every reported number must name: plain values, ready for JSON. Only what has been read is counted."""
        self.prepare()
        opened = [part for part in self.parts if (*self._source_of(part)[0], self._eos_of(part)) in self._opened]
        once = {key[:-1]: tokens for key, tokens in self._opened.items()}  # a corpus may be there with and without its ends
        cut = {} if self.wrap else {"cut_documents": {part: self._padded(part, self.length).num_cut for part in opened}}
        return {
            "name": self.name,
            "path": ", ".join(self.paths),
            "records": sum(len(tokens) for tokens in once.values()),
            "tokens": sum(len(tokens.tokens) for tokens in once.values()),
            "split": self._describe_split(),
            "split_hash": self._split_hash(),
            "split_tokens": {part: sum(i.end - i.start for i in self._part(part)) for part in opened},
            "window": self.length,
            "layout": self.layout(),
            **cut,
            "tokenizer": f"{self._tokenizer.name}, {self.vocab.size:,} tokens",
            "detokenizer": self.detokenizer,
            "n_policy": self.n_policy,
        }

    def layout(self, length: int | None = None) -> str:
        """How documents become windows of `length` tokens or the module's own: numbers of different layouts are not comparable."""
        return self.specials.layout(self._tokenizer, self.length if length is None else length, self.parts)

    def _describe_split(self) -> str:
        places = self.corpus.places()
        if "all" in places:
            return self.split.describe()
        cut = f"; the last {self.corpus.valid_documents:,} documents of train are valid" if self.corpus.cut_off else ""
        return f"parts of their own ({', '.join(places)}){cut}"

    def _split_hash(self) -> str:
        hashed = {}
        for place in self.corpus.places():
            source = self.corpus.source(place, keep_line_ends=self._tokenizer.eos_id is None)
            ends = {self._eos_of("train" if place == "all" else place): None}
            if place == "all" or (place == "train" and self.corpus.cut_off):  # other parts are cut from it
                ends[self._eos_of("valid")] = None
            hashed[place] = "".join(name_of(source, self._tokenizer, self.detokenizer, end) for end in ends)
        how = [self._describe_split(), self.wrap, list(self.ends), sorted(hashed.items())]
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:16]
