"""The value of the reverse strand: Caduceus-Ph, Ph with augmentation, and Caduceus-PS at equal
FLOPs on E. coli.

    python scripts/experiments/strands.py [--output DIR] [--only NAME] [--list] [--table] [--quick]

64x4 networks with the demo's objective, optimizer and schedule, windows of 512. A PS network reads
both strands of each window, which costs twice as much: it has half the steps. Two seeds each (of
weights, windows and masks); the checkpoint is the best of four validations. Nothing is chosen on
the test part, which is evaluated once for each run: all its windows, on both strands. For a PS
network the two bounds differ only by Monte Carlo noise; for Ph their mean is a bound as well, at
twice the cost.
"""

import itertools
import math

import numpy as np
import study

from dnadiff.likelihood.held_out import Scores

NETWORKS = {
    "ph": ("Caduceus-Ph", ["backbone=caduceus", "data.augment_rc=false"], 1),
    "ph_aug": ("Caduceus-Ph, augmentation", ["backbone=caduceus", "data.augment_rc=true"], 1),
    "ps": ("Caduceus-PS", ["backbone=caduceus_ps", "data.augment_rc=false"], 2),
}
DEMO = [
    "data=ecoli",
    "objective=mdlm",
    "objective/masking=count",
    "objective.weighting=cross_entropy",
    "optimizer.lr=6e-3",
    "weight_decay=0.01",
]
FULL = {
    "network": ["backbone.d_model=64", "backbone.n_layers=4"],
    "data": ["data.length=512", "data.batch_size=16"],
    "steps": 1464,
    "seeds": 2,
}
QUICK = {
    "network": ["backbone.d_model=16", "backbone.n_layers=1"],
    "data": [
        "data.length=128",
        "data.batch_size=4",
        "data.max_valid_windows=8",
        "data.split.valid=[0.9,0.91]",
        "data.split.test=[0.8,0.81]",
    ],
    **{"steps": 8, "seeds": 2},
}


class Study:
    """The pieces, one run each, and their table."""

    def __init__(self, folder, size: dict) -> None:
        self.kept, self.size, self.runs = study.Kept(folder, size), size, folder / "runs"
        self.pieces = {
            self.name(n, s): lambda n=n, s=s: self.run(n, s)
            for s, n in itertools.product(range(1, size["seeds"] + 1), NETWORKS)
        }

    def name(self, network: str, seed: int) -> str:
        return f"{network}-s{seed}"

    def run(self, network: str, seed: int) -> dict:
        """Train, and evaluate the test part on both strands."""
        name, (_, settings, cost) = self.name(network, seed), NETWORKS[network]
        folder, steps = self.runs / name, self.size["steps"] // cost
        sizes = [
            *self.size["network"],
            *self.size["data"],
            f"trainer.max_steps={steps}",
            f"trainer.val_check_interval={steps // 4}",
        ]
        training = study.train(folder, [*DEMO, *settings, *sizes, f"seed={seed}"])
        options = [
            "part=test",
            "orders=[]",
            "num_draws=4",
            "both_strands=true",
            f"windows={folder / 'test.npz'}",
        ]
        result = study.evaluate(folder, folder / "test.json", *options)
        return {
            "training": training,
            "groups": result["groups"],
            "strands": result["both_strands"]["all"],
            "protocol": result["protocol"],
        }

    def table(self) -> str:
        """The table of finished pieces."""
        done = {
            n: [s for s in range(1, self.size["seeds"] + 1) if self.name(n, s) in self.kept]
            for n in NETWORKS
        }
        scores = {
            (n, s): Scores.load(self.runs / self.name(n, s) / "test.npz")
            for n in done
            for s in done[n]
        }
        rows = []
        for network, (title, _, _) in NETWORKS.items():
            if not done[network]:
                continue
            kept = [self.kept[self.name(network, s)] for s in done[network]]
            bits = [r["groups"]["all"]["bits"] for r in kept]
            against = [
                difference(scores[network, s].minus(scores["ph", s]))
                for s in done[network]
                if network != "ph" and ("ph", s) in scores
            ]
            mean = [r["strands"]["mean"] / math.log(2) for r in kept]
            speed, minutes = (
                np.mean([r["training"][k] for r in kept]) for k in ("tokens_per_second", "seconds")
            )
            rows.append(
                [
                    *(
                        title,
                        f"{kept[0]['training']['tokens'] / 1e6:.1f} M",
                        " ".join(f"{b:.4f}" for b in bits),
                        "; ".join(against),
                    ),
                    *(" ".join(f"{b:.4f}" for b in mean), f"{speed:,.0f}", f"{minutes / 60:.1f}"),
                ]
            )
        header = [
            "network",
            "tokens",
            "bits per base, by seed",
            "minus Ph (95 %)",
            "mean of both strands",
            "tokens/s",
            "minutes",
        ]
        return study.markdown(header, rows)


def difference(interval) -> str:
    value, low, high = (x / math.log(2) for x in (interval.value, interval.low, interval.high))
    return f"{value:+.4f} ({low:+.4f} to {high:+.4f})"


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/strands", FULL, QUICK)
