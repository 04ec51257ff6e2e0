"""Print the structure of the package as one table: `python scripts/structure.py [--against FILE] [--json FILE] [--check]`.

Counts come from the syntax tree, except for shared runs of lines, which are compared as text. "Lines of code" leave out blank
lines, comments and docstrings. With `--against` the table shows the numbers of an earlier JSON file next to today's.
"""

from __future__ import annotations

import argparse
import ast
import collections
import gc
import graphlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED_LINES, TOO_COMMON = 6, 8
# Phrases that a reader of today has to translate. Only unambiguous ones: "recommended", "the law of large numbers" and "keywords of" stay.
ARCHAIC = (
    r"\b(?:by a hair|go(?:es|ing|ne)? on with\b|which law\b|the law of (?!large|total)|law of x0|(?:is|are|be|been|was|were) told\b|told (?:apart|from)\b"
    r"|beside (?:a|its|the|their) floor|blind guess|bound from above|[Mm]end(?:ed|s|ing)?\b|dear,|a word of three|words of \d"
    r"|lies (?:wholly|inside)|[Aa]new\b|[Aa]fresh\b|for ever\b|wholly or not at all|the business of\b)"
)
LIMITS = {
    "other modules at the top level": 16,
    "import levels": 9,
    "import cycles": 0,
    "hasattr and getattr with a default, per 1,000 lines of code": 1.0,
    "Any and its alias Json, per 1,000 lines of code": 10.0,
    "comparisons with a string, per 1,000 lines of code": 4.0,
    "public class names used twice": 0,
    "pairs of places that share six or more lines": 30,
    "files over 300 lines": 0,
    "functions over 60 lines": 0,
    "lines of the package": 27_383,  # before features are added: not part of --check
    "archaic phrases": 0,
}


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository that match, as git sees them."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


@dataclass(frozen=True)
class Source:
    """A Python file, parsed once."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Its content."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def documentation_lines(self) -> set[int]:
        """Line numbers of docstrings."""
        found: set[int] = set()
        for block in blocks(self.tree):
            first = block[0]
            if isinstance(first, ast.Expr) and is_string(first.value):
                found.update(range(first.lineno, first.end_lineno + 1))
        return found


source = cache(Source)


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The bodies of a module and of everything in it that holds statements."""
    if body := getattr(node, "body", None):
        yield body
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            yield from blocks(inner)


def code_lines(file: Source) -> int:
    """Lines that hold code, those of strings of several lines included."""
    lines = enumerate(file.text.splitlines(), 1)
    holds = {i for i, line in lines if (text := line.strip()) and not text.startswith("#")}
    for node in file.nodes:
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
            holds.update(range(node.lineno, node.end_lineno + 1))
    return len(holds - file.documentation_lines)


def is_string(node: ast.AST) -> bool:
    """Whether it is a string literal."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def annotations(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Every type annotation."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (a for a in (node.returns,) if a is not None)
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            yield node.annotation


def names(nodes: Iterator[ast.AST], name: str) -> int:
    """How often a name occurs in some syntax trees."""
    return sum(isinstance(n, ast.Name) and n.id == name for node in nodes for n in ast.walk(node))


def count_file(nodes: list[ast.AST]) -> collections.Counter:
    """The patterns of one file."""
    found: collections.Counter = collections.Counter()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found["probes"] += node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3)
            found["cast"] += node.func.id == "cast"
        elif isinstance(node, ast.Compare):
            found["strings"] += any(is_string(side) for side in node.comparators)
            found["membership"] += any(
                isinstance(side, (ast.Tuple, ast.List, ast.Set)) and all(map(is_string, side.elts)) for side in node.comparators
            )
        elif isinstance(node, ast.MatchValue):
            found["match on a string"] += is_string(node.value)
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            found["except AttributeError"] += names(iter([node.type]), "AttributeError")
        elif isinstance(node, ast.Name):
            found["Any"] += node.id in ("Any", "Json")  # dnadiff.config.Json is an alias of Any
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found["long functions"] += node.end_lineno - node.lineno + 1 > 60
    found["object"] = names(annotations(nodes), "object")
    return found


def import_graph(package: Path) -> dict[str, set[str]]:
    """What each module and folder of the top level imports of the others."""
    known = {p.name.removesuffix(".py") for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for path in package.rglob("*.py"):
        home = path.relative_to(package).parts[0].removesuffix(".py")
        for node in source(path).nodes:
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{a.name}" if node.module == package.name else str(node.module) for a in node.names]
            parts = [name.split(".") for name in imported]
            graph[home].update(p[1] for p in parts if p[0] == package.name and len(p) > 1 and p[1] in known - {home})
    return graph


def levels(graph: dict[str, set[str]]) -> tuple[int, int]:
    """The length of the longest chain of imports, and 1 where they form a cycle."""
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError:
        return 0, 1
    level: dict[str, int] = {}
    for name in order:
        level[name] = 1 + max((level[other] for other in graph[name]), default=0)
    return max(level.values()), 0


@cache
def shape(line: str) -> str:
    """A line of code without its names, strings and numbers."""
    line = re.sub(r"\"[^\"]*\"|'[^']*'", "S", line)
    line = re.sub(r"\b\d[\w.]*", "0", line)
    return re.sub(
        r"\b(?!(?:def|class|if|else|elif|for|in|return|self|None|with|not|and|or|is|yield|from|import|raise|lambda)\b)[A-Za-z_]\w*",
        "N",
        line,
    )


def shared_pairs(files: list[Path]) -> int:
    """Pairs of files (a file with itself is one) that share a run of six or more lines, the same or of the same shape."""
    places: dict[tuple[str, ...], list[tuple[int, int]]] = collections.defaultdict(list)
    for number, path in enumerate(files):
        hidden = source(path).documentation_lines if path.suffix == ".py" else set()
        lines = [line.strip() for i, line in enumerate(source(path).text.splitlines(), 1) if i not in hidden]
        lines = [shape(line) for line in lines if line and not line.startswith(("#", "//", "from ", "import ", "@"))]
        telling = [bool(set(line) - set("()[]{},:NS0 ")) for line in lines]
        for start in range(len(lines) - SHARED_LINES + 1):
            if sum(telling[start : start + SHARED_LINES]) >= SHARED_LINES - 2:
                places[tuple(lines[start : start + SHARED_LINES])].append((number, start))
    pairs = set()
    for found in places.values():
        if 1 < len(found) <= TOO_COMMON:
            for (a, i), (b, j) in itertools.combinations(found, 2):
                if a != b or abs(i - j) >= SHARED_LINES:
                    pairs.add((a, b))
    return len(pairs)


def archaic_phrases() -> list[str]:
    """Places in the tree whose wording a reader has to translate."""
    pattern, found = re.compile(ARCHAIC), []
    for path in tracked("*.py", "*.md", "*.yaml", "*.sh", "*.toml", "*.cff", "*.cpp", "*.h"):
        if path == Path(__file__).resolve() or path.name == "test_language.py":
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [f"{path.relative_to(ROOT)}:{i}: {m[0]}" for i, line in enumerate(lines, 1) for m in pattern.finditer(line)]
    return found


@contextmanager
def without_collector() -> Iterator[None]:
    """Inside, the garbage collector does not visit the millions of nodes of the syntax trees again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@without_collector()
def measure(package: Path) -> dict[str, float]:
    """All numbers of the table."""
    found: collections.Counter = collections.Counter()
    classes: dict[str, set[str]] = collections.defaultdict(set)
    lines = code = long_files = 0
    for path in sorted(package.rglob("*.py")):
        file = source(path)
        length = file.text.count("\n")
        found += count_file(file.nodes)
        lines, code, long_files = lines + length, code + code_lines(file), long_files + (length > 300)
        for node in file.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(str(path))
    commands = {p.stem for p in package.glob("*.py") if "\ndef main(" in source(p).text and p.stem != "__main__"}
    depth, cycles = levels(import_graph(package))

    def rate(key: str) -> float:
        return round(1000 * found[key] / code, 1)

    return {
        "commands at the top level": len(commands),
        "other modules at the top level": len(list(package.glob("*.py"))) - len(commands),
        "import levels": depth,
        "import cycles": cycles,
        "hasattr and getattr with a default, per 1,000 lines of code": rate("probes"),
        "Any and its alias Json, per 1,000 lines of code": rate("Any"),
        "comparisons with a string, per 1,000 lines of code": rate("strings"),
        "membership in a literal collection of strings": found["membership"],
        "object in signatures": found["object"],
        "cast": found["cast"],
        "except AttributeError": found["except AttributeError"],
        "match on a string": found["match on a string"],
        "public class names used twice": sum(len(paths) > 1 for paths in classes.values()),
        "pairs of places that share six or more lines": shared_pairs(tracked("*.py", "*.cpp", "*.h")),
        "files over 300 lines": long_files,
        "functions over 60 lines": found["long functions"],
        "lines of code": code,
        "lines of the package": lines,
        "archaic phrases": len(archaic_phrases()),
    }


def exceeded(numbers: dict[str, float]) -> list[str]:
    """The rows whose limit is exceeded, except for the number of lines, which grows with features."""
    return [name for name, limit in LIMITS.items() if numbers[name] > limit and name != "lines of the package"]


def main() -> None:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="JSON file with earlier numbers")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--phrases", action="store_true", help="list the archaic phrases with their places")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a limit is exceeded")
    options = parser.parse_args()
    if options.phrases:
        print("\n".join(archaic_phrases()))
        return
    now = measure(ROOT / "dnadiff")
    before = json.loads(options.against.read_text()) if options.against else {}
    print(f"| {'':60} | before | now | limit |\n|{'-' * 62}|---|---|---|")
    for name, value in now.items():
        print(f"| {name:60} | {before.get(name, '')} | {value:,} | {LIMITS.get(name, '')} |")
    if options.json:
        options.json.write_text(json.dumps(now, indent=2) + "\n")
    if options.check and (broken := exceeded(now)):
        raise SystemExit(f"error: over the limit: {', '.join(broken)}")


if __name__ == "__main__":
    sys.exit(main())
