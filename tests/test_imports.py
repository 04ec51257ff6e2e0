"""Arrows of import point down (and nothing heavy is imported where it is not needed)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dnadiff

PACKAGE = Path(dnadiff.__file__).parent
LEVELS = [
    {
        "vocab",
        "noise",
        "categorical",
        "draws",
        "kernels",
        "config",
        "kmers",
        "bootstrap",
        "progress",
        "optim",
        "weights",
        "pieces",
        "allocator",
    },
    {"process", "backbone", "data", "parameterization", "contexts"},
    {"denoiser", "markov", "constraint", "template"},
    {"objective", "sampler", "likelihood", "published", "request"},
    {"checkpoint", "code_length", "coding", "dnd", "held_out", "filling", "tilt"},
    {"stored"},
    {"training", "callbacks", "downstream", "model", "cost_curve"},
    {"report"},
    {"commands", "study", "provenance"},
    {"requested", "earlier"},
    {"train", "evaluate", "score", "compress", "decompress", "sample", "judge", "copies", "finetune", "genome", "__main__"},
    {"zero_shot", "judge_text"},
    {"__init__"},
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
NEVER = {
    "backbone": {"noise", "process", "sampler", "data", "objective"},
    "objective": {"backbone", "sampler", "data"},
    "sampler": {"backbone", "objective", "data"},
}
ONLY = {
    "lightning": {"training", "callbacks", "downstream", "data"},
    "hydra": {"config", "commands"},
    "omegaconf": {"config", "commands"},
    "huggingface_hub": {"published", "data"},
    "datasets": {"data"},
    "tokenizers": {"data"},
    "pyarrow": {"data", "downstream"},
}


def imports():
    """(importing noun, imported module, file) of every import in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        noun = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{a.name}" if node.module == "dnadiff" else node.module for a in node.names]
            yield from ((noun, name, path.name) for name in names)


def test_every_module_has_a_level():
    assert {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()} <= set(LEVEL)


def test_arrows_point_down():
    wrong = []
    for noun, name, file in imports():
        parts = name.split(".")
        other = parts[1] if parts[0] == "dnadiff" and len(parts) > 1 else None
        if other not in LEVEL or other == noun:
            continue
        if LEVEL[other] >= LEVEL[noun] or other in NEVER.get(noun, ()):
            wrong.append(f"{noun}/{file} imports {name}")
    assert not wrong


def test_heavy_packages_stay_in_their_place():
    wrong = [f"{noun}/{file} imports {name}" for noun, name, file in imports() if noun not in ONLY.get(name.split(".")[0], {noun})]
    assert not wrong


@pytest.mark.parametrize(
    "module",
    [
        "dnadiff",
        "dnadiff.train",
        "dnadiff.sample",
        "dnadiff.judge",
        "dnadiff.judge_text",
        "dnadiff.zero_shot",
        "dnadiff.copies",
        "dnadiff.evaluate",
        "dnadiff.finetune",
        "dnadiff.score",
        "dnadiff.compress",
        "dnadiff.decompress",
        "dnadiff.__main__",
    ],
)
def test_help_does_not_wait_for_torch_or_lightning(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'lightning', 'hydra', 'matplotlib', 'sklearn') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_kernels_and_backbones_need_torch_alone():
    # A machine with a GPU may have no Lightning and no Hydra; scripts/bench/gpu.py runs there.
    absent = ("lightning", "pytorch_lightning", "hydra", "omegaconf", "safetensors", "Bio", "pyfaidx", "sklearn", "matplotlib", "triton")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
import dnadiff.kernels, dnadiff.vocab
from dnadiff.backbone import caduceus, caduceus_ps, dit, mamba, transformer
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_broken_mamba_ssm_stops_nothing(tmp_path):
    # Installed without its compiled scan: importing it raises.
    (tmp_path / "mamba_ssm").mkdir()
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("import selective_scan_cuda")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import dnadiff.kernels, dnadiff.backbone.caduceus, dnadiff.model"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).returncode == 0


def test_no_utils_and_no_init_in_genomic_benchmarks():
    assert not [p for p in PACKAGE.rglob("*") if p.stem in ("utils", "helpers", "common", "misc", "manager")]
    folder = PACKAGE.parent / "genomic_benchmarks"
    assert not list(folder.rglob("*.py"))  # PyPI's genomic-benchmarks imports under that name
