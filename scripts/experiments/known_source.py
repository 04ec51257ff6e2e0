"""Do the objectives reach the entropy of a known source? A random order-3 Markov chain of at most
1.2 bits per base.

    python scripts/experiments/known_source.py [--output DIR] [--only NAME] [--list] [--table]
    [--quick]

The optimum for any model on windows of L bases is known: their entropy, (H of 3 bases + (L - 3)
H)/L bits per base, is the cost of the exact next-base distribution, and also the NELBO of the exact
posterior (the chain rule holds in every order). For T discrete steps it is sum_i (alpha_s -
alpha_t) E h(n), n ~ Binomial(L - 1, alpha_t), with the exact h(n): the mean posterior entropy of a
masked base when n random others are visible, by forward-backward over the chain's 64 states, Monte
Carlo over masks and windows. The score entropy of the exact ratios is sum_n h(n)/L, which is the
entropy of the window again: the table shows the Monte Carlo estimate of it.

Test windows are a sample of the source, so a model is evaluated by its excess over -log2 p of these
windows, which the chain gives exactly. `d3pm` and `sedd` are evaluated by their own bounds (mass on
the mask, reconstruction and unnormalized ratios all cost), the others by
`python -m dnadiff.evaluate`. The target is the excess of the exact distribution, within 1 % of 2 -
the target's bits.
"""

import math
from pathlib import Path

import numpy as np
import study
import torch

from dnadiff import likelihood
from dnadiff.config import build
from dnadiff.draws import Draws, hash64
from dnadiff.formats.fasta import write_fasta
from dnadiff.formats.reader import Record
from dnadiff.likelihood import curve
from dnadiff.likelihood.held_out import Windows
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded, build_objective

ORDER, MAX_BITS = 3, 1.2
CONTEXTS = 4**ORDER
OBJECTIVES = {
    "mdlm": ["objective=mdlm", "backbone=caduceus"],
    "ar": ["objective=ar", "backbone=mamba"],
    # alpha(1) = 1e-3 would leave 1e-3 of every base unmasked and its cost, 2e-3 bits, out of the
    # sum over steps.
    "d3pm": [
        "objective=d3pm",
        "objective.masking.num_steps=64",
        "noise.eps=1e-6",
        "backbone=caduceus",
    ],
    "sedd": ["objective=sedd", "backbone=caduceus"],
}
FULL = {
    "length": 256,
    "records": 40,
    "bases": 200_000,
    "steps": 3000,
    "batch": 32,
    "size": (64, 4),
    "masks": 128,
    "draws": 8,
}
QUICK = {
    "length": 64,
    "records": 4,
    "bases": 4_000,
    "steps": 12,
    "batch": 8,
    "size": (16, 1),
    "masks": 4,
    "draws": 2,
}


class Chain:
    """A random order-3 Markov chain over A, C, G, T with an entropy rate just below `max_bits`.

    The logits of the next base are a random effect of each of the three bases before it and, half
    as large, one of the three together. Without the separate effects single bases would carry
    almost no information (h(0) is 1.98 bits and h(L - 1) 0.4): the posterior would be a decoding
    problem that a 64x4 Caduceus does not solve in minutes (0.05 bits above the exact h(n) after 12
    M tokens).

    Attributes:
        rows: (64, 4) distribution of the next base; the context of bases a, b, c (oldest first) is
            16 a + 4 b + c.
        stationary: (64,) stationary distribution of the contexts.
    """

    def __init__(self, seed: int = 1, max_bits: float = MAX_BITS) -> None:
        draws = np.random.default_rng(seed)
        effects = draws.normal(size=(ORDER, 4, 4))
        each = np.indices((4,) * ORDER).reshape(ORDER, CONTEXTS)  # bases a, b, c of every context
        logits = sum(effect[bases] for effect, bases in zip(effects, each)) + 0.5 * draws.normal(
            size=(CONTEXTS, 4)
        )
        low, high = 0.0, 50.0  # sharper rows have a lower rate; `high` is always sharp enough
        for _ in range(60):
            middle = (low + high) / 2
            self._sharpen(logits, middle)
            low, high = (middle, high) if self.rate > max_bits else (low, middle)
        self._sharpen(logits, high)

    def _sharpen(self, logits: np.ndarray, factor: float) -> None:
        weights = np.exp(factor * (logits - logits.max(1, keepdims=True)))
        self.rows = (weights + 1e-12) / (weights + 1e-12).sum(1, keepdims=True)
        context, base = np.divmod(np.arange(4 * CONTEXTS), 4)
        moves = np.zeros((CONTEXTS, CONTEXTS))
        moves[context, (4 * context + base) % CONTEXTS] = self.rows.ravel()
        # pi (P - 1) = 0 and sum pi = 1, as one least-squares problem
        system = np.vstack([moves.T - np.eye(CONTEXTS), np.ones(CONTEXTS)])
        self.stationary = np.linalg.lstsq(system, np.append(np.zeros(CONTEXTS), 1.0), rcond=None)[
            0
        ].clip(0)
        self.stationary /= self.stationary.sum()

    @property
    def rate(self) -> float:
        """H, bits per base."""
        return float(-(self.stationary[:, None] * self.rows * np.log2(self.rows)).sum())

    def conditional_bits(self, order: int) -> float:
        """Entropy of a base given `order` < 3 bases before it: the minimum cost of a model of lower
        order."""
        joint = (
            (self.stationary[:, None] * self.rows).reshape(4 ** (ORDER - order), 4**order, 4).sum(0)
        )
        return float(-(joint * np.log2(joint / joint.sum(1, keepdims=True))).sum())

    def window_bits(self, length: int) -> float:
        """Entropy of a window of `length` bases over `length`."""
        start = -(self.stationary * np.log2(np.maximum(self.stationary, 1e-300))).sum()
        return float((start + (length - ORDER) * self.rate) / length)

    def sample(self, number: int, length: int, seed: int) -> np.ndarray:
        """(number, length) bases 0..3, each row starting from the stationary distribution."""
        draws = np.random.default_rng(seed)
        context = draws.choice(CONTEXTS, size=number, p=self.stationary)
        bases = np.empty((number, length), np.uint8)
        bases[:, 0], bases[:, 1], bases[:, 2] = context // 16, context // 4 % 4, context % 4
        bounds = self.rows.cumsum(1)[:, :3]
        for at in range(ORDER, length):
            bases[:, at] = (draws.random(number)[:, None] > bounds[context]).sum(1)
            context = (4 * context + bases[:, at]) % CONTEXTS
        return bases

    def log_prob(self, bases: np.ndarray) -> np.ndarray:
        """(S,) natural logarithms for windows (S, L) of a stationary sequence."""
        bases = bases.astype(np.int64)
        context = 16 * bases[:, :-ORDER] + 4 * bases[:, 1:-2] + bases[:, 2:-1]
        return np.log(self.stationary)[context[:, 0]] + np.log(self.rows)[
            context, bases[:, ORDER:]
        ].sum(1)

    def posterior(self, bases: np.ndarray, masked: np.ndarray) -> np.ndarray:
        """(S, L, 4): the distribution of each base given the visible ones, by forward-backward over
        the 64 contexts.

        Args:
            bases: (S, L).
            masked: (S, L) bool.
        """
        number, length = bases.shape
        fits = np.where(
            masked[..., None], 1.0, np.eye(4)[bases]
        )  # (S, L, 4): the possible bases of each position
        forward = np.empty(
            (length, number, CONTEXTS)
        )  # distribution of the last three bases, given those visible so far
        joint = self.stationary.reshape(1, 4, 4, 4) * np.einsum(
            "sa,sb,sc->sabc", fits[:, 0], fits[:, 1], fits[:, 2]
        )
        forward[2] = (joint / joint.sum((1, 2, 3), keepdims=True)).reshape(number, CONTEXTS)
        rows = self.rows.reshape(4, 16, 4)
        for at in range(ORDER, length):
            joint = (
                np.einsum("sac,acx->scx", forward[at - 1].reshape(number, 4, 16), rows)
                * fits[:, at, None, :]
            )
            forward[at] = (joint / joint.sum((1, 2), keepdims=True)).reshape(number, CONTEXTS)
        posterior = np.empty((number, length, 4))
        backward = np.ones(
            (number, CONTEXTS)
        )  # likelihood of later bases given the context, up to a factor
        for at in range(length - 1, ORDER - 1, -1):
            both = forward[at] * backward
            posterior[:, at] = both.reshape(number, 16, 4).sum(1)
            backward = np.einsum(
                "acx,scx->sac", rows, backward.reshape(number, 16, 4) * fits[:, at, None, :]
            ).reshape(number, CONTEXTS)
            backward /= backward.max(1, keepdims=True)
        both = (forward[2] * backward).reshape(number, 4, 4, 4)
        for at, others in enumerate([(2, 3), (1, 3), (1, 2)]):
            posterior[:, at] = both.sum(others)
        return posterior / posterior.sum(-1, keepdims=True)

    def exact_h(self, length: int, masks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """h(n) in nats and its standard error, (L,) each: mean posterior entropy of a masked base
        when n random others are visible.

        The expected cross-entropy of the exact posterior is its entropy, which has less variance
        than -log p of the base that was drawn.
        """
        draws, h = np.random.default_rng(seed), np.empty((length, masks))
        for n in range(length):
            bases = self.sample(masks, length, seed + 1 + n)
            masked = draws.random((masks, length)).argsort(1).argsort(1) >= n
            p = self.posterior(bases, masked)
            entropy = -(p * np.log(p.clip(1e-300))).sum(-1)
            h[n] = (entropy * masked).sum(1) / (length - n)
        return h.mean(1), h.std(1, ddof=1) / math.sqrt(masks)


def step_weights(length: int, alpha: np.ndarray) -> np.ndarray:
    """(L,) weights of h(n) in T steps: `curve.discrete_time` is linear in h."""
    return np.array([curve.discrete_time(unit, alpha) for unit in np.eye(length)]) / length


def own_bound(loaded: Loaded, ids: torch.Tensor, draws: int, batch: int) -> np.ndarray:
    """(batches, draws) the objective's own bound on -log p in nats per base, as validation
    estimates it."""
    objective = build_objective(loaded.config, loaded.process).evaluation()
    results = []
    with torch.no_grad():
        for first in range(0, len(ids) - batch + 1, batch):
            x0 = ids[first : first + batch]
            noise = Draws(hash64(7, "bound"), torch.arange(batch), batch, first)
            steps = (Draws(noise.seed, noise.rows, batch, first * draws + j) for j in range(draws))
            results.append(
                [
                    float(objective(loaded.denoiser, x0, torch.ones_like(x0), each).nll)
                    for each in steps
                ]
            )
    return np.array(results)


class Study:
    """The pieces and their table."""

    def __init__(self, folder: Path, size: dict) -> None:
        self.kept, self.size, self.chain = study.Kept(folder, size), size, Chain()
        self.fasta = folder / "source.fa"
        self.pieces = {
            "source": self.source,
            **{name: lambda name=name: self.model(name) for name in OBJECTIVES},
        }

    def source(self) -> dict:
        """The FASTA file and the exact values."""
        size, bit = self.size, math.log(2)
        bases = self.chain.sample(size["records"], size["bases"], seed=11)
        self.fasta.parent.mkdir(parents=True, exist_ok=True)
        write_fasta(
            self.fasta,
            [
                Record(f"r{i}", "", np.frombuffer(b"ACGT", np.uint8)[row].tobytes())
                for i, row in enumerate(bases)
            ],
        )
        h, se = self.chain.exact_h(size["length"], size["masks"], seed=1000)
        window = self.chain.window_bits(size["length"])
        from_h, from_h_se = (
            float(h.mean()) / bit,
            float(np.sqrt((se**2).sum())) / size["length"] / bit,
        )
        print(
            f"H {self.chain.rate:.5f} bits; windows {window:.5f}; sum of h(n)/L {from_h:.5f} +- "
            f"{from_h_se:.5f}"
        )
        lower = [self.chain.conditional_bits(order) for order in range(ORDER)]
        return {
            "rate": self.chain.rate,
            "lower_orders": lower,
            "window": window,
            "from_h": from_h,
            "from_h_se": from_h_se,
            "h": h.tolist(),
            "h_se": se.tolist(),
        }

    def model(self, name: str) -> dict:
        """Train one objective and evaluate it on the test windows."""
        source, size, bit = self.kept["source"], self.size, math.log(2)
        folder = self.kept.folder / "runs" / name
        width, layers = size["size"]
        metrics = study.train(
            folder,
            [
                *(
                    "data=fasta",
                    f"data.path={self.fasta}",
                    "data/split=fraction",
                    "data.stranded=true",
                    f"data.length={size['length']}",
                ),
                *(f"data.batch_size={size['batch']}", *OBJECTIVES[name]),
                *(
                    f"backbone.d_model={width}",
                    f"backbone.n_layers={layers}",
                    "optimizer.lr=6e-3",
                    "weight_decay=0.01",
                ),
                *(
                    f"trainer.max_steps={size['steps']}",
                    f"trainer.val_check_interval={max(1, size['steps'] // 6)}",
                ),
                "matmul_precision=medium",
            ],
        )
        loaded = checkpoint.load(folder)
        data = build(loaded.config["data"])
        data.prepare()
        tiles = data.test_windows("test")
        ids = torch.stack([tiles[i]["ids"] for i in range(len(tiles))]).long()
        ids = ids[(ids < 11).all(1)]
        true = -self.chain.log_prob(ids.numpy() - 7)
        groups = {"all": np.ones(ids.shape, bool)}
        own = name in ("d3pm", "sedd")
        if own:
            batch = min(32, len(ids) // 2)
            bound = own_bound(loaded, ids, size["draws"], batch)
            excess = (
                bound.mean(1)
                - true[: len(bound) * batch].reshape(len(bound), batch).mean(1) / size["length"]
            )
        else:
            windows = Windows([{"ids": x} for x in ids], groups, 32)
            result = likelihood.estimate(loaded.denoiser, loaded.process, windows, size["draws"])
            excess = (result.per_sequence() - true) / size["length"]
        target, target_se, how = (
            source["window"],
            0.0,
            "sum of h(n)" if name == "sedd" else "entropy of a window",
        )
        if name == "d3pm":
            steps = loaded.config["objective"]["masking"]["num_steps"]
            alpha = loaded.process.noise.alpha(
                torch.linspace(0, 1, steps + 1, dtype=torch.float64)
            ).numpy()
            weight = step_weights(size["length"], alpha)
            # The mean of h over n is known exactly: only the difference to it is estimated by Monte
            # Carlo.
            more = weight - 1 / size["length"]
            target = source["window"] + float(more @ np.array(source["h"])) / bit
            target_se, how = (
                float(np.sqrt((more**2 * np.array(source["h_se"]) ** 2).sum())) / bit,
                f"T = {steps} steps, from h(n)",
            )
        return {
            "bits": source["window"] + float(excess.mean()) / bit,
            "se": float(excess.std(ddof=1)) / math.sqrt(len(excess)) / bit,
            "sampled_source": float(true.mean()) / size["length"] / bit,
            "target": target,
            "target_se": target_se,
            "target_is": how,
            "own_bound": own,
            **{
                key: metrics[key]
                for key in (
                    "tokens",
                    "seconds",
                    "tokens_per_second",
                    "parameters",
                    "best_valid_nll",
                    "arguments",
                )
            },
        }

    def table(self) -> str:
        """The table of finished pieces."""
        lines = []
        if "source" in self.kept:
            s = self.kept["source"]
            lines.append(
                f"Order-3 chain: H = {s['rate']:.4f} bits per base (orders 0, 1, 2: "
                f"{', '.join(f'{b:.4f}' for b in s['lower_orders'])}), windows of "
                f"{self.size['length']}: {s['window']:.4f}; "
                f"sum of the exact h(n): {s['from_h']:.4f} +- {s['from_h_se']:.4f}.\n"
            )
        rows = []
        for name in (n for n in OBJECTIVES if n in self.kept):
            r = self.kept[name]
            gap, allowed = r["bits"] - r["target"], 0.01 * (2 - r["target"])
            error = math.hypot(r["se"], r["target_se"])
            rows.append(
                [
                    *(
                        f"`{name}`",
                        r["target_is"],
                        f"{r['target']:.4f} +- {r['target_se']:.4f}",
                        f"{r['bits']:.4f}",
                    ),
                    *(
                        f"{gap:+.4f} +- {error:.4f}",
                        f"{100 * gap / (2 - r['target']):.2f} %",
                        "yes" if gap <= allowed else "no",
                    ),
                    *(f"{r['tokens'] / 1e6:.1f} M", f"{r['seconds'] / 60:.1f}"),
                ]
            )
        header = [
            "objective",
            "target",
            "bits per base",
            "model",
            "above the target",
            "of 2 - target",
            "within 1 %",
            "tokens",
            "minutes",
        ]
        return "\n".join([*lines, study.markdown(header, rows)])


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/known_source", FULL, QUICK)
