"""Infilling of held-out windows with half of the bases masked: the network compared with two-sided
and one-sided Markov models of order 12.

    python scripts/experiments/infilling.py [--ecoli RUN] [--chr20 RUN] [--output DIR] [--only NAME]
    [--list] [--table] [--quick]

Windows of the test part, spread evenly, without unknown bases. `middle`: the middle half is one
gap, as in `infill=`; `random`: half of the bases are masked at random. Without --ecoli a 64x4
Caduceus is trained first (12 M tokens).

Predictions of a masked base given the visible half of its window:

- *network*: its distribution in one call; *designs*: draws of `sample infill=`, base after base
  (one call for each of 64 groups).
- *order 12, two-sided*: the distribution of a masked base under the back-off Markov chain itself,
  given both sides, by Gibbs sampling: the probabilities of each full conditional, averaged over
  sweeps. Initialized with draws of the one-sided model.
- *order 12, neighbors*: q(b | known bases to the left) q(b | known bases to the right) / q(b), no
  sampling.
- *order 12, one-sided*: q(b | known bases to the left), with a shorter context next to masked
  bases.
- *unconditional*: the network with all bases masked; *most frequent base*: no information.

*most probable*: how often the most probable base is correct. *drawn*: how often a base drawn from
the distribution is correct, the mean probability of the correct base. Intervals are 95 % over
windows. The Markov models are fitted on both strands of the training part and tuned on validation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import study
import torch

import dnadiff
from dnadiff.bootstrap import blocks, ratio
from dnadiff.data.run_data import run_data
from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.request import FREE, Pattern, Templates
from dnadiff.draws import hash64
from dnadiff.kmers import UNKNOWN, reverse_complement
from dnadiff.likelihood.held_out import fit_markov
from dnadiff.markov.model import BackoffMarkov, segments
from dnadiff.sampler.grouped import Grouped

ORDER = 12
PATTERNS = ("middle", "random")
METHODS = (
    "network",
    "designs",
    "two_sided",
    "neighbors",
    "one_sided",
    "unconditional",
    "most_frequent",
)
TITLES = {
    "network": "network, one call",
    "designs": "network, designs (`infill=`)",
    "two_sided": "order 12, two-sided (Gibbs)",
    "neighbors": "order 12, neighbors",
    "one_sided": "order 12, one-sided",
    "unconditional": "unconditional network",
    "most_frequent": "most frequent base",
}
TRAIN = [
    "data=ecoli",
    "data.length=512",
    "data.batch_size=16",
    "optimizer.lr=6e-3",
    "weight_decay=0.01",
    "matmul_precision=medium",
]
FULL = {
    "windows": 64,
    "sweeps": 24,
    "burn": 8,
    "designs": 4,
    "train": [*TRAIN, "trainer.max_steps=1464"],
    "order": ORDER,
}
SMALL = [
    "backbone.d_model=16",
    "backbone.n_layers=1",
    "data.split.valid=[0.9,0.91]",
    "data.split.test=[0.8,0.81]",
    "data.max_valid_windows=4",
]
QUICK = {
    **{"windows": 3, "sweeps": 3, "burn": 1, "designs": 2, "order": 3},
    "train": ["data=ecoli", "data.length=64", "data.batch_size=4", "trainer.max_steps=4", *SMALL],
}


def half_masks(pattern: str, num: int, length: int) -> np.ndarray:
    """The masked half of each window: (num, length) bool."""
    masks = np.zeros((num, length), bool)
    if pattern == "middle":
        masks[:, length // 4 : length // 4 + length // 2] = True
        return masks
    rng = np.random.default_rng(hash64("half masked"))
    for row in masks:
        row[rng.permutation(length)[: length // 2]] = True
    return masks


def log_prob_rows(model: BackoffMarkov, bases: np.ndarray) -> np.ndarray:
    """log q(x | context) of all four bases x at each position: (L, 4), natural logarithms, also at
    unknown bases."""
    rows = np.empty((len(bases), 4))
    for here, segment in segments(bases, model.order):
        q = np.full((len(segment.bases), 4), 0.25)
        for k, a in enumerate(model.strengths):
            n = model.counts.following(segment, k)
            q = (n + a * q) / (n.sum(1, keepdims=True) + a)
        rows[here] = np.log(q)
    return rows


def one_sided(model: BackoffMarkov, windows: np.ndarray) -> np.ndarray:
    """q(b | known bases to the left) at each position: (S, L, 4); code 4 is unknown."""
    return np.stack([np.exp(log_prob_rows(model, bases)) for bases in windows])


def neighbors(model: BackoffMarkov, windows: np.ndarray) -> np.ndarray:
    """Left times right over the composition, normalized: (S, L, 4)."""
    left = one_sided(model, windows)
    right = one_sided(model, np.stack([reverse_complement(bases) for bases in windows]))[
        :, ::-1, ::-1
    ]
    both = left * right / np.exp(log_prob_rows(model, np.full(1, UNKNOWN, np.uint8)))[0]
    return both / both.sum(-1, keepdims=True)


def two_sided(
    model: BackoffMarkov,
    windows: np.ndarray,
    masks: np.ndarray,
    sweeps: int,
    burn: int,
    seed: int = 0,
) -> np.ndarray:
    """The distribution of each masked base given all visible ones under the Markov chain: (S, L,
    4), by Gibbs sampling.

    Bases further apart than the order are drawn together: given all others, each depends only on
    its own context and on the bases whose context includes it.
    """
    rng = np.random.default_rng(seed)
    x = windows.copy()
    for at in range(x.shape[1]):  # initialization from left to right
        rows = masks[:, at].nonzero()[0]
        if len(rows):
            context = x[rows, max(0, at - model.order) : at + 1].copy()
            context[:, -1] = UNKNOWN
            x[rows, at] = _draw(np.exp(_last_rows(model, context)), rng)
    total = np.zeros((*x.shape, 4))
    for sweep in range(sweeps):
        for phase in rng.permutation(model.order + 1):
            probs = _full_conditionals(model, x, phase)
            places = np.zeros_like(masks)
            places[:, phase :: model.order + 1] = True
            places &= masks
            x[places] = _draw(probs[places], rng)
            if sweep >= burn:
                total[places] += probs[places]
    return total / (sweeps - burn)


def _last_rows(model: BackoffMarkov, context: np.ndarray) -> np.ndarray:
    """log q of the last position of each row of `context (R, K)`: one text, with an unknown base
    before each row."""
    gap = np.full((len(context), 1), UNKNOWN, np.uint8)
    text = np.concatenate([gap, context], 1)
    return log_prob_rows(model, text.reshape(-1)).reshape(*text.shape, 4)[:, -1]


def _full_conditionals(model: BackoffMarkov, x: np.ndarray, phase: int) -> np.ndarray:
    """p(b | all other bases) at the positions phase, phase + order + 1, ...: (S, L, 4), zeros
    elsewhere."""
    reach, length = model.order + 1, x.shape[1]
    gap = np.full((len(x), 1), UNKNOWN, np.uint8)
    score = np.zeros((len(x), length, 4))
    for base in range(4):
        tried = x.copy()
        tried[:, phase::reach] = base
        text = np.concatenate([gap, tried], 1).reshape(-1)
        log_p = np.nan_to_num(model.log_probs(text)).reshape(len(x), length + 1)[:, 1:]
        sums = np.concatenate([np.zeros((len(x), 1)), log_p.cumsum(1)], 1)
        for at in range(phase, length, reach):
            score[:, at, base] = sums[:, min(at + reach, length)] - sums[:, at]
    at = slice(phase, None, reach)
    probs = np.exp(score[:, at] - score[:, at].max(-1, keepdims=True))
    score[:, at] = probs / probs.sum(-1, keepdims=True)
    return score


def _draw(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    ends = probs.cumsum(-1)
    return (rng.random((len(probs), 1)) * ends[:, -1:] > ends).sum(-1).clip(max=3).astype(np.uint8)


def network(model: Any, windows: np.ndarray, masks: np.ndarray, batch_size: int = 16) -> np.ndarray:
    """The network's distribution at each masked position, in one call: (S, L, 4)."""
    ids = torch.from_numpy(model.tokenizer.ids_from_bases(windows).astype(np.int64))
    xt = torch.where(torch.from_numpy(masks), model.tokenizer.vocab.mask_id, ids)
    letters = model.tokenizer.ids_from_bases([0, 1, 2, 3]).astype(np.int64)
    t = torch.full((len(xt),), float(masks.mean()))
    with torch.no_grad():
        parts = [
            model.denoiser.log_probs(x, when).exp()[..., letters]
            for x, when in zip(xt.split(batch_size), t.split(batch_size))
        ]
    return torch.cat(parts).numpy()


def designs(model: Any, windows: np.ndarray, masks: np.ndarray, each: int) -> np.ndarray:
    """Fraction of `each` designs that have the correct base at each position: (S, L)."""
    ids = model.tokenizer.ids_from_bases(windows).astype(np.int64)
    codes, nothing = np.full(ids.shape[1], FREE, np.uint8), np.zeros(ids.shape[1], np.uint8)
    patterns = [
        (str(i), Pattern(np.where(mask, model.tokenizer.vocab.mask_id, row), codes, nothing))
        for i, (row, mask) in enumerate(zip(ids, masks))
    ]
    filler = ConditionalSampler(model.denoiser, model.process, model.tokenizer, Grouped())
    drawn = [
        row
        for batch in filler.batches(Templates(patterns, each, model.tokenizer.vocab.mask_id), 1, 16)
        for row in batch.tokens
    ]
    return (np.stack(drawn).reshape(len(ids), each, -1) == ids[:, None]).mean(1)


def interval(correct: np.ndarray, masks: np.ndarray) -> dict[str, float]:
    """Mean of `correct (S, L)` over masked bases, with its 95 % interval over windows."""
    found = ratio((correct * masks).sum(1), masks.sum(1), blocks(len(masks), 1))
    return {"value": found.value, "low": found.low, "high": found.high}


class Study:
    """The pieces: `GENOME-PATTERN-METHOD`, and the table."""

    def __init__(self, folder: Path, runs: dict[str, Path | None], size: dict[str, Any]) -> None:
        self.kept, self.runs, self.size, self.folder = study.Kept(folder, size), runs, size, folder
        self.loaded: dict[str, tuple[Any, Any, np.ndarray]] = {}
        self.markov: dict[str, BackoffMarkov] = {}
        genomes = [genome for genome, run in runs.items() if run is not None or genome == "ecoli"]
        self.pieces = {
            f"{g}-{p}-{m}": lambda g=g, p=p, m=m: self.piece(g, p, m)
            for g in genomes
            for p in PATTERNS
            for m in METHODS
        }

    def data(self, genome: str) -> tuple[Any, Any, np.ndarray]:
        """Model, data and windows as bases (S, L)."""
        if genome not in self.loaded:
            run = self.runs[genome] or self.folder / "run"
            if self.runs[genome] is None:
                study.train(run, self.size["train"])
            model = dnadiff.load(run)
            data = run_data(model.config["data"], model.tokenizer)
            data.prepare()
            tiles = data.test_windows("test")
            candidates = (
                data.tokenizer.bases(tiles[i]["ids"].numpy())
                for i in np.linspace(0, len(tiles) - 1, 4 * self.size["windows"]).astype(int)
            )
            known = [bases for bases in candidates if (bases < UNKNOWN).all()]
            chosen = np.linspace(0, len(known) - 1, min(self.size["windows"], len(known))).astype(
                int
            )
            self.loaded[genome] = model, data, np.stack([known[i] for i in chosen])
        return self.loaded[genome]

    def markov_of(self, genome: str) -> BackoffMarkov:
        """The back-off model, fitted once per process."""
        if genome not in self.markov:
            self.markov[genome] = fit_markov(self.data(genome)[1], [self.size["order"]])[
                self.size["order"]
            ]
        return self.markov[genome]

    def distribution(self, genome: str, method: str, masks: np.ndarray) -> np.ndarray:
        """Probabilities of the bases by one method: (S, L, 4)."""
        model, _, windows = self.data(genome)
        seen = np.where(masks, UNKNOWN, windows).astype(np.uint8)
        if method == "network":
            return network(model, windows, masks)
        if method == "unconditional":
            return network(model, windows, np.ones_like(masks))
        if method == "neighbors":
            return neighbors(self.markov_of(genome), seen)
        if method == "two_sided":
            return two_sided(
                self.markov_of(genome), windows, masks, self.size["sweeps"], self.size["burn"]
            )
        if method == "one_sided":
            return one_sided(self.markov_of(genome), seen)
        order0 = np.exp(log_prob_rows(self.markov_of(genome), np.full(1, UNKNOWN, np.uint8)))[0]
        return np.broadcast_to(order0, (*windows.shape, 4))

    def piece(self, genome: str, pattern: str, method: str) -> dict[str, Any]:
        """Accuracies of one method."""
        model, data, windows = self.data(genome)
        masks = half_masks(pattern, *windows.shape)
        about = {
            "windows": len(windows),
            "length": windows.shape[1],
            "checkpoint": str(model.path),
            "step": model.step,
            "data": data.describe(),
        }
        if method == "designs":
            return {
                "drawn": interval(designs(model, windows, masks, self.size["designs"]), masks),
                **about,
            }
        probs = self.distribution(genome, method, masks)
        of_correct = np.take_along_axis(probs, windows[..., None].astype(int), -1)[..., 0]
        likeliest = interval(probs.argmax(-1) == windows, masks)
        bits = float(-(np.log2(np.maximum(of_correct, 1e-30)) * masks).sum() / masks.sum())
        return {
            "likeliest": likeliest,
            "drawn": interval(of_correct, masks),
            "marginal_bits": bits,
            **about,
        }

    def table(self) -> str:
        """The table of finished pieces."""
        rows = []
        for name in self.pieces:
            if name in self.kept:
                genome, pattern, method = name.split("-")
                row = self.kept[name]
                cells = [_percent(row.get(key)) for key in ("likeliest", "drawn")]
                rows.append(
                    [
                        genome,
                        pattern,
                        TITLES[method],
                        *cells,
                        f"{row['marginal_bits']:.4f}" if "marginal_bits" in row else "",
                    ]
                )
        return study.markdown(
            [
                "genome",
                "masked",
                "method",
                "most probable correct, %",
                "drawn correct, %",
                "bits of the masked bases, one by one",
            ],
            rows,
        )


def _percent(found: dict[str, float] | None) -> str:
    if found is None or _unknown(found["value"]):
        return ""
    span = (
        ""
        if _unknown(found["low"])
        else f" ({100 * found['low']:.2f} to {100 * found['high']:.2f})"
    )  # few windows have no interval
    return f"{100 * found['value']:.2f}{span}"


def _unknown(number: float | None) -> bool:
    """NaN, or null in JSON."""
    return number is None or math.isnan(number)


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/infilling")
    parser.add_argument("--ecoli", type=Path, help="a model trained on E. coli")
    parser.add_argument("--chr20", type=Path, help="a model trained on human chr20")
    options = parser.parse_args()
    folder = options.output / "quick" if options.quick else options.output
    work = Study(
        folder, {"ecoli": options.ecoli, "chr20": options.chr20}, QUICK if options.quick else FULL
    )
    study.work(work.pieces, work.kept, options)
    print(f"\n{work.table()}")


if __name__ == "__main__":
    main()
