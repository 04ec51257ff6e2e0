"""The sections of the page about designs, each as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from dnadiff.config import Json
from dnadiff.metrics.designs import (
    MAX_SEQUENCES,
    DesignComparison,
    DesignTable,
    information,
    pareto_front,
)
from dnadiff.report import design_panels, panels
from dnadiff.report.figures import panel
from dnadiff.report.headlines import interval, number
from dnadiff.report.html import facts, pair, picture, section, table
from dnadiff.report.logo import logo_figure
from dnadiff.report.results import Results
from dnadiff.report.sections import NOTICE

if TYPE_CHECKING:
    from dnadiff.report.designs import RealSequences

MAX_LOGO = 300  # positions
_MAX_ROWS = 12  # of the front in the table
_BOUND = "a lower bound for a diffusion model; exact for an autoregressive one"


def reward_name(design: Results) -> str:
    """The class of the reward, with the target value if there is one."""
    target = "" if design["target"] is None else f" near {design['target']:g}"
    return f"{_class_name(design['reward'])}{target}"


def described(settings: Json) -> str:
    """An object of the configuration in words: its class, and its settings that are neither null
    nor empty."""
    if isinstance(settings, Mapping):
        inner = [
            f"{key} {described(value)}"
            for key, value in settings.items()
            if key != "_target_" and value not in (None, [])
        ]
        name = _class_name(settings) if "_target_" in settings else ""
        return f"{name} ({', '.join(inner)})" if name and inner else name or ", ".join(inner)
    if isinstance(settings, list):
        return " ".join(map(described, settings))
    return {True: "yes", False: "no"}[settings] if isinstance(settings, bool) else str(settings)


def _class_name(settings: Mapping[str, Json]) -> str:
    return settings["_target_"].rpartition(".")[2]


def masthead(title: str, content: Results, designs: DesignTable) -> str:
    """The title, and the run in a sentence."""
    design = content["design"]
    low, high = int(designs.lengths.min()), int(designs.lengths.max())
    bases = f"{low:,} bases" if low == high else f"{low:,} to {high:,} bases"
    beta = "" if design["beta"] is None else f" with beta {design['beta']:g}"
    aim = (
        "as large as possible"
        if design["target"] is None
        else f"as near to {design['target']:g} as possible"
    )
    text = (
        f"{len(designs):,} designs of {bases} for a reward that is to be {aim}: "
        f"{described(design['reward'])}. "
        f"The method is {_class_name(design['method'])}{beta}, the sampler {content['sampler']}."
    )
    return f"<header><h1>{escape(title)}</h1><p>{escape(text)} {NOTICE}</p></header>"


def main_results(
    content: Results, designs: DesignTable, log_prob: np.ndarray, real: RealSequences | None
) -> str:
    """The numbers of the run."""
    design, reward, form = content["design"], designs.columns["reward"], "{:.4g}"
    rows = [
        (
            "Reward, mean",
            number(reward.mean(), form),
            f"Best {number(reward.max(), form)}, median {number(np.median(reward), form)}.",
        )
    ]
    weight, weights = designs.columns["log_weight"], content.get("weights", {})
    if weights.get("proposals") == len(designs) and "resampled" not in weights:
        share = np.exp(weight - weight.max())
        rows.append(
            (
                "Reward, weighted mean",
                number((share * reward).sum() / share.sum(), form),
                "Under p(x) exp(beta reward(x)).",
            )
        )
    if real is not None and real.rewards is not None:
        reading = (
            f"Best {number(real.rewards.max(), form)}, of {len(real.rewards):,} real sequences."
        )
        rows.append(("Reward of real sequences, mean", number(real.rewards.mean(), form), reading))
    if np.isfinite(log_prob).any():
        rows.append(
            (
                "Log-probability, mean",
                number(np.nanmean(log_prob), "{:.3f}"),
                f"Nats per designed base without the reward: {_BOUND}.",
            )
        )
    if weights:
        size, drawn = (
            weights["effective_size"],
            ", then resampled" if "resampled" in weights else "",
        )
        rows.append(
            (
                "Effective sample size",
                number(size["mean"], "{:.1f}"),
                f"Of {weights['proposals']:,} designs of each template{drawn}.",
            )
        )
        mass = number(weights["log_mass"]["mean"], "{:.2f}")
        rows.append(
            (
                "Log normalizing constant",
                mass,
                "Nats; log of the mean weight, which is an unbiased estimate.",
            )
        )
    settings, calls = content["settings"], design["calls"]
    generated = (
        len(designs) * (settings["proposals"] or settings["num_samples"]) / settings["num_samples"]
    )
    rows.append(
        (
            "Reward calls",
            f"{calls:,}",
            f"{calls / generated:.1f} for each sequence generated; a gradient counts twice.",
        )
    )
    return section(
        "Results",
        table(
            ("Result", "Value", "How to read it"),
            rows + _diversity(content, designs),
            numbers=(1,),
            kind="cards",
        ),
    )


def _diversity(content: Results, designs: DesignTable) -> list[tuple[str, str, str]]:
    rows = [("Distinct sequences", f"{designs.num_distinct:,}", f"Of {len(designs):,}.")]
    if designs.hamming is not None:
        reading = f"Bases; {100 * designs.hamming / designs.lengths[0]:.1f} % of the length."
        rows.append(("Hamming distance, mean of pairs", number(designs.hamming, "{:.1f}"), reading))
    if "copies" in content:
        longest = content["copies"]["longest"]
        reading = (
            f"Bases, {longest['record']}; {longest['mean']:.1f} on average. Exact matches, "
            "either strand."
        )
        rows.append(("Longest match with the training data", f"{longest['max']:,}", reading))
    return rows


def reward_and_likelihood(
    designs: DesignTable,
    log_prob: np.ndarray,
    real: RealSequences | None,
    real_log_prob: np.ndarray | None,
) -> str:
    """Reward against log-probability with the Pareto front, and the distribution of the reward."""
    reward = designs.columns["reward"]
    of_real = None if real is None else real.rewards
    pictures, drawn = (
        [],
        ""
        if len(designs) <= MAX_SEQUENCES
        else f" {MAX_SEQUENCES:,} of {len(designs):,} designs are drawn, evenly spaced.",
    )
    rows = ""
    if np.isfinite(log_prob).any():
        points = None if real_log_prob is None or of_real is None else (real_log_prob, of_real)
        front = pareto_front(log_prob, reward)
        caption = (
            f"Pareto front: {len(front):,} designs that no other design matches or exceeds in both "
            "values and exceeds in at least one. "
            "Log-probability is that of the designed bases given the fixed ones, under the model "
            f"without the reward ({_BOUND})." + drawn
        )
        figure = panel(
            partial(design_panels.tradeoff, log_prob=log_prob, reward=reward, real=points)
        )
        pictures.append(
            picture(
                figure,
                "tradeoff",
                "Reward against log-probability per base, with the Pareto front.",
                caption,
            )
        )
        rows = _front_table(designs, log_prob, front)
    figure = panel(
        partial(
            design_panels.histogram,
            designs=reward,
            real=of_real,
            title="Distribution of the reward",
            label="reward",
        )
    )
    caption = (
        "A high reward says that the designs fit the program that computes it; it says "
        "nothing about their function."
    )
    pictures.append(
        picture(figure, "rewards", "Distribution of the reward of the designs.", caption)
    )
    missing = (
        ""
        if rows
        else (
            "<p>Log-probabilities were not computed (num_draws=0), so there is no Pareto front.</p>"
        )
    )
    return section("Reward and likelihood", pair(*pictures) + rows + missing)


def _front_table(designs: DesignTable, log_prob: np.ndarray, front: np.ndarray) -> str:
    # The front is in the order of ascending likelihood, which is that of descending reward.
    rows = [
        (
            designs.names[i],
            number(designs.columns["reward"][i], "{:.5g}"),
            number(log_prob[i], "{:.4f}"),
        )
        for i in front[:_MAX_ROWS]
    ]
    shown = f", the {_MAX_ROWS} with the highest reward" if len(front) > _MAX_ROWS else ""
    head = "Design", "Reward", "Log-probability per base, nats"
    return table(
        head, rows, numbers=(1, 2), caption=f"The Pareto front: {len(front):,} designs{shown}."
    )


def composition(found: DesignComparison, real: RealSequences) -> str:
    """k-mer frequencies and GC content compared with real sequences."""
    lengths, each = list(found.divergences), list(found.divergences.values())
    strands = "on both strands" if real.both_strands else "on the given strand"
    kmers = picture(
        panel(partial(panels.divergences, lengths=lengths, found=each, name="designs")),
        "kmers",
        "Jensen-Shannon divergence of k-mer frequencies from real sequences for each k; the table "
        "gives the numbers.",
        f"Counted {strands}. Gray: 95 % of random sets of {found.num_compared:,} real sequences, "
        "compared with the others as the designs are.",
    )
    histogram = partial(design_panels.histogram, title="GC content", label="GC content, %")
    gc = picture(
        panel(partial(histogram, designs=found.design_gc, real=found.real_gc)),
        "gc",
        "Distribution of GC content of designs and real sequences.",
        f"Mean {found.design_gc.mean():.2f} % of the designs and {found.real_gc.mean():.2f} % of "
        "the real sequences.",
    )
    named = [
        (f"{k}-mers, Jensen-Shannon divergence, bits", one) for k, one in found.divergences.items()
    ]
    rows = [
        (
            name,
            number(one.samples, "{:.3g}"),
            number(one.baseline, "{:.3g}"),
            interval(one.low, one.high, "{:.3g}"),
        )
        for name, one in [*named, ("GC content, Wasserstein-1 distance, points", found.gc)]
    ]
    head = "Distance from real sequences", "Designs", "Real sequences", "95 % of sets of them"
    return section(
        f"Compared with {real.source}", pair(kmers, gc) + table(head, rows, numbers=(1, 2, 3))
    )


def logo_of(designs: DesignTable) -> str:
    """The sequence logo of designs of one length, or why there is none."""
    counts = designs.counts
    if counts is None or len(counts) > MAX_LOGO:
        why = (
            "the designs have different lengths"
            if counts is None
            else f"the designs have more than {MAX_LOGO} bases"
        )
        return section("Sequence logo", f"<p>There is no logo: {why}.</p>")
    caption = (
        "Height of a position: its information, 2 bits minus the entropy of the letters, corrected "
        "for the number of designs. Letters share it "
        f"in proportion to their frequency. All {len(designs):,} designs count equally, without "
        "their weights."
    )
    return section(
        "Sequence logo",
        picture(logo_figure(information(counts)), "logo", "Sequence logo of the designs.", caption),
    )


def configuration(content: Results) -> str:
    """What the designs depend on, in words."""
    design, model = content["design"], content["model"]
    about = {
        key: described(design[key])
        for key in ("reward", "method", "start")
        if design[key] is not None
    }
    about |= {key: f"{design[key]:g}" for key in ("target", "beta") if design[key] is not None}
    sampler = {
        key: value
        for key, value in content["sampler_settings"].items()
        if value is not None and key != "class"
    }
    run = {
        "checkpoint": model["checkpoint"],
        "trained steps": model["step"],
        "sampler": content["sampler"],
        "sampler settings": sampler,
        "network calls": content["network_calls"],
        "seed": content["seed"],
        "num_draws": content["settings"]["num_draws"],
        **{key: described(value) for key, value in content["inputs"].items() if key != "start"},
    }
    return section("Configuration", pair(facts("Design", about), facts("Model and sampler", run)))
