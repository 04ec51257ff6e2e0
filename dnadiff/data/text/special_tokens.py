"""Which special tokens begin and end documents and windows of text, given the settings and the
tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnadiff.checks import boolean
from dnadiff.data.splits import PARTS
from dnadiff.data.text.packing import Ends

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import TextTokenizer


class SpecialTokens:
    """The tokens after documents and at the ends of windows.

    Args:
        wrap: documents are concatenated; only then does a token follow each of them.
        insert_eos: insert the end-of-text token after each document; None: if the tokenizer has
            one.
        insert_valid_eos: the same for validation and test; None: as `insert_eos`.
        insert_special_tokens: begin and end every window with the tokens for that; None: if the
            tokenizer has both.
    """

    def __init__(
        self,
        wrap: bool,
        insert_eos: bool | None,
        insert_valid_eos: bool | None,
        insert_special_tokens: bool | None,
    ) -> None:
        self.wrap = boolean("data.wrap", wrap)
        options = {
            "insert_eos": insert_eos,
            "insert_valid_eos": insert_valid_eos,
            "insert_special_tokens": insert_special_tokens,
        }
        for key, value in options.items():
            if value is not None:
                boolean(f"data.{key}", value)
        self.insert_eos, self.insert_valid_eos, self.insert_special_tokens = (
            insert_eos,
            insert_valid_eos,
            insert_special_tokens,
        )
        train, *held_out = PARTS
        held_out_eos = insert_eos if insert_valid_eos is None else insert_valid_eos
        self._insert_eos = {train: insert_eos, **dict.fromkeys(held_out, held_out_eos)}

    def check(self, tokenizer: TextTokenizer) -> None:
        """Raise ValueError if the tokenizer does not have the requested special tokens."""
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

    def after(self, tokenizer: TextTokenizer, part: str) -> int | None:
        """The id after each document of a part; None: no token is inserted."""
        return tokenizer.eos_id if self._insert_eos[part] is not False and self.wrap else None

    def ends(self, tokenizer: TextTokenizer) -> Ends:
        """The tokens at the ends of every window."""
        begin, end = tokenizer.bos_id, tokenizer.eos_id
        return (
            Ends(None, None)
            if self.insert_special_tokens is False or None in (begin, end)
            else Ends(begin, end)
        )

    def layout(self, tokenizer: TextTokenizer, length: int, parts: Sequence[str]) -> str:
        """Describe how documents become windows. Likelihoods under different layouts are not
        comparable."""
        begin, end = self.ends(tokenizer)
        around = (
            ""
            if begin is None or end is None
            else f", {tokenizer.decode([begin])} and {tokenizer.decode([end])} at the ends"
        )
        if not self.wrap:
            return f"padded: each document a window of {length} tokens, padded or cut{around}"
        without = [part for part in parts if self.after(tokenizer, part) is None]
        between = ""
        if tokenizer.eos_id is not None and len(without) < len(parts):
            exception = f" (not in {' and '.join(without)})" if without else ""
            between = f", {tokenizer.decode([tokenizer.eos_id])} after each document{exception}"
        return (
            f"wrapped: documents one after the other in windows of {length} tokens{around}{between}"
        )
