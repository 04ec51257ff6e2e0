"""Which masks, times and weighting train best: the noise of the loss at fixed weights, and the
result at equal numbers of tokens.

    python scripts/bench/objective.py [--output DIR] [--only NAME] [--list] [--table] [--quick]
    [--json FILE]

Bernoulli masks or exact counts x times (or counts) independent or stratified over the batch x
weighting by the NELBO or plain cross-entropy.

Noise: a 64x4 Caduceus after 1 M tokens of E. coli, a fixed batch of 16 windows of 512, many draws.
    The two weightings differ in scale (and in the weights of positions), so variances are relative:
    of the loss over its squared mean, of the gradient (trace of the covariance) over the
squared norm of the mean gradient. Standard errors by the jackknife over chunks of draws.

Training: 4 M tokens with the demo's optimizer and schedule and three seeds, which determine
    weights, windows and masks; the NELBO of the complete *validation* part in count form, with the
    same noise for all. Differences to the package's default are paired by seed. Their noise
is the residual of the table of methods x seeds after subtracting the means of methods and seeds, so
that all runs contribute. The test part is never read.
"""

import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch

from dnadiff.bootstrap import student_t
from dnadiff.config import build
from dnadiff.draws import Draws, hash64
from dnadiff.options.command import compose
from dnadiff.weights import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))
import study

METHODS = {
    f"{masks}, {times}, {weighting}": [
        f"objective/masking={masks}",
        f"objective.masking.stratified={str(times == 'stratified').lower()}",
        f"objective.weighting={weighting}",
    ]
    for masks, times, weighting in itertools.product(
        ("coins", "count"), ("independent", "stratified"), ("nelbo", "cross_entropy")
    )
}
NETWORK = [
    "data=ecoli",
    "backbone=caduceus",
    "objective=mdlm",
    "optimizer.lr=6e-3",
    "weight_decay=0.01",
    "matmul_precision=medium",
]
FULL = {
    "network": [
        "backbone.d_model=64",
        "backbone.n_layers=4",
        "data.length=512",
        "data.batch_size=16",
    ],
    **{
        "seeds": 3,
        "steps": 488,
        "fixed_steps": 122,
        "draws": 256,
        "chunks": 16,
        "num_draws": 8,
        "valid": 256,
    },
}
QUICK = {
    "network": [
        "backbone.d_model=16",
        "backbone.n_layers=1",
        "data.length=128",
        "data.batch_size=4",
        "data.split.valid=[0.9,0.91]",
    ],
    **{
        "seeds": 2,
        "steps": 6,
        "fixed_steps": 6,
        "draws": 16,
        "chunks": 4,
        "num_draws": 2,
        "valid": 8,
    },
}


def slug(method: str) -> str:
    """A method as part of a file name."""
    return method.replace(", ", "-")


def default_method() -> str:
    """The default method of the package."""
    objective = compose("train", ["objective=mdlm"])["objective"]
    masks = {"Bernoulli": "coins", "ExactCount": "count"}[
        objective["masking"]["_target_"].rpartition(".")[2]
    ]
    return (
        f"{masks}, {'stratified' if objective['masking']['stratified'] else 'independent'}, "
        f"{objective['weighting']}"
    )


def relative_variances(
    losses: torch.Tensor, gradient_sums: torch.Tensor, gradient_squares: torch.Tensor
) -> tuple[float, float]:
    """Variance over squared mean, of the loss and of the gradient; the squared norm of the mean is
    corrected for its noise.

    Args:
        losses: (N,).
        gradient_sums: (P,) the sum of N gradients.
        gradient_squares: () the sum of their squared norms.
    """
    n = len(losses)
    mean = gradient_sums / n
    trace = (gradient_squares - n * mean.square().sum()) / (n - 1)
    variance = losses.var()
    return float(variance / (losses.mean().square() - variance / n)), float(
        trace / (mean.square().sum() - trace / n)
    )


class Study:
    """The pieces and their tables."""

    def __init__(self, folder: Path, size: dict) -> None:
        self.kept, self.size = study.Kept(folder, size), size
        self.pieces = {"weights": self.weights}
        self.pieces |= {f"noise-{slug(m)}": lambda m=m: self.noise(m) for m in METHODS}
        self.pieces |= {
            f"train-s{seed}-{slug(m)}": lambda m=m, s=seed: self.train(m, s)
            for seed in range(1, size["seeds"] + 1)
            for m in METHODS
        }

    def settings(self, method: str, steps: int, seed: int) -> list[str]:
        valid = [
            f"trainer.val_check_interval={max(1, steps // 3)}",
            f"data.max_valid_windows={self.size['valid']}",
        ]
        return [
            *NETWORK,
            *self.size["network"],
            *METHODS[method],
            f"trainer.max_steps={steps}",
            *valid,
            f"seed={seed}",
        ]

    def weights(self) -> dict:
        """The partly trained network for the measurement of noise."""
        return study.train(
            self.kept.folder / "runs" / "weights",
            self.settings(default_method(), self.size["fixed_steps"], 1),
        )

    def noise(self, method: str) -> dict:
        """Variances of loss and gradient over draws of masks for one batch."""
        self.kept["weights"]  # raises if it is missing
        loaded = checkpoint.load(
            self.kept.folder / "runs" / "weights" / "checkpoints" / "last.ckpt"
        )
        data = build(loaded.config["data"])
        data.prepare()
        batch = next(iter(data.train_dataloader()))
        x0, weight = batch["ids"].long(), batch["weight"].float()
        config = compose("train", self.settings(method, 1, 1))
        objective = checkpoint.build_objective(config, loaded.process)
        denoiser, rows = loaded.denoiser, torch.arange(len(x0))
        parameters = [p for p in denoiser.parameters() if p.requires_grad]
        chunks, per_chunk = self.size["chunks"], self.size["draws"] // self.size["chunks"]
        losses, bounds = torch.empty(2, chunks, per_chunk, dtype=torch.float64)
        sums = torch.zeros(chunks, sum(p.numel() for p in parameters), dtype=torch.float64)
        squares = torch.zeros(chunks, dtype=torch.float64)
        for chunk, each in itertools.product(range(chunks), range(per_chunk)):
            draws = Draws(hash64(1, "noise"), rows, len(rows), chunk * per_chunk + each)
            result = objective(denoiser, x0, weight, draws)
            gradients = torch.autograd.grad(result.loss, parameters, allow_unused=True)
            flat = torch.cat(
                [
                    g.flatten() if g is not None else torch.zeros(p.numel())
                    for g, p in zip(gradients, parameters)
                ]
            ).double()
            losses[chunk, each], bounds[chunk, each] = result.loss.detach(), result.nll
            sums[chunk] += flat
            squares[chunk] += flat.square().sum()
        complete = np.array(relative_variances(losses.flatten(), sums.sum(0), squares.sum()))
        left = [torch.arange(chunks) != c for c in range(chunks)]
        without = np.array(
            [
                relative_variances(losses[keep].flatten(), sums[keep].sum(0), squares[keep].sum())
                for keep in left
            ]
        )
        se = np.sqrt((chunks - 1) / chunks * ((without - without.mean(0)) ** 2).sum(0))
        return {
            "method": method,
            "draws": losses.numel(),
            "loss_mean": float(losses.mean()),
            "loss_sd": float(losses.std()),
            "bound_mean": float(bounds.mean()),
            "loss_relative_variance": complete[0],
            "loss_relative_variance_se": se[0],
            "gradient_relative_variance": complete[1],
            "gradient_relative_variance_se": se[1],
        }

    def train(self, method: str, seed: int) -> dict:
        """Train with one method, and evaluate on the validation part."""
        run = self.kept.folder / "runs" / f"s{seed}-{slug(method)}"
        metrics = study.train(run, self.settings(method, self.size["steps"], seed))
        result = study.evaluate(
            run,
            run / "valid.json",
            "part=valid",
            "orders=[]",
            f"num_draws={self.size['num_draws']}",
        )
        scores = result["groups"]["all"]
        return {
            "method": method,
            "seed": seed,
            **{k: scores[k] for k in ("nll", "bits", "se_mc", "se_total", "tokens")},
            "training": metrics,
        }

    def rows(self) -> list[dict]:
        """One row for each number, as in the other benchmarks."""
        default, rows = default_method(), []

        def add(
            name: str, value: float, unit: str, base: float | None, se: float | None = None
        ) -> None:
            rows.append(
                {
                    "name": name,
                    "value": value,
                    "unit": unit,
                    "ratio": value / base if base else None,
                    "to": default,
                    "se": se,
                }
            )

        noise = {
            m: self.kept[f"noise-{slug(m)}"] for m in METHODS if f"noise-{slug(m)}" in self.kept
        }
        for kind in ("loss", "gradient"):
            key = f"{kind}_relative_variance"
            for m, row in noise.items():
                add(
                    f"{m}: {kind}",
                    row[key],
                    "variance / mean^2",
                    noise.get(default, {}).get(key),
                    row[f"{key}_se"],
                )
        methods, bits = self.finished()
        for m, values in zip(methods, bits):
            base = bits[methods.index(default)].mean() if default in methods else None
            se = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else None
            add(f"{m}: validation", values.mean(), "bits per base", base, se)
        return rows

    def finished(self) -> tuple[list[str], np.ndarray]:
        """Methods with runs for all seeds, and their bits: (methods, seeds)."""
        names = {
            m: [f"train-s{s}-{slug(m)}" for s in range(1, self.size["seeds"] + 1)] for m in METHODS
        }
        done = [m for m in METHODS if all(n in self.kept for n in names[m])]
        return done, np.array([[self.kept[n]["bits"] for n in names[m]] for m in done])

    def table(self) -> str:
        """Both tables and the conclusions."""
        default, lines = default_method(), []
        noise = [self.kept[f"noise-{slug(m)}"] for m in METHODS if f"noise-{slug(m)}" in self.kept]
        if noise:
            header = [
                "masks, times, weighting",
                "loss",
                "sd",
                "relative variance",
                "relative variance of the gradient",
            ]
            cells = [
                [
                    *(r["method"], f"{r['loss_mean']:.4f}", f"{r['loss_sd']:.4f}"),
                    f"{r['loss_relative_variance']:.2e} +- {r['loss_relative_variance_se']:.0e}",
                    f"{r['gradient_relative_variance']:.2f} +- "
                    f"{r['gradient_relative_variance_se']:.2f}",
                ]
                for r in noise
            ]
            lines += [study.markdown(header, cells), ""]
        methods, bits = self.finished()
        if default not in methods or len(methods) < 2:
            return "\n".join(
                [
                    *lines,
                    f"The training table needs all seeds of the default ({default}) and of one "
                    "other method.",
                ]
            )
        base, seeds = bits[methods.index(default)], bits.shape[1]
        residual = bits - bits.mean(1, keepdims=True) - bits.mean(0, keepdims=True) + bits.mean()
        freedom = (len(methods) - 1) * (seeds - 1)
        se = math.sqrt(2 * (residual**2).sum() / freedom / seeds)
        half = student_t(freedom) * se if freedom >= 4 else math.nan
        cells = []
        for m, values in zip(methods, bits):
            difference = values - base
            own_se = "" if m == default else f"{difference.std(ddof=1) / math.sqrt(seeds):.4f}"
            verdict = (
                "the default"
                if m == default
                else "better"
                if difference.mean() < -half
                else "worse"
                if difference.mean() > half
                else "no difference"
            )
            shown = [
                f"{values.mean():.4f} +- {values.std(ddof=1) / math.sqrt(seeds):.4f}",
                f"{difference.mean():+.4f}",
                own_se,
                verdict,
            ]
            cells.append([m, *shown])
        header = [
            "masks, times, weighting",
            "validation, bits per base",
            "minus the default",
            "its standard error",
            f"verdict at +- {half:.4f}",
        ]
        lines.append(study.markdown(header, cells))
        best = methods[int(bits.mean(1).argmin())]
        gain = base.mean() - bits.mean(1).min()
        lines.append(
            f"\nLowest mean: {best}, {gain:.4f} bits below the default ({default}); a difference "
            f"is significant beyond {half:.4f} (95 %, {freedom} degrees"
            " of freedom). "
            f"{'The default should change.' if gain > half else 'This is within the noise: keep the default.'}"
        )
        for factor, name in enumerate(("masks", "times", "weighting")):
            levels = sorted({m.split(", ")[factor] for m in methods})
            if len(levels) == 2 and len(methods) == len(METHODS):
                first, second = (
                    bits[[m.split(", ")[factor] == level for m in methods]].mean()
                    for level in levels
                )
                margin = half / math.sqrt(len(METHODS) / 2)
                verdict = "beyond" if abs(first - second) > margin else "within"
                lines.append(
                    f"{name}: {levels[0]} minus {levels[1]} {first - second:+.4f} bits on average, "
                    f"{verdict} its noise of {margin:.4f}."
                )
        return "\n".join(lines)


def main() -> None:
    parser = study.arguments(__doc__, "runs/bench_objective")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    it = Study(
        options.output / "quick" if options.quick else options.output,
        QUICK if options.quick else FULL,
    )
    study.work(it.pieces, it.kept, options)
    if not options.list:
        print("\n" + it.table())
        if options.json:
            options.json.write_text(json.dumps(it.rows(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
