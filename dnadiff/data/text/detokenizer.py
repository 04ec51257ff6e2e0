"""Detokenizers: undo the word tokenization of old corpora, so that subword tokenizers see ordinary
text.

The rules of each corpus are those of MDLM's experiments (arXiv 2406.07524 and its published
loader), in the same order, as tables of replacements. Perplexities depend on them: any change
requires a new `VERSION`, so that cached corpora are tokenized again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

VERSION = 1
Rule = tuple[str | re.Pattern[str], str]


def _before(marks: str) -> list[Rule]:
    """Remove the space before a punctuation mark that is surrounded by spaces."""
    return [(f" {mark} ", f"{mark} ") for mark in marks]


def _inside(opening: str, closing: str, content: str) -> Rule:
    """Remove the spaces just inside a pair of brackets or quotes."""
    return re.compile(
        f"{re.escape(opening)}{content}{re.escape(closing)}"
    ), f"{opening}\\1{closing}"


def _pairs(content: Callable[[str], str]) -> dict[str, Rule]:
    """`_inside` for all pairs; `content(stop)` is the pattern of the text between them."""
    return {
        pair: _inside(pair[0], pair[1], content(re.escape(pair[1])))
        for pair in ("()", "[]", "{}", '""', "''")
    }


# Any number of spaces, including none; the content is as short as possible.
_WIKI = _pairs(lambda stop: rf"\s*([^{stop}]*?)\s*")
# The published loader also searches for "/' 5/" literally (apparently meant as a pattern). It
# matches no text and is left out here.
WIKITEXT: list[Rule] = [
    ("s '", "s'"),
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *_before(":;.!?,"),
    *(_WIKI[pair] for pair in ("()", "[]", "{}", '""', "''")),
    *((" ".join("=" * n), "=" * n) for n in (4, 3, 2)),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
]

PTB: list[Rule] = [
    (" 's", "'s"),
    ("s ' ", "s' "),
    (" n't", "n't"),
    (" \n ", "\n"),
    ("\\/", "/"),
    *[(" N ", " 1 ")] * 10,  # consecutive N share their spaces
    ("$ 1", "$1"),
    ("# 1", "#1"),
    ("<unk>", "?"),
]

LM1B: list[Rule] = [
    *((f"{scheme} : / / ", f"{scheme}://") for scheme in ("http", "https")),
    (re.compile(r" '(\w+)"), r"'\1"),
    (re.compile(r" (\w+) \. "), r" \1. "),
    (re.compile(r" (\w+) \.$"), r" \1."),
    *_before("?"),
    (re.compile(r" \?$"), "?"),
    *_before("!"),
    (re.compile(r" !$"), "!"),
    *_before(",:;"),
    (" / ", "/"),
    _inside('"', '"', ' ([^"]+) '),
    _inside("'", "'", " ([^']+) "),
    _inside("(", ")", r" ([^()]+) "),
    _inside("[", "]", r" ([^\[\]]+) "),
    ("$ ", "$"),
    ("£ ", "£"),
]

QUOTES: list[Rule] = [("“", '"'), ("”", '"')]


def _apply(rules: list[Rule]) -> Callable[[str], str]:
    def detokenize(text: str) -> str:
        for pattern, replacement in rules:
            text = (
                text.replace(pattern, replacement)
                if isinstance(pattern, str)
                else pattern.sub(replacement, text)
            )
        return text

    return detokenize


def lambada(text: str) -> str:
    """Straight quotes and a leading line break, as in the evaluation of GPT-2."""
    return "\n" + _apply(QUOTES)(text).strip()


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "wikitext": _apply(WIKITEXT),
    "ptb": _apply(PTB),
    "lm1b": _apply(LM1B),
    "lambada": lambada,
    "scientific_papers": _apply([*WIKITEXT, *LM1B]),
}


def detokenizer(name: str | None) -> Callable[[str], str] | None:
    """The detokenizer of a corpus by name; None for ordinary text.

    Raises:
        ValueError: for an unknown name, listing the choices.
    """
    if name is not None and name not in DETOKENIZERS:
        raise ValueError(
            f"detokenizer is {name!r}; choose {', '.join(DETOKENIZERS)} or null for "
            "data.detokenizer"
        )
    return None if name is None else DETOKENIZERS[name]
