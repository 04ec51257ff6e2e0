"""Which mask rates to train on: distributions of rates compared on E. coli with equal tokens, for
single sites, whole windows and probes.

    python scripts/experiments/mask_rates.py [--output DIR] [--only NAME] [--list] [--table]
    [--collect FILE] [--quick]

A 64x4 Caduceus is trained on 3 M tokens in windows of 512 with each distribution
(`objective/masking=beta`), and by masked language modeling at 15 %. All use the same two learning
rates; each takes the better one by its own kind of validation. All numbers are of the validation
part: the comparison chooses a recipe, and the test part stays unread.

- NELBO: `evaluate`, count form, 8 draws.
- Single site: bits of one base of each window with everything else visible, both strands read, 4
  sites of each window in separate calls. Windows with fewer counted bases have all of them, and
  windows without one are left out.
- Probe: logistic regression on frozen mean features, `ecoli_coding`, accuracy on the task's
  validation items for the network that is chosen.

Pieces: `train-NAME-RATE`, and of the better rate `measure-NAME` and `probe-NAME`.
"""

import json
import math
from pathlib import Path

import numpy as np
import study
import torch

from dnadiff.config import build
from dnadiff.likelihood import site_log_probs
from dnadiff.weights import checkpoint

MASKS = ["objective=mdlm", "objective/masking=beta"]
MODELS = {
    "uniform": ["objective=mdlm", "objective/masking=count"],
    "beta(3, 17), uniform .5": [*MASKS, "objective.masking.uniform=0.5"],
    "beta(3, 17), uniform .2": [*MASKS, "objective.masking.uniform=0.2"],
    "beta(1, 3), uniform .2": [
        *MASKS,
        "objective.masking.alpha=1",
        "objective.masking.beta=3",
        "objective.masking.uniform=0.2",
    ],
    "beta(1, 9), uniform .2": [
        *MASKS,
        "objective.masking.alpha=1",
        "objective.masking.beta=9",
        "objective.masking.uniform=0.2",
    ],
    "beta(2, 2), uniform .5": [
        *MASKS,
        "objective.masking.alpha=2",
        "objective.masking.beta=2",
        "objective.masking.uniform=0.5",
    ],
    "mlm": ["objective=mlm"],
}
FULL = {
    "network": [
        "backbone=caduceus",
        "backbone.d_model=64",
        "backbone.n_layers=4",
        "data=ecoli",
        "data.length=512",
        "data.batch_size=16",
    ],
    **{
        "steps": 366,
        "rates": ("3e-3", "6e-3"),
        "num_draws": 8,
        "sites": 4,
        "windows": None,
        "probe": [],
    },
}
QUICK = {
    "network": [
        *(
            "backbone=caduceus",
            "backbone.d_model=16",
            "backbone.n_layers=1",
            "data=ecoli",
            "data.length=128",
            "data.batch_size=4",
        ),
        *("data.max_valid_windows=8", "data.split.valid=[0.9,0.91]", "data.split.test=[0.8,0.81]"),
    ],
    **{
        "steps": 4,
        "rates": ("3e-3",),
        "num_draws": 2,
        "sites": 1,
        "windows": 8,
        "probe": ["task.max_train=40"],
    },
}


class Study:
    """The pieces and their table."""

    def __init__(self, folder: Path, size: dict) -> None:
        self.kept, self.size, self.runs = study.Kept(folder, size), size, folder / "runs"
        self.measures = {"measure": self.measure, "probe": self.probe}
        self.pieces = {
            f"train-{slug(m)}-{rate}": lambda m=m, r=rate: self.train(m, r)
            for m in MODELS
            for rate in size["rates"]
        }
        self.pieces |= {
            f"{kind}-{slug(m)}": lambda m=m, work=work: work(m)
            for m in MODELS
            for kind, work in self.measures.items()
        }

    def train(self, model: str, rate: str) -> dict:
        name = f"{slug(model)}-{rate}"
        steps = self.size["steps"]
        often = [f"trainer.max_steps={steps}", f"trainer.val_check_interval={max(1, steps // 3)}"]
        common = [
            f"optimizer.lr={rate}",
            "weight_decay=0.01",
            "seed=1",
            "matmul_precision=medium",
            *often,
        ]
        return {
            "training": study.train(
                self.runs / name, [*MODELS[model], *self.size["network"], *common]
            )
        }

    def measure(self, model: str) -> dict:
        """The NELBO and single sites."""
        run = self.chosen_run(model)
        found = study.evaluate(
            run,
            run / "evaluate.json",
            "part=valid",
            "orders=[]",
            f"num_draws={self.size['num_draws']}",
        )
        return {"nelbo": found["groups"], "site": self.site(run)}

    def site(self, run: Path) -> dict:
        """Bits of single sites, by window."""
        loaded = checkpoint.load(run)
        data = build(loaded.config["data"])
        data.prepare()
        tiles = data.test_windows("valid", None)
        random = np.random.default_rng(0)
        bits = []
        for number in range(
            len(tiles) if self.size["windows"] is None else min(len(tiles), self.size["windows"])
        ):
            ids, weight = tiles[number]["ids"].long(), tiles[number]["weight"] > 0
            counted = np.flatnonzero(weight.numpy())
            if not len(counted):
                continue
            sites = torch.from_numpy(
                random.choice(counted, min(len(counted), self.size["sites"]), replace=False)
            )
            rows, mask = (
                ids.expand(len(sites), -1),
                torch.zeros(len(sites), len(ids), dtype=torch.bool),
            )
            mask[torch.arange(len(sites)), sites] = True
            found = site_log_probs(
                loaded.denoiser.eval(), loaded.process, rows, mask
            )  # (2, sites, V)
            mean = torch.log_softmax(found.mean(0), -1)
            bits.append(float(-mean.gather(-1, ids[sites][:, None]).mean()) / math.log(2))
        return {
            "bits": float(np.mean(bits)),
            "se": float(np.std(bits) / math.sqrt(len(bits))),
            "by_window": bits,
        }

    def chosen(self, model: str) -> str:
        """The learning rate with the best validation loss of the objective's own kind."""
        losses = {
            rate: self.kept[f"train-{slug(model)}-{rate}"]["training"]["best_valid_nll"]
            for rate in self.size["rates"]
        }
        return min(losses, key=losses.get)

    def chosen_run(self, model: str) -> Path:
        """The run with that rate."""
        return self.runs / f"{slug(model)}-{self.chosen(model)}"

    def probe(self, model: str) -> dict:
        """The accuracy of frozen features."""
        run = self.chosen_run(model)
        options = [
            "task=ecoli_coding",
            "probe=true",
            "fine_tune=false",
            "scratch=false",
            "seeds=1",
            *self.size["probe"],
        ]
        study.command(
            "finetune",
            f"checkpoint={run}",
            *options,
            f"hydra.run.dir={run / 'probe'}",
            "overwrite=true",
        )
        path = run / "probe" / "finetune.json"
        found = json.loads(path.read_text(encoding="utf-8"))["models"][
            "frozen + logistic regression"
        ]["found"][0][0]
        return {"valid_accuracy": found["valid_accuracy"]}

    def table(self) -> str:
        """Differences of single sites from `uniform` are paired by window."""
        rows = []
        base = None
        for model in MODELS:
            if f"measure-{slug(model)}" not in self.kept:
                continue
            rate, found = self.chosen(model), self.kept[f"measure-{slug(model)}"]
            site = np.array(found["site"]["by_window"])
            base = site if model == "uniform" else base
            paired = ""
            if base is not None and model != "uniform":
                error = (site - base).std() / math.sqrt(len(site))
                paired = f"{(site - base).mean():+.4f} ± {1.96 * error:.4f}"
            name = f"probe-{slug(model)}"
            probe = f"{self.kept[name]['valid_accuracy']:.3f}" if name in self.kept else ""
            rows.append(
                [
                    model,
                    f"{found['nelbo']['all']['bits']:.4f}",
                    f"{site.mean():.4f}",
                    paired,
                    probe,
                    rate,
                ]
            )
        return study.markdown(
            ["mask rates", "NELBO", "single site", "minus uniform", "probe", "learning rate"], rows
        )


def slug(model: str) -> str:
    """The name of a model in file names."""
    return "".join(c if c.isalnum() else "-" for c in model).replace("--", "-").strip("-")


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/mask_rates", FULL, QUICK)
