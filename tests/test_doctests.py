"""Examples in docstrings give what they show, and every public method has a docstring."""

import doctest
import importlib
import inspect
from pathlib import Path
from types import FunctionType

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


def test_every_public_method_is_documented_or_inherits_its_documentation():
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(["dnadiff", *path.relative_to(PACKAGE).with_suffix("").parts])
        if path.stem in ("__init__", "__main__") or path.stem.startswith("triton"):
            continue  # Triton is not installed everywhere
        for cls in [*vars(importlib.import_module(name)).values()]:
            if inspect.isclass(cls) and cls.__module__ == name and not cls.__name__.startswith("_"):
                missing += [
                    f"{name}.{cls.__name__}.{key}"
                    for key, member in [*vars(cls).items()]
                    if key not in getattr(cls, "__annotations__", ())
                    and isinstance(member, (FunctionType, classmethod, property, staticmethod))
                    and not (key.startswith("_") or inspect.getdoc(getattr(cls, key)))
                ]
    assert not missing
