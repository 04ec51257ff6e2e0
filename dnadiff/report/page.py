"""The page and the picture of a run, from the plain results of the command lines. What is missing is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dnadiff.metrics.composition import Composition, compare
from dnadiff.report import figures, panels, sections
from dnadiff.report.html import document, write
from dnadiff.report.results import has_loss, markov_models


def write_report(
    path: str | os.PathLike[str],
    *,
    metrics: Mapping[str, np.ndarray] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    samples: Iterable[str | bytes | np.ndarray] | None = None,
    real: Iterable[str | bytes | np.ndarray] | None = None,
    finetune: Mapping[str, Any] | None = None,
    title: str | None = None,
    details: Mapping[str, Any] | None = None,
    commands: Sequence[str] = (),
    unit: str = "base",
    uniform_bits: float | None = 2.0,
    both_strands: bool = True,
) -> Path:
    """Write the page; an existing file is replaced in one step.

    Args:
        path: of the page.
        metrics: columns of the training, from `read_metrics`.
        evaluation: the content of `evaluate.json`.
        samples: generated sequences, letters or uint8 bases.
        real: windows of the genome, as long as the samples.
        finetune: the content of `finetune.json`.
        title: of the page; by default it names the data.
        details: further facts about the model, such as `{"scan": "cpu", "Layers": 4}`.
        commands: command lines that made the results.
        unit: what a token is called: base, character.
        uniform_bits: bits of a blind guess, None draws no such line.
        both_strands: count words on both strands.

    Raises:
        ValueError: if there is nothing to report, or samples come without real windows or the other way round.
    """
    composition = _composition(samples, real, both_strands)
    if not (metrics or evaluation or composition or finetune):
        raise ValueError("there is nothing to report: give metrics, evaluation, samples with real windows, or finetune")
    title = title or sections.default_title(evaluation)
    body = [
        sections.masthead(title, evaluation, composition, finetune, unit),
        sections.results(evaluation, composition, finetune, unit, uniform_bits),
        sections.about(evaluation, details),
        sections.training(metrics, unit) if metrics and has_loss(metrics) else "",
        sections.likelihood(evaluation, unit) if evaluation and markov_models(evaluation) else "",
        sections.context(evaluation, unit, uniform_bits) if evaluation and evaluation.get("curve") else "",
        sections.samples(composition) if composition else "",
        sections.downstream(finetune) if finetune else "",
        sections.footer(commands),
    ]
    return write(Path(path), document(title, "\n".join(part for part in body if part)))


def save_overview(
    path: str | os.PathLike[str],
    *,
    metrics: Mapping[str, np.ndarray] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    samples: Iterable[str | bytes | np.ndarray] | None = None,
    real: Iterable[str | bytes | np.ndarray] | None = None,
    finetune: Mapping[str, Any] | None = None,
    unit: str = "base",
    uniform_bits: float | None = 2.0,
    both_strands: bool = True,
    pixels: int = 1200,
) -> Path:
    """Save the main panels in one picture, `.png` (`pixels` wide) or `.svg`. Arguments as in `write_report`."""
    composition = _composition(samples, real, both_strands)
    chosen: list[tuple[Callable[..., None], Sequence[Any]]] = []
    if metrics and has_loss(metrics):
        chosen.append((panels.loss_curve, (metrics, unit)))
    if evaluation:
        chosen.append((panels.held_out_bits, (evaluation, "all", unit)))
        if evaluation.get("curve"):
            chosen.append((panels.visibility_curve, (evaluation, unit, uniform_bits)))
    if composition:
        chosen += [(panels.word_frequencies, (composition,)), (panels.gc_content, (composition,))]
    if finetune:
        chosen.append((panels.accuracies, (finetune,)))
    return figures.save(figures.overview(chosen), path, pixels)


def _composition(samples: Iterable | None, real: Iterable | None, both_strands: bool) -> Composition | None:
    if (samples is None) != (real is None):
        given, missing = ("samples", "real") if real is None else ("real", "samples")
        raise ValueError(
            f"{given} came without {missing}; samples are judged beside real windows of the same length, so give both or neither"
        )
    return None if samples is None else compare(samples, real, both_strands=both_strands)
