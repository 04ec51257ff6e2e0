"""Subword tokenizers: text to token ids and back by the rules of a `tokenizer.json`, as BERT, GPT-2 and others have them.

The work is done by the `tokenizers` package, imported when first needed. Where a tokenizer comes from (a file, a folder, the
Hugging Face Hub) is the business of `pretrained`; a checkpoint keeps the whole `tokenizer.json` and needs none of these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dnadiff.vocab import Vocab

_MOST = 1 << 24  # ids; known vocabularies have some hundred thousand


class SubwordTokenizer:
    """Token ids of text under a `tokenizer.json`.

    The mask is the tokenizer's own where it has one; else it gets the next free id, and so does a missing padding token: neither
    coincides with a token that text can contain. (Published MDLM gives padding and mask one id under GPT-2.) Only these two are never
    emitted: tokens that begin or end a text are predicted and counted like any other. Special tokens spelled out in a text, such as
    `[MASK]`, are read as ordinary characters.

    Args:
        json: the content of a `tokenizer.json`.
        name: what reports call it.
        mask: spelling of the mask; None: a new token `[MASK]`.
        pad: spelling of the padding; None: a new token `[PAD]`.
        bos: spelling of the token that begins a text; None: there is none.
        eos: spelling of the token that ends a text; None: there is none.
        unk: spelling of the unknown token; None: there is none.

    Raises:
        ValueError: if the content is no tokenizer, or a spelling is not in it.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(
        self,
        json: str,
        name: str,
        mask: str | None = None,
        pad: str | None = None,
        bos: str | None = None,
        eos: str | None = None,
        unk: str | None = None,
    ) -> None:
        self.name, self._given = name, json
        rules = self._rules = parse(json, name)
        for role, spelling in (("mask", mask), ("pad", pad), ("bos", bos), ("eos", eos), ("unk", unk)):
            if spelling is not None and rules.token_to_id(spelling) is None:
                raise ValueError(f"tokenizer {name} has no token {spelling!r} (tokenizer.{role}); name one of its tokens, or null for none")
        self.mask, self.pad = mask or _fresh(rules, "[MASK]"), pad or _fresh(rules, "[PAD]")
        self.bos, self.eos, self.unk = bos, eos, unk
        rules.add_special_tokens([spelling for spelling in (self.mask, self.pad, bos, eos, unk) if spelling is not None])
        rules.encode_special_tokens = True
        rules.no_padding()
        rules.no_truncation()
        self.bos_id, self.eos_id, unk_id = (None if s is None else rules.token_to_id(s) for s in (bos, eos, unk))
        mask_id, pad_id = rules.token_to_id(self.mask), rules.token_to_id(self.pad)
        roles = [("mask", self.mask), ("pad", self.pad), ("bos", bos), ("eos", eos)]
        for number, (role, spelling) in enumerate(roles[:2]):
            if same := [other for other, theirs in roles[number + 1 :] if theirs == spelling]:
                raise ValueError(f"tokenizer {name}: {role} and {same[0]} are both {spelling!r}; set tokenizer.{role}=null for a new token")
        self.vocab = Vocab(size=1 + max(rules.get_vocab().values()), mask_id=mask_id, pad_id=pad_id, never_emitted=(mask_id, pad_id))
        added = {i for i, token in rules.get_added_tokens_decoder().items() if token.special}
        self.special_ids = tuple(sorted((added | {self.bos_id, self.eos_id}) - {mask_id, pad_id, unk_id, None}))
        self.dtype = np.dtype(np.uint16 if self.vocab.size <= 1 << 16 else np.int32)

    @property
    def mask_letter(self) -> str:
        """How a position still masked is written."""
        return self.mask

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which ids a text gets."""
        return hashlib.sha256(json.dumps(self.config() | {"name": ""}, sort_keys=True).encode()).hexdigest()

    def encode(self, text: str) -> NDArray[Any]:
        """Token ids of a string, no special tokens added: `(L,)` uint16, or int32 for more than 65,536 tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """`encode` of each text, on all processor cores."""
        encoded = self._rules.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=self.dtype) for each in encoded]

    def decode(self, ids: ArrayLike) -> str:
        """Text of `ids (L,)`; special tokens, the mask included, are spelled out.

        Raises:
            ValueError: if an id lies outside the vocabulary.
        """
        ids = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids).astype(np.int64)
        if ids.ndim != 1:
            raise ValueError(f"ids has shape {ids.shape}; decode takes one sequence (L,) at a time")
        if len(wrong := np.flatnonzero((ids < 0) | (ids >= self.vocab.size))):
            raise ValueError(f"id {ids[wrong[0]]} at position {wrong[0] + 1} lies outside the vocabulary 0..{self.vocab.size - 1}")
        return self._rules.decode(ids.tolist(), skip_special_tokens=False)

    def config(self) -> dict[str, Any]:
        """A plain dictionary from which the tokenizer can be built again, without the file it came from."""
        named = {"name": self.name, "mask": self.mask, "pad": self.pad, "bos": self.bos, "eos": self.eos, "unk": self.unk}
        return {"_target_": "dnadiff.data.text.subword.SubwordTokenizer", "json": self._rules.to_str(), **named}

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.config(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubwordTokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"SubwordTokenizer({self.name}, {self.vocab.size:,} tokens)"


def parse(content: str, name: str) -> Any:
    """The `tokenizers.Tokenizer` in the content of a `tokenizer.json`, every id below the highest with a token.

    The package numbers new tokens by how many there are: after a gap in the ids (a word twice in a `vocab.txt`, a reduced vocabulary) the
    mask would get the id of a token that text contains. Ids without a token therefore get one that no text is cut into.

    Raises:
        ValueError: if it is not one.
    """
    rules = _parsed(content, name)
    taken = set(rules.get_vocab(with_added_tokens=False).values())
    highest = max(taken, default=-1)
    if highest >= _MOST:
        raise ValueError(f"tokenizer {name} has the id {highest:,}; expected ids below {_MOST:,}")
    gaps = sorted(set(range(highest + 1)) - taken)
    if not gaps:
        return rules
    table = json.loads(content)
    table["model"]["vocab"] |= {f"[no token {number}]": number for number in gaps}
    return _parsed(json.dumps(table, ensure_ascii=False), name)


def _parsed(content: str, name: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(content)
    except Exception as error:  # the package raises bare Exception
        raise ValueError(f"tokenizer {name}: not the content of a tokenizer.json ({' '.join(str(error).split())[:120]})") from error


def _again(config: dict[str, Any]) -> SubwordTokenizer:
    return SubwordTokenizer(**{key: value for key, value in config.items() if key != "_target_"})


def _fresh(rules: Any, spelling: str) -> str:
    """A spelling that the tokenizer does not have yet."""
    while rules.token_to_id(spelling) is not None:
        spelling = f"[{spelling}]"
    return spelling
