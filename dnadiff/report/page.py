"""The page and the overview picture of a run, from the results that the commands wrote. Missing
results are left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.report import figures, panels, sections
from dnadiff.report.html import write
from dnadiff.report.results import Results, RunResults, has_loss, markov_models

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(
    path: str | os.PathLike[str],
    results: RunResults,
    *,
    title: str | None = None,
    details: Results | None = None,
    commands: Sequence[str] = (),
) -> Path:
    """Write the report page of a run.

    Args:
        path: an existing file is replaced atomically.
        title: by default it has the name of the data.
        details: further facts about the model, such as `{"scan": "cpu", "Layers": 4}`.
        commands: command lines that produced the results.

    Raises:
        ValueError: if there are no results.
    """
    metrics, evaluation, composition, finetune = (
        results.metrics,
        results.evaluation,
        results.composition,
        results.finetune,
    )
    if not (metrics or evaluation or composition or finetune):
        raise ValueError(
            "nothing to report: give metrics, evaluation, samples with real windows, or finetune"
        )
    title = title or sections.default_title(evaluation)
    unit = results.unit
    body = [
        sections.masthead(title, results),
        sections.main_results(results),
        sections.about(evaluation, details),
        sections.training(metrics, unit) if metrics and has_loss(metrics) else "",
        sections.likelihood(evaluation, unit) if evaluation and markov_models(evaluation) else "",
        sections.context(evaluation, unit, results.uniform_bits)
        if evaluation and evaluation.get("curve")
        else "",
        sections.samples(composition) if composition else "",
        sections.downstream(finetune) if finetune else "",
        sections.footer(commands),
    ]
    return write(path, title, body)


def save_overview(path: str | os.PathLike[str], results: RunResults, pixels: int = 1200) -> Path:
    """Save the main panels of a run in one picture, `.png` (`pixels` wide) or `.svg`.

    Raises:
        ValueError: if there are no results, or the name has another suffix.
    """
    metrics, evaluation, composition, finetune = (
        results.metrics,
        results.evaluation,
        results.composition,
        results.finetune,
    )
    chosen: list[Callable[[Axes], None]] = []
    if metrics and has_loss(metrics):
        chosen.append(partial(panels.loss_curve, metrics=metrics, unit=results.unit))
    if evaluation:
        chosen.append(partial(panels.held_out_bits, evaluation=evaluation, unit=results.unit))
        if evaluation.get("curve"):
            curve = partial(
                panels.visibility_curve,
                evaluation=evaluation,
                unit=results.unit,
                uniform_bits=results.uniform_bits,
            )
            chosen.append(curve)
    if composition:
        chosen += [
            partial(draw, composition=composition)
            for draw in (panels.kmer_frequencies, panels.gc_content)
        ]
    if finetune:
        chosen.append(partial(panels.accuracies, finetune=finetune))
    return figures.save(figures.overview(chosen), path, pixels)
