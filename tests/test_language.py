"""The tree is written in plain technical English."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


# Phrases that a reader of today has to translate. Only unambiguous ones: "recommended", "the law of
# large numbers" and "keywords of" stay.
ARCHAIC = re.compile(
    r"\b(?:by a hair|go(?:es|ing|ne)? on with\b|which law\b|the law of (?!large|total)|law of x0"
    r"|(?:is|are|be|been|was|were) told\b|told (?:apart|from)\b"
    r"|beside (?:a|its|the|their) floor|blind guess|bound from above|[Mm]end(?:ed|s|ing)?\b"
    r"|dear,|a word of three|words of \d|lies (?:wholly|inside)|[Aa]new\b|[Aa]fresh\b|for ever\b"
    r"|wholly or not at all|the business of\b)"
)
FILES = ("*.py", "*.md", "*.yaml", "*.sh", "*.toml", "*.cff", "*.cpp", "*.h")


def archaic_phrases() -> list[str]:
    """Places in the tree whose wording a reader has to translate."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *FILES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in paths
        if path.is_file() and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in ARCHAIC.finditer(line)
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists the files that git tracks")
def test_no_archaic_phrase_is_left():
    assert not archaic_phrases()


@pytest.mark.parametrize(
    "sentence",
    [
        "The recommended value can be amended.",
        "By the law of large numbers and the law of total variance the mean converges.",
        "Keywords of 3 papers; passwords of 8 letters.",
        "He goes on; the command goes on without it.",
    ],
)
def test_ordinary_words_are_not_reported(sentence):
    assert not re.search(ARCHAIC.pattern, sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "It was mended.",
        "The network is told the time.",
        "Train it anew.",
        "every number beside a floor",
        "words of 3 bases",
        "go on with a run",
    ],
)
def test_archaic_phrases_are_reported(sentence):
    assert re.search(ARCHAIC.pattern, sentence)


PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "RESPONSIBLE_USE.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "genomic_benchmarks").glob("*.md")),
    *sorted((ROOT / "packaging").glob("*.md")),
]
MOST_WORDS = 36
NOT_PROSE = (
    (r"\A---\n(?s:.*?)^---\n", ""),  # front matter
    (r"^ *(```|~~~)(?s:.*?)^ *\1", "\n\n"),
    (r"^ {4,}(?![-*+] |\d+\. ).*$", "\n\n"),  # code by its indent
    (r"^\[[\w-]+\]: .*$|^:::.*$|<!--(?s:.*?)-->", ""),
    (r"(`+)[^`]*\1", "`code`"),  # one word
    (r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1"),
    (r"^\s*(?:[-*+]|\d+\.)\s+|^#+ .*$|\s*\|\s*|<[^>]+>", "\n\n"),  # items, headings, cells, tags
)


def long_sentences(text):
    """The sentences of a page in Markdown that have more than 36 words."""
    for pattern, new in NOT_PROSE:
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n", text):
        for sentence in re.split(
            r"(?<=[.!?:])[)*\"']*\s+(?=[A-Z(*\"'`\[])", " ".join(part.split())
        ):
            if sum(bool(re.search(r"\w", word)) for word in sentence.split()) > MOST_WORDS:
                yield sentence


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_have_at_most_36_words(page):
    assert not list(long_sentences(page.read_text(encoding="utf-8")))


def test_words_are_counted_by_sentence():
    short, long = " ".join(["word"] * 36), " ".join(["word"] * 37)
    assert not list(long_sentences(f"# {long}\n\n{short}. Then `{long}`:\n\n```\n{long}\n```\n"))
    assert list(long_sentences(f"- [{short}](x.md) more.\n")) == [f"{short} more."]
    assert list(long_sentences(f"| a | {long} |\n")) == [long]
