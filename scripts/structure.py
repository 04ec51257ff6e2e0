"""Size and shape of the Python code: `python scripts/structure.py [--list] [--update]`.

Tokens leave out comments, docstrings and layout, so that formatting does not change them. The graph
of imports is between files and includes imports inside functions. `--update` lowers the recorded
values in tests/structure.json to those of today; the test of the structure allows 3 % above the
recorded value, until a limit is reached.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "structure.json"
LAYOUT = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER")
TEXT = (".yaml", ".yml", ".html", ".js", ".css", ".j2", ".jinja", ".jinja2")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SMALL = 400  # tokens
# The redesign aims at 300,000 tokens of dnadiff and reached 353,432. The systems of the papers
# brought it to 373,203; alignments may add 12,000 (385,203 in all), pages, guidance and
# explanations 15,000, and fine-tuning 5,000, 405,203 in all. Until fine-tuning is complete,
# 407,500: what is above 405,203 has to go. Each issue with a study may add 4,000 to the scripts.
LIMITS = {
    "tokens of dnadiff": 407_500,
    "tokens of scripts": 127_000,
    "files of dnadiff": 270,
    "tokens of the largest file": 5_000,
    "longest chain of imports": 18,
    "files in circles of imports": 0,
    "small files": 20,
    "files with one importer": 60,
    "imports inside functions": 80,
    "dynamic imports": 10,
    "kB of strings, YAML, HTML and JavaScript": 343,
    "lines of over 100 columns": 0,
    "tokens of tests": 350_000,
}
PRINTED = ("tokens of tests",)  # an aim, not a limit


class Source(NamedTuple):
    """A Python file."""

    name: str
    is_package: bool
    text: str
    tree: ast.Module
    nodes: list[ast.AST]  # all of the tree

    @property
    def is_facade(self) -> bool:
        """Whether it is an `__init__.py` without definitions."""
        return self.is_package and not any(
            isinstance(node, (*FUNCTIONS, ast.ClassDef)) for node in self.tree.body
        )

    def tokens(self) -> int:
        """Tokens without comments, docstrings and layout; an f-string is one."""
        hidden = {(node.lineno, node.col_offset) for node in docstrings(self.nodes)}
        count = depth = 0
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            kind = tokenize.tok_name[token.type]
            depth -= kind in ("FSTRING_END", "TSTRING_END")
            opens = kind in ("FSTRING_START", "TSTRING_START")
            if not depth and not opens and kind not in LAYOUT:
                count += kind != "STRING" or token.start not in hidden
            depth += opens
        return count

    def string_bytes(self) -> int:
        """Characters of string literals that are not docstrings."""
        hidden = {id(node.value) for node in docstrings(self.nodes)}
        strings = (node for node in self.nodes if isinstance(node, ast.Constant))
        return sum(
            len(node.value)
            for node in strings
            if isinstance(node.value, (str, bytes)) and id(node) not in hidden
        )

    def imports(self, known: set[str]) -> tuple[set[str], int]:
        """The modules of the package that it imports, and the number of imports of them inside
        functions."""
        guards = [n for n in self.nodes if isinstance(n, ast.If) and is_typing(n.test)]
        typing = lines(part for guard in guards for part in guard.body)
        inside = lines(n for n in self.nodes if isinstance(n, FUNCTIONS))
        found: set[str] = set()
        lazy = 0
        for node in self.nodes:
            if not isinstance(node, (ast.Import, ast.ImportFrom)) or node.lineno in typing:
                continue
            names = set(self.targets(node, known)) & known - {self.name}
            found |= names
            lazy += bool(names) and node.lineno in inside
        return found, lazy

    def targets(self, node: ast.Import | ast.ImportFrom, known: set[str]) -> Iterator[str]:
        """The names of modules in an import statement."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:
            parents = self.name.split(".")
            parents = parents[: len(parents) - node.level + self.is_package]
            base = ".".join([*parents, base] if base else parents)
        for alias in node.names:
            yield name if (name := f"{base}.{alias.name}") in known else base

    def dynamic(self) -> int:
        """Calls and definitions that hide imports."""
        calls = [n.func for n in self.nodes if isinstance(n, ast.Call)]
        names = [f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in calls]
        hooks = [n for n in self.tree.body if isinstance(n, FUNCTIONS) and n.name == "__getattr__"]
        return sum(name in ("import_module", "__import__") for name in names) + len(hooks)


def docstrings(nodes: list[ast.AST]) -> Iterator[ast.Expr]:
    """The expressions that are docstrings."""
    for node in nodes:
        documented = isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))
        if documented and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


def lines(nodes: Iterator[ast.AST]) -> set[int]:
    """The numbers of the lines of syntax trees."""
    return {number for node in nodes for number in range(node.lineno, node.end_lineno + 1)}


def is_typing(test: ast.expr) -> bool:
    """Whether a condition is `TYPE_CHECKING`."""
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def sources(folder: Path) -> list[Source]:
    """The Python files of a folder."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(text)
        found.append(Source(name, is_package, text, tree, list(ast.walk(tree))))
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of files that import each other, single files included; imported ones come
    first."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        found = set()
        todo = [start]
        while todo:
            new = graph[todo.pop()] - found
            found |= new
            todo += new
        reached[start] = found
    groups: list[set[str]] = []
    for name in sorted(graph, key=lambda name: len(reached[name] | {name})):
        if not any(name in group for group in groups):
            groups.append({name} | {other for other in reached[name] if name in reached[other]})
    return groups


def longest_chain(graph: dict[str, set[str]], groups: list[set[str]]) -> list[str]:
    """The longest chain of imports; all files of a circle are steps of it."""
    home = {name: number for number, group in enumerate(groups) for name in group}
    best: dict[int, list[str]] = {}
    for number, group in enumerate(groups):
        below = {home[other] for name in group for other in graph[name]} - {number}
        best[number] = sorted(group) + max((best[other] for other in below), key=len, default=[])
    return max(best.values(), key=len)


def chosen(folder: Path) -> set[str]:
    """The modules that a `_target_` of the YAML files names."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.yaml"))
    return {target.rpartition(".")[0] for target in re.findall(r"_target_:\s*([\w.]+)", text)}


def bytes_of_text(folder: Path) -> int:
    """Bytes of YAML and of pages in a folder."""
    files = (path for path in folder.rglob("*") if path.suffix in TEXT and path.is_file())
    return sum(path.stat().st_size for path in files)


def measure(root: Path = ROOT, tests: bool = True) -> tuple[dict[str, int], dict[str, list[str]]]:
    """The numbers, and the names behind some of them; tokens of `tests` take half of the time."""
    files = sources(root / "dnadiff")
    scripts = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    left_out = {"dnadiff", "runs"} | (set() if tests else {"tests"})
    others = {path.name: sources(path) for path in scripts if path.name not in left_out}
    known = {file.name for file in files}
    pairs = {file.name: file.imports(known) for file in files}
    graph = {name: found for name, (found, _) in pairs.items()}
    groups = circles(graph)
    facades = {file.name for file in files if file.is_facade}
    options = chosen(root / "configs")
    tokens = {file.name: file.tokens() for file in files}
    users = {n: [u for u in graph if n in graph[u] and u not in facades] for n in graph}
    of_tests = others.pop("tests", [])
    long = [
        f"{path.relative_to(root)}:{number}"
        for name in ("dnadiff", "scripts", "tests")
        for path in sorted((root / name).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    strings = sum(file.string_bytes() for file in files)
    text = strings + bytes_of_text(root / "configs") + bytes_of_text(root / "dnadiff")
    names = {
        "longest chain of imports": longest_chain(graph, groups),
        "files in circles of imports": sorted(n for g in groups if len(g) > 1 for n in g),
        "small files": [
            n for n in tokens if tokens[n] <= SMALL and n not in facades and n not in options
        ],
        "files with one importer": [
            f"{n} < {users[n][0]}" for n in users if len(users[n]) == 1 and n not in facades
        ],
        "lines of over 100 columns": long,
    }
    numbers = {
        "tokens of dnadiff": sum(tokens.values()),
        "tokens of scripts": sum(file.tokens() for part in others.values() for file in part),
        "files of dnadiff": len(files),
        "tokens of the largest file": max(tokens.values()),
        "imports inside functions": sum(lazy for _, lazy in pairs.values()),
        "dynamic imports": sum(file.dynamic() for file in files),
        "kB of strings, YAML, HTML and JavaScript": text // 1000,
        "tokens of tests": sum(file.tokens() for file in of_tests),
        **{key: len(value) for key, value in names.items()},
    }
    return {key: numbers[key] for key in LIMITS}, names


def exceeded(numbers: dict[str, int], lowest: dict[str, int]) -> dict[str, str]:
    """The numbers that are above their limit and more than 3 % above the lowest they had."""
    found = {}
    for key, value in numbers.items():
        allowed = max(LIMITS[key], int(1.03 * lowest.get(key, value)))
        if value > allowed and key not in PRINTED:
            found[key] = f"{value:,}, at most {allowed:,}"
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="the names behind the numbers")
    parser.add_argument("--update", action="store_true", help="lower the recorded values")
    options = parser.parse_args()
    numbers, names = measure()
    lowest = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    print("| | lowest | now | limit |\n|---|---|---|---|")
    for key, value in numbers.items():
        print(f"| {key} | {lowest.get(key, value):,} | {value:,} | {LIMITS[key]:,} |")
    if options.list:
        for key, found in names.items():
            print(f"\n{key}:\n  " + "\n  ".join(found))
    if options.update:
        lowered = {key: min(value, lowest.get(key, value)) for key, value in numbers.items()}
        RECORD.write_text(json.dumps(lowered, indent=1) + "\n")


if __name__ == "__main__":
    main()
