"""The headline numbers of a run, each with its interval and how to read it, and the verdicts that follow from the intervals.

Used by the report and by the closing table of scripts/demo.py. A verdict is "better" or "worse" only where a 95 % interval
excludes 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dnadiff.bootstrap import UNDECIDED, verdict
from dnadiff.metrics.composition import Composition, Distance
from dnadiff.report.results import BIT, GROUPS, chance_level, is_number, markov_models, shown_groups


class Headline(NamedTuple):
    """One row: a number, its 95 % interval, and what it means."""

    name: str
    value: str
    interval: str
    reading: str


def headlines(
    evaluation: Mapping[str, Any] | None = None,
    composition: Composition | None = None,
    finetune: Mapping[str, Any] | None = None,
    unit: str = "base",
    uniform_bits: float | None = 2.0,
) -> list[Headline]:
    """All rows there are results for: held-out bits, differences to Markov models, samples, downstream accuracies."""
    rows: list[Headline] = []
    if evaluation:
        rows += [_bits(evaluation, group, unit, uniform_bits) for group in shown_groups(evaluation)]
        rows += [_markov(markov, unit) for markov in markov_models(evaluation)]
    if composition:
        rows.append(_distance(f"{composition.k}-{unit} words, distance from the genome", composition.word_distance, "{:.4f}", 1, WORDS))
        rows.append(_distance("GC content, distance from the genome", composition.gc_distance, "{:.2f} points", 100, GC))
    if finetune:
        rows += [_accuracy(name, result, finetune) for name, result in finetune["models"].items()]
        rows += [_difference(difference) for difference in finetune.get("differences") or ()]
    return rows


def sentences(
    evaluation: Mapping[str, Any] | None = None,
    composition: Composition | None = None,
    finetune: Mapping[str, Any] | None = None,
    unit: str = "base",
) -> list[str]:
    """The verdicts in words, one sentence for each part."""
    said = []
    if evaluation and (parts := _markov_verdicts(evaluation)):
        said.append(f"Beside Markov models, on all held-out {unit}s, the model is {'; '.join(parts)}.")
    if composition:
        said.append(_composition_sentence(composition))
    if finetune and (parts := _accuracy_verdicts(finetune)):
        said.append(f"On {(finetune.get('task') or {}).get('name', 'the downstream task')}, {'; '.join(parts)}.")
    return said


def number(value: Any, form: str = "{:.4f}") -> str:
    """A number in a table, with a true minus sign; a dash where there is none."""
    return form.format(value).replace("-", "−") if is_number(value) else "—"


def interval(low: Any, high: Any, form: str = "{:.4f}") -> str:
    """An interval in a table."""
    return f"{number(low, form)} to {number(high, form)}" if is_number(low) and is_number(high) else "—"


def listed(items: Sequence[Any]) -> str:
    """1, 2 and 3."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


WORDS = "Half the summed difference of the frequencies, 0 to 1."
GC = "Mean shift of the distribution, in percentage points."


def _bits(evaluation: Mapping[str, Any], group: str, unit: str, uniform_bits: float | None) -> Headline:
    values = evaluation["groups"][group]
    reading = {
        "all": f"The mean cost of a held-out {unit}"
        + ("." if uniform_bits is None else f"; a blind guess costs {uniform_bits:g}. Less is better."),
        "novel": f"Only {unit}s in no 24-letter word of the training part, either strand: what cannot be copied.",
        "repeated": f"Only {unit}s in 24-letter words that the training part holds too: copying helps.",
    }.get(group, "")
    errors = [
        f"{label} {values[key] / BIT:.4f}"
        for key, label in (("se_mc", "Monte-Carlo"), ("se_total", "in all"))
        if is_number(values.get(key))
    ]
    reading += f" Perplexity {values['perplexity']:.3f}." if is_number(values.get("perplexity")) else ""
    reading += f" Standard error: {', '.join(errors)}." if errors else ""
    name = f"Bits per {unit}, {GROUPS.get(group, group).lower()}"
    return Headline(name, number(values["bits"]), interval(values.get("bits_low"), values.get("bits_high")), reading.strip())


def _markov(markov: Mapping[str, Any], unit: str) -> Headline:
    values, order = markov["groups"]["all"], markov["order"]
    low, high = values.get("low"), values.get("high")
    said = verdict(
        low,
        high,
        f"Above order {order} level: the model is worse.",
        f"Below order {order} level: the model is better.",
        f"Not distinguishable from order {order}.",
    )
    reading = f"{said[0].upper()}{said[1:].rstrip('.')}. Order {order} itself: {number(values.get('bits'))}."
    return Headline(
        f"Model minus Markov order {order}, bits per {unit}",
        number(values.get("difference_bits"), "{:+.4f}"),
        interval(low, high, "{:+.4f}"),
        reading,
    )


def _markov_verdicts(evaluation: Mapping[str, Any]) -> list[str]:
    """Such as ["better than order 0 and 3", "not distinguishable from order 6"]."""
    orders: dict[str, list[int]] = {"better than": [], "not distinguishable from": [], "worse than": [], UNDECIDED: []}
    for markov in markov_models(evaluation):
        values = markov["groups"]["all"]
        orders[verdict(values.get("low"), values.get("high"), "worse than", "better than", "not distinguishable from")].append(
            markov["order"]
        )
    return [f"{word} order {listed(found)}" for word, found in orders.items() if found and word != UNDECIDED]


def _distance(name: str, distance: Distance, form: str, scale: float, meaning: str) -> Headline:
    low, high = scale * distance.low, scale * distance.high
    said = (
        "Farther from the genome than real windows are." if distance.beyond_floor else "No farther from the genome than real windows are."
    )
    floor = f"Real windows against real windows: {number(scale * distance.floor, form)}; the range is theirs."
    return Headline(name, number(scale * distance.samples, form), interval(low, high, form.split()[0]), f"{said} {meaning} {floor}")


def _composition_sentence(composition: Composition) -> str:
    parts = ((f"{composition.k}-base words", composition.word_distance), ("GC content", composition.gc_distance))
    beyond, within = ([name for name, distance in parts if distance.beyond_floor is side] for side in (True, False))
    said = [f"differ from real windows in {listed(beyond)}"] if beyond else []
    said += [f"cannot be told from real windows by {listed(within)}"] if within else []
    return f"The samples {' but '.join(said)} (sets of {composition.num_compared} sequences)."


def _accuracy(name: str, result: Mapping[str, Any], finetune: Mapping[str, Any]) -> Headline:
    chance, low, high = chance_level(finetune), result.get("low"), result.get("high")
    seeds = [seed for seed in result.get("per_seed") or () if is_number(seed)]
    reading = (
        f"Share of test windows classified correctly, in %, over {len(seeds)} seeds."
        if len(seeds) > 1
        else "Share of test windows classified correctly, in %."
    )
    if chance is not None and is_number(low) and is_number(high):
        said = verdict(low - chance, high - chance, "Above chance", "Below chance", "Not distinguishable from chance")
        reading += f" {said} ({100 * chance:.3g})."
    return Headline(
        f"Accuracy, {name}", number(_percent(result["accuracy"]), "{:.1f}"), interval(_percent(low), _percent(high), "{:.1f}"), reading
    )


def _difference(difference: Mapping[str, Any]) -> Headline:
    a, b, low, high = difference["a"], difference["b"], difference.get("low"), difference.get("high")
    said = verdict(
        low,
        high,
        "Better: the interval lies above 0.",
        "Worse: the interval lies below 0.",
        "Not distinguishable: the interval contains 0.",
    )
    form = "{:+.1f}"
    return Headline(
        f"{a} minus {b}, points", number(_percent(difference["difference"]), form), interval(_percent(low), _percent(high), form), said
    )


def _accuracy_verdicts(finetune: Mapping[str, Any]) -> list[str]:
    """Such as ["fine-tuned is better than from scratch"]."""
    said = []
    for d in finetune.get("differences") or ():
        word = verdict(d.get("low"), d.get("high"), "is better than", "is worse than", "is not distinguishable from")
        said += [f"{d['a']} {word} {d['b']}"] if word != UNDECIDED else []
    return said


def _percent(value: Any) -> Any:
    return 100 * value if is_number(value) else None
