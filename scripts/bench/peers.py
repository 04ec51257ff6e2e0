"""Compare language models of E. coli with those of other packages: equal tokens, and equal minutes.

    python scripts/bench/peers.py --peer-python PYTHON [--output DIR] [--only NAME] [--list]
    [--table] [--collect FILE] [--quick]

PYTHON is an environment with the peers, in which dnadiff need not be installed:

    python -m venv peers && peers/bin/pip install torch d3-dna transformers

`ours` is a Caduceus; `d3_dna` the transformer of d3-dna with its absorbing graph, its score
entropy, moving average and sampler; `bert` a BERT of transformers on 6-mers that do not overlap,
trained to restore 15 % of them. All read windows of 510 bases of the first 80 % of the chromosome
in batches of 16, on either strand. Each side tries the same number of learning rates with a quarter
of the tokens, and the rate of the least validation bound trains with all tokens, and again for the
given minutes.

The likelihood is one estimator for all (`peer_bound.py`): the NELBO in count form on the same
windows, with the same masks for networks that read bases; of d3-dna's scores the predictions of
masked bases, of BERT's 6-mers nats per base. The samples of each take the same number of network
calls (BERT has 85 tokens, so at most 85), and `python -m dnadiff.judge` compares them with held-out
windows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_bound import nats_per_base

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.formats.nucleotides import FIRST_BASE
from dnadiff.genomics import bootstrap
from dnadiff.store.disk import atomic_write, write_json
from dnadiff.training.optim import peak_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))
import study

GENOME, RECORD = "bundled:ecoli_K12_MG1655.fa.gz", "U00096.3"
SIDES = ("ours", "d3_dna", "bert")
FULL = {
    "length": 510,
    "batch": 16,
    "tokens": 12_000_000,
    "minutes": 5.0,
    "lrs": {"ours": [2e-3, 4e-3, 8e-3], "d3_dna": [5e-4, 1e-3, 2e-3], "bert": [5e-4, 1e-3, 2e-3]},
    "sizes": {"ours": [64, 4, 0], "d3_dna": [48, 4, 4], "bert": [48, 4, 4]},  # width, layers, heads
    "draws": 8,
    "valid_windows": 200,
    "test_windows": None,
    "samples": 200,
    "calls": 64,
    "seed": 1,
}
QUICK = FULL | {
    "tokens": 60_000,
    "minutes": 0.05,
    "lrs": {side: rates[:1] for side, rates in FULL["lrs"].items()},
    "draws": 2,
    "valid_windows": 4,
    "test_windows": 6,
    "samples": 24,
    "calls": 4,
}
JUDGED = {
    "js_6": "6-mers, JS",
    "discriminator_auroc": "AUROC",
    "train_on_samples_bits": "bits of real, trained on samples",
}


class Study:
    """The pieces: a trial of each rate, and a run with equal tokens and one with equal minutes for
    each side."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], peer_python: str | None) -> None:
        self.folder, self.settings, self.peer_python = folder, settings, peer_python
        self.kept = study.Kept(folder, settings)
        self.pieces: dict[str, study.Piece] = {}
        for side in SIDES:
            for lr in settings["lrs"][side]:
                budget = {"tokens": settings["tokens"] // 4}
                self.pieces[f"{side}-lr-{lr:g}"] = partial(
                    self.run, side, lr, budget, ("valid",), f"{side}-lr-{lr:g}"
                )
            for kind in ("tokens", "minutes"):
                self.pieces[f"{side}-{kind}"] = partial(self.final, side, kind)

    @property
    def data(self) -> Path:
        """The bases of the training part, and windows of the held-out parts: 80-90 % test, 90-100 %
        validation."""
        path, length = self.folder / "data.npz", self.settings["length"]
        if not path.is_file():
            genome = Genome(GENOME)
            codes = genome.window(RECORD, 0, genome.total) - FIRST_BASE
            cuts = [int(share * len(codes)) for share in (0.8, 0.9, 1.0)]
            parts = {"train": codes[: cuts[0]]}
            for part, low, high in (("test", cuts[0], cuts[1]), ("valid", cuts[1], cuts[2])):
                windows = codes[low : low + (high - low) // length * length].reshape(-1, length)
                wanted = self.settings[f"{part}_windows"] or len(windows)
                parts[part] = windows[
                    np.linspace(0, len(windows) - 1, min(wanted, len(windows))).astype(int)
                ]
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(path, overwrite=True) as file:
                np.savez_compressed(file, **parts)
        return path

    def rate(self, side: str) -> float:
        """The learning rate of the least validation bound."""
        return min(
            self.settings["lrs"][side],
            key=lambda lr: float(np.mean(self.kept[f"{side}-lr-{lr:g}"]["valid"])),
        )

    def final(self, side: str, kind: str) -> dict[str, Any]:
        """Train with the chosen rate for all tokens or minutes, score the test windows, and judge
        samples."""
        lr, seconds = self.rate(side), 60 * self.settings["minutes"]
        budget = {"tokens": self.settings["tokens"]} if kind == "tokens" else {"seconds": seconds}
        row = self.run(side, lr, budget, ("test",), f"{side}-{kind}")
        judged = self.folder / f"{side}-{kind}-judge.json"
        study.command(
            "judge",
            f"samples={self.folder / f'{side}-{kind}.fa'}",
            "data=ecoli",
            f"output={judged}",
            "overwrite=true",
        )
        return row | {"lr": lr, "judge": study.read_json(judged)}

    def run(
        self, side: str, lr: float, budget: dict[str, float], parts: tuple[str, ...], name: str
    ) -> dict[str, Any]:
        """Train a network, score windows, and draw samples if it is a final one."""
        width, layers, heads = self.settings["sizes"][side]
        keys = ("length", "batch", "draws", "calls", "seed")
        job = (
            {key: self.settings[key] for key in keys}
            | budget
            | {"peer": side, "lr": lr, "parts": list(parts), "width": width}
        )
        job |= {
            "layers": layers,
            "heads": heads,
            "samples": self.settings["samples"] if "test" in parts else 0,
        }
        job |= {
            "data": str(self.data.absolute()),
            "output": str((self.folder / f"{name}-result.json").absolute()),
        }
        return self.ours(job, name) if side == "ours" else self.peer(job, name)

    def peer(self, job: dict[str, Any], name: str) -> dict[str, Any]:
        """Run a job in the environment of the peers."""
        if self.peer_python is None:
            raise ValueError(
                "--peer-python is missing: give the Python of an environment with torch, d3-dna "
                "and transformers"
            )
        path, result = self.folder / f"{name}-job.json", Path(job["output"])
        if not (
            result.is_file() and path.is_file() and study.read_json(path) == job
        ):  # else only what follows it was interrupted
            result.unlink(missing_ok=True)
            write_json(path, job)
            script = Path(__file__).with_name("peer_networks.py")
            status = subprocess.run(
                [self.peer_python, str(script), str(path)], check=False
            ).returncode
            if status:
                raise SystemExit(status)
        if job["samples"]:
            shutil.copyfile(result.with_suffix(".fa"), self.folder / f"{name}.fa")
        return study.read_json(result)

    def ours(self, job: dict[str, Any], name: str) -> dict[str, Any]:
        """The same with this package: training by its command, in the process of the study the
        rest."""
        per_step = job["batch"] * job["length"]
        tokens = job.get("tokens") or job["seconds"] * max(
            self.kept[each]["tokens_per_second"] for each in self.trials("ours")
        )
        steps = max(2, round(tokens / per_step))
        options = [
            f"trainer.max_steps={steps}",
            f"trainer.val_check_interval={steps}",
            f"optimizer.lr={job['lr']}",
            f"seed={job['seed']}",
        ]
        options += [
            f"backbone.d_model={job['width']}",
            f"backbone.n_layers={job['layers']}",
            f"data.length={job['length']}",
        ]
        done = study.train(
            self.folder / name,
            ["experiment=ecoli_demo", *options, f"data.batch_size={job['batch']}"],
        )
        model = dnadiff.load(self.folder / name, device="cpu")
        row = {
            key: done[key]
            for key in ("parameters", "tokens", "seconds", "tokens_per_second", "peak_memory_mb")
        } | {"steps": steps}
        log_probs = predictions(model)
        with np.load(job["data"]) as stored:
            for part in job["parts"]:
                row[part] = nats_per_base(
                    log_probs,
                    stored[part].astype(np.int64),
                    job["length"],
                    job["draws"],
                    job["seed"],
                ).tolist()
        if job["samples"]:
            begin = time.monotonic()
            drawn = model.sample(
                job["samples"],
                job["length"],
                Grouped(job["calls"]),
                seed=job["seed"],
                batch_size=job["samples"],
            )
            row["sampling_seconds"] = time.monotonic() - begin
            text = "".join(f">sample_{i}\n{each}\n" for i, each in enumerate(drawn))
            (self.folder / f"{name}.fa").write_text(text, encoding="ascii")
        row["peak_memory_mb"] = max(row["peak_memory_mb"], peak_memory() >> 20)
        return row

    def trials(self, side: str) -> list[str]:
        """The names of its trials."""
        return [f"{side}-lr-{lr:g}" for lr in self.settings["lrs"][side]]

    def table(self) -> str:
        """Both comparisons, and the trials."""
        head = (
            "",
            "bits per base",
            "minus ours",
            "M tokens",
            "minutes",
            "tokens/s",
            "MB",
            "sampling, s",
            *JUDGED.values(),
            "parameters",
            "lr",
        )
        blocks = []
        for kind, title in (("tokens", "equal tokens"), ("minutes", "equal minutes")):
            rows = [self.cells(side, kind) for side in SIDES if f"{side}-{kind}" in self.kept]
            blocks.append(
                study.markdown((title, *head[1:]), rows) if rows else f"{title}: nothing finished"
            )
        found = [
            (name, f"{np.mean(self.kept[name]['valid']) / np.log(2):.4f}")
            for side in SIDES
            for name in self.trials(side)
            if name in self.kept
        ]
        return "\n\n".join([*blocks, study.markdown(("trial", "validation, bits per base"), found)])

    def cells(self, side: str, kind: str) -> list[str]:
        """A row of a comparison."""
        row = self.kept[f"{side}-{kind}"]
        nats = np.array(row["test"])
        block, ones = bootstrap.blocks(len(nats), 16), np.ones(len(nats))
        bits = bootstrap.ratio(nats / np.log(2), ones, block)
        cells = [side, f"{bits.value:.4f} ({bits.low:.4f} to {bits.high:.4f})", ""]
        if side != "ours" and f"ours-{kind}" in self.kept:
            found = bootstrap.ratio(
                (nats - np.array(self.kept[f"ours-{kind}"]["test"])) / np.log(2), ones, block
            )
            cells[-1] = f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"
        judged = row["judge"]["findings"]
        cells += [
            f"{row['tokens'] / 1e6:.1f}",
            f"{row['seconds'] / 60:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['peak_memory_mb']:,}",
        ]
        cells += [
            f"{row['sampling_seconds']:.0f}",
            *(f"{judged[name]['samples']:.4f}" for name in JUDGED),
        ]
        return [*cells, f"{row['parameters']:,}", f"{row['lr']:g}"]


def predictions(model: dnadiff.model.Model) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """log p of the true bases (0..3) at masked positions under a model of this package, as
    `peer_bound` asks for it."""
    mask_id = model.tokenizer.vocab.mask_id

    @torch.no_grad()
    def log_probs(codes: np.ndarray, masked: np.ndarray) -> np.ndarray:
        x0, hidden = torch.from_numpy(codes) + FIRST_BASE, torch.from_numpy(masked)
        found = model.denoiser.log_probs(torch.where(hidden, mask_id, x0), hidden.float().mean(1))
        return found.gather(-1, x0[..., None])[..., 0].numpy()

    return log_probs


def main() -> None:
    """Run the study."""
    parser = study.arguments(__doc__, "runs/peers")
    parser.add_argument(
        "--peer-python",
        metavar="PYTHON",
        help="Python of an environment with torch, d3-dna and transformers",
    )
    options = parser.parse_args()
    folder = options.output / "quick" if options.quick else options.output
    made = Study(folder, QUICK if options.quick else FULL, options.peer_python)
    study.work(made.pieces, made.kept, options)
    if not options.list:
        print("\n" + made.table())


if __name__ == "__main__":
    main()
