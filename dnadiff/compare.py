"""`python -m dnadiff.compare`: the paired difference of the likelihoods of two models on the same
held-out windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dnadiff import commands
from dnadiff.checks import PositiveInt
from dnadiff.config import SHARED, Config, Json, Keys
from dnadiff.progress import table

PASSED = ("part", "length", "protocol", "num_draws", "batch_size", "block_size", "seed")
KEYS: Keys = {
    **SHARED,
    "a": str,
    "b": str,
    "part": str,
    "length": PositiveInt | None,
    "num_draws": PositiveInt,
    "protocol": str,
    "conjoin": bool | list[Literal["a", "b"]],
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Json:
    """Compare, print the table, and return the contents of the JSON file."""
    from dnadiff.likelihood.evaluation import Evaluation, compare
    from dnadiff.store.disk import check_output
    from dnadiff.weights import checkpoint

    output = check_output(config["output"] or run_dir / "compare.json", config["overwrite"])
    chosen = config["conjoin"]
    conjoined = ["a", "b"] if chosen is True else [] if chosen is False else chosen
    settings = Evaluation(
        **{key: config[key] for key in PASSED}, max_draws=max(2, int(config["num_draws"]))
    )
    device = commands.pick_device(config["accelerator"])
    models = {name: checkpoint.load(config[name], config["trust"]) for name in ("a", "b")}
    trust = config["trust"]
    content = compare(models, settings, output, conjoined, config.get("data"), trust, device)
    show(content)
    print(f"files are in {output}")
    return content


def show(content: Json) -> None:
    """Print the result as a table."""
    bit, unit = math.log(2), "bits per base" if content["is_dna"] else "bits per token"
    rows: list[tuple[str, ...]] = []
    for name, group in content["groups"].items():
        d = group["difference"]
        se_mc = "n/a" if d["se_mc"] is None else f"{d['se_mc'] / bit:.4f}"
        interval = f"[{d['bits_low']:+.4f}, {d['bits_high']:+.4f}]"
        bits = [f"{group[model]['bits']:.4f}" for model in ("a", "b")]
        rows.append(
            (
                name,
                *bits,
                f"{d['bits']:+.4f}",
                interval,
                f"{d['nll']:+.4f}",
                se_mc,
                f"{group['a']['tokens']:,}",
                d["verdict"],
            )
        )
    print(
        table(
            rows,
            (
                unit,
                "a",
                "b",
                "a minus b",
                "95 % interval",
                "nats",
                "se_mc (bits)",
                "tokens",
                "a is",
            ),
        )
    )
    for model in ("a", "b"):
        print(
            f"{model}: {content[model]['checkpoint']}, step {content[model]['step']:,}; "
            f"{content['protocol'][model]}"
        )
    if content["se_total_note"]:
        print(content["se_total_note"])


def main() -> None:
    """The command line."""
    commands.run("compare", run, KEYS)


if __name__ == "__main__":
    main()
