"""`python -m dnadiff.evaluate`: held-out likelihood with error bars, compared with Markov models of
the training part of the same data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from dnadiff import commands
from dnadiff.checks import Positive, PositiveInt, Range
from dnadiff.config import SHARED, Config, Json, Keys
from dnadiff.progress import table

KEYS: Keys = {
    **SHARED,
    "part": str,
    "length": PositiveInt | None,
    "target_se": Positive | None,
    "max_draws": Annotated[int, Range(2)],
    "protocol": str,
    "order": Literal["left_to_right", "strided", "confidence"] | None,
    "both_strands": bool,
    "conjoin": bool,
    "orders": list[Annotated[int, Range(0, 26)]],
    "windows": str | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Json:
    """Evaluate, print the tables, and return the contents of the JSON file."""
    from dnadiff.likelihood.evaluation import Evaluation, evaluate
    from dnadiff.store.disk import check_output
    from dnadiff.weights import checkpoint

    overwrite, scores = config["overwrite"], config["windows"]
    output = check_output(config["output"] or run_dir / "evaluate.json", overwrite)
    windows = check_output(scores, overwrite) if scores else None
    settings = Evaluation(**{field.name: config[field.name] for field in fields(Evaluation)})
    device = commands.pick_device(config["accelerator"])
    model = checkpoint.load(
        config["checkpoint"], config["trust"], needs_tokenizer=False
    )  # that of data= is used if it has none
    trust = config["trust"]
    content = evaluate(model, settings, output, windows, config.get("data"), trust, device)
    show(content)
    print(f"files are in {output}")
    return content


def show(content: Json) -> None:
    """Print the results as tables."""
    from dnadiff.bootstrap import verdict

    unit = "bits per base" if content["is_dna"] else "bits per token"
    bit = math.log(2)
    rows: list[tuple[str, ...]] = []
    for name, g in content["groups"].items():
        se_mc = "n/a" if g["se_mc"] is None else f"{g['se_mc'] / bit:.4f}"
        rows.append(
            (
                name,
                f"{g['bits']:.4f}",
                f"{g['nll']:.4f}",
                f"{g['perplexity']:.4f}",
                se_mc,
                f"{g['se_total'] / bit:.4f}",
                f"{g['tokens']:,}",
            )
        )
    print(
        table(
            rows,
            (
                "tokens counted",
                unit,
                "nats",
                "perplexity",
                "se_mc (bits)",
                "se_total (bits)",
                "number",
            ),
        )
    )
    print(content["protocol"])
    if content["se_total_note"]:
        print(content["se_total_note"])
    if content["both_strands"]:
        rows = [
            (
                name,
                *(f"{g[key] / bit:.4f}" for key in ("forward", "reverse", "mean")),
                f"{g['gap'] / bit:+.4f}",
                f"[{g['gap_low'] / bit:+.4f}, {g['gap_high'] / bit:+.4f}]",
            )
            for name, g in content["both_strands"].items()
        ]
        print("\n" + table(rows, ("bits", "forward", "reverse", "mean", "gap", "95 % interval")))
    if content["markov"]:
        rows = [
            (
                f"Markov order {m['order']}, {name}",
                f"{g['bits']:.4f}",
                f"{g['difference_bits']:+.4f}",
                f"[{g['low']:+.4f}, {g['high']:+.4f}]",
                verdict(g["low"], g["high"], above="worse", below="better"),
            )
            for m in content["markov"]
            for name, g in m["groups"].items()
        ]
        fitted_on = f"fitted on {content['markov'][0]['trained_on']} (train)"
        print(
            "\n" + table(rows, (fitted_on, unit, "model minus it", "95 % interval", "the model is"))
        )
    if content["code_length"]:
        rows = []
        for row in content["code_length"]["rows"]:
            costs = row["uniform"], row["optimal"]
            lost = [
                "n/a" if c["lost_structure"] is None else f"{100 * c['lost_structure']:.1f} %"
                for c in costs
            ]
            bits = [f"{c['bits']:.4f}" for c in costs]
            se = "n/a" if costs[0]["se"] is None else f"{costs[0]['se']:.4f}"
            rows.append((f"{row['groups']}", bits[0], lost[0], bits[1], lost[1], se))
        calls = (
            "network calls" if content["code_length"]["alone_bits"] is None else "calls per block"
        )
        print(
            "\n"
            + table(
                rows, (calls, unit, "lost structure", "best sizes", "lost structure", "se (bits)")
            )
        )


def main() -> None:
    """The command line."""
    commands.run("evaluate", run, KEYS)


if __name__ == "__main__":
    main()
