"""The page of `train`: loss, validation and speed by steps."""

from __future__ import annotations

import json
import math
from typing import Any

from dnadiff.options.base import Result
from dnadiff.plot import LOSSES
from dnadiff.progress import duration
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, Table


def page(result: Result, options: Any) -> Page:
    """The page of a run folder."""
    import pandas

    folder = result.paths[0]
    metrics = result.content
    log = pandas.read_csv(folder / "metrics.csv")
    loss = "nats per token"
    losses = log.melt("step", list(LOSSES), "part", loss).dropna()
    losses["part"] = losses["part"].map({key: label for key, (label, _) in LOSSES.items()})
    pictures = [
        Picture(
            "loss",
            "loss by steps, of training and validation",
            "Nats per token of the batches of training, and of the validation part.",
            charts.lines(losses, "step", loss, "part"),
        )
    ]
    steps = log[log["train_loss"].notna()]
    rate = "tokens per second"
    speed = steps.assign(**{rate: steps["tokens"].diff() / steps["seconds"].diff()})
    speed = speed[speed[rate].between(0, math.inf, inclusive="neither")]
    if len(speed) > 1:
        drawn = charts.lines(speed, "step", rate)
        text = "Tokens per second since the step logged before."
        pictures.append(Picture("speed", "tokens per second by steps", text, drawn))
    valid = log[log["valid_nll"].notna()]
    rows = [
        (int(r.step), int(r.tokens), duration(r.seconds), f"{r.valid_nll:.4f}")
        for r in valid.itertuples()
    ]
    table = Table(("step", "tokens", "time", "validation, nats per token"), rows, numbers=(2, 3))
    path = folder / "samples.jsonl"
    lines = map(json.loads, path.read_text("utf-8").splitlines() if path.exists() else ())
    samples = {line["step"]: line["samples"] for line in lines}  # a resumed run repeats steps
    sampled = [(step, text[:120]) for step in sorted(samples) for text in samples[step]]
    note = "The first validation windows, generated again from the same noise at each validation."
    sections = [Section("Samples", [note, Table(("step", "its first 120 tokens"), sampled)])]
    best, last = metrics["best_valid_nll"], metrics["valid_nll"]
    about = "not validated" if last is None else f"validation {last:.4f} nats per token"
    if best is not None and best != last:
        about += f", lowest {best:.4f}"
    sentence = (
        f"{metrics['step']:,} steps on {metrics['tokens']:,} tokens in "
        f"{duration(metrics['seconds'])}: {about}."
    )
    made = {k: metrics[k] for k in ("parameters", "tokens_per_second", "peak_memory_mb")}
    made |= {"path": str(folder), "seed": options.seed}
    return Page(
        "Training", sentence, pictures, table if rows else None, sections[: len(sampled)], made
    )
