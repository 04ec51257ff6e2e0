"""The methods against each other on a trained model: variance at equal calls, indels, several sites per window.

    python scripts/variants/methods.py --checkpoint RUN --genome FILE [--region chrom:first-last] [--output DIR] [--list] [--table]

variance: SNVs, one strand; the variance of one order of `block` times its calls over that of one pair of draws of `window` times its calls.
indels: mean difference of `block` and `window` for insertions and deletions of 1 to 6 bases, with the error of that difference.
sites: RMS error of several sites per window for each number of sites, on a region that should be one of validation.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).parents[1] / "experiments")]
import study

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.regions import Region, region_of
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.variant_effect.block import Block
from dnadiff.variant_effect.effects import Audit
from dnadiff.variant_effect.network import NUM_BASES, Network
from dnadiff.variant_effect.variant import Edit
from dnadiff.variant_effect.window import PairedWindow

FULL = {"snvs": 100, "indels": 200, "block": 16, "orders": 8, "draws": 64, "sites": 256}
QUICK = {"snvs": 3, "indels": 4, "block": 4, "orders": 2, "draws": 4, "sites": 16}


def random_edits(genome: Genome, region: Region, number: int, indels: bool, seed: int = 0) -> list[Edit]:
    """Random SNVs, or insertions and deletions of 1 to 6 bases."""
    draw, found = np.random.default_rng(seed), []
    while len(found) < number:
        start, size = int(draw.integers(region.start, region.end - 6)), int(draw.integers(1, 7))
        letters = DNATokenizer().decode(genome.window(region.chrom, start, start + size))
        new = "".join(draw.choice(list("ACGT"), size))
        if "N" in letters or (not indels and new[0] == letters[0]):
            continue
        pair = (("", new) if draw.random() < 0.5 else (letters, "")) if indels else (letters[0], new[0])
        found.append(Edit(region.chrom, start, *pair))
    return found


def variance(network: Network, region: Region, size: dict) -> dict:
    """Variance times calls of both methods."""
    edits = random_edits(network.reference, region, size["snvs"], indels=False)
    empty = np.full((1, len(edits), NUM_BASES), np.nan)
    block, window = Block(size["block"], size["orders"]), PairedWindow(size["draws"])
    (_, of_block), (_, of_window) = (method.llr(network, edits, empty) for method in (block, window))
    # Of one order: its steps from the variant on, for both alleles but for the first, which they share; and of all draws.
    calls = 2 * math.ceil(size["block"] / 2) + 1, 2 * size["draws"]
    costs = float(of_block.mean() * size["orders"] * calls[0]), float(of_window.mean() * calls[1])
    return {"block": costs[0], "window": costs[1], "window_over_block": costs[1] / costs[0]}


def indels(network: Network, region: Region, size: dict) -> dict:
    """The approximation of `block` for indels."""
    edits = random_edits(network.reference, region, size["indels"], indels=True)
    empty = np.full((1, len(edits), NUM_BASES), np.nan)
    (a, var_a), (b, var_b) = (m.llr(network, edits, empty) for m in (Block(size["block"], size["orders"]), PairedWindow(size["draws"])))
    difference, known = (a - b)[0], np.isfinite(a - b)[0]
    noise, spread = (var_a + var_b)[0][known].mean(), difference[known].var(ddof=1)
    return {
        "mean": float(difference[known].mean()),
        "se": float(np.sqrt(spread / known.sum())),
        "sd_without_noise": float(np.sqrt(max(spread - noise, 0))),
        "correlation": float(np.corrcoef(a[0][known], b[0][known])[0, 1]),
        "indels": int(known.sum()),
    }


def sites(network: Network, region: Region, size: dict, number: int) -> dict:
    """The error of several sites per window against one."""
    count = max(size["sites"], 2 * network.window)  # sites that share a window are up to a window apart
    chosen = [(region.chrom, site) for site in range(region.start, min(region.end, region.start + count))]
    return {"rms": Audit().add(network.at_sites(chosen, number), network.at_sites(chosen, 1)).rms}


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/variants/methods")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--genome", default="bundled:ecoli_K12_MG1655.fa.gz")
    parser.add_argument("--region", help="default: the first record's part from 90 % to 100 %, which is validation by default")
    options = parser.parse_args()
    size, genome = QUICK if options.quick else FULL, Genome.open(options.genome)
    record, length = next(iter(genome.lengths.items()))
    region = region_of(options.region, genome.lengths) if options.region else Region(record, round(0.9 * length), length)
    kept = study.Kept(options.output / "quick" if options.quick else options.output, {**size, "checkpoint": options.checkpoint})

    def network() -> Network:
        model = dnadiff.load(options.checkpoint)
        return Network(model.denoiser, model.process, genome, model.length, stranded=True)

    pieces = {
        "variance": lambda: variance(network(), region, size),
        "indels": lambda: indels(network(), region, size),
        **{f"sites_{n}": lambda n=n: sites(network(), region, size, n) for n in (2, 4, 8, 16)},
    }
    study.work(pieces, kept, options)
    if not options.list:
        rows = [[name, key, f"{value:.5g}"] for name in pieces if name in kept for key, value in kept[name].items()]
        print("\n" + study.markdown(["piece", "quantity", "value"], rows))


if __name__ == "__main__":
    main()
