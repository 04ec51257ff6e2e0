"""`python -m dnadiff.evaluate`: held-out likelihood with error bars, beside Markov models of the same training part."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dnadiff import commands
from dnadiff.config import build
from dnadiff.progress import Progress, table

NOVELTY = 24  # a base is repeated if it lies in a word of so many bases of the training part, on either strand
log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Evaluate and return the contents of the JSON file."""
    from dnadiff import checkpoint, likelihood
    from dnadiff.data.files import check_output

    output = check_output(config["output"] or run_dir / "evaluate.json", config["overwrite"])
    if config["num_draws"] < 2 or config["num_draws"] % 2:
        raise ValueError(f"num_draws {config['num_draws']} must be even and at least 2: two draws a stratum give the Monte-Carlo error")
    if config["part"] not in ("test", "valid", "train"):
        raise ValueError(f"part {config['part']!r} is not known; choose test, valid or train")
    loaded = checkpoint.load(config["checkpoint"])
    data = build(config.get("data") or loaded.config["data"], trust=None if config.get("data") else ("dnadiff",))
    data.expect(loaded.tokenizer)
    data.prepare()
    tiles = data.test_windows(config["part"])
    log.info(
        f"model: {loaded.path}, step {loaded.step:,}; {len(tiles):,} windows of {data.length} tokens of {data.name} ({config['part']})"
    )

    is_dna = loaded.tokenizer.vocab.complement is not None
    groups = token_groups(data, tiles, is_dna, config["part"])
    device = pick_device(config["accelerator"])
    bar = Progress(len(tiles), "evaluate")
    result = likelihood.estimate(
        loaded.denoiser.to(device),
        loaded.process,
        batches(tiles, groups, config["batch_size"]),
        config["num_draws"],
        config["seed"],
        config["block_size"],
        progress=lambda n: bar.update(n, n * data.length * config["num_draws"]),
    )
    bar.close()
    curve = result.curve()
    content = {
        "model": {
            "checkpoint": str(loaded.path),
            "backbone": type(loaded.denoiser.backbone).__name__,
            "parameters": sum(p.numel() for p in loaded.denoiser.parameters()),
            "step": loaded.step,
        },
        "data": data.describe(),
        "part": config["part"],
        "num_draws": config["num_draws"],
        "seed": config["seed"],
        "protocol": f"NELBO, count form, {config['num_draws']} stratified draws per window; blocks of {config['block_size']} windows",
        "groups": {name: result.summary(name) for name in result.tokens if result.tokens[name].sum()},
        "markov": markov_rows(data, tiles, groups, result, config["orders"], config["part"]) if is_dna else [],
        "curve": {"visible": curve.visible.tolist(), "bits": (curve.nats / math.log(2)).tolist(), "se": (curve.se / math.log(2)).tolist()},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_json(output, content)
    show(content, is_dna)
    print(f"files are in {output}")
    return content


def pick_device(accelerator: str) -> str:
    """The torch device meant by `auto`, `cpu`, `gpu`, `cuda` or `mps`."""
    import torch

    known = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "mps": "mps"}
    if accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator not in known:
        raise ValueError(f"accelerator {accelerator!r} is not known; choose auto, {', '.join(known)}")
    return known[accelerator]


def token_groups(data: Any, tiles: Any, is_dna: bool, part: str) -> dict[str, np.ndarray]:
    """Which tokens of each window to count, `{name: (S, L) bool}`: all, and for DNA the novel and the repeated ones."""
    weight = np.stack([tiles[i]["weight"].numpy() for i in range(len(tiles))]) > 0
    groups = {"all": weight}
    if is_dna:
        from dnadiff.kmers import KmerSet

        seen = KmerSet([data.tokenizer.bases(s) for s in data.sequences("train")], NOVELTY)
        covered = per_position(data, part, lambda bases: seen.covered(bases), fill=False)
        repeated = windows_of(covered, tiles)
        groups |= {"novel": weight & ~repeated, "repeated": weight & repeated}
    return groups


def per_position(data: Any, part: str, score: Any, fill: Any) -> dict[int, np.ndarray]:
    """`score(bases)` of every interval of a part, laid out along its record."""
    values: dict[int, np.ndarray] = {}
    for interval in data.intervals[part]:
        ids = data.records[interval.record]
        scored = score(data.tokenizer.bases(ids[interval.start : interval.end]))
        row = values.setdefault(interval.record, np.full(len(ids), fill, dtype=scored.dtype))
        row[interval.start : interval.end] = scored
    return values


def windows_of(values: Mapping[int, np.ndarray], tiles: Any) -> np.ndarray:
    """The stretch of each tile: `(S, L)`."""
    return np.stack([values[t.record][t.start : t.start + tiles.length] for t in tiles.tiles])


def batches(tiles: Any, groups: Mapping[str, np.ndarray], size: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Windows and their groups as tensors."""
    import torch

    for first in range(0, len(tiles), size):
        chosen = range(first, min(first + size, len(tiles)))
        ids = torch.stack([tiles[i]["ids"] for i in chosen])
        yield ids, {name: torch.from_numpy(mask[first : first + size]) for name, mask in groups.items()}


def markov_rows(
    data: Any, tiles: Any, groups: Mapping[str, np.ndarray], result: Any, orders: Sequence[int], part: str
) -> list[dict[str, Any]]:
    """Markov models of the training part, strengths chosen on the validation part, each with its paired difference to the model."""
    from dnadiff.bootstrap import blocks, ratio
    from dnadiff.markov import BackoffMarkov

    if not orders:
        return []
    to_bases = data.tokenizer.bases
    fitted = BackoffMarkov.fit([to_bases(s) for s in data.sequences("train")], max(orders)).tuned(
        [to_bases(s) for s in data.sequences("valid")]
    )
    rows = []
    for order in sorted(orders):
        nats = windows_of(per_position(data, part, lambda bases, k=order: -np.nan_to_num(fitted.log_probs(bases, k)), fill=0.0), tiles)
        row: dict[str, Any] = {"order": order, "strength": fitted.strengths[order], "groups": {}}
        for name, mask in groups.items():
            if not mask.any():
                continue
            theirs = (nats * mask).sum(1)
            total = ratio(theirs, mask.sum(1), blocks(len(mask), result.block_size))
            ours_minus_theirs = result.difference(theirs, name)
            bit = math.log(2)
            row["groups"][name] = {
                "bits": total.value / bit,
                "perplexity": math.exp(total.value),
                "difference_bits": ours_minus_theirs.value / bit,
                "low": ours_minus_theirs.low / bit,
                "high": ours_minus_theirs.high / bit,
            }
        rows.append(row)
    return rows


def show(content: Mapping[str, Any], is_dna: bool) -> None:
    """The closing table."""
    unit = "bits per base" if is_dna else "bits per token"
    rows = []
    for name, g in content["groups"].items():
        se = math.log(2)
        cells = (f"{g['bits']:.4f}", f"{g['nll']:.4f}", f"{g['perplexity']:.4f}", f"{g['se_mc'] / se:.4f}", f"{g['se_total'] / se:.4f}")
        rows.append((name, *cells, f"{g['tokens']:,}"))
    print(table(rows, ("tokens counted", unit, "nats", "perplexity", "se_mc (bits)", "se_total (bits)", "number")))
    if content["markov"]:
        print()
        rows = [
            (
                f"Markov order {m['order']}, {name}",
                f"{g['bits']:.4f}",
                f"{g['difference_bits']:+.4f}",
                f"[{g['low']:+.4f}, {g['high']:+.4f}]",
                verdict(g),
            )
            for m in content["markov"]
            for name, g in m["groups"].items()
        ]
        print(table(rows, ("baseline", unit, "model minus it", "95 % interval", "the model is")))


def verdict(difference: Mapping[str, float]) -> str:
    """What the interval of (model minus baseline) in bits allows to say."""
    return "better" if difference["high"] < 0 else "worse" if difference["low"] > 0 else "not distinguishable"


def main() -> None:
    """The command line."""
    commands.run("evaluate", run)


if __name__ == "__main__":
    main()
