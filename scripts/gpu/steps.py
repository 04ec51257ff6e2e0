"""The steps of the evidence on a GPU, as pieces of a study: correctness, sampling, variants, short
trainings on human chr20.

    python scripts/gpu/steps.py --output DIR [--only NAME] [--genomes FOLDER] [--minutes N]
    [--device cuda] [--collect FILE] [--list] python scripts/gpu/steps.py --output DIR --device cpu
    --quick          # tests the script itself

Pieces are finished one at a time and kept, so that a session of a few minutes continues where the
last one ended. Several processes can run `--only kernels` in one folder, because compilation takes
most of the time of these cases; what is timed needs the GPU for itself. Every row has the card, its
driver, and the versions of PyTorch and Triton. The scan against mamba-ssm and training steps are in
`scripts/bench/gpu.py`, the bundled models in `scripts/gpu/bundled.sh`.

Pieces: `kernels-CASE` (largest error of a Triton kernel against the float64 reference, and the
    limit of the tests), `parity-FILE-TYPE` (outputs of the published networks), `curve-PRECISION`
    (losses of 100 training steps on the CPU and on the GPU with the same seed),
    `sampling-SAMPLER-BATCH`
and `long-SAMPLER` (seconds), `variants` (per second), `science-OBJECTIVE` (Caduceus 256x8 for
minutes, then bits on held-out bases; of chr20 with `--genomes`, otherwise of E. coli).
"""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

sys.path += [str(Path(__file__).parents[1] / "studies")]
import study
from safetensors.torch import load_file
from torch import Tensor

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import Backbone
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.weights import tensors

ROOT = Path(__file__).parents[2]
FULL = {
    "steps": 100,  # of a loss curve
    "sequences": {
        "grouped": 10_000,
        "first_hitting": 64,
        "ancestral": 64,
    },  # the last two need a call for almost every base
    "length": 1024,
    "batches": [512, 64],
    "long": 1_000_000,
    "sites": 3000,
    "minutes": 5,
    "width": 256,
    "layers": 8,
}
QUICK = FULL | {
    "steps": 3,
    "length": 64,
    "batches": [1],
    "long": 500,
    "sites": 5,
    "minutes": 0.05,
    "width": 16,
    "layers": 1,
}
QUICK |= {"sequences": {"grouped": 2, "first_hitting": 1, "ancestral": 1}}
OBJECTIVES = {
    "mdlm": ["objective=mdlm"],
    "ar": ["objective=ar", "backbone=mamba"],
    "block": ["objective=block_mdlm"],
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ECOLI = "bundled:ecoli_K12_MG1655.fa.gz"


class Steps:
    """The pieces."""

    def __init__(
        self, folder: Path, size: dict[str, Any], device: str, genomes: Path | None
    ) -> None:
        self.kept, self.size, self.device, self.folder = (
            study.Kept(
                folder, size | {"device": device, "data": "ecoli" if genomes is None else "chr20"}
            ),
            size,
            device,
            folder,
        )
        self.accelerator = "gpu" if device == "cuda" else "cpu"
        chr20 = None if genomes is None else genomes / "GRCh37_chr20.fa.gz"
        self.data = (
            ["data=ecoli"]
            if chr20 is None
            else ["data=fasta", "data/split=chr20", f"data.path='{chr20}'"]
        )
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            f"kernels-{name}": partial(self.kernels, name) for name in self.cases
        }
        runs |= {
            f"parity-{name}-{kind}": partial(self.parity, name, kind)
            for name in NETWORKS
            for kind in TYPES
        }
        runs |= {
            f"curve-{precision}": partial(self.curve, precision)
            for precision in ("32-true", "bf16-mixed")
        }
        runs |= {
            f"sampling-{name}-{batch}": partial(self.sampling, name, batch)
            for name, count in size["sequences"].items()
            for batch in size["batches"]
            if batch <= count
        }
        runs |= {"long-grouped": self.long, "variants": self.variants}
        runs |= {f"science-{name}": partial(self.science, name) for name in OBJECTIVES}
        self.pieces: dict[str, study.Piece] = {
            name: partial(self.with_machine, run) for name, run in runs.items()
        }

    @cached_property
    def tests(self) -> Any:
        """The module of the tests of the Triton kernels, with its cases and limits."""
        spec = importlib.util.spec_from_file_location(
            "test_triton", ROOT / "tests" / "kernels" / "test_triton.py"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @property
    def cases(self) -> list[str]:
        """The names of the kernels' cases; none without a GPU, where the tests run them by Triton's
        interpreter."""
        return [*self.tests.QUICK, *self.tests.MORE] if self.device == "cuda" else []

    def with_machine(self, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of a piece with the machine that it ran on."""
        return run() | {"machine": machine(self.device)}

    def kernels(self, name: str) -> dict[str, Any]:
        """The errors of one case."""
        from dnadiff.networks.kernels import facade, triton_scan

        kept = [
            (module, key, getattr(module, key))
            for module, key in (
                (triton_scan, "_WARPS"),
                (triton_scan, "_KEPT"),
                (facade, "_failure"),
            )
        ]
        begin = time.perf_counter()
        try:
            errors = self.tests.cases.run(name, self.device)
        finally:
            for module, key, value in kept:  # the cases set them
                setattr(module, key, value)
        limit, largest = self.tests.HALF.get(name, 1e-5), self.tests.HALF.get(name, 1e-4)
        passed = errors[0] < limit and max(errors) < largest
        return {
            "errors": errors,
            "limits": [limit, largest],
            "passed": passed,
            "seconds": time.perf_counter() - begin,
        }

    def parity(self, name: str, kind: str) -> dict[str, Any]:
        """The largest difference from the logits of the published code, relative to the largest
        logit."""
        network, file = NETWORKS[name](name)
        network = network.to(self.device, TYPES[kind])
        with torch.no_grad():
            inputs = [file[key].to(self.device) for key in ("input_ids", "sigma") if key in file]
            logits = network(*inputs).float().cpu()
        return {"error": float((logits - file["logits"]).abs().max() / file["logits"].abs().max())}

    def curve(self, precision: str) -> dict[str, Any]:
        """Training losses of the same run on the CPU and on the device."""
        losses = {}
        for accelerator in dict.fromkeys(("cpu", self.accelerator)):
            run = self.folder / "runs" / f"curve-{precision}-{accelerator}"
            study.command(
                *(
                    "train",
                    "data=ecoli",
                    "backbone=caduceus",
                    "backbone.d_model=64",
                    "backbone.n_layers=4",
                    "data.length=512",
                ),
                *(
                    "data.batch_size=8",
                    f"trainer.max_steps={self.size['steps']}",
                    "trainer.log_every_n_steps=1",
                    "optimizer.lr=2e-3",
                ),
                *(
                    f"trainer.val_check_interval={self.size['steps']}",
                    f"trainer.precision={precision}",
                    f"trainer.accelerator={accelerator}",
                ),
                *(f"hydra.run.dir={run}", "overwrite=true"),
            )
            with open(run / "metrics.csv", encoding="utf-8") as file:
                losses[accelerator] = [
                    float(row["train_nll"]) for row in csv.DictReader(file) if row["train_nll"]
                ]
        ours, theirs = losses["cpu"], losses[self.accelerator]
        return {
            "losses": losses,
            "largest_difference": max(abs(a - b) for a, b in zip(ours, theirs, strict=True)),
        }

    def sampling(self, sampler: str, batch: int) -> dict[str, Any]:
        """Seconds of sampling many sequences, the start of the process included."""
        return self.sampled(sampler, self.size["sequences"][sampler], self.size["length"], batch)

    def long(self) -> dict[str, Any]:
        """Seconds of sampling one long sequence."""
        return self.sampled("grouped", 1, self.size["long"], 1)

    def sampled(self, sampler: str, number: int, length: int, batch: int) -> dict[str, Any]:
        """Seconds of one `sample` command."""
        output = self.folder / "runs" / f"{sampler}-{number}x{length}-{batch}.fa"
        given = [
            f"num_samples={number}",
            f"length={length}",
            f"batch_size={batch}",
            f"sampler={sampler}",
            f"accelerator={self.accelerator}",
        ]
        seconds = timed("sample", "checkpoint=ecoli", *given, f"output={output}", "overwrite=true")
        return {
            "sampler": sampler,
            "sequences": number,
            "length": length,
            "batch": batch,
            "seconds": seconds,
        }

    def variants(self) -> dict[str, Any]:
        """Seconds of scoring all substitutions of a region."""
        sites, output = self.size["sites"], self.folder / "runs" / "variants.tsv"
        region = f"U00096.3:4000001-{4000000 + sites}"
        given = [
            "checkpoint=ecoli",
            f"saturate={region}",
            f"genome={ECOLI}",
            f"accelerator={self.accelerator}",
        ]
        seconds = timed("variants", *given, f"output={output}", "overwrite=true")
        return {"variants": 3 * sites, "seconds": seconds, "per_second": 3 * sites / seconds}

    def science(self, name: str) -> dict[str, Any]:
        """A network trained for minutes, then evaluated on the test part.

        The number of steps follows from the speed of the second half of a short run, so that the
        learning rate decays to its end.
        """
        run, size = self.folder / "runs" / f"science-{name}", self.size
        windows = (
            ["data.length=64", "data.batch_size=2"]
            if size["width"] < FULL["width"]
            else ["data.length=1024", "data.batch_size=64"]
        )
        precision = "bf16-mixed" if self.device == "cuda" else "32-true"
        given = [
            *self.data,
            "backbone=caduceus",
            *OBJECTIVES[name],
            *windows,
            f"backbone.d_model={size['width']}",
            "optimizer.lr=2e-3",
        ]
        given += [
            f"backbone.n_layers={size['layers']}",
            "callbacks.ema.decay=0.999",
            f"trainer.precision={precision}",
        ]
        given += [
            f"trainer.accelerator={self.accelerator}",
            f"hydra.run.dir={run}",
            "overwrite=true",
            "trainer.log_every_n_steps=10",
        ]
        study.command("train", *given, "trainer.max_steps=80", "trainer.val_check_interval=80")
        with open(run / "metrics.csv", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["train_nll"]]
        per_step = (float(rows[-1]["seconds"]) - float(rows[3]["seconds"])) / (
            int(rows[-1]["step"]) - int(rows[3]["step"])
        )
        steps = max(100, round(60 * size["minutes"] / per_step))
        study.command(
            "train",
            *given,
            f"trainer.max_steps={steps}",
            f"trainer.val_check_interval={max(100, steps // 4)}",
        )
        study.command(
            "evaluate",
            f"checkpoint={run}",
            "num_draws=2",
            "batch_size=128",
            f"accelerator={self.accelerator}",
            f"hydra.run.dir={run}",
            "overwrite=true",
            # Markov models of higher order take minutes of CPU time, which a GPU machine need not
            # wait for
            "orders=[0]",
        )
        found = study.read_json(run / "evaluate.json")
        bits = {group: row["bits"] for group, row in found["groups"].items()}
        return {
            "data": found["data"]["name"],
            "bits": bits,
            "groups": found["groups"],
            "markov": found["markov"],
            "training": study.read_json(run / "metrics.json"),
        }

    def table(self) -> str:
        """The finished pieces, one line each."""
        rows = []
        for name in filter(self.kept.__contains__, self.pieces):
            row = self.kept[name]
            shown = {
                key: value
                for key, value in row.items()
                if key not in ("machine", "losses", "groups", "markov", "training")
            }
            rows.append([name, "; ".join(f"{key} {value}" for key, value in shown.items())])
        return study.markdown(["piece", "found"], rows)


def timed(command: str, *arguments: str) -> float:
    """Seconds of a command."""
    begin = time.perf_counter()
    study.command(command, *arguments)
    return time.perf_counter() - begin


def machine(device: str) -> dict[str, str]:
    """The card, its driver, and versions; a dash for what there is not."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card, driver = "CPU", "-"
    if device == "cuda":
        card, driver = (
            subprocess.run(query, capture_output=True, text=True, check=True)
            .stdout.splitlines()[0]
            .split(", ")
        )
    triton = importlib.util.find_spec("triton")
    version = __import__("triton").__version__ if triton else "-"
    return {"card": card, "driver": driver, "torch": torch.__version__, "triton": version}


def caduceus(kind: type[Backbone], name: str, **options: Any) -> tuple[Backbone, dict[str, Tensor]]:
    """A published network with its weights, and the file of its outputs."""
    file = load_file(ROOT / "tests" / "parity" / f"{name}.safetensors")
    weights = {
        key.removeprefix("weights."): value
        for key, value in file.items()
        if key.startswith("weights.")
    }
    network = kind(DNATokenizer().vocab, 32, 3, **options).eval()
    tensors.fill(network.published_layout(), weights, name)
    return network, file


def dit(name: str) -> tuple[Backbone, dict[str, Tensor]]:
    """The published DiT."""
    file = load_file(ROOT / "tests" / "parity" / f"{name}.safetensors")
    network = DiT(Vocab(33, 32, 32, (32,)), 64, 2, 4, 16).eval()
    network.load_state_dict(
        {
            k.removeprefix("weights."): v
            for k, v in file.items()
            if k.startswith("weights.") and "inv_freq" not in k
        }
    )
    return network, file


NETWORKS: dict[str, Callable[[str], tuple[Backbone, dict[str, Tensor]]]] = {
    "caduceus_ph": partial(caduceus, Caduceus),
    "caduceus_ps": partial(caduceus, CaduceusPS, swap_strands=True),
    "caduceus_ps_unfused": partial(caduceus, CaduceusPS, swap_strands=False),
    "mdlm_dit": dit,
}


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__ or "", "runs/gpu_steps")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--genomes",
        type=Path,
        help="folder with GRCh37_chr20.fa.gz (default: the bundled genome of E. coli)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"of training of each science piece (default: {FULL['minutes']})",
    )
    options = parser.parse_args()
    quick = options.quick
    size = (QUICK if quick else FULL) | (
        {} if options.minutes is None else {"minutes": options.minutes}
    )
    steps = Steps(
        options.output / "quick" if quick else options.output, size, options.device, options.genomes
    )
    study.work(steps.pieces, steps.kept, options)
    if not options.list:
        print("\n" + steps.table())


if __name__ == "__main__":
    main()
