"""The page of `sample`: designs next to unguided samples, or samples next to held-out windows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas
from numpy import ndarray

from dnadiff.design.designs import unguided_path
from dnadiff.design.samples import JSONL
from dnadiff.fields import Json, JsonDict
from dnadiff.genomics.metrics.composition import MAX_SEQUENCES, evenly_spaced
from dnadiff.genomics.metrics.designs import (
    DesignTable,
    compare_designs,
    information,
    real_windows,
)
from dnadiff.genomics.metrics.memorization import cut, held_out_windows
from dnadiff.jobs.journal import is_compressed, open_bytes
from dnadiff.plot.style import logo_figure, panel
from dnadiff.progress import log
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, Table, interval, shown
from dnadiff.report.samples import divergences
from dnadiff.weights import checkpoint

if TYPE_CHECKING:
    from dnadiff.options.base import Result

MAX_LOGO = 300  # positions
_LISTED = 20


def page(result: Result, options: Any) -> Page:
    """The page of a finished file of samples."""
    content, output = result.content, result.paths[0]
    kind = output.name.removesuffix(".gz").rpartition(".")[2]
    if kind in ("txt", "jsonl"):
        return _of_texts(content, output)
    ours = DesignTable.read(output, content["records"])
    design = content.get("design")
    name = "samples" if design is None else "designs"
    tables = {name: ours}
    if "unguided" in content:
        tables["unguided"] = DesignTable.read(unguided_path(output), content["unguided"]["number"])
    real = _real(options, int(ours.lengths.min()))
    sections = [] if real is None else [_comparison(tables, *real, options.seed)]
    pictures = [] if design is None else _rewards(tables, content)
    if ours.counts is not None and len(ours.counts) <= MAX_LOGO:
        label, caption = f"Sequence logo of the {name}.", "Letters are as high as their information"
        logo = logo_figure(information(ours.counts))
        caption += f" in bits, corrected for the number of {name}; all count equally."
        pictures.append(Picture("logo", label, caption, figure=logo, wide=True))
    weights = content.get("weights")
    effective = weights and weights["effective_size"]["mean"]
    size = f"; effective sample size {effective:.3g} of {weights['proposals']}" if weights else ""
    count = f"{len(ours):,} {name}, {ours.num_distinct:,} distinct"
    if design is None:
        gc = f"{100 * ours.gc:.1f} % G and C"
        sentence = f"{count}: {min(ours.lengths)} to {max(ours.lengths)} bases, {gc}{size}."
    else:
        without = ""
        if "unguided" in content:
            without = f" against {content['unguided']['reward']['mean']:.3g} unguided"
        reward = described(design["reward"])
        sentence = f"{count}: mean reward {design['mean']:.3g}{without}{size}. Reward: {reward}."
        sections.insert(0, Section("Designs and unguided samples", [_numbers(tables)]))
    return Page(
        f"{len(ours):,} {name}",
        sentence,
        pictures,
        _best(ours),
        sections,
        made(content),
        synthetic=True,
    )


def _rewards(tables: Mapping[str, DesignTable], content: Mapping[str, Json]) -> list[Picture]:
    """The distributions of the reward, and reward against likelihood."""
    columns = {name: (of.columns["reward"], _per_base(of)) for name, of in tables.items()}
    if real := content.get("real"):
        columns["real"] = np.array(real["reward"]), np.array(real["log_prob"] or np.nan)
    frames = [
        pandas.DataFrame({"reward": reward, "log_prob": log_prob, "set": name})
        for name, (reward, log_prob) in columns.items()
    ]
    frame = pandas.concat(frames, ignore_index=True)
    titles = {"log_prob": "log-probability under the model, nats per base"}
    distribution = charts.histogram(frame, "reward", "set", titles)
    found = [
        Picture(
            "rewards",
            "Distribution of the reward of designs and unguided samples.",
            "The reward of the designs and of unguided samples of the same model. Dashed: means.",
            chart=distribution,
        )
    ]
    known = frame[np.isfinite(frame["log_prob"])]
    if len(known):
        text = (
            "Upwards is a higher reward, to the right more probable without it: a lower bound for "
            "a diffusion model, exact for an autoregressive one."
        )
        label = "Reward against log-probability of designs, unguided samples and real sequences."
        chart = charts.scatter(known, "log_prob", "reward", "set", titles=titles)
        found.append(Picture("tradeoff", label, text, chart=chart))
    return found


def _per_base(table: DesignTable) -> ndarray:
    return table.columns["log_prob"] / table.lengths


def _numbers(tables: Mapping[str, DesignTable]) -> Table:
    """What designs and unguided samples have in common, side by side."""
    rows: list[list[Json]] = []
    for name, table in tables.items():
        reward, match = (table.columns[key] for key in ("reward", "longest_match"))
        values = [reward.mean(), reward.std(), reward.max(), _per_base(table).mean(), match.mean()]
        numbers = [float(x) if np.isfinite(x) else None for x in values]
        rows.append([name, len(table), table.num_distinct, *numbers, 100 * table.gc, table.hamming])
    head = ["", "records", "distinct", "reward, mean", "sd", "best"]
    head += ["log p per base", "longest match, bases", "GC, %", "Hamming distance"]
    text = "Nats; the match is with the training part (copies=true); the distance of two records."
    return Table(head, rows, text)


def _best(table: DesignTable) -> Table:
    """The records with the highest reward, each once, or the first ones."""
    reward, log_prob = table.columns["reward"], _per_base(table)
    kept = evenly_spaced(len(table), MAX_SEQUENCES)
    order = np.argsort(-np.nan_to_num(reward[kept]), kind="stable")
    letters = np.frombuffer(b"ACGTN", np.uint8)
    rows: dict[str, list[Json]] = {}
    for place in order.tolist():
        i = int(kept[place])
        text = letters[table.sequences[place]].tobytes().decode()
        numbers = (reward[i], log_prob[i], table.columns["longest_match"][i])
        row = [table.names[i], *(float(x) if np.isfinite(x) else None for x in numbers), text]
        rows.setdefault(text, row)
        if len(rows) == _LISTED:
            break
    head = ["name", "reward", "log p per base, nats", "longest match", "sequence"]
    used = [c for c in range(5) if any(row[c] is not None for row in rows.values())]
    caption = "The highest rewards, different sequences" if 1 in used else "The first sequences"
    shown_rows = [[row[c] for c in used] for row in rows.values()]
    return Table([head[c] for c in used], shown_rows, f"{caption}; the file has all.")


def _real(options: Any, length: int) -> tuple[str, list[ndarray], bool] | None:
    """What samples are compared with, in words, its windows, and whether both strands count; None,
    with a log message, if there is nothing."""
    if options.real is not None:
        windows = real_windows(options.real, length)
        return f"{len(windows):,} windows of {Path(options.real).name}", windows, False
    try:
        data = checkpoint.load(options.checkpoint, options.trust).training_data(options.trust)
        part = "test" if data.intervals["test"] else "valid"
        found = cut(held_out_windows(data, part, length), length, max_unknown=0)
    except (ValueError, OSError) as error:
        log.info(f"report: nothing is compared with real sequences; give real=y.fa ({error})")
        return None
    windows = [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]
    if len(windows) < 4:
        log.info(f"report: {len(windows)} held-out windows are too few; give real=y.fa")
        return None
    return f"{len(windows):,} windows of {data.name}, part {part}", windows, not data.stranded


def _comparison(
    tables: Mapping[str, DesignTable], source: str, real: list[ndarray], both: bool, seed: int
) -> Section:
    """k-mers and GC content compared with real windows."""
    found = {name: compare_designs(of.sequences, real, both, seed) for name, of in tables.items()}
    name, ours = next(iter(found.items()))
    rows: list[list[Json]] = []
    for k, distance in ours.divergences.items():
        values = [of.divergences[k].samples for of in found.values()]
        limits = interval(distance.low, distance.high, "{:.3g}")
        rows.append([f"{k}-mers, bits", *values, distance.baseline, limits])
    limits = interval(ours.gc.low, ours.gc.high, "{:.3g}")
    values = [of.gc.samples for of in found.values()]
    rows.append(["GC content, points", *values, ours.gc.baseline, limits])
    head = ["distance from real windows", *found, "real windows", "95 % of sets of them"]
    lengths, distances = [*ours.divergences], [*ours.divergences.values()]
    drawn = panel(divergences, lengths=lengths, found=distances, name=name)
    label = "Jensen-Shannon divergence of k-mer frequencies from real windows, for each k."
    strand = "both strands" if both else "the given strand"
    text = f"Compared with {source}, counted on {strand}. Gray: 95 % of random sets of them."
    picture = Picture("kmers", label, text, figure=drawn)
    return Section("Composition against real sequences", [picture, Table(head, rows)])


def _of_texts(content: Mapping[str, Json], output: Path) -> Page:
    """The page of samples of text: their lengths, and the first of them."""
    with open_bytes(output, is_compressed(output)) as file:
        text = file.read().decode()
    found = (
        [json.loads(line)["text"] for line in text.splitlines()]
        if JSONL in output.suffixes
        else text.removesuffix("\n\n").split("\n\n")
    )
    lengths = [len(each) for each in found]
    rows = [[i, len(each), each] for i, each in enumerate(found[:_LISTED], 1)]
    sentence = f"{len(found):,} texts of {min(lengths):,} to {max(lengths):,} characters."
    table = Table(["sample", "characters", "text"], rows)
    return Page(f"{len(found):,} samples", sentence, [], table, made=made(content), synthetic=True)


def made(content: Mapping[str, Json]) -> JsonDict:
    """How samples were made, in words."""
    design = content.get("design", {})
    found: JsonDict = {key: described(design[key]) for key in ("reward", "method") if key in design}
    found |= {key: design[key] for key in ("target", "beta", "steering") if design.get(key)}
    found |= {"reward calls": design["calls"]} if design else {}
    sampler = {k: v for k, v in content["sampler_settings"].items() if v is not None}
    found |= {"checkpoint": content["model"]["checkpoint"], "sampler": content["sampler"]}
    found |= {"sampler settings": sampler, "network calls": content["network_calls"]}
    return found | {"seed": content["seed"]} | dict(content["inputs"])


def described(settings: Json) -> str:
    """An object of the configuration in words: its class, and its settings that are neither null
    nor empty."""
    if isinstance(settings, Mapping):
        inner = [
            f"{key} {described(value)}"
            for key, value in settings.items()
            if key != "_target_" and value not in (None, [])
        ]
        name = settings.get("_target_", "").rpartition(".")[2]
        return f"{name} ({', '.join(inner)})" if name and inner else name or ", ".join(inner)
    if isinstance(settings, Sequence) and not isinstance(settings, str):
        return " ".join(map(described, settings))
    return shown(settings)
