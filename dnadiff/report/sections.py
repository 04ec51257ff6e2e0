"""The sections of a report from top to bottom, each as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from importlib import metadata
from pathlib import Path

import numpy as np

from dnadiff.bootstrap import verdict
from dnadiff.metrics.composition import Composition
from dnadiff.report import panels
from dnadiff.report.figures import group_panels, panel
from dnadiff.report.headlines import headlines, interval, listed, number, sentences
from dnadiff.report.html import facts, pair, picture, section, table
from dnadiff.report.results import (
    ACCURACY,
    BIT,
    GROUPS,
    Columns,
    Results,
    RunResults,
    markov_models,
    metric_of,
    progress,
    short_count,
    shown_groups,
    smoothed,
)

_SIGNED = "{:+.4f}"
NOTICE = 'Generated sequences are unvalidated: see <a href="#responsible-use">responsible use</a>.'
_RESPONSIBLE = (
    "Generated sequences are statistical samples. They are unvalidated, and no claim is made about "
    "their function, safety or clinical "
    "use. Before any synthesis, screen them with current tools, order only from providers that "
    "screen, and follow the rules of your "
    "institution and country. The package contains no hazard filter. Models memorize: share none "
    "that was trained on private genomes. "
    "The full text is RESPONSIBLE_USE.md of the package."
)
_METHODS = (
    "Methods: MDLM, Sahoo et al. 2024 (arXiv 2406.07524); Caduceus, Schiff et al. 2024 (arXiv "
    "2403.03234); "
    "Mamba, Gu and Dao 2023 (arXiv 2312.00752). This is not the dnadiff of MUMmer."
)


def default_title(evaluation: Results | None) -> str:
    """A title with the name of the data."""
    return (
        f"Masked diffusion on {name}"
        if (name := _data_name(evaluation))
        else "A masked diffusion run"
    )


def _data_name(evaluation: Results | None) -> str | None:
    return (evaluation or {}).get("data", {}).get("name")


def masthead(title: str, results: RunResults) -> str:
    """The title, and what the page shows."""
    evaluation, finetune, unit = results.evaluation, results.finetune, results.unit
    shows = [f"how well it predicts held-out {unit}s"] if evaluation else []
    shows += ["how its samples compare with real windows"] if results.composition else []
    shows += ["how it classifies sequences"] if finetune else []
    baselines = (
        ", with simple baselines" if finetune or (evaluation and markov_models(evaluation)) else ""
    )
    tail = f" This page shows {listed(shows)}{baselines}." if shows else ""
    text = (
        f"A model was trained on {_data_name(evaluation) or 'a set of sequences'} to predict "
        f"{unit}s.{tail}"
    )
    return f"<header><h1>{escape(title)}</h1><p>{escape(text)} {NOTICE}</p></header>"


def main_results(results: RunResults) -> str:
    """The verdicts in words, and the table of headline numbers."""
    rows = headlines(results)
    if not rows:
        return ""
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(results))
    verdicts = f'<div class="verdict">{said}</div>' if said else ""
    return section(
        "Results",
        verdicts
        + table(
            ("Result", "Value", "95 % interval", "How to read it"),
            rows,
            numbers=(1, 2),
            kind="cards",
        ),
    )


def about(evaluation: Results | None, details: Results | None) -> str:
    """The data, the test and the model."""
    given = evaluation or {}
    tested = {key: given[key] for key in ("part", "protocol", "num_draws") if key in given}
    columns = (
        facts("Data and test", {**(given.get("data") or {}), **tested}),
        facts("Model", {**(given.get("model") or {}), **(details or {})}),
    )
    return section("Data and model", pair(*filter(None, columns))) if any(columns) else ""


def training(metrics: Columns, unit: str) -> str:
    """The loss curve and its first, last and lowest values."""
    x, label = progress(metrics)
    names = {
        "train_nll": "Training, smoothed",
        "valid_nll": "Validation, averaged weights",
        "valid_nll_live": "Validation, raw weights",
    }
    rows = []
    for key, name in names.items():
        known = np.flatnonzero(np.isfinite(metrics.get(key, np.empty(0))))
        if len(known):
            bits = metrics[key][known] / BIT
            bits = smoothed(bits) if key == "train_nll" else bits
            best = int(np.argmin(bits))
            rows.append(
                (
                    name,
                    number(bits[0]),
                    number(bits[-1]),
                    f"{number(bits[best])} at {short_count(x[known][best])}",
                )
            )
    numbers = table(
        ("Loss", "First", "Last", "Lowest"),
        rows,
        numbers=(1, 2, 3),
        caption=f"Bits per {unit}. Positions are {label}.",
    )
    drawn = picture(
        panel(partial(panels.loss_curve, metrics=metrics, unit=unit)),
        "loss",
        f"Loss in bits per {unit} against {label}; the table gives first, last and lowest values.",
        "The loss of a diffusion objective is the NELBO, an upper bound on the negative "
        "log-likelihood. Of objective=ar it is the negative "
        "log-likelihood itself; of objective=mlm the cross-entropy of the selected tokens, which "
        "is not a bound. Evaluation and sampling use "
        "the averaged weights.",
    )
    return section("Training", pair(drawn, numbers))


def likelihood(evaluation: Results, unit: str) -> str:
    """Held-out bits of each group, compared with Markov models, and the paired differences."""
    bits = picture(
        group_panels(panels.held_out_bits, evaluation, unit),
        "bits",
        f"Bits per {unit} of the model and of Markov models for each group of held-out {unit}s; "
        "the table gives the numbers.",
        "Band: the model's 95 % interval. The value of a diffusion model is an upper bound; those "
        "of autoregressive and Markov models are exact. "
        "Each panel has its own scale.",
    )
    differences = picture(
        group_panels(panels.paired_differences, evaluation, unit),
        "differences",
        f"Paired differences between the model and Markov models in bits per {unit}, with 95 % "
        "intervals; the table gives the numbers.",
        "Both are tested on the same windows, so the interval of the difference is narrower than "
        "that of either value. "
        "Filled: the interval excludes 0. Open: it contains 0.",
    )
    return section(
        "Held-out bits compared with Markov models",
        pair(bits, differences) + _bits_table(evaluation, unit),
    )


def context(evaluation: Results, unit: str, uniform_bits: float | None) -> str:
    """The curve h(n)."""
    curve = evaluation["curve"]
    points = zip(curve["visible"], curve["bits"], curve["se"])
    rows = [
        (number(n, "{:.0f}"), number(bits), number(None if se is None else 1.96 * se))
        for n, bits, se in points
    ]
    drawn = picture(
        panel(
            partial(
                panels.visibility_curve, evaluation=evaluation, unit=unit, uniform_bits=uniform_bits
            )
        ),
        "curve",
        f"Bits per masked {unit} against the number of visible {unit}s; the table gives the "
        "numbers.",
        f"Mean bits per masked {unit} when n other {unit}s of its window, at random positions, are "
        "visible. The mean over all n is the NELBO. "
        "Bars: 95 % intervals over blocks of neighboring windows, which include the choice of "
        "windows and the Monte Carlo error.",
    )
    return section(
        f"Bits against visible {unit}s",
        pair(drawn, table((f"Visible {unit}s n", "Bits", "± 95 %"), rows, numbers=(1, 2))),
    )


def samples(c: Composition) -> str:
    """k-mer frequencies and GC content of the samples compared with real windows."""
    baseline = f"Gray: the 95 % range of an independent set of {c.num_compared} real windows."
    both = (
        " A k-mer and its reverse complement share a point."
        if any("/" in label for label in c.kmers)
        else ""
    )
    kmers = picture(
        panel(partial(panels.kmer_frequencies, composition=c)),
        "kmers",
        f"Frequencies of {c.k}-mers in the samples against the genome; the table gives those that "
        "differ most.",
        f"Color: inside or outside the range of real windows.{both} {baseline}",
    )
    gc = picture(
        panel(partial(panels.gc_content, composition=c)),
        "gc",
        "Distribution of GC content in samples and in real windows; the table gives means and "
        "standard deviations.",
        f"Samples and windows have {c.length} bases each. {baseline}",
    )
    return section(
        "Samples compared with the genome", pair(kmers, gc) + pair(_kmers_table(c), _gc_table(c))
    )


def downstream(finetune: Results) -> str:
    """The task, with accuracies and paired differences of the classifiers."""
    task, differences = finetune.get("task") or {}, finetune.get("differences") or ()
    height = 1.0 + 0.45 * max(len(finetune["models"]), len(differences))
    drawn = panel(partial(panels.accuracies, finetune=finetune), height)
    metric = metric_of(finetune).title
    label = f"{metric} of each model with 95 % intervals; the table of results gives the numbers."
    pictures = [
        picture(drawn, "accuracy", label, "Small dots: single seeds. Lines: 95 % intervals.")
    ]
    if differences:
        drawn = panel(partial(panels.accuracy_differences, finetune=finetune), height)
        label = (
            f"Paired differences of {metric if metric != ACCURACY.title else metric.lower()} "
            "with 95 % intervals; the table of results gives the numbers."
        )
        pictures.append(
            picture(
                drawn,
                "accuracy-differences",
                label,
                "Filled: the interval excludes 0. Open: it contains 0.",
            )
        )
    notes = facts("Task", task), facts("Notes", finetune.get("notes") or {})
    return section(
        f"Downstream task: {task.get('name', 'classification')}",
        pair(*pictures) + pair(*filter(None, notes)),
    )


def footer(commands: Sequence[str]) -> str:
    """Command lines, responsible use, version and methods."""
    lines = "\n".join(commands)
    made = f"<h2>Commands</h2><pre>{escape(lines)}</pre>" if commands else ""
    version = f'<p class="version">Written by dnadiff {escape(_version())}. {_METHODS}</p>'
    full = (
        "<details><summary>Full text</summary><pre "
        f'class="text">{escape(_responsible_use())}</pre></details>'
    )
    return (
        f'<footer>{made}<h2 id="responsible-use">Responsible '
        f"use</h2><p>{_RESPONSIBLE}</p>{full}{version}</footer>"
    )


def _responsible_use() -> str:
    package = Path(__file__).resolve().parents[1]
    found = [
        f
        for f in (package / "RESPONSIBLE_USE.md", package.parent / "RESPONSIBLE_USE.md")
        if f.is_file()
    ]
    return found[0].read_text(encoding="utf-8")


def _bits_table(evaluation: Results, unit: str) -> str:
    rows = []
    for group in shown_groups(evaluation):
        name, ours = GROUPS.get(group, group), evaluation["groups"][group]
        rows.append(
            (
                name,
                "this model",
                number(ours["bits"]),
                number(ours.get("perplexity"), "{:.3f}"),
                "",
                "",
                "",
            )
        )
        for markov in markov_models(evaluation, group):
            theirs = markov["groups"][group]
            low, high = theirs.get("low"), theirs.get("high")
            bits = number(theirs["bits"]), number(theirs.get("perplexity"), "{:.3f}")
            said = verdict(low, high, "model worse", "model better", "not distinguishable")
            difference = (
                number(theirs.get("difference_bits"), _SIGNED),
                interval(low, high, _SIGNED),
            )
            rows.append((name, f"order {markov['order']}", *bits, *difference, said))
    head = (
        f"{unit.capitalize()}s",
        "Model",
        "Bits",
        "Perplexity",
        "Difference",
        "95 % interval",
        "Verdict",
    )
    return table(
        head, rows, numbers=(2, 3, 4, 5), caption="Difference: this model minus the Markov model."
    )


def _kmers_table(c: Composition, num_rows: int = 6) -> str:
    order = np.argsort(-np.abs(c.sample_frequency - c.real_frequency), kind="stable")[:num_rows]
    form, scaled = (
        "{:.3f}",
        [
            100 * values
            for values in (c.sample_frequency, c.real_frequency, c.kmer_low, c.kmer_high)
        ],
    )
    found = [(c.kmers[i], *(values[i] for values in scaled)) for i in order]
    rows = [
        (name, number(ours, form), number(real, form), interval(low, high, form))
        for name, ours, real, low, high in found
    ]
    head = f"{c.k}-mer", "Samples, %", "Genome, %", "Real windows, 95 %"
    return table(
        head, rows, numbers=(1, 2, 3), caption=f"The {len(rows)} {c.k}-mers that differ most."
    )


def _gc_table(c: Composition) -> str:
    rows = [
        (
            name,
            f"{len(gc):,}",
            number(100 * gc.mean(), "{:.2f}"),
            number(100 * gc.std(ddof=1), "{:.2f}"),
        )
        for name, gc in (("Samples", c.sample_gc), ("Real windows", c.real_gc))
    ]
    head = "GC content", "Sequences", "Mean, %", "SD, points"
    return table(
        head, rows, numbers=(1, 2, 3), caption="Mean and standard deviation over sequences."
    )


def _version() -> str:
    try:
        return metadata.version("dnadiff")
    except metadata.PackageNotFoundError:
        return "(not installed)"
