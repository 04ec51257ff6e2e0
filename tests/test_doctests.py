"""Every example in a docstring of the package gives what it shows."""

import doctest
import importlib
from pathlib import Path

import pytest

import dnadiff

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
PACKAGE = Path(dnadiff.__file__).parent
MODULES = [
    ".".join(["dnadiff", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    )
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = [
        test
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
        if test.examples
    ]
    assert found
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for test in found:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
    assert not list(tmp_path.iterdir())
