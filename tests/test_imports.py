"""Imports point down the levels of the package, and heavy packages are imported only where they are
needed."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import dnadiff

PACKAGE = Path(dnadiff.__file__).parent
TORCH = tuple(int(part) for part in version("torch").split(".")[:2])
MAX_LEVELS = 13
MAX_OTHER_MODULES = 6  # at the top level, besides the commands
COMMANDS = {
    path.stem
    for path in PACKAGE.glob("*.py")
    if re.search(r"^(def main\(|main = )", path.read_text(encoding="utf-8"), re.MULTILINE)
} - {"__main__"}
AROUND = {"options", "data", "formats", "jobs", "weights", "training", "supervised", "design"}
NEVER = {
    "diffusion": AROUND | {"genomics", "report"},
    "networks": AROUND | {"genomics", "report"},
    "store": AROUND | {"genomics", "report", "diffusion", "networks"},
    "formats": AROUND - {"formats"} | {"genomics", "report", "diffusion", "networks"},
}
ONLY = {
    "altair": {"report"},
    "vl_convert": {"report"},
    "matplotlib": {"plot", "report"},
    "lightning": {"training", "supervised", "train"},
    "hydra": {"options"},
    "omegaconf": {"options"},
    "huggingface_hub": {"store", "data"},
    "datasets": {"data"},
    "tokenizers": {"data"},
    "pyarrow": {"data", "formats", "store", "supervised", "genomics"},
}


# What networks know of the theory.
SHARED = {f"dnadiff.diffusion.{name}" for name in ("vocab",)}
# The digest of the weights, by which a stored curve is recognized.
EXCEPTIONS = {"dnadiff.weights.tensors"}


@functools.cache
def imports():
    """(importing module or folder of the top level, imported module, file) of every import in the
    package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [
                    f"{node.module}.{a.name}" if node.module == "dnadiff" else node.module
                    for a in node.names
                ]
            found += [(top, name, path.name) for name in names]
    return found


@functools.cache
def graph():
    """The modules and folders of the top level that each of them imports."""
    known = {
        p.name.removesuffix(".py")
        for p in PACKAGE.iterdir()
        if p.suffix == ".py" or (p / "__init__.py").is_file()
    }
    found = {top: set() for top in known}
    for top, name, _ in imports():
        if name in SHARED | EXCEPTIONS and top in ("networks", "diffusion"):
            continue
        parts = name.split(".")
        if parts[0] == "dnadiff" and len(parts) > 1 and parts[1] in known - {top}:
            found[top].add(parts[1])
    return found


def test_imports_form_levels_without_a_cycle():
    imported, level = graph(), {}
    for top in graphlib.TopologicalSorter(
        imported
    ).static_order():  # raises CycleError, which names the cycle
        level[top] = 1 + max((level[other] for other in imported[top]), default=0)
    assert max(level.values()) <= MAX_LEVELS, sorted(level, key=level.get)[-3:]


def test_the_core_does_not_import_what_is_around_it():
    around = (
        (top, name, file)
        for top, name, file in imports()
        if set(name.split(".")[1:2]) & NEVER.get(top, set())
    )
    wrong = [f"{top}/{file} imports {name}" for top, name, file in around if name not in EXCEPTIONS]
    assert not wrong


def test_commands_do_not_import_commands():
    assert len(COMMANDS) >= 12
    wrong = {command: sorted(graph()[command] & COMMANDS) for command in COMMANDS}
    assert not {command: others for command, others in wrong.items() if others}


def test_only_commands_import_commands():
    assert not {
        top: sorted(others & COMMANDS)
        for top, others in graph().items()
        if top not in COMMANDS and others & COMMANDS
    }


def test_few_modules_besides_commands_are_at_the_top_level():
    others = {path.stem for path in PACKAGE.glob("*.py")} - COMMANDS
    assert len(others) <= MAX_OTHER_MODULES, sorted(others)


def test_heavy_packages_stay_where_they_are_needed():
    wrong = [
        f"{top}/{file} imports {name}"
        for top, name, file in imports()
        if top not in ONLY.get(name.split(".")[0], {top})
    ]
    assert not wrong


def test_help_does_not_wait_for_torch_or_lightning():
    code = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    late = {"torch", "lightning", "hydra", "matplotlib", "altair", "sklearn"}
    if found := late & sys.modules.keys():
        raise SystemExit(f"{module} imports {found}")
"""
    modules = ["dnadiff", "dnadiff.__main__", *(f"dnadiff.{name}" for name in sorted(COMMANDS))]
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command, line",
    [("train", "train: loading PyTorch and Lightning"), ("sample", "sample: loading PyTorch")],
)
def test_the_first_line_is_logged_before_torch_is_imported(tmp_path, command, line):
    (empty := tmp_path / "empty").touch()  # an absent one is named before
    arguments = (
        ("data=fasta", f"data.path={empty}") if command == "train" else (f"checkpoint={empty}",)
    )
    shown = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        f"dnadiff.{command}",
        *arguments,
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(shown, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    imported = [
        at
        for at, text in enumerate(lines)
        if re.match(r"import time:.*\| +(torch|lightning)\b", text)
    ]
    assert lines.index(line) < min(imported) and any(text.startswith("error: ") for text in lines)


def test_kernels_and_backbones_need_torch_alone(python, without):
    # A machine with a GPU may have no Lightning and no Hydra; scripts/bench/gpu.py runs there.
    absent = (
        "lightning",
        "pytorch_lightning",
        "hydra",
        "omegaconf",
        "safetensors",
        "Bio",
        "pyfaidx",
        "sklearn",
        "matplotlib",
        "triton",
    )
    code = (
        "import dnadiff.networks.kernels, dnadiff.diffusion.vocab\nfrom dnadiff.networks.backbone "
        "import caduceus, "
        "caduceus_ps, dit, mamba, transformer\n"
    )
    process = python(
        "-c", f"{without(*absent)}{code}print('dnadiff.networks.kernels' in sys.modules)"
    )
    assert process.wait() == 0 and process.output == "True\n", process.errors


def test_inference_needs_neither_lightning_nor_the_compiler(python, without):
    # Each of them would take as long to import as torch. The first commands of a user wait for
    # nothing else.
    absent = (
        "lightning",
        "pytorch_lightning",
        "torch._dynamo",
        # PyTorch 2.7 imports it with `torch.utils.checkpoint`
        *(["sympy"] if TORCH >= (2, 11) else []),
        "triton",
        "pandas",
        "scipy",
        "sklearn",
        "matplotlib",
    )
    code = """
import dnadiff, dnadiff.data.genome.datamodule, dnadiff.data.text.datamodule
m = dnadiff.load("ecoli")
m.sample(1, length=4), m.embed(["ACGT"]), m.nll(["ACGT"])
"""
    process = python("-c", without(*absent) + code)
    assert process.wait() == 0, process.errors


def test_an_absent_package_is_noticed(python, without):
    process = python(
        "-c",
        f"{without('sklearn', 'yaml')}import torch\ntry: import sklearn.linear_model\nexcept "
        "ImportError: import dnadiff.fields, yaml",
    )
    assert process.wait() == 1 and "import of yaml halted" in process.errors


def test_a_broken_mamba_ssm_is_ignored(python, without, tmp_path):
    # Installed without its compiled scan: importing it raises.
    (tmp_path / "mamba_ssm").mkdir()
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("import selective_scan_cuda")
    code = (
        f"sys.path.insert(0, {str(tmp_path)!r}); import dnadiff.networks.kernels, "
        "dnadiff.networks.backbone.caduceus, dnadiff.model"
    )
    process = python("-c", without() + code)
    assert process.wait() == 0, process.errors


def test_no_utils_and_no_init_in_genomic_benchmarks():
    assert not [
        p for p in PACKAGE.rglob("*") if p.stem in ("utils", "helpers", "common", "misc", "manager")
    ]
    folder = PACKAGE.parent / "genomic_benchmarks"
    assert not list(folder.rglob("*.py"))  # PyPI's genomic-benchmarks imports under that name
