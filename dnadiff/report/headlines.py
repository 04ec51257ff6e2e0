"""The main numbers of a run, each with its interval and how to read it, and the verdicts that
follow from the intervals.

The report and the closing table of scripts/demo.py show them. A verdict is "better" or "worse" only
if a 95 % interval excludes 0.
"""

from __future__ import annotations

from typing import NamedTuple

from dnadiff.diffusion.bootstrap import UNDECIDED, verdict
from dnadiff.fields import is_number
from dnadiff.genomics.metrics.composition import Composition, Distance
from dnadiff.report.results import (
    BIT,
    GROUPS,
    ReportedMetric,
    Results,
    RunResults,
    chance_level,
    interval,
    listed,
    markov_models,
    metric_of,
    number,
    shown_groups,
)

_KMERS = "Total variation distance of the frequencies, 0 to 1."
_GC = "Mean shift of the distribution, in percentage points."


class Headline(NamedTuple):
    """One row: a number, its 95 % interval, and what it means."""

    name: str
    value: str
    interval: str
    reading: str


def headlines(results: RunResults) -> list[Headline]:
    """A row for each result: held-out bits, differences to Markov models, samples, downstream
    accuracies."""
    rows: list[Headline] = []
    evaluation, composition, finetune, unit = (
        results.evaluation,
        results.composition,
        results.finetune,
        results.unit,
    )
    if evaluation:
        rows += [
            _bits(evaluation, group, unit, results.uniform_bits)
            for group in shown_groups(evaluation)
        ]
        rows += [_markov(markov, unit) for markov in markov_models(evaluation)]
    if composition:
        rows.append(
            _distance(
                f"{composition.k}-mers, distance from the genome",
                composition.kmer_distance,
                "{:.4f}",
                1,
                _KMERS,
            )
        )
        rows.append(
            _distance(
                "GC content, distance from the genome",
                composition.gc_distance,
                "{:.2f} points",
                100,
                _GC,
            )
        )
    if finetune:
        rows += [_accuracy(name, result, finetune) for name, result in finetune["models"].items()]
        rows += [
            _difference(difference, metric_of(finetune))
            for difference in finetune.get("differences") or ()
        ]
    return rows


def sentences(results: RunResults) -> list[str]:
    """The verdicts in words, one sentence for each part."""
    said = []
    if results.evaluation and (parts := _markov_verdicts(results.evaluation)):
        said.append(
            f"Compared with Markov models, on all held-out {results.unit}s, the model is "
            f"{'; '.join(parts)}."
        )
    if results.composition:
        said.append(_composition_sentence(results.composition))
    if results.finetune and (parts := _accuracy_verdicts(results.finetune)):
        said.append(
            f"On {(results.finetune.get('task') or {}).get('name', 'the downstream task')}, "
            f"{'; '.join(parts)}."
        )
    return said


def _bits(evaluation: Results, group: str, unit: str, uniform_bits: float | None) -> Headline:
    values = evaluation["groups"][group]
    uniform = (
        "."
        if uniform_bits is None
        else f"; uniform guessing gives {uniform_bits:g}. Lower is better."
    )
    reading = {
        "all": f"Mean bits per held-out {unit}{uniform}",
        "novel": (
            f"Only {unit}s that are in no 24-mer of the training part, on either strand: "
            "they "
            "cannot be copied."
        ),
        "repeated": f"Only {unit}s in 24-mers that also occur in the training part: copying helps.",
    }.get(group, "")
    labels = {"se_mc": "Monte Carlo", "se_total": "total"}
    errors = [
        f"{label} {values[key] / BIT:.4f}"
        for key, label in labels.items()
        if is_number(values.get(key))
    ]
    reading += (
        f" Perplexity {values['perplexity']:.3f}." if is_number(values.get("perplexity")) else ""
    )
    reading += f" Standard error: {', '.join(errors)}." if errors else ""
    name = f"Bits per {unit}, {GROUPS.get(group, group).lower()}"
    return Headline(
        name,
        number(values["bits"]),
        interval(values.get("bits_low"), values.get("bits_high")),
        reading.strip(),
    )


def _markov(markov: Results, unit: str) -> Headline:
    values, order, form = markov["groups"]["all"], markov["order"], "{:+.4f}"
    low, high = values.get("low"), values.get("high")
    said = verdict(
        low, high, "The model is worse than", "The model is better than", "Not distinguishable from"
    )
    said = f"{said} order {order}" if said != UNDECIDED else f"{said[0].upper()}{said[1:]}"
    reading = f"{said}. Order {order} itself: {number(values.get('bits'))}."
    name = f"Model minus Markov order {order}, bits per {unit}"
    return Headline(
        name, number(values.get("difference_bits"), form), interval(low, high, form), reading
    )


def _markov_verdicts(evaluation: Results) -> list[str]:
    orders: dict[str, list[int]] = {
        "better than": [],
        "not distinguishable from": [],
        "worse than": [],
    }
    for markov in markov_models(evaluation):
        values = markov["groups"]["all"]
        said = verdict(
            values.get("low"),
            values.get("high"),
            "worse than",
            "better than",
            "not distinguishable from",
        )
        orders.setdefault(said, []).append(markov["order"])
    orders.pop(UNDECIDED, None)
    return [f"{said} order {listed(found)}" for said, found in orders.items() if found]


def _distance(name: str, distance: Distance, form: str, scale: float, meaning: str) -> Headline:
    low, high = scale * distance.low, scale * distance.high
    said = "Farther" if distance.above_baseline else "No farther"
    reading = (
        f"{said} from the genome than real windows are. {meaning} Baseline (real windows compared "
        "with real windows): "
        f"{number(scale * distance.baseline, form)}; the interval is the baseline's range."
    )
    return Headline(
        name, number(scale * distance.samples, form), interval(low, high, form.split()[0]), reading
    )


def _composition_sentence(composition: Composition) -> str:
    parts = (
        (f"{composition.k}-mers", composition.kmer_distance),
        ("GC content", composition.gc_distance),
    )
    above, within = (
        [name for name, distance in parts if distance.above_baseline is side]
        for side in (True, False)
    )
    said = [f"differ from real windows in {listed(above)}"] if above else []
    said += [f"cannot be distinguished from real windows by {listed(within)}"] if within else []
    return f"The samples {' but '.join(said)} (sets of {composition.num_compared} sequences)."


def _accuracy(name: str, result: Results, finetune: Results) -> Headline:
    chance, low, high = chance_level(finetune), result.get("low"), result.get("high")
    seeds = [seed for seed in result.get("per_seed") or () if is_number(seed)]
    metric = metric_of(finetune)
    reading = (
        f"{metric.title} on the test windows"
        if not metric.unit
        else "Test windows classified correctly, in %"
    ) + (f", over {len(seeds)} seeds." if len(seeds) > 1 else ".")
    if (
        chance is not None
        and low is not None
        and high is not None
        and is_number(low)
        and is_number(high)
    ):
        said = verdict(
            low - chance,
            high - chance,
            "Above chance",
            "Below chance",
            "Not distinguishable from chance",
        )
        reading += f" {said} ({100 * chance:.3g})."
    value, low, high = (metric.scaled(each) for each in (result[metric.name], low, high))
    return Headline(
        f"{metric.title}, {name}",
        number(value, metric.form),
        interval(low, high, metric.form),
        reading,
    )


def _difference(difference: Results, metric: ReportedMetric) -> Headline:
    low, high, form = difference.get("low"), difference.get("high"), metric.signed
    better, worse, neither = (
        "Better: the interval is above 0.",
        "Worse: the interval is below 0.",
        "Not distinguishable: the interval contains 0.",
    )
    said = verdict(low, high, better, worse, neither)
    name = f"{difference['a']} minus {difference['b']}, {'points' if metric.unit else metric.title}"
    value, low, high = (metric.scaled(each) for each in (difference["difference"], low, high))
    return Headline(name, number(value, form), interval(low, high, form), said)


def _accuracy_verdicts(finetune: Results) -> list[str]:
    differences = finetune.get("differences") or ()
    said = [
        verdict(
            d.get("low"),
            d.get("high"),
            "is better than",
            "is worse than",
            "is not distinguishable from",
        )
        for d in differences
    ]
    return [
        f"{d['a']} {words} {d['b']}" for d, words in zip(differences, said) if words != UNDECIDED
    ]
