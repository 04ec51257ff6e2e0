"""Parses and checks the rules of a subword tokenizer, the content of a `tokenizer.json`, before the
package `tokenizers` acts on them.

The package ends in a panic, which is no `Exception`, on some invalid rules, and allocates memory
for every id up to the highest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dnadiff.checks import is_integer
from dnadiff.store.disk import json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from dnadiff.config import Json

_ENTRY = 6  # bytes of the shortest entry of a vocabulary, `"a":1,`


def parse(content: str, name: str) -> Tokenizer:
    """The `tokenizers.Tokenizer` defined by the content of a `tokenizer.json`, with a token for
    every id below the highest.

    The package numbers new tokens by how many tokens there are. With gaps in the ids (a duplicate
    in a `vocab.txt`, a reduced vocabulary), the mask would get the id of an ordinary token. Unused
    ids therefore get placeholder tokens that never occur in text. Ids are limited to the number of
    entries that a vocabulary of the content's length can have, 6 bytes for each.

    Raises:
        ValueError: if the content is not a tokenizer.
    """
    table = json_object(content, f"tokenizer {name}: the content of its tokenizer.json")
    model = table.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(
        vocab, dict
    ):  # in a Unigram model a list, whose places are the ids
        return _tokenizer(content, name)
    check_ids(vocab, len(content), name)
    if model.get("merges") is not None:
        check_merges(
            vocab, _pairs(model["merges"], name), name, model.get("continuing_subword_prefix")
        )
    taken = set(vocab.values())
    gaps = sorted(set(range(max(taken, default=-1))) - taken)
    if not gaps:
        return _tokenizer(content, name)
    model["vocab"] = vocab | {f"[no token {number}]": number for number in gaps}
    return _tokenizer(json.dumps(table, ensure_ascii=False), name)


def check_ids(vocab: Mapping[str, Json], size: int, name: str) -> None:
    """Raise ValueError unless the ids of a vocabulary are different integers from 0, below what
    fits into `size` bytes."""
    limit = size // _ENTRY
    token_of: dict[int, str] = {}
    for token, number in vocab.items():
        if not is_integer(number, 0) or not isinstance(number, int):
            raise ValueError(
                f"tokenizer {name}: the id of {token!r} is {number!r}; expected an integer of at "
                "least 0"
            )
        if number >= limit:
            raise ValueError(
                f"tokenizer {name} has the id {number:,}, but its {size:,} bytes have room for "
                f"{limit:,} tokens; number the tokens from 0"
            )
        if (other := token_of.setdefault(number, token)) != token:
            raise ValueError(
                f"tokenizer {name}: {other!r} and {token!r} have the same id {number}; use another "
                "copy of the vocabulary"
            )


def check_merges(
    vocab: Mapping[str, int], pairs: Sequence[tuple[str, str]], name: str, prefix: Json = None
) -> None:
    """Raise ValueError unless both symbols of every merge, and what they are merged to, are in the
    vocabulary."""
    inside = prefix if isinstance(prefix, str) else ""  # how a symbol inside a word starts
    for first, second in pairs:
        if not second.startswith(inside):
            raise ValueError(
                f"tokenizer {name}: the merge of {first!r} and {second!r} lacks the prefix "
                f"{inside!r} of symbols inside a word"
            )
        if missing := [
            token
            for token in (first, second, first + second.removeprefix(inside))
            if token not in vocab
        ]:
            raise ValueError(
                f"tokenizer {name}: the merge of {first!r} and {second!r} needs the token "
                f"{missing[0]!r}, which is not in the vocabulary; "
                "use vocabulary and merges that belong together"
            )


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise ValueError for any error of the package `tokenizers`, whose exceptions are bare and
    whose panics are no `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ValueError(f"{what} ({' '.join(str(error).split())[:120]})") from error


def _tokenizer(content: str, name: str) -> Tokenizer:
    from tokenizers import Tokenizer

    with refused(f"tokenizer {name}: not the content of a tokenizer.json"):
        return Tokenizer.from_str(content)


def _pairs(merges: Json, name: str) -> list[tuple[str, str]]:
    """The two symbols of each merge, which is a list of two or a string with a space between
    them."""
    pairs = []
    for merge in merges if isinstance(merges, list) else [merges]:
        symbols = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(symbols, list)
            or len(symbols) != 2
            or not all(isinstance(symbol, str) for symbol in symbols)
        ):
            raise ValueError(f"tokenizer {name}: a merge is {merge!r}; expected two symbols")
        pairs.append((symbols[0], symbols[1]))
    return pairs
