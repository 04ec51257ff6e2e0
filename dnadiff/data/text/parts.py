"""The tokenized documents of training, validation and test, opened when they are first needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnadiff.data.intervals import Interval
from dnadiff.data.splits import PARTS
from dnadiff.data.text.corpus import Corpus, DocumentRange
from dnadiff.data.text.tokenized import TokenizedDocuments, cache_key, tokenize

if TYPE_CHECKING:
    from dnadiff.data.splits import Split
    from dnadiff.data.text.documents import Documents
    from dnadiff.data.text.special_tokens import SpecialTokens
    from dnadiff.data.tokenizer import TextTokenizer

TRAIN, VALID, TEST = PARTS
_MANY = 100  # from this number of documents on, a split divides documents, not tokens


class TokenizedParts:
    """Token ids of each part of a corpus. For the arguments see `TextDataModule`."""

    def __init__(
        self,
        corpus: Corpus,
        split: Split,
        tokenizer: TextTokenizer,
        special_tokens: SpecialTokens,
        detokenizer: str | None,
        num_proc: int | None,
    ) -> None:
        self.corpus, self.split, self.tokenizer, self.special_tokens = (
            corpus,
            split,
            tokenizer,
            special_tokens,
        )
        self.detokenizer, self.num_proc = detokenizer, num_proc
        self.opened: dict[tuple[str, str | None, int | None], TokenizedDocuments] = {}

    def eos_of(self, part: str) -> int | None:
        """The id after each document of a part, or None."""
        return self.special_tokens.after(self.tokenizer, part)

    def documents(self, part: str) -> tuple[str, str | None, Documents]:
        """The source that contains a part, the part itself if only its documents are read (None:
        all of the source), and the documents."""
        source = self.corpus.source_of(part)
        documents = self._documents_in(source)
        if not self.corpus.streaming or source != TRAIN or not self.corpus.splits_off_validation:
            return source, None, documents
        number = self.corpus.num_documents
        assert number is not None  # checked by Corpus
        edge = self.corpus.first_valid_document(number)
        return (
            source,
            part,
            DocumentRange(documents, edge, number)
            if part == VALID
            else DocumentRange(documents, 0, edge),
        )

    def _documents_in(self, source: str) -> Documents:
        return self.corpus.documents_in(source, keep_line_ends=self.tokenizer.eos_id is None)

    def tokens(self, part: str) -> TokenizedDocuments:
        """The tokenized documents that contain a part."""
        source, only, documents = self.documents(part)
        key = (source, only, self.eos_of(part))
        if key not in self.opened:
            name = (
                self.corpus.name
                if self.corpus.is_divided
                else f"{self.corpus.name} ({only or source})"
            )
            try:
                self.opened[key] = tokenize(
                    documents, self.tokenizer, self.detokenizer, key[-1], name, self.num_proc
                )
            except ValueError as error:
                raise named(error, self.corpus.name) from None
        return self.opened[key]

    def is_opened(self, part: str) -> bool:
        """Whether `tokens` of a part have been read."""
        source, only, _ = self.documents(part)
        return (source, only, self.eos_of(part)) in self.opened

    def counted_once(self) -> list[TokenizedDocuments]:
        """What has been read, without the same documents with other end-of-text tokens."""
        return list({key[:2]: tokens for key, tokens in self.opened.items()}.values())

    def documents_of(self, part: str) -> Sequence[Interval] | None:
        """The intervals of documents in `tokens(part)` that belong to a part; None if the split
        divides tokens, not documents."""
        tokens = self.tokens(part)
        number = len(tokens)
        if self.corpus.is_divided:
            if not self.special_tokens.wrap or number >= _MANY:
                return self.split([self.corpus.name], [number])[part]
            if self.eos_of(part) != self.eos_of(
                TRAIN
            ):  # equal fractions of two different streams are not the same text
                raise ValueError(
                    f"insert_valid_eos={str(self.special_tokens.insert_valid_eos).lower()} differs "
                    "from training, and the split divides "
                    f"{number} documents by position; give separate parts, data.path={{train: "
                    f"FILE, valid: FILE, test: FILE}}, or {_MANY} documents"
                )
            return None
        if not self.corpus.splits_off_validation or self.documents(part)[:2] != (TRAIN, None):
            return [Interval(0, 0, number)]
        edge = self.corpus.first_valid_document(number)
        return [Interval(0, edge, number)] if part == VALID else [Interval(0, 0, edge)]

    def intervals(self, part: str) -> Sequence[Interval]:
        """The intervals of tokens in `tokens(part)` that belong to a part."""
        tokens, documents = self.tokens(part), self.documents_of(part)
        if documents is None:
            return self.split([self.corpus.name], [len(tokens.tokens)])[part]
        return [Interval(0, tokens.starts_at(i.start), tokens.starts_at(i.end)) for i in documents]

    def digest(self) -> str:
        """SHA-256 of the CRC-32s of the tokenized files of training (unless it is streamed) and
        validation, and of the split."""
        read = [
            part
            for part in (TRAIN, VALID)
            if part in self.corpus.parts and not (self.corpus.streaming and part == TRAIN)
        ]
        digests = [self.tokens(part).digest for part in read]
        return hashlib.sha256(json.dumps([*digests, self.split_hash()]).encode()).hexdigest()

    def describe_split(self) -> str:
        """How the documents are divided into parts, for reports."""
        if self.corpus.is_divided:
            return self.split.describe()
        cut = (
            f"; the last {self.corpus.valid_documents:,} documents of train are valid"
            if self.corpus.splits_off_validation
            else ""
        )
        return f"parts of their own ({', '.join(self.corpus.sources)}){cut}"

    def split_hash(self) -> str:
        """A hash of everything that determines which tokens are in which part."""
        hashed = {}
        for source in self.corpus.sources:
            documents = self._documents_in(source)
            ends = {self.eos_of(TRAIN if self.corpus.is_divided else source): None}
            if sum(self.corpus.source_of(part) == source for part in self.corpus.parts) > 1:
                ends[self.eos_of(VALID)] = None
            hashed[source] = "".join(
                cache_key(documents, self.tokenizer, self.detokenizer, end) for end in ends
            )
        ends_of_windows = list(self.special_tokens.ends(self.tokenizer))
        how = [
            self.describe_split(),
            self.special_tokens.wrap,
            ends_of_windows,
            sorted(hashed.items()),
        ]
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:16]


def named(error: ValueError, name: str) -> ValueError:
    """The error with the name of the data in front, unless it begins with it."""
    return ValueError(str(error) if str(error).startswith(name) else f"{name}: {error}")
