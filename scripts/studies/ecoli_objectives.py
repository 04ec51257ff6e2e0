"""Compare all objectives on E. coli: one network, equal tokens, equal tuning, and differences
paired by window.

    python scripts/studies/ecoli_objectives.py [--output DIR] [--only NAME] [--list] [--table]
    [--quick]

The network is a 64x4 Caduceus; the autoregressive control is its causal twin, a Mamba with one
layer more (164,608 parameters, 0.3 % more). 12 M tokens each, windows of 512, the demo's optimizer
and schedule; `mlm then mdlm` spends half of them on each. Every objective tries the same learning
rates with a quarter of the tokens; the control also tries dropout and weight decay, at full length,
because that is where they could help. All choices (learning rate, checkpoint by early stopping at
the best of six validations, dropout and decay) are made on the validation part. The test part is
evaluated once for each model, at the end: all windows of 512, count form (AR: exact), novel bases
apart.

`mdlm` trains on plain cross-entropy; score entropy and D3PM train on their bounds here, and
`mdlm_nelbo`, which has the same weighting, is their baseline. Each model is one training run, and
the intervals are over windows only: seeds of an earlier study ended up to 0.0034 bits
apart with one method, so smaller differences are no evidence about the objectives.

`sedd` is not conditioned on time, so that its network is the same as the others' (with its usual
time input it has 311,872 parameters: `sedd_time`). All but AR are evaluated by the same bound, in
continuous time with SUBS; "own bound" is the training objective of each, on validation windows.
"""

import itertools
import math
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import study

from dnadiff.diffusion.bootstrap import ConfidenceInterval
from dnadiff.genomics.held_out import (
    Scores,
    fit_markov,
    markov_nats,
    token_groups,
    window_positions,
)
from dnadiff.options.command import compose
from dnadiff.store.objects import build

# Masks, times and weighting are the package's defaults for each objective.
MODELS = {
    "ar": ["objective=ar", "backbone=mamba"],
    "mdlm": ["objective=mdlm", "backbone=caduceus"],
    "mdlm_nelbo": ["objective=mdlm", "objective.weighting=nelbo", "backbone=caduceus"],
    "sedd": ["objective=sedd", "backbone=caduceus", "time_conditioning=false"],
    "sedd_time": ["objective=sedd", "backbone=caduceus"],
    "d3pm": ["objective=d3pm", "backbone=caduceus", "objective.masking.num_steps=1000"],
    "mlm_mdlm": ["objective=mdlm"],
}
TITLES = {
    "ar": "AR, Mamba",
    "mdlm_nelbo": "mdlm, weighting=nelbo",
    "mlm_mdlm": "mlm, then mdlm",
    "sedd_time": "sedd, conditioned on time",
    "d3pm": "d3pm, T = 1000",
}
BLOCK = 16  # windows in a block of the bootstrap, as in configs/evaluate.yaml
MLM = ["objective=mlm", "backbone=caduceus"]
RATES = ("3e-3", "6e-3")
PLAIN = {"decay": "0.01"}
VARIANTS = {
    "ar": [
        {"dropout": dropout, "decay": decay}
        for dropout, decay in itertools.product(("0.0", "0.1"), ("0.01", "0.1"))
    ]
}
FULL = {
    "sizes": {
        "caduceus": ["backbone.d_model=64", "backbone.n_layers=4"],
        "mamba": ["backbone.d_model=64", "backbone.n_layers=5"],
    },
    "data": ["data=ecoli", "data.length=512", "data.batch_size=16"],
    **{"steps": 1464, "tune_steps": 366, "num_draws": 8, "orders": (6, 12), "rates": RATES},
}
QUICK = {
    "sizes": {
        name: ["backbone.d_model=16", "backbone.n_layers=1"] for name in ("caduceus", "mamba")
    },
    "data": [
        *("data=ecoli", "data.length=128", "data.batch_size=4", "data.max_valid_windows=8"),
        *("data.split.valid=[0.9,0.91]", "data.split.test=[0.8,0.81]"),
    ],
    **{"steps": 4, "tune_steps": 2, "num_draws": 2, "orders": (2, 4), "rates": RATES[:1]},
}


class Study:
    """The pieces and their table: `tune-MODEL-RATE`, `final-MODEL-VARIANT`, `test-MODEL` and
    `markov`."""

    def __init__(self, folder: Path, size: dict) -> None:
        self.kept, self.size, self.runs = study.Kept(folder, size), size, folder / "runs"
        self.pieces = {
            f"tune-{m}-{rate}": lambda m=m, r=rate: self.tune(m, r)
            for m in MODELS
            for rate in size["rates"]
        }
        self.pieces |= {
            f"final-{m}{self.slug(v)}": lambda m=m, v=v: self.final(m, v)
            for m in MODELS
            for v in self.variants(m)
        }
        self.pieces |= {"markov": self.markov} | {
            f"test-{m}": lambda m=m: self.test(m) for m in MODELS
        }

    def variants(self, model: str) -> list[dict]:
        return VARIANTS.get(model, [PLAIN])

    def slug(self, variant: dict) -> str:
        return (
            "" if variant == PLAIN else "".join(f"-{key}{value}" for key, value in variant.items())
        )

    def train(self, name: str, model: str, steps: int, rate: str, variant: dict) -> dict:
        """Train in `runs/name`; with pretraining, two runs of half the steps each."""
        common = [
            *self.size["data"],
            f"optimizer.lr={rate}",
            f"weight_decay={variant['decay']}",
            "matmul_precision=medium",
        ]
        if "dropout" in variant:
            common.append(f"backbone.dropout={variant['dropout']}")

        def go(folder: Path, arguments: Iterable[str], steps: int) -> dict:
            often = f"trainer.val_check_interval={max(1, steps // 6)}"
            return study.train(folder, [*arguments, *common, f"trainer.max_steps={steps}", often])

        if model == "mlm_mdlm":
            first = go(
                self.runs / f"{name}-first", [*MLM, *self.size["sizes"]["caduceus"]], steps // 2
            )
            second = go(
                self.runs / name,
                [*MODELS[model], f"init_from={self.runs / f'{name}-first'}"],
                steps - steps // 2,
            )
            return second | {key: first[key] + second[key] for key in ("tokens", "seconds")}
        backbone = next(a.partition("=")[2] for a in MODELS[model] if a.startswith("backbone="))
        return go(self.runs / name, [*MODELS[model], *self.size["sizes"][backbone]], steps)

    def score(self, name: str, part: str) -> dict:
        """`python -m dnadiff.evaluate` on one part."""
        run = self.runs / name
        options = [
            f"part={part}",
            "orders=[]",
            f"num_draws={self.size['num_draws']}",
            f"windows={run / f'{part}.npz'}",
        ]
        result = study.evaluate(run, run / f"{part}.json", *options)
        return {
            "groups": result["groups"],
            "protocol": result["protocol"],
            "checkpoint_step": result["model"]["step"],
        }

    def tune(self, model: str, rate: str) -> dict:
        """A short run with one learning rate."""
        name = f"tune-{model}-{rate}"
        return {
            "training": self.train(name, model, self.size["tune_steps"], rate, PLAIN),
            "valid": self.score(name, "valid"),
        }

    def final(self, model: str, variant: dict) -> dict:
        """A run of full length with the best learning rate."""
        bits = {
            rate: self.kept[f"tune-{model}-{rate}"]["valid"]["groups"]["all"]["bits"]
            for rate in self.size["rates"]
        }
        rate = min(bits, key=bits.get)
        name = f"final-{model}{self.slug(variant)}"
        training = self.train(name, model, self.size["steps"], rate, variant)
        return {
            "rate": rate,
            "rates_tried": bits,
            "variant": variant,
            "run": name,
            "training": training,
            "valid": self.score(name, "valid"),
        }

    def test(self, model: str) -> dict:
        """The best variant on validation, evaluated on the test part."""
        finals = [self.kept[f"final-{model}{self.slug(v)}"] for v in self.variants(model)]
        best = min(finals, key=lambda f: f["valid"]["groups"]["all"]["bits"])
        tried = {
            self.slug(f["variant"]).strip("-"): f["valid"]["groups"]["all"]["bits"] for f in finals
        }
        return {
            **{k: best[k] for k in ("rate", "variant", "run", "training")},
            "tried": tried,
            "test": self.score(best["run"], "test"),
        }

    def markov(self) -> dict:
        """Markov models on the same windows."""
        start = time.monotonic()
        data = build(compose("train", self.size["data"])["data"])
        data.prepare()
        tiles = data.test_windows("test")
        groups = token_groups(data, tiles, "test", [data])
        about = data.describe()
        rows = {}
        for order, model, nats in markov_nats(
            data, tiles, fit_markov(data, self.size["orders"]), "test"
        ):
            sums = {name: (nats * mask).sum(1) for name, mask in groups.items()}
            tokens = {name: mask.sum(1) for name, mask in groups.items()}
            scores = Scores(window_positions(tiles), sums, tokens, BLOCK, about["split_hash"])
            self.runs.mkdir(parents=True, exist_ok=True)
            scores.save(self.runs / f"markov-{order}.npz")
            bits = {
                name: scores.mean(name).value / math.log(2) for name in groups if tokens[name].any()
            }
            rows[str(order)] = {"bits": bits, "strengths": model.strengths[: order + 1]}
        return {
            "orders": rows,
            "tokens": about["split_tokens"]["train"],
            "seconds": time.monotonic() - start,
        }

    def scores(self) -> dict[str, Scores]:
        """The scores of the test windows of all finished pieces."""
        found = {
            f"markov-{k}": self.runs / f"markov-{k}.npz"
            for k in self.size["orders"]
            if "markov" in self.kept
        }
        found |= {
            m: self.runs / self.kept[f"test-{m}"]["run"] / "test.npz"
            for m in MODELS
            if f"test-{m}" in self.kept
        }
        return {name: Scores.load(path) for name, path in found.items()}

    def table(self) -> str:
        """The table of finished pieces."""
        scores, rows = self.scores(), []
        low = f"markov-{min(self.size['orders'])}"
        for name, each in scores.items():
            against = [
                interval(each.minus(scores[other])) if other in scores and other != name else ""
                for other in (low, "mdlm")
            ]
            mean = each.mean()
            bits = (
                f"{mean.value / math.log(2):.4f} ({(mean.low / math.log(2)):.4f} to "
                f"{mean.high / math.log(2):.4f})"
            )
            novel = (
                f"{each.mean('novel').value / math.log(2):.4f}"
                if each.tokens.get("novel", np.zeros(1)).any()
                else ""
            )
            if name.startswith("markov-"):
                fit = self.kept["markov"]
                rows.append(
                    [
                        f"Markov, order {name[7:]}",
                        bits,
                        novel,
                        *against,
                        "",
                        "",
                        f"{fit['tokens'] / 1e6:.1f} M",
                        "",
                        f"{fit['seconds'] / 60:.1f}",
                    ]
                )
                continue
            r = self.kept[f"test-{name}"]
            t, variant = (
                r["training"],
                "".join(f", {k} {v}" for k, v in r["variant"].items() if r["variant"] != PLAIN),
            )
            rows.append(
                [
                    *(
                        TITLES.get(name, name),
                        bits,
                        novel,
                        *against,
                        f"{t['best_valid_nll'] / math.log(2):.4f}",
                        f"lr {r['rate']}{variant}",
                    ),
                    *(
                        f"{t['tokens'] / 1e6:.1f} M",
                        f"{t['tokens'] / t['seconds']:,.0f}",
                        f"{t['seconds'] / 60:.1f}",
                    ),
                ]
            )
        header = [
            "model",
            "bits per base",
            "novel",
            f"minus order {low[7:]}",
            "minus mdlm",
            "own bound, validation",
            "chosen on validation",
        ]
        lines = [study.markdown([*header, "tokens", "tokens/s", "minutes"], rows)]
        lines += [
            f"{TITLES.get(m, m)}: on validation {tried}" for m in MODELS if (tried := self.tried(m))
        ]
        return "\n\n".join(lines)

    def tried(self, model: str) -> str:
        """The tuning results of a model, bits per base on validation."""
        tunes = {
            r: self.kept[n]["valid"]["groups"]["all"]["bits"]
            for r in self.size["rates"]
            if (n := f"tune-{model}-{r}") in self.kept
        }
        finals = {
            n: self.kept[n]["valid"]["groups"]["all"]["bits"]
            for v in self.variants(model)
            if (n := f"final-{model}{self.slug(v)}") in self.kept
        }
        return ", ".join(
            [f"lr {r} {b:.4f}" for r, b in tunes.items()]
            + [f"{n} {b:.4f}" for n, b in finals.items()]
        )


def interval(difference: ConfidenceInterval) -> str:
    """A difference in bits per base with its 95 % interval."""
    value, low, high = (
        x / math.log(2) for x in (difference.value, difference.low, difference.high)
    )
    return f"{value:+.4f} ({low:+.4f} to {high:+.4f})"


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/ecoli_objectives", FULL, QUICK)
