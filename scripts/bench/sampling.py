"""Seconds, network calls and expected code length of our samplers and of MDLM's `ddpm_cache`: same network, same machine, same run.

    python scripts/bench/sampling.py [--checkpoint RUN] [--causal RUN] [--output DIR] [--only NAME] [--list] [--table] [--quick] [--json FILE]

Sequences of 1,024 tokens, batches of 1 and of 64. `dna`: the network of RUN, or a 64x4 Caduceus after 2 M tokens of E. coli; for `ar` a causal twin
(a Mamba of one layer more, 0.3 % more parameters). `50257`: the same networks widened to a text vocabulary, with random weights: speed needs no
training, and a code length there would say nothing. Points of equal code length are then those of the DNA network's h(n).

`ddpm_cache` is written here after MDLM's published sampler (arXiv 2406.07524, and its code): logits and probabilities at every position,
uniform times from 1 to 1e-5, one categorical draw at every position and step by dividing probabilities by exponential noise (in float32, as
published; the tails of that draw are not exact), probabilities kept only while no token of the batch changes, and at the end one more call
whose likeliest token fills what is left. It runs on our kernels: the two differ in the sampler alone.

Code lengths come from h(n), measured once on validation windows: sum_k s_k h(n_k) for groups, its expectation over binomial sizes of groups for T
steps (`dnadiff.code_length`), the exact -log p for `ar`. Lost structure is 0 for one token at a time, 1 for one call.

Seconds are those of the fastest of several passes. A pass takes a twentieth of --seconds or two calls: longer ones meet other programs more often. Where that is not all it is made of some of the
steps, evenly spread (`share` says how many): a step's cost does not depend on what the tokens are, so for `ddpm_cache` seconds are the cost of a
step with a call times their number, plus the same without; for ours the cost of a row (a sequence evaluated once) times the rows. Calls and rows are
always counted in full. Every cell of ours times steps of `ddpm_cache` as well, in turns with its own passes, so that what else the machine does
meets both: ratios are between these, at the T of equal code length. With the large vocabulary 64 sequences do not fit into memory for `ddpm_cache` (13 GB for each array): both are timed on
4 sequences and scaled by rows; calls and rows are counted for 64. Memory is what the process grows by in a pass, of the sequences that were timed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff import checkpoint, code_length, likelihood, study
from dnadiff.allocator import keep_freed_memory
from dnadiff.backbone.mamba import Mamba
from dnadiff.config import build
from dnadiff.denoiser import CausalDenoiser, Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.ancestral import Ancestral
from dnadiff.sampler.ar import AR
from dnadiff.sampler.base import Plan, PlannedSampler, Samples
from dnadiff.sampler.first_hitting import FirstHitting
from dnadiff.sampler.grouped import Grouped
from dnadiff.vocab import Vocab

TEXT = Vocab(50_258, 50_257, 50_257, (50_257,))  # GPT-2's 50,257 tokens and the mask
EPS = 1e-5  # where MDLM's grid of times ends
NETWORK = ["data=ecoli", "optimizer.lr=6e-3", "weight_decay=0.01", "matmul_precision=medium"]
FULL = {
    "length": 1024,
    "batches": (1, 64),
    "timed": {"dna": 64, "50257": 4},  # sequences at most that are timed at once
    "steps": (8, 16, 32, 64, 128, 256, 512, 1000),
    "calls": (8, 16, 32, 64, 128),
    "network": ["data.length=1024", "data.batch_size=16"],
    "widths": {"caduceus": (64, 4), "mamba": (64, 5)},
    "windows": 128,
    "num_draws": 16,
}
QUICK = FULL | {
    "length": 64,
    "batches": (1, 4),
    "timed": {"dna": 4, "50257": 1},
    "steps": (4, 64),
    "calls": (8,),
    "network": ["data.length=64", "data.batch_size=4", "data.split.valid=[0.9,0.91]", "data.max_valid_windows=8"],
    "widths": {"caduceus": (16, 1), "mamba": (16, 1)},
    "windows": 16,
    "num_draws": 4,
}


def subs_probs(denoiser: Denoiser, x: Tensor) -> Tensor:
    """Probabilities (B, L, V) of x0 at every position, as MDLM's code makes them: in place where it does so."""
    logits, mask_id = denoiser.logits(x).float(), denoiser.vocab.mask_id
    logits[..., list(denoiser.vocab.never_emitted)] = -torch.inf
    logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    known = x != mask_id
    logits[known] = -torch.inf
    logits[known, x[known]] = 0.0
    return logits.exp()


def ddpm_step(denoiser: Denoiser, x: Tensor, t: float, dt: float, probs: Tensor | None) -> tuple[Tensor, Tensor]:
    """One step of the published sampler: the probabilities it used, to be kept, and the next x."""
    if probs is None:
        probs = subs_probs(denoiser, x)
    q = probs * dt  # log-linear: the chance of a mask is t, that of being revealed in this step dt (over t, which argmax does not see)
    q[..., denoiser.vocab.mask_id] = t - dt
    noise = 1e-10 - (torch.rand_like(q) + 1e-10).log()
    drawn = (q / noise).argmax(-1)
    return probs, torch.where(x == denoiser.vocab.mask_id, drawn, x)


@torch.no_grad()
def ddpm_cache(denoiser: Denoiser, x: Tensor, num_steps: int) -> Samples:
    """The whole published sampler from masks `x (B, L)`; noise is PyTorch's own."""
    times, dt = torch.linspace(1, EPS, num_steps + 1).tolist(), (1 - EPS) / num_steps
    probs, calls = None, 0
    for t in times[:-1]:
        calls += probs is None
        probs, following = ddpm_step(denoiser, x, t, dt, probs)
        probs = probs if torch.equal(following, x) else None
        x = following
    x = torch.where(x == denoiser.vocab.mask_id, subs_probs(denoiser, x).argmax(-1), x)
    return Samples(x, calls + 1, (calls + 1) * len(x))


def ddpm_calls(batch: int, length: int, num_steps: int, seed: int = 0) -> int:
    """Network calls of `ddpm_cache`, the last one included: which step reveals what does not depend on tokens, so coins tell."""
    u = np.random.default_rng(seed).random(batch * length)
    left = np.linspace(1, EPS, num_steps + 1)[1:]  # share of masks left after each step
    opens = np.searchsorted(-left, -u)  # first step with left <= u
    changed = np.bincount(opens, minlength=num_steps + 1)[:num_steps] > 0
    return 1 + int(changed[:-1].sum()) + 1


class Some(PlannedSampler):
    """Some steps of another sampler's plan, evenly spread; what opens at the others stays masked."""

    def __init__(self, whole: PlannedSampler, num_steps: int) -> None:
        super().__init__()
        self.whole, self.num_kept = whole, num_steps

    def num_steps_for(self, length: int) -> int:
        """See `Sampler`."""
        return self.whole.num_steps_for(length)

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """See `PlannedSampler`."""
        plan = self.whole.plan(masked, process, draws)
        steps = plan.step.unique()
        steps = steps[steps >= 0]
        if len(steps) > self.num_kept:
            place = (torch.arange(self.num_kept) + 0.5) * (len(steps) / self.num_kept)
            return plan._replace(step=plan.step.masked_fill(~torch.isin(plan.step, steps[place.long()]), -1))
        return plan


@dataclass
class Timed:
    """What a cell measured."""

    seconds: float
    calls: int
    rows: int
    share: float
    memory_mb: float | None
    ddpm_costs: tuple[float, float] | None  # seconds of a step of ddpm_cache with a call and without, measured in turns


def in_turns(parts: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, tuple[float, Any]]:
    """Seconds of the fastest pass of each, and what it returned; two rounds at least."""
    best: dict[str, tuple[float, Any]] = {}
    began, rounds = time.perf_counter(), 0
    while rounds < 2 or (rounds < 100 and (time.perf_counter() - began) * (rounds + 1) / rounds < seconds):
        for name, part in parts.items():
            start = time.perf_counter()
            result = part()
            took = time.perf_counter() - start
            if name not in best or took < best[name][0]:
                best[name] = took, result
        rounds += 1
    return best


def peak_memory(f: Callable[[], object]) -> float | None:
    """Megabytes that the process grows by during f (Linux)."""

    def status(key: str) -> int:
        return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))

    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = status("VmRSS")
        f()
        return (status("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return None


class DDPM:
    """Steps of MDLM's sampler at `rows` sequences, to be timed; see the head of this file.

    Args:
        denoiser: the network.
        rows: sequences.
        length: tokens in each.
        seconds: that one pass may take.
    """

    def __init__(self, denoiser: Denoiser, rows: int, length: int, seconds: float) -> None:
        masks = torch.full((rows, length), denoiser.vocab.mask_id)
        self.denoiser, self.rows = denoiser, rows
        self.half = torch.where(torch.rand(masks.shape) < 0.5, masks, denoiser.vocab.emitted[0])  # in the middle of the way
        with torch.no_grad():
            self.memory = peak_memory(lambda: ddpm_step(denoiser, masks, 1.0, 1e-3, None))
            start = time.perf_counter()
            self.probs = ddpm_step(denoiser, masks, 1.0, 1e-3, None)[0]
        self.one = time.perf_counter() - start
        self.num_steps = max(2, min(64, int(seconds / self.one)))

    def parts(self) -> dict[str, Callable[[], Any]]:
        """A pass of steps with a network call, and one of steps that keep the probabilities."""
        return {"call": lambda: self._steps(None), "kept": lambda: self._steps(self.probs)}

    @torch.no_grad()
    def _steps(self, probs: Tensor | None) -> None:
        for _ in range(self.num_steps):
            ddpm_step(self.denoiser, self.half, 0.5, 1e-3, probs)

    def costs(self, found: Mapping[str, tuple[float, Any]], batch: int) -> tuple[float, float]:
        """Seconds of a step with a call and of one without, for the whole batch."""
        return found["call"][0] / self.num_steps * batch / self.rows, found["kept"][0] / self.num_steps * batch / self.rows


def ddpm_seconds(costs: tuple[float, float], batch: int, length: int, num_steps: int) -> float:
    """What `num_steps` of MDLM's sampler take at these costs of a step; the last call draws nothing, and counts as one that does."""
    calls = ddpm_calls(batch, length, num_steps)
    return calls * costs[0] + max(0, num_steps + 1 - calls) * costs[1]


def time_ddpm(denoiser: Denoiser, batch: int, timed: int, length: int, num_steps: int, seconds: float) -> Timed:
    """MDLM's sampler, whole where it fits."""
    rows, calls = min(batch, timed), ddpm_calls(batch, length, num_steps)
    steps = DDPM(denoiser, rows, length, seconds / 20)
    if rows == batch and calls * steps.one < seconds / 20:
        x = torch.full((rows, length), denoiser.vocab.mask_id)
        took, result = in_turns({"whole": lambda: ddpm_cache(denoiser, x, num_steps)}, seconds)["whole"]
        return Timed(took, result.nfe, result.rows, 1.0, steps.memory, None)
    costs = steps.costs(in_turns(steps.parts(), seconds), batch)
    total = ddpm_seconds(costs, batch, length, num_steps)
    return Timed(total, calls, calls * batch, steps.num_steps / num_steps * rows / batch, steps.memory, costs)


def time_planned(
    sampler: PlannedSampler, denoiser: Denoiser, process: AbsorbingProcess, batch: int, timed: int, length: int, seconds: float
) -> Timed:
    """One of ours, in turns with MDLM's."""
    plan = sampler.plan(torch.ones(batch, length, dtype=torch.bool), process, Draws.for_batch(0, batch))
    calls = len(plan.step.unique())
    rows = sum(len(row.unique()) for row in plan.step)
    few = min(batch, timed)
    x, draws = process.prior(few, length), Draws.for_batch(0, few)

    def run(num_steps: int) -> Samples:
        return Some(sampler, num_steps).sample(denoiser, process, x, draws)

    memory = peak_memory(lambda: run(2))
    start = time.perf_counter()
    run(2)
    some = max(2, min(calls, int(seconds / 20 / (time.perf_counter() - start) * 2)))
    theirs = DDPM(denoiser, few, length, seconds / 20)
    found = in_turns({"ours": lambda: run(some)} | theirs.parts(), seconds)
    took, result = found["ours"]
    return Timed(took * rows / result.rows, calls, rows, result.rows / rows, memory, theirs.costs(found, batch))


def time_ar(denoiser: CausalDenoiser, process: AbsorbingProcess, batch: int, timed: int, length: int, seconds: float) -> Timed:
    """Left to right with its cache; a Mamba's step costs the same everywhere, so a shorter sequence tells."""
    few = min(batch, timed)

    def run(tokens: int) -> Samples:
        return AR().sample(denoiser, process, process.prior(few, tokens), Draws.for_batch(0, few))

    memory = peak_memory(lambda: run(min(16, length)))
    start = time.perf_counter()
    run(min(16, length))
    some = max(1, min(length, int(seconds / 20 / (time.perf_counter() - start) * min(16, length))))
    took, _ = in_turns({"ar": lambda: run(some)}, seconds)["ar"]
    return Timed(took * length / some * batch / few, length, length * batch, some * few / (length * batch), memory, None)


class Study:
    """The pieces (`weights`, `weights-ar`, `curve`, one for each cell), their tables and picture."""

    def __init__(self, folder: Path, size: Mapping[str, Any], options: Any) -> None:
        self.kept, self.size, self.seconds, self.tokens = study.Kept(folder), size, options.seconds, options.tokens
        self.given = {"caduceus": options.checkpoint, "mamba": options.causal}
        self.pieces: dict[str, study.Piece] = {}
        for name, backbone in (("weights", "caduceus"), ("weights-ar", "mamba")):
            if self.given[backbone] is None:
                self.pieces[name] = lambda n=name, b=backbone: self.train(n, b)
        self.pieces["curve"] = self.curve
        self.cells = {
            f"{vocabulary}-b{batch}-{method}{f'-{steps}' if steps else ''}": (vocabulary, batch, method, steps)
            for vocabulary in ("dna", "50257")
            for batch in size["batches"]
            for method, several in self.methods().items()
            for steps in several
        }
        self.pieces |= {name: lambda c=cell: self.cell(*c) for name, cell in self.cells.items()}

    def methods(self) -> dict[str, tuple[Any, ...]]:
        """Samplers and their numbers of steps or calls; `lost2` is as few groups as lose at most 2 % of the structure."""
        calls, steps = self.size["calls"], self.size["steps"]
        groups = {"grouped": (*calls, "lost2"), "grouped_optimal": (*calls, "lost2")}
        return {"ddpm_cache": steps, "ancestral": (*calls, steps[-1]), **groups, "first_hitting": (None,), "ar": (None,)}

    def train(self, name: str, backbone: str) -> dict:
        """A short training run with the demo's optimizer and schedule."""
        width, layers = self.size["widths"][backbone]
        batch = int(next(o.partition("=")[2] for o in self.size["network"] if o.startswith("data.batch_size=")))
        steps = max(1, self.tokens // (batch * self.size["length"]))
        objective = "ar" if backbone == "mamba" else "mdlm"
        network = [f"backbone={backbone}", f"backbone.d_model={width}", f"backbone.n_layers={layers}", f"objective={objective}"]
        often = f"trainer.val_check_interval={max(1, steps // 2)}"
        return study.train(
            self.kept.folder / "runs" / name, [*NETWORK, *self.size["network"], *network, often, f"trainer.max_steps={steps}"]
        )

    def loaded(self, backbone: str) -> checkpoint.Loaded:
        """The model of DNA, given or trained here."""
        name = {"caduceus": "weights", "mamba": "weights-ar"}[backbone]
        if self.given[backbone] is None:
            self.kept[name]  # says so if it is missing
        return checkpoint.load(self.given[backbone] or self.kept.folder / "runs" / name)

    def network(self, vocabulary: str, causal: bool) -> tuple[nn.Module, AbsorbingProcess]:
        """A denoiser and its process; with the large vocabulary the same network, widened and untrained."""
        found = self.loaded("mamba" if causal else "caduceus")
        if vocabulary == "dna":
            return found.denoiser.eval(), found.process
        torch.manual_seed(0)
        config = {k: v for k, v in found.config["backbone"].items() if not k.startswith("_")}
        kind = Mamba if causal else type(found.denoiser.backbone)
        wide = (CausalDenoiser if causal else Denoiser)(kind(TEXT, **config)).eval()
        return wide, AbsorbingProcess(TEXT, LogLinear())

    def curve(self) -> dict:
        """h(n) of the model on validation windows, and what the causal twin makes of the same."""
        found, twin, length = self.loaded("caduceus"), self.loaded("mamba"), self.size["length"]
        data = build(found.config["data"])
        data.prepare()
        tiles = data.test_windows("valid", length)
        chosen = np.unique(np.linspace(0, len(tiles) - 1, self.size["windows"]).round().astype(int)).tolist()
        ids = torch.stack([tiles[i]["ids"] for i in chosen])
        weight = torch.stack([tiles[i]["weight"] for i in chosen]) > 0
        batches = [likelihood.Batch(i, {"all": w}) for i, w in zip(ids.split(16), weight.split(16))]
        result = likelihood.estimate(found.denoiser, found.process, batches, self.size["num_draws"])
        start = likelihood.all_masked(found.denoiser, found.process, batches)
        h = code_length.Samples.of(result, start).fit(length)
        ar = likelihood.chain_rule(twin.denoiser, batches).interval()
        parameters = {name: sum(p.numel() for p in each.denoiser.parameters()) for name, each in (("model", found), ("ar", twin))}
        about = {"windows": len(chosen), "tokens": int(weight.sum()), "checkpoint": str(found.path), "parameters": parameters}
        return {"h": h.tolist(), "nelbo": float(h.mean()), "nelbo_se_mc": result.se_mc(), "ar": ar.value, **about}

    def sizes(self, method: str, steps: Any) -> np.ndarray | None:
        """Sizes of the groups of a cell; None where 2 % of no structure is asked for."""
        h, best = np.array(self.kept["curve"]["h"]), method == "grouped_optimal"
        if steps == "lost2":
            return code_length.fewest_groups(h, optimal=best)
        return code_length.optimal_sizes(h, steps) if best else code_length.uniform_sizes(len(h), steps)

    def cell(self, vocabulary: str, batch: int, method: str, steps: Any) -> dict:
        """One sampler at one number of steps."""
        length, timed = self.size["length"], self.size["timed"][vocabulary]
        keep_freed_memory()
        sizes = self.sizes(method, steps) if method.startswith("grouped") else None
        about = {"vocabulary": vocabulary, "batch": batch, "method": method, "threads": torch.get_num_threads()}
        if steps == "lost2" and sizes is None:
            return about | {"steps": None, "why": "this model has found no structure"}
        denoiser, process = self.network(vocabulary, method == "ar")
        if method == "ddpm_cache":
            found = time_ddpm(denoiser, batch, timed, length, steps, self.seconds)
        elif method == "ar":
            found = time_ar(denoiser, process, batch, timed, length, self.seconds)
        else:
            made = {"ancestral": lambda: Ancestral(steps), "first_hitting": FirstHitting}
            sampler = made.get(method, lambda: Grouped(sizes=sizes.tolist()))()
            found = time_planned(sampler, denoiser, process, batch, timed, length, self.seconds)
        number = len(sizes) if sizes is not None else length if steps is None else steps
        return about | {"steps": number, "timed_rows": min(batch, timed), **vars(found)}

    def nats(self, method: str, steps: int, asked: Any) -> tuple[float, float]:
        """Expected code length in nats per token by the DNA network's h(n), and lost structure; NaN for what there is not."""
        if method == "ar":
            return self.kept["curve"]["ar"], math.nan
        h = np.array(self.kept["curve"]["h"])
        if method == "first_hitting":
            total = h.sum()
        elif method.startswith("grouped"):
            total = code_length.code_length(h, self.sizes(method, asked))
        else:
            end = EPS if method == "ddpm_cache" else 0.0
            total = code_length.discrete_time(h, 1 - np.linspace(end, 1, steps + 1))
        return total / len(h), code_length.lost_structure(h, total)

    def rows(self) -> list[dict]:
        """What is finished, with code lengths and the ratio to `ddpm_cache` at equal code length."""
        if "curve" not in self.kept:
            return []
        rows = []
        for name, cell in self.cells.items():
            if name in self.kept and self.kept[name]["steps"] is not None:
                row = self.kept[name]
                nats, lost = self.nats(row["method"], row["steps"], cell[3])
                rows.append({"name": name, **row, "nats": nats, "lost_structure": lost, "asked": cell[3]})
        several = np.unique(np.geomspace(min(self.size["steps"]), max(self.size["steps"]), 25).round().astype(int)).tolist()
        curve = [(self.nats("ddpm_cache", steps, None)[1], steps) for steps in several]
        for row in rows:
            row["equal_steps"] = row["ratio"] = row["ratio_default"] = None
            if row["method"] == "ddpm_cache" or row["ddpm_costs"] is None:
                continue
            row["equal_steps"] = steps_at(curve, row["lost_structure"])
            for key, steps in (("ratio", row["equal_steps"]), ("ratio_default", self.size["steps"][-1])):
                if steps is not None:
                    row[key] = ddpm_seconds(row["ddpm_costs"], row["batch"], self.size["length"], steps) / row["seconds"]
        return rows

    def table(self) -> str:
        """All cells, and what they say about the aims."""
        rows, lines = self.rows(), []
        for vocabulary in ("dna", "50257"):
            for batch in self.size["batches"]:
                cells = [
                    [
                        f"`{r['method']}`{' (2 %)' if r['asked'] == 'lost2' else ''}",
                        *(f"{r['steps']:,}", f"{r['seconds']:.3g}", f"{r['calls']:,}", f"{r['rows']:,}"),
                        f"{r['nats']:.5f}" if vocabulary == "dna" else "",
                        "" if math.isnan(r["lost_structure"]) else f"{100 * r['lost_structure']:.2f} %",
                        "" if r["memory_mb"] is None else f"{r['memory_mb']:,.0f}",
                        f"{100 * r['share']:.0f} %",
                        f"{r['ratio']:.2f} (T = {r['equal_steps']})" if r["ratio"] else "",
                    ]
                    for r in rows
                    if (r["vocabulary"], r["batch"]) == (vocabulary, batch)
                ]
                if cells:
                    header = ["sampler", "steps", "seconds", "calls", "rows", "nats per token", "lost structure", "MB", "share timed"]
                    lines += [f"\nVocabulary {vocabulary}, batch {batch}, {self.size['length']} tokens\n"]
                    lines += [study.markdown([*header, "times faster than ddpm_cache at equal code length"], cells)]
        return "\n".join([*lines, "", *self.aims(rows)])

    def aims(self, rows: list[dict]) -> list[str]:
        """The aims, each with what was found."""
        large, said = max(self.size["batches"]), []

        def chosen(vocabulary: str, batch: int | None = None, methods: tuple[str, ...] = ("grouped", "grouped_optimal", "ancestral")):
            return [
                r for r in rows if r["ratio"] and r["vocabulary"] == vocabulary and batch in (None, r["batch"]) and r["method"] in methods
            ]

        for vocabulary, aim in (("dna", 1.2), ("50257", 3.0)):
            if found := chosen(vocabulary, large):
                ratios = [r["ratio"] for r in found]
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                said.append(
                    f"{vocabulary}, batch {large}, equal code length: {mean:.2f} times faster than ddpm_cache (geometric mean of {len(ratios)} cells, "
                    f"{min(ratios):.2f} to {max(ratios):.2f}); aim {aim}"
                )
        for r in rows:
            if r["asked"] == "lost2" and r["ratio_default"]:
                said.append(
                    f"{r['vocabulary']}, batch {r['batch']}: {r['method']} with {r['steps']} calls ({100 * r['lost_structure']:.2f} % lost) is "
                    f"{r['ratio_default']:.1f} times faster than ddpm_cache with T = {self.size['steps'][-1]}"
                    f"{'; aim 12' if r['batch'] == large else ''}"
                )
        if every := chosen("dna") + chosen("50257"):
            worst = min(every, key=lambda r: r["ratio"])
            slower = sum(r["ratio"] < 1 for r in every)
            said.append(
                f"slower than ddpm_cache at equal code length: {slower} of {len(every)} cells; the least ratio is {worst['ratio']:.2f} ({worst['name']})"
            )
        return said

    def picture(self, path: Path) -> Path | None:
        """Code length against seconds, one panel for each batch size; None before anything is finished."""
        from dnadiff.report import figures

        rows = [r for r in self.rows() if r["vocabulary"] == "dna"]
        if not rows:
            return None
        panels = [(draw, ([r for r in rows if r["batch"] == batch], batch)) for batch in self.size["batches"]]
        return figures.save(figures.overview(panels), path)


def steps_at(curve: list[tuple[float, int]], lost: float) -> int | None:
    """The T of `ddpm_cache` that loses as much structure, on the line between points (lost, T) in logarithms of both; None outside of them."""
    points = sorted((math.log(share), math.log(steps)) for share, steps in curve if share > 0)
    if len(points) < 2 or not lost > 0 or not points[0][0] <= math.log(lost) <= points[-1][0] + 0.01:
        return None
    return round(math.exp(np.interp(math.log(lost), *zip(*points))))


def draw(axes: Any, rows: list[dict], batch: int) -> None:
    """The panel of one batch size."""
    for number, method in enumerate(("ddpm_cache", "ancestral", "grouped", "grouped_optimal", "first_hitting", "ar")):
        points = sorted((r["seconds"], r["nats"]) for r in rows if r["method"] == method)
        if points:
            axes.plot(*zip(*points), "o-" if len(points) > 1 else "s", color=f"C{number}", label=method, markersize=3.5, linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("expected code length, nats per token")
    axes.set_title(f"{batch} sequence{'s' * (batch > 1)} at a time")
    if axes.has_data():
        axes.legend()


def main() -> None:
    parser = study.arguments(__doc__, "runs/bench_sampling")
    parser.add_argument("--checkpoint", metavar="RUN", help="a trained model of DNA (default: a short training here)")
    parser.add_argument("--causal", metavar="RUN", help="its causal twin for ar (default: a short training here)")
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of the short trainings (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the passes of one cell (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.seconds = min(options.tokens, 2_000), min(options.seconds, 0.1)
    it = Study(options.output / "quick" if options.quick else options.output, QUICK if options.quick else FULL, options)
    study.work(it.pieces, it.kept, options)
    if options.list:
        return
    print(it.table())
    picture = it.picture((options.json or it.kept.path("picture")).with_suffix(".png"))
    if picture:
        print(f"picture: {picture}")
    if options.json:
        finite = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in it.rows()]
        options.json.write_text(json.dumps(finite, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
