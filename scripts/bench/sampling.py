"""Time, network calls and expected code length of our samplers and of MDLM's `ddpm_cache`, with the
same network on the same machine.

    python scripts/bench/sampling.py [--checkpoint RUN] [--causal RUN] [--output DIR] [--only NAME]
    [--list] [--table] [--quick]
                                     [--json FILE] [--picture FILE]

Sequences of 1,024 tokens, batches of 1 and of 64. `dna`: the network of RUN, or a 64x4 Caduceus
after 2 M tokens of E. coli; for `ar` a causal twin (a Mamba with one layer more, 0.3 % more
parameters). `50257`: the same networks widened to a text vocabulary, with random weights, because
speed does not depend on training. Their code lengths are meaningless, so points of equal code
length are those of the DNA network's h(n).

Each cell is saved in DIR when it is finished, and starting again continues; `--only` runs the named
cells in the given order. Everything takes about 20 minutes on two idle cores.

Code lengths come from h(n), measured once on validation windows: sum_k s_k h(n_k) for groups, its
expectation over binomial sizes of groups for T steps (`dnadiff.likelihood.curve`), the exact
-log p for `ar`. Optimal sizes of groups (`grouped_optimal`, and how many lose 2 %) are chosen by
the h(n) of one half of the windows; all code lengths are those of the other half. Lost structure is
0 for one token at a time, 1 for one call.

Times are those of the fastest of several passes. If the complete run takes too long ("fraction run"
below 100 %), its time is composed of parts, which is possible because the cost of a step does not
depend on the tokens: for `ddpm_cache` the cost of a step with a call and of one without, times
their numbers; for ours the first call, and the cost of a row (a sequence evaluated once) in some of
the others, evenly spread, times the rows. Calls and rows are counted completely, by the sampler
itself. Every cell of ours alternates with steps of `ddpm_cache`, so that other load on the machine
affects both: ratios are between these, at the T of equal code length. With the large vocabulary 64
sequences do not fit into memory for `ddpm_cache` (13 GB for each array): it is timed on one
sequence, ours on four, and scaled by rows; calls and rows are counted for 64.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sampler_timing import DDPM, EPS, ddpm_seconds, in_turns, time_ar, time_ddpm, time_planned
from torch import nn

from dnadiff import likelihood
from dnadiff.backbone.mamba import Mamba
from dnadiff.commands import keep_freed_memory
from dnadiff.config import build
from dnadiff.denoiser import CausalDenoiser, Denoiser
from dnadiff.likelihood import curve
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.ancestral import Ancestral
from dnadiff.sampler.first_hitting import FirstHitting
from dnadiff.sampler.grouped import Grouped
from dnadiff.vocab import Vocab
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))
import study

TEXT = Vocab(50_258, 50_257, 50_257, (50_257,))  # GPT-2's 50,257 tokens and the mask
NETWORK = ["data=ecoli", "optimizer.lr=6e-3", "weight_decay=0.01", "matmul_precision=medium"]
FULL = {
    "length": 1024,
    "batches": (1, 64),
    "timed": {
        "dna": (64, 64),
        "50257": (4, 1),
    },  # maximum number of sequences timed at once, of ours and of ddpm_cache
    "steps": (8, 16, 32, 64, 128, 256, 512, 1000),
    "calls": (8, 16, 32, 64, 128),
    "network": ["data.length=1024", "data.batch_size=16"],
    "widths": {"caduceus": (64, 4), "mamba": (64, 5)},
    "windows": 192,
    "num_draws": 16,
}
QUICK = FULL | {
    "length": 64,
    "batches": (1, 4),
    "timed": {"dna": (4, 4), "50257": (2, 1)},
    "steps": (4, 64),
    "calls": (8,),
    "network": [
        "data.length=64",
        "data.batch_size=4",
        "data.split.valid=[0.9,0.91]",
        "data.max_valid_windows=8",
    ],
    "widths": {"caduceus": (16, 1), "mamba": (16, 1)},
    "windows": 16,
    "num_draws": 4,
}


class Study:
    """The pieces (`weights`, `weights-ar`, `curve`, one for each cell), their tables and
    picture."""

    def __init__(self, folder: Path, size: Mapping[str, Any], options: Any) -> None:
        self.kept, self.size, self.seconds, self.tokens = (
            study.Kept(folder, size),
            size,
            options.seconds,
            options.tokens,
        )
        self.given = {"caduceus": options.checkpoint, "mamba": options.causal}
        self.pieces: dict[str, study.Piece] = {}
        for name, backbone in (("weights", "caduceus"), ("weights-ar", "mamba")):
            if self.given[backbone] is None:
                self.pieces[name] = lambda n=name, b=backbone: self.train(n, b)
        self.pieces["curve"] = self.curve
        self.cells = {
            f"{vocabulary}-b{batch}-{method}{f'-{steps}' if steps else ''}": (
                vocabulary,
                batch,
                method,
                steps,
            )
            for vocabulary in ("dna", "50257")
            for batch in reversed(size["batches"])
            for method, several in self.methods().items()
            for steps in several
        }
        self.pieces |= {
            f"{vocabulary}-b{batch}-ddpm_step": lambda v=vocabulary, b=batch: self.ddpm_step(v, b)
            for vocabulary in ("dna", "50257")
            for batch in size["batches"]
        }
        self.pieces |= {name: lambda c=cell: self.cell(*c) for name, cell in self.cells.items()}

    def methods(self) -> dict[str, tuple[Any, ...]]:
        """Samplers and their numbers of steps or calls; `lost2` is the smallest number of groups
        that loses at most 2 % of the structure."""
        calls, steps = self.size["calls"], self.size["steps"]
        groups = {"grouped_optimal": ("lost2", *calls), "grouped": ("lost2", *calls)}
        return {
            **groups,
            "ancestral": (*calls, steps[-1]),
            "first_hitting": (None,),
            "ar": (None,),
            "ddpm_cache": steps,
        }

    def train(self, name: str, backbone: str) -> dict:
        """A short training run with the demo's optimizer and schedule."""
        width, layers = self.size["widths"][backbone]
        batch = int(
            next(
                o.partition("=")[2]
                for o in self.size["network"]
                if o.startswith("data.batch_size=")
            )
        )
        steps = max(1, self.tokens // (batch * self.size["length"]))
        objective = "ar" if backbone == "mamba" else "mdlm"
        network = [
            f"backbone={backbone}",
            f"backbone.d_model={width}",
            f"backbone.n_layers={layers}",
            f"objective={objective}",
        ]
        often = f"trainer.val_check_interval={max(1, steps // 2)}"
        return study.train(
            self.kept.folder / "runs" / name,
            [*NETWORK, *self.size["network"], *network, often, f"trainer.max_steps={steps}"],
        )

    def loaded(self, backbone: str) -> Loaded:
        """The model of DNA, from the command line or trained here."""
        name = {"caduceus": "weights", "mamba": "weights-ar"}[backbone]
        if self.given[backbone] is None:
            self.kept[name]  # raises if it is missing
        return checkpoint.load(self.given[backbone] or self.kept.folder / "runs" / name)

    def network(self, vocabulary: str, causal: bool) -> tuple[nn.Module, AbsorbingProcess]:
        """A denoiser and its process; with the large vocabulary the same network, widened and
        untrained."""
        found = self.loaded("mamba" if causal else "caduceus")
        if vocabulary == "dna":
            return found.denoiser.eval(), found.process
        torch.manual_seed(0)
        config = {k: v for k, v in found.config["backbone"].items() if not k.startswith("_")}
        kind = Mamba if causal else type(found.denoiser.backbone)
        wide = (CausalDenoiser if causal else Denoiser)(kind(TEXT, **config)).eval()
        return wide, AbsorbingProcess(TEXT, LogLinear())

    def curve(self) -> dict:
        """h(n) of the model on validation windows, and the exact code length of the causal twin on
        the same windows."""
        found, twin, length = self.loaded("caduceus"), self.loaded("mamba"), self.size["length"]
        data = build(found.config["data"])
        data.prepare()
        tiles = data.test_windows("valid", length)
        chosen = np.unique(
            np.linspace(0, len(tiles) - 1, self.size["windows"]).round().astype(int)
        ).tolist()
        ids = torch.stack([tiles[i]["ids"] for i in chosen])
        weight = torch.stack([tiles[i]["weight"] for i in chosen]) > 0
        batches = [
            likelihood.WindowBatch(i, {"all": w}) for i, w in zip(ids.split(16), weight.split(16))
        ]
        result = likelihood.estimate(
            found.denoiser, found.process, batches, self.size["num_draws"], block_size=1
        )
        start = likelihood.all_masked(found.denoiser, found.process, batches)
        sums = curve.CurveSums.from_estimates(result, start, length)  # of each window
        half = np.arange(len(sums.tokens)) % 2
        chooses, h = (sums.fit((half == i).astype(float)) for i in range(2))
        exact = likelihood.chain_rule(twin.denoiser, batches)
        ar = exact.per_sequence()[1::2].sum() / exact.tokens["all"][1::2].sum()
        parameters = {
            name: sum(p.numel() for p in each.denoiser.parameters())
            for name, each in (("model", found), ("ar", twin))
        }
        about = {
            "windows": len(chosen),
            "tokens": int(weight.sum()),
            "checkpoint": str(found.path),
            "parameters": parameters,
        }
        return {
            "h": h.tolist(),
            "h_chooses": chooses.tolist(),
            "nelbo": float(h.mean()),
            "ar": float(ar),
            **about,
        }

    def sizes(self, method: str, steps: Any) -> np.ndarray | None:
        """Sizes of the groups of a cell; None for `lost2` if the model has no structure to lose."""
        h, best = np.array(self.kept["curve"]["h_chooses"]), method == "grouped_optimal"
        if steps == "lost2":
            return curve.fewest_groups(h, optimal=best)
        return curve.optimal_sizes(h, steps) if best else curve.uniform_sizes(len(h), steps)

    def ddpm_step(self, vocabulary: str, batch: int) -> dict:
        """The cost of a step of `ddpm_cache`, with and without a network call."""
        keep_freed_memory()
        denoiser, _ = self.network(vocabulary, False)
        steps = DDPM(
            denoiser,
            min(batch, self.size["timed"][vocabulary][1]),
            self.size["length"],
            self.seconds / 20,
        )
        costs = steps.costs(in_turns(steps.parts(), self.seconds), batch)
        return {
            "ddpm_costs": costs,
            "memory_mb": steps.memory,
            "timed_rows": steps.rows,
            "threads": torch.get_num_threads(),
        }

    def cell(self, vocabulary: str, batch: int, method: str, steps: Any) -> dict:
        """One sampler at one number of steps."""
        length, (ours, theirs) = (
            self.size["length"],
            (min(batch, rows) for rows in self.size["timed"][vocabulary]),
        )
        keep_freed_memory()
        sizes = self.sizes(method, steps) if method.startswith("grouped") else None
        about = {
            "vocabulary": vocabulary,
            "batch": batch,
            "method": method,
            "threads": torch.get_num_threads(),
        }
        if steps == "lost2" and sizes is None:
            return about | {"steps": None, "why": "this model has learned no structure"}
        denoiser, process = self.network(vocabulary, method == "ar")
        if method == "ddpm_cache":
            known = self.kept[f"{vocabulary}-b{batch}-ddpm_step"]
            found = time_ddpm(denoiser, batch, theirs, length, steps, known, self.seconds)
        elif method == "ar":
            found = time_ar(denoiser, process, batch, ours, theirs, length, self.seconds)
        else:
            made = {"ancestral": lambda: Ancestral(steps), "first_hitting": FirstHitting}
            sampler = made.get(method, lambda: Grouped(sizes=sizes.tolist()))()
            found = time_planned(
                sampler, denoiser, process, batch, ours, theirs, length, self.seconds
            )
        number = len(sizes) if sizes is not None else length if steps is None else steps
        return about | {
            "steps": number,
            "timed_rows": theirs if method == "ddpm_cache" else ours,
            "memory_rows": theirs,
            **vars(found),
        }

    def nats(self, method: str, steps: int, asked: Any) -> tuple[float, float]:
        """Expected code length in nats per token by the DNA network's h(n), and lost structure; NaN
        if it is not defined."""
        if method == "ar":
            return self.kept["curve"]["ar"], math.nan
        h = np.array(self.kept["curve"]["h"])
        if method == "first_hitting":
            total = h.sum()
        elif method.startswith("grouped"):
            total = curve.code_length(h, self.sizes(method, asked))
        else:
            end = EPS if method == "ddpm_cache" else 0.0
            total = curve.discrete_time(h, 1 - np.linspace(end, 1, steps + 1))
        return total / len(h), curve.lost_structure(h, total)

    def rows(self) -> list[dict]:
        """The finished cells, with code lengths and the ratio to `ddpm_cache` at equal code
        length."""
        if "curve" not in self.kept:
            return []
        rows = []
        for name, cell in self.cells.items():
            if name in self.kept and self.kept[name]["steps"] is not None:
                row = self.kept[name]
                nats, lost = self.nats(row["method"], row["steps"], cell[3])
                rows.append(
                    {"name": name, **row, "nats": nats, "lost_structure": lost, "asked": cell[3]}
                )
        several = np.unique(
            np.geomspace(min(self.size["steps"]), max(self.size["steps"]), 25).round().astype(int)
        ).tolist()
        curve = [(self.nats("ddpm_cache", steps, None)[1], steps) for steps in several]
        for row in rows:
            row["equal_steps"] = row["ratio"] = row["ratio_default"] = None
            if row["method"] == "ddpm_cache" or row["ddpm_costs"] is None:
                continue
            row["equal_steps"] = steps_at(curve, row["lost_structure"])
            for key, steps in (
                ("ratio", row["equal_steps"]),
                ("ratio_default", self.size["steps"][-1]),
            ):
                if steps is not None:
                    row[key] = (
                        ddpm_seconds(row["ddpm_costs"], row["batch"], self.size["length"], steps)
                        / row["seconds"]
                    )
        return rows

    def table(self) -> str:
        """The table of all cells, and the targets."""
        rows, lines = self.rows(), []
        for vocabulary in ("dna", "50257"):
            for batch in self.size["batches"]:
                cells = [
                    [
                        f"`{r['method']}`{' (2 %)' if r['asked'] == 'lost2' else ''}",
                        *(
                            f"{r['steps']:,}",
                            f"{r['seconds']:.3g}",
                            f"{r['calls']:,}",
                            f"{r['rows']:,}",
                        ),
                        f"{r['nats']:.5f}" if vocabulary == "dna" else "",
                        ""
                        if math.isnan(r["lost_structure"])
                        else f"{100 * r['lost_structure']:.2f} %",
                        "" if r["memory_mb"] is None else f"{r['memory_mb']:,.0f}",
                        f"{100 * r['fraction']:.0f} %",
                        f"{r['ratio']:.2f} (T = {r['equal_steps']})" if r["ratio"] else "",
                    ]
                    for r in rows
                    if (r["vocabulary"], r["batch"]) == (vocabulary, batch)
                ]
                if cells:
                    header = [
                        "sampler",
                        "steps",
                        "seconds",
                        "calls",
                        "rows",
                        "nats per token",
                        "lost structure",
                    ]
                    header += [
                        f"MB for {min(batch, self.size['timed'][vocabulary][1])}",
                        "fraction run",
                    ]
                    lines += [
                        f"\nVocabulary {vocabulary}, batch {batch}, {self.size['length']} tokens\n"
                    ]
                    lines += [
                        study.markdown(
                            [*header, "times faster than ddpm_cache at equal code length"], cells
                        )
                    ]
        return "\n".join([*lines, "", *self.targets(rows)])

    def targets(self, rows: list[dict]) -> list[str]:
        """The targets, each with its result."""
        large, said = max(self.size["batches"]), []

        methods = ("grouped_optimal", "grouped", "ancestral")
        every = [r for r in rows if r["ratio"] and r["method"] in methods]
        for vocabulary, target in (("dna", 1.2), ("50257", 3.0)):
            for method in methods:
                ratios = [
                    r["ratio"]
                    for r in every
                    if (r["vocabulary"], r["batch"], r["method"]) == (vocabulary, large, method)
                ]
                if ratios:
                    said.append(
                        f"{vocabulary}, batch {large}, equal code length: {method} is "
                        f"{math.exp(np.mean(np.log(ratios))):.2f} times faster than "
                        f"ddpm_cache (geometric mean of {len(ratios)} cells, {min(ratios):.2f} to "
                        f"{max(ratios):.2f}); target {target}"
                    )
        for r in rows:
            if r["asked"] == "lost2" and r["ratio_default"]:
                said.append(
                    f"{r['vocabulary']}, batch {r['batch']}: {r['method']} with {r['steps']} calls "
                    f"({100 * r['lost_structure']:.2f} % lost) is "
                    f"{r['ratio_default']:.1f} times faster than ddpm_cache with T = "
                    f"{self.size['steps'][-1]}"
                    f"{'; target 12' if r['batch'] == large else ''}"
                )
        if every:
            worst = min(every, key=lambda r: r["ratio"])
            slower = sum(r["ratio"] < 1 for r in every)
            said.append(
                f"slower than ddpm_cache at equal code length: {slower} of {len(every)} cells; the "
                f"smallest ratio is {worst['ratio']:.2f} ({worst['name']})"
            )
        return said

    def picture(self, path: Path) -> Path | None:
        """Code length against seconds, one panel for each batch size; None if no cell is
        finished."""
        from dnadiff.report import figures

        rows = [r for r in self.rows() if r["vocabulary"] == "dna"]
        if not rows:
            return None
        panels = [
            partial(draw, rows=[r for r in rows if r["batch"] == batch], batch=batch)
            for batch in self.size["batches"]
        ]
        return figures.save(figures.overview(panels), path)


def steps_at(curve: list[tuple[float, int]], lost: float) -> int | None:
    """The T of `ddpm_cache` that loses as much structure, interpolated between points (lost, T) on
    log scales; None outside their range."""
    points = sorted((math.log(loss), math.log(steps)) for loss, steps in curve if loss > 0)
    if (
        len(points) < 2
        or not lost > 0
        or not points[0][0] <= math.log(lost) <= points[-1][0] + 0.01
    ):
        return None
    return round(math.exp(np.interp(math.log(lost), *zip(*points))))


def draw(axes: Any, rows: list[dict], batch: int) -> None:
    """The panel of one batch size."""
    for number, method in enumerate(
        ("ddpm_cache", "ancestral", "grouped", "grouped_optimal", "first_hitting", "ar")
    ):
        points = sorted((r["seconds"], r["nats"]) for r in rows if r["method"] == method)
        if points:
            axes.plot(
                *zip(*points),
                "o-" if len(points) > 1 else "s",
                color=f"C{number}",
                label=method,
                markersize=3.5,
                linewidth=1,
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("expected code length, nats per token")
    axes.set_title(f"{batch} sequence{'s' * (batch > 1)} at a time")
    if axes.has_data():
        axes.legend()


def main() -> None:
    parser = study.arguments(__doc__, "runs/bench_sampling")
    parser.add_argument(
        "--checkpoint",
        metavar="RUN",
        help="a trained model of DNA (default: a short training here)",
    )
    parser.add_argument(
        "--causal", metavar="RUN", help="its causal twin for ar (default: a short training here)"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=2_000_000,
        help="tokens of the short trainings (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="time for one cell (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="file for the picture (default: picture.png in the output folder)",
    )
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.seconds = min(options.tokens, 2_000), min(options.seconds, 0.1)
    it = Study(
        options.output / "quick" if options.quick else options.output,
        QUICK if options.quick else FULL,
        options,
    )
    study.work(it.pieces, it.kept, options)
    if options.list:
        return
    print(it.table())
    if picture := it.picture(options.picture or it.kept.folder / "picture.png"):
        print(f"picture: {picture}")
    if options.json:
        finite = [
            {
                k: None if isinstance(v, float) and not math.isfinite(v) else v
                for k, v in row.items()
            }
            for row in it.rows()
        ]
        options.json.write_text(json.dumps(finite, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
