"""The page of `sample`: designs next to unguided samples, or samples next to held-out windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas
from markupsafe import Markup
from numpy import ndarray

from dnadiff import plot
from dnadiff.design.designs import unguided_path
from dnadiff.design.reward import MotifMatch
from dnadiff.fields import Json, JsonDict
from dnadiff.genomics.metrics.composition import (
    KMER_LENGTHS,
    MAX_SEQUENCES,
    DesignTable,
    compare_designs,
    evenly_spaced,
)
from dnadiff.genomics.metrics.memorization import cut, held_out_windows, real_windows
from dnadiff.genomics.metrics.sample_quality import draw_divergences
from dnadiff.genomics.metrics.text_quality import read_texts
from dnadiff.plot import HEIGHT, WIDTH, figure, information
from dnadiff.progress import log
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, Table, interval
from dnadiff.store.files import bare_name
from dnadiff.store.objects import build

if TYPE_CHECKING:
    from dnadiff.options.base import Result

MAX_LOGO = 300  # positions
_LISTED = 20


def page(result: Result, options: Any) -> Page:
    """The page of a finished file of samples."""
    content, output = result.content, result.paths[0]
    if bare_name(output).endswith((".txt", ".jsonl")):
        return _of_texts(content, output)
    ours = DesignTable.read(output, content["records"])
    design = content.get("design")
    name = "samples" if design is None else "designs"
    tables = {name: ours}
    without = ""
    if unguided := content.get("unguided"):
        tables["unguided"] = DesignTable.read(unguided_path(output), unguided["number"])
        without = f" against {unguided['reward']['mean']:.3g} unguided"
    real = _real(options, int(ours.lengths.min()))
    sections = [] if real is None else [_comparison(tables, *real, options.seed)]
    pictures = [] if design is None else _rewards(tables, content)
    if ours.counts is not None and len(ours.counts) <= MAX_LOGO:
        label = f"Sequence logo of the {name}."
        caption = (
            "Letters are as high as their information in bits, corrected for the number of "
            f"{name}; all count equally."
        )
        logo = plot.logo(information(ours.counts), unit="bits").figure
        pictures.append(Picture("logo", label, caption, logo, wide=True))
    size = ""
    if weights := content.get("weights"):
        effective = weights["effective_size"]["mean"]
        size = f"; effective sample size {effective:.3g} of {weights['proposals']}"
    if copies := content.get("copies"):
        text = "; {record} has the longest match with the training part, {max} bases"
        size += text.format_map(copies["longest"])
    count = f"{len(ours):,} {name}, {ours.num_distinct:,} distinct"
    if design is None:
        span = " to ".join(map(str, sorted({min(ours.lengths), max(ours.lengths)})))
        sentence = f"{count}: {span} bases, {100 * ours.gc:.1f} % G and C{size}."
    else:
        reward = design.get("unit") or design["reward"]["_target_"].rpartition(".")[2]
        judged = "No judge: judge=RUN names a fine-tuned run that is not optimized."
        if judge := design.get("judge"):
            judged = f"The judge that was not used, {judge['unit']}: {judge['mean']:.3g} on average"
            judged += f", unguided {unguided['judge']:.3g}." if unguided else "."
        sentence = f"{count}: mean reward {design['mean']:.3g}{without}{size}. Reward: {reward}. "
        sentence += judged
        sections.insert(0, Section("Designs and unguided samples", [_numbers(tables, content)]))
    return Page(
        f"{len(ours):,} {name}",
        sentence,
        pictures,
        _best(ours, _motifs(design)),
        sections,
        made(content),
        synthetic=True,
    )


def _rewards(tables: Mapping[str, DesignTable], content: Mapping[str, Json]) -> list[Picture]:
    """The distributions of the reward, and reward against likelihood."""
    columns = {name: (of.columns["reward"], _per_base(of)) for name, of in tables.items()}
    if real := content.get("real"):
        columns["real"] = np.array(real["reward"]), np.array(real["log_prob"] or np.nan)
    likelihood = "log-probability under the model, nats per base"
    unit = content["design"].get("unit")
    title = f"reward: {unit}" if unit else "reward"
    frames = [
        pandas.DataFrame({title: reward, likelihood: log_prob, "set": name})
        for name, (reward, log_prob) in columns.items()
    ]
    frame = pandas.concat(frames, ignore_index=True)
    distribution = charts.histogram(frame, title, "set")
    found = [
        Picture(
            "rewards",
            "Distribution of the reward of designs and unguided samples.",
            "The reward of the designs and of unguided samples of the same model. Dashed: means.",
            distribution,
        )
    ]
    known = frame[np.isfinite(frame[likelihood])]
    if len(known):
        text = (
            "Upwards is a higher reward, to the right more probable without it: a lower bound for "
            "a diffusion model, exact for an autoregressive one."
        )
        label = "Reward against log-probability of designs, unguided samples and real sequences."
        chart = charts.scatter(known, likelihood, title, "set")
        found.append(Picture("tradeoff", label, text, chart))
    return found


def _per_base(table: DesignTable) -> ndarray:
    return table.columns["log_prob"] / table.lengths


def _numbers(tables: Mapping[str, DesignTable], content: Mapping[str, Json]) -> Table:
    """What designs and unguided samples have in common, side by side."""
    rows = [
        {
            "": name,
            "records": len(table),
            "distinct": table.num_distinct,
            "reward, mean": table.columns["reward"].mean(),
            "sd": table.columns["reward"].std(),
            "best": table.columns["reward"].max(),
            "judge, mean": table.columns["judge"].mean(),
            "log p per base": _per_base(table).mean(),
            "longest match, bases": table.columns["longest_match"].mean(),
            "GC, %": 100 * table.gc,
            "Hamming distance": table.hamming,
            "6-mers, bits": of.get("js_6_from_unguided"),
        }
        for (name, table), of in zip(
            tables.items(), (content["design"], content.get("unguided", {}))
        )
    ]
    text = (
        "Nats; the match is the longest one with the training part, on either strand; the distance "
        "of two records. "
        "6-mers: Jensen-Shannon divergence from unguided samples, of those as many others."
    )
    return Table.of(pandas.DataFrame(rows), text)


def _motifs(config: Json) -> list[MotifMatch]:
    """The rewards for motifs in a configuration."""
    if not isinstance(config, dict):
        return []
    if config.get("_target_") == "dnadiff.design.reward.MotifMatch":
        return [build(config)]
    return [motif for value in config.values() for motif in _motifs(value)]


def _best(table: DesignTable, motifs: Sequence[MotifMatch]) -> Table:
    """The records with the highest reward, each once, or the first ones; the best match of each
    motif is marked."""
    kept = evenly_spaced(len(table), MAX_SEQUENCES)
    letters = np.frombuffer(b"ACGTN", np.uint8)
    columns = {
        "name": [table.names[i] for i in kept],
        "reward": table.columns["reward"][kept],
        "judge": table.columns["judge"][kept],
        "log p per base, nats": _per_base(table)[kept],
        "longest match": table.columns["longest_match"][kept],
        "sequence": [letters[each].tobytes().decode() for each in table.sequences],
    }
    frame = pandas.DataFrame(columns).drop_duplicates("sequence").dropna(axis=1, how="all")
    caption = "The first sequences"
    if "reward" in frame:
        caption = "The highest rewards, different sequences"
        frame = frame.sort_values("reward", ascending=False, kind="stable")
    frame = frame.head(_LISTED)
    shown = [[*text] for text in frame["sequence"]]
    for motif in motifs:
        places = []
        for text, row in zip(frame["sequence"], shown):
            start, end, strand = motif.site(text)
            row[start:end] = map(Markup("<mark>{}</mark>").format, row[start:end])
            places.append(f"{start + 1} to {end}, {strand}")
        name = f"{motif.motif or motif.name or 'motif'}, underlined"
        frame.insert(frame.shape[1] - 1, name, places, allow_duplicates=True)
    texts = [Markup("<code>{}</code>").format(Markup("").join(row)) for row in shown]
    frame["sequence"] = pandas.Series(texts, frame.index, object)
    return Table.of(frame, f"{caption}; the file has all.")


def _real(options: Any, length: int) -> tuple[str, list[ndarray], bool] | None:
    """What samples are compared with, in words, its windows, and whether both strands count; None,
    with a log message, if there is nothing."""
    if options.real is not None:
        windows = real_windows(options.real, length)
        return f"{len(windows):,} windows of {Path(options.real).name}", windows, False
    try:
        data = options.loaded().training_data(options.trust)
        part = "test" if data.intervals["test"] else "valid"
        found = cut(held_out_windows(data, part, length), length, max_unknown=0)
        if len(found) < 4:
            raise ValueError(f"{len(found)} held-out windows are too few")
    except (ValueError, OSError) as error:
        log.info(f"report: nothing is compared with real sequences; give real=y.fa ({error})")
        return None
    windows = [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]
    return f"{len(windows):,} windows of {data.name}, part {part}", windows, not data.stranded


def _comparison(
    tables: Mapping[str, DesignTable], source: str, real: list[ndarray], both: bool, seed: int
) -> Section:
    """k-mers and GC content compared with real windows."""
    found = {name: compare_designs(of.sequences, real, both, seed) for name, of in tables.items()}
    name, ours = next(iter(found.items()))
    rows = [
        [
            what,
            *(of[what].samples for of in found.values()),
            one.baseline,
            interval(one.low, one.high),
        ]
        for what, one in ours.items()
    ]
    head = ["distance from real windows", *found, "real windows", "95 % of sets of them"]
    *distances, _ = ours.values()
    with figure(WIDTH, HEIGHT) as (drawn, (axes,)):
        draw_divergences(axes, KMER_LENGTHS[: len(distances)], distances, name)
    label = "Jensen-Shannon divergence of k-mer frequencies from real windows, for each k."
    strand = "both strands" if both else "the given strand"
    text = f"Compared with {source}, counted on {strand}. Gray: 95 % of random sets of them."
    picture = Picture("kmers", label, text, drawn)
    return Section("Composition against real sequences", [picture, Table(head, rows)])


def _of_texts(content: Mapping[str, Json], output: Path) -> Page:
    """The page of samples of text: their lengths, and the first of them."""
    found = read_texts(output, keeps_empty=True)
    lengths = [len(each) for each in found]
    rows = [[i, len(each), each] for i, each in enumerate(found[:_LISTED], 1)]
    sentence = f"{len(found):,} texts of {min(lengths):,} to {max(lengths):,} characters."
    table = Table(["sample", "characters", "text"], rows)
    return Page(f"{len(found):,} samples", sentence, [], table, made=made(content), synthetic=True)


def made(content: Mapping[str, Json]) -> JsonDict:
    """How samples were made."""
    keys = ("model", "sampler", "sampler_settings", "network_calls", "seed", "inputs")
    return content.get("design", {}) | {key: content[key] for key in keys}
