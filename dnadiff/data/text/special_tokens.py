"""Which tokens begin and end documents and windows of text: what was asked for, and what the tokenizer has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnadiff.data.text.packing import Ends


class Specials:
    """The tokens put after documents, and at the ends of windows.

    Args:
        wrap: documents stand one after the other; only then do they get a token at their end.
        insert_eos: put the token that ends a text after each document; None: if the tokenizer has one.
        insert_valid_eos: the same in validation and test; None: as `insert_eos`.
        insert_special_tokens: begin and end every window with the tokens for that; None: if the tokenizer has both.

    Raises:
        ValueError: for anything but true, false and, except for `wrap`, null.
    """

    def __init__(self, wrap: bool, insert_eos: bool | None, insert_valid_eos: bool | None, insert_special_tokens: bool | None) -> None:
        given = {"insert_eos": insert_eos, "insert_valid_eos": insert_valid_eos, "insert_special_tokens": insert_special_tokens}
        for key, value in {"wrap": wrap, **given}.items():
            if not isinstance(value, bool) and not (value is None and key in given):
                raise ValueError(f"{key} is {value!r}; set data.{key} to true{', false or null' if key in given else ' or false'}")
        self.wrap, self.insert_eos, self.insert_valid_eos, self.insert_special_tokens = wrap, *given.values()

    def check(self, tokenizer: Any) -> None:
        """Refuse a tokenizer without a token that was asked for.

        Raises:
            ValueError: naming the key.
        """
        has = f"the tokenizer {tokenizer.name} has no token that"
        if (self.insert_eos or self.insert_valid_eos) and self.wrap and tokenizer.eos_id is None:
            key = "insert_eos" if self.insert_eos else "insert_valid_eos"
            raise ValueError(f"{has} ends a text; set data.{key}=false, or name one by tokenizer.eos")
        if self.insert_special_tokens and None in (tokenizer.bos_id, tokenizer.eos_id):
            missing = "begins" if tokenizer.bos_id is None else "ends"
            raise ValueError(
                f"{has} {missing} a text; set data.insert_special_tokens=false, or name one by tokenizer.bos and tokenizer.eos"
            )

    def after(self, tokenizer: Any, part: str) -> int | None:
        """The id after each document of a part; None: nothing is put there."""
        wanted = self.insert_eos if part == "train" or self.insert_valid_eos is None else self.insert_valid_eos
        return tokenizer.eos_id if wanted is not False and self.wrap else None

    def ends(self, tokenizer: Any) -> Ends:
        """What every window begins and ends with."""
        begin, end = tokenizer.bos_id, tokenizer.eos_id
        return Ends(None, None) if self.insert_special_tokens is False or None in (begin, end) else Ends(begin, end)

    def layout(self, tokenizer: Any, length: int, parts: Sequence[str]) -> str:
        """How documents become windows, in words: numbers of different layouts are not comparable."""
        ends, after = self.ends(tokenizer), {part: self.after(tokenizer, part) for part in parts}
        around = f", {tokenizer.decode([ends.bos])} and {tokenizer.decode([ends.eos])} at the ends" if ends.count else ""
        if not self.wrap:
            return f"padded: each document a window of {length} tokens, padded or cut{around}"
        without = [part for part, end in after.items() if end is None]
        between = f", {tokenizer.decode([tokenizer.eos_id])} after each document" if len(without) < len(parts) else ""
        between += f" (not in {' and '.join(without)})" if between and without else ""
        return f"wrapped: documents one after the other in windows of {length} tokens{around}{between}"
