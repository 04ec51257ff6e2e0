"""Subword tokenizers: text to token ids and back by the rules of a `tokenizer.json`, the format of
BERT, GPT-2 and others.

The package `tokenizers` is imported when first needed. A checkpoint stores the complete
`tokenizer.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from dnadiff.data.text.rules import parse, refused
from dnadiff.data.tokenizer import one_sequence
from dnadiff.vocab import Vocab

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from dnadiff.config import Json


class SubwordTokenizer:
    """A tokenizer of text defined by a `tokenizer.json`.

    Mask and padding are the tokenizer's own tokens, or else new tokens with the next free ids, so
    that neither coincides with a token of ordinary text. (Published MDLM uses one id for padding
    and mask with GPT-2's tokenizer.) Only these two are never emitted: tokens that begin or end a
    text are predicted and counted like any other token. Special tokens written out in a text, such
    as `[MASK]`, are read as ordinary characters.

    Args:
        json: the content of a `tokenizer.json`.
        name: name of the tokenizer in reports.
        mask, pad: these tokens; None: new tokens `[MASK]` and `[PAD]`.
        bos, eos, unk: tokens that begin and end a text, and the unknown token; None: there is none.

    Raises:
        ValueError: if the content is not a tokenizer, or does not contain one of the tokens.
    """

    buildable: ClassVar[bool] = (
        True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)
    )

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
        for key, text in {
            "json": json,
            "name": name,
            "mask": mask,
            "pad": pad,
            "bos": bos,
            "eos": eos,
            "unk": unk,
        }.items():
            if not isinstance(text, str) and (text is not None or key in ("json", "name")):
                raise ValueError(f"tokenizer.{key} {text!r} must be a string")
        self.name = name
        rules = self._rules = parse(json, name)
        for role, token in (("mask", mask), ("pad", pad), ("bos", bos), ("eos", eos), ("unk", unk)):
            if token is not None and rules.token_to_id(token) is None:
                raise ValueError(
                    f"tokenizer {name} has no token {token!r} (tokenizer.{role}); name one of its "
                    "tokens, or null for none"
                )
        self.mask, self.pad = mask or _unused(rules, "[MASK]"), pad or _unused(rules, "[PAD]")
        self.bos, self.eos, self.unk = bos, eos, unk
        rules.add_special_tokens(
            [token for token in (self.mask, self.pad, bos, eos, unk) if token is not None]
        )
        rules.encode_special_tokens = True
        rules.no_padding()
        rules.no_truncation()
        ids: dict[str | None, int] = dict(rules.get_vocab(with_added_tokens=True).items())
        mask_id, pad_id = ids[self.mask], ids[self.pad]
        self.bos_id, self.eos_id = ids.get(bos), ids.get(eos)
        roles = [("mask", self.mask), ("pad", self.pad), ("bos", bos), ("eos", eos)]
        for number, (role, token) in enumerate(roles[:2]):
            if same := [other for other, theirs in roles[number + 1 :] if theirs == token]:
                raise ValueError(
                    f"tokenizer {name}: {role} and {same[0]} are both {token!r}; set "
                    f"tokenizer.{role}=null for a new token"
                )
        self.vocab = Vocab(
            size=1 + max(ids.values()),
            mask_id=mask_id,
            pad_id=pad_id,
            never_emitted=(mask_id, pad_id),
        )
        added = {i for i, token in rules.get_added_tokens_decoder().items() if token.special}
        special = added | {i for i in (self.bos_id, self.eos_id) if i is not None}
        self.special_ids: tuple[int, ...] = tuple(sorted(special - {mask_id, pad_id, ids.get(unk)}))
        self.dtype = np.dtype(np.uint16 if self.vocab.size <= 1 << 16 else np.int32)

    @property
    def mask_letter(self) -> str:
        """How decoded text shows a masked position."""
        return self.mask

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the ids of a text."""
        return hashlib.sha256(
            json.dumps(self.config() | {"name": ""}, sort_keys=True).encode()
        ).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text, without special tokens: `(L,)` uint16, or int32 for vocabularies of
        more than 65,536 tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, on all processor cores."""
        with refused(f"tokenizer {self.name} cannot encode the text with its rules"):
            encoded = self._rules.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=self.dtype) for each in encoded]

    def decode(self, ids: ArrayLike | Tensor) -> str:
        """Text of `ids (L,)`; special tokens, including the mask, are written out.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        array = one_sequence(ids)
        if len(wrong := np.flatnonzero((array < 0) | (array >= self.vocab.size))):
            raise ValueError(
                f"id {array[wrong[0]]} at position {wrong[0] + 1} is outside the vocabulary "
                f"0..{self.vocab.size - 1}"
            )
        with refused(f"tokenizer {self.name} cannot decode ids with its rules"):
            return self._rules.decode(array.tolist(), skip_special_tokens=False)

    def config(self) -> dict[str, Json]:
        """A configuration from which the tokenizer can be built again, without its file."""
        named = {
            "name": self.name,
            "mask": self.mask,
            "pad": self.pad,
            "bos": self.bos,
            "eos": self.eos,
            "unk": self.unk,
        }
        return {
            "_target_": "dnadiff.data.text.subword.SubwordTokenizer",
            "json": self._rules.to_str(),
            **named,
        }

    def __reduce__(
        self,
    ) -> tuple[Callable[[dict[str, Json]], SubwordTokenizer], tuple[dict[str, Json]]]:
        return _from_config, (self.config(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubwordTokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"SubwordTokenizer({self.name}, {self.vocab.size:,} tokens)"


def _from_config(config: dict[str, Json]) -> SubwordTokenizer:
    return SubwordTokenizer(**{key: value for key, value in config.items() if key != "_target_"})


def _unused(rules: Tokenizer, token: str) -> str:
    while rules.token_to_id(token) is not None:
        token = f"[{token}]"
    return token
