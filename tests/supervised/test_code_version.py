import ast
import importlib
import linecache
import shutil
import sys
from pathlib import Path

import dnadiff
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.supervised.saved import SOURCES, code_version

PACKAGE = Path(dnadiff.__file__).parent
# Modules that compute predictions from items, and what they import without its results depending on
# it.
COMPUTING = [
    "baselines",
    "classifier",
    "items",
    "networks",
    "protocol",
    "training",
]
WITHOUT_INFLUENCE = {
    "dnadiff.diffusion.bootstrap",
    "dnadiff.store.objects",
    "dnadiff.fields",
    "dnadiff.progress",
}


def test_the_digest_changes_with_each_source_and_with_nothing_else(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "a", ignore=shutil.ignore_patterns("__pycache__"))

    def version() -> dict[str, str]:
        return code_version(package=tmp_path / "a")

    before = version()
    assert set(before) == {
        "dnadiff",
        "code",
        "torch",
        "lightning",
        "scikit-learn",
        "numpy",
        "scipy",
    }
    (tmp_path / "a" / "report" / "html.py").write_text("changed = True\n")
    (tmp_path / "a" / "networks" / "kernels" / "built.so").write_bytes(b"not a source")
    assert version() == before
    digests = {before["code"]}
    for name in (
        "supervised/baselines.py",
        "networks/backbone/mixer.py",
        "networks/kernels/selective_scan.cpp",
        "diffusion/draws.py",
        "training/optim.py",
    ):
        with (tmp_path / "a" / name).open("a") as file:
            file.write("\n")
        digests.add(version()["code"])
    (tmp_path / "a" / "networks" / "backbone" / "new.py").write_text("")
    assert len(digests | {version()["code"]}) == 7


def test_a_network_of_your_own_counts():
    class Network:
        pass

    assert code_version(Network)["code"] != code_version()["code"] == code_version(Mamba)["code"]


def test_your_own_parts_in_the_configuration_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    config, digests = (
        {
            "head": {"_target_": "mine.Head"},
            "baselines": {"x": {"_target_": "dnadiff.supervised.networks.PublishedCNN"}},
        },
        set(),
    )
    for body in ("pass", "x = 1"):
        (tmp_path / "mine.py").write_text(f"class Head:\n    {body}\n")
        linecache.clearcache()
        importlib.invalidate_caches()
        sys.modules.pop("mine", None)
        importlib.import_module("mine")
        digests.add(code_version(config=config)["code"])
    assert len(digests) == 2 and code_version()["code"] not in digests
    assert (
        code_version(config={"head": {"_target_": "math.sqrt"}})["code"] == code_version()["code"]
    )  # compiled, without a source


def test_everything_that_predictions_depend_on_is_covered():
    covered = tuple("dnadiff." + name.removesuffix(".py").replace("/", ".") for name in SOURCES)
    imported = set()
    for path in [
        *(PACKAGE / "supervised" / f"{name}.py" for name in COMPUTING),
        *(PACKAGE / "networks" / "backbone").glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dnadiff"):
                imported |= (
                    {node.module}
                    if node.module != "dnadiff"
                    else {f"dnadiff.{alias.name}" for alias in node.names}
                )
    missing = {
        name for name in imported if not any(name == c or name.startswith(c + ".") for c in covered)
    }
    assert missing <= WITHOUT_INFLUENCE, missing - WITHOUT_INFLUENCE
