"""The evaluation of trained models on held-out windows: what `python -m dnadiff.evaluate`,
`zero_shot` and `compare` compute and write, and the protocols that estimate likelihoods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Interval

from dnadiff.data.base import run_data
from dnadiff.data.kmers import MAX_KMERS
from dnadiff.data.records import num_tokens
from dnadiff.data.windows import Columns
from dnadiff.diffusion.bootstrap import blocks, effective_block_size, ratio, verdict
from dnadiff.diffusion.denoiser import BaseDenoiser, Conjoined, OtherStrand
from dnadiff.diffusion.likelihood.curve import CurveSums, code_length_table
from dnadiff.diffusion.likelihood.estimates import Likelihood
from dnadiff.diffusion.likelihood.estimators import (
    ORDERS,
    Batches,
    ReverseComplemented,
    both_strands,
    check_num_draws,
    check_one_draw,
    estimate,
    is_exact,
    one_draw,
    ordered,
    require_ordered,
)
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.fields import Config, Json, Natural, Positive, PositiveInt, checked
from dnadiff.genomics.held_out import (
    Scores,
    Windows,
    fit_markov,
    markov_nats,
    token_groups,
)
from dnadiff.genomics.markov import BackoffMarkov, Order
from dnadiff.progress import Progress, log
from dnadiff.store.disk import write_json
from dnadiff.store.files import resolve
from dnadiff.weights.tensors import fingerprint

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule
    from dnadiff.data.windows import TiledWindows
    from dnadiff.weights.loaded import Loaded

BIT = math.log(2)
_UNITS = (
    "bits per token: bits, bits_low, bits_high and all of markov; nats per token: nll, se_mc, "
    "se_total, and low and high of a difference"
)


@checked
@dataclass(frozen=True)
class Evaluation:
    """How held-out windows are evaluated.

    Args:
        part: of the data.
        length: tokens in a window; None is that of the data.
        protocol: `count`, or `mdlm` (one draw, without `se_mc`).
        order: the exact likelihood of unmasking in this order, in place of the bound.
        num_draws: network calls per window, which double until `se_mc` is at most `target_se` (nats
            per token) or there are `max_draws`.
        block_size: windows per block of the bootstrap.
        both_strands: also evaluate the reverse complements.
        conjoin: average the probabilities of both strands at every call.
        orders: of the Markov models that are compared.
        data: configuration of data that replace those of the training run of the (first) model.
        alignment: in place of that of the data; `none`: without columns.
        annotation: GTF, GFF or BED file; tokens are also counted by type of region.
        trust: packages whose classes a configuration may name.

    Raises:
        ValueError: for settings that exclude each other.
    """

    part: Literal["test", "valid", "train"] = "test"
    length: PositiveInt | None = None
    protocol: Literal["count", "mdlm"] = "count"
    order: Literal["left_to_right", "strided", "confidence"] | None = None
    num_draws: PositiveInt = 8
    target_se: Positive | None = None
    max_draws: Annotated[int, Interval(ge=2)] = 1024
    batch_size: PositiveInt = 32
    block_size: PositiveInt = 16
    seed: Natural = 0
    both_strands: bool = False
    conjoin: bool = False
    orders: Sequence[Order] = ()
    data: Config | None = None
    alignment: str | None = None
    annotation: str | None = None
    trust: Sequence[str] = ()
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.annotation is not None:
            resolve(self.annotation)  # refuses a missing file
        if self.order is not None and (self.protocol != "count" or self.target_se is not None):
            raise ValueError(
                f"order={self.order} is exact and draws nothing; leave protocol and target_se out"
            )
        if self.target_se is not None and self.protocol == "mdlm":
            raise ValueError(
                f"protocol={self.protocol} has no se_mc; leave target_se out, or set protocol=count"
            )
        if self.max_draws < self.num_draws:
            raise ValueError(
                f"max_draws {self.max_draws} is less than num_draws {self.num_draws}; set "
                "max_draws to at least as many"
            )


def estimator_kind(model: Loaded, protocol: str, num_draws: int, order: str | None = None) -> str:
    """How the likelihood of a model is estimated (`Estimator`): exactly, if an order is given or
    one call gives it (`is_exact`), or else with `protocol`; `own` if the model has a bound of its
    own.

    Raises:
        ValueError: if this is not valid for the model, its schedule or this number of draws.
    """
    denoiser = model.denoiser
    exact = "order" if order is not None else "chain rule" if is_exact(denoiser) else None
    own = denoiser.bound is not None and protocol == "count"
    kind = exact or ("own" if own else protocol)
    if kind == "own":
        if not (objective := model.objective).trains_bound:
            raise objective.without_likelihood()
    else:
        require(f"estimator {kind}", denoiser, AbsorbingProcess)
    if kind in ("count", "own"):
        check_num_draws(num_draws)
    elif kind == "mdlm":
        check_one_draw(denoiser, model.process.noise)
    elif kind == "order":
        require_ordered(denoiser)
    return kind


class Estimator:
    """The likelihood of windows under a model.

    Attributes:
        kind: `count`, the NELBO in count form with stratified draws; `mdlm`, the NELBO by the
            protocol of MDLM's tables, without a Monte Carlo error; `chain rule`, the exact
            likelihood of an autoregressive model or of block diffusion in blocks of one token;
            `order`, the exact likelihood of unmasking one token at a time in a deterministic
            order; `own`, the bound of the objective, with stratified draws.
        denoiser: what is evaluated, by `of`.

    Raises:
        ValueError: if model and settings do not fit.
    """

    windows: Windows

    def __init__(self, model: Loaded, settings: Evaluation) -> None:
        self.model = model
        self.settings = settings
        self.denoiser = model.denoiser
        self.process = model.process
        conjoin = settings.conjoin
        both = settings.both_strands
        self.kind = estimator_kind(model, settings.protocol, settings.num_draws, settings.order)
        of_dna = {"both_strands": both, "conjoin": conjoin, "annotation": settings.annotation}
        if not model.is_dna and (asked := next((k for k in of_dna if of_dna[k]), None)):
            raise ValueError(
                f"{asked}={of_dna[asked]} needs DNA; this model was trained "
                "on text, which has one strand: leave it out"
            )
        if conjoin and both:
            raise ValueError(
                "with conjoin=true both strands have the same likelihood, so both_strands=true "
                "compares nothing; leave one out"
            )
        if conjoin and (self.denoiser.left_to_right or self.kind == "own"):
            raise ValueError(
                f"conjoin=true needs a model that unmasks in random order; that of objective "
                f"{type(model.objective).__name__} has no bound for the averaged probabilities of "
                "both strands: set both_strands=true"
            )

    def of(self, held_out: HeldOut, curve: bool = False) -> Likelihood:
        """The likelihood of held-out windows, by `run`."""
        denoiser = self.model.denoiser.to(self.settings.device)
        settings = self.settings
        how = settings.batch_size, denoiser.cond_ndim
        self.windows = Windows(held_out.tiles, held_out.groups, *how)
        vocab = held_out.data.tokenizer.vocab
        self.denoiser = Conjoined(denoiser, vocab) if settings.conjoin else denoiser
        return self.run(self.denoiser, curve=curve)

    def run(
        self,
        denoiser: BaseDenoiser,
        batches: Batches | None = None,
        same_draws_as: Likelihood | None = None,
        curve: bool = False,
    ) -> Likelihood:
        """The likelihood of the windows, or of `batches`.

        Args:
            same_draws_as: an earlier result whose number of draws replaces `target_se`.
            curve: measure all that h(n) needs, for `count`.
        """
        asked = self.settings
        length = self.windows.tiles.length
        batches = self.windows if batches is None else batches
        of_kind = {"count": asked.num_draws, "own": asked.num_draws, "order": length}
        calls = of_kind.get(self.kind, 1)  # for each window
        bar = Progress(len(self.windows), "evaluate", unit="windows")

        def progress(windows: int) -> None:
            bar.update(windows, windows * length * calls)

        def on_doubling(draws: int, se: float) -> None:
            nonlocal calls
            calls = draws
            bar.total = (bar.total or 0) + len(self.windows)
            log.info(
                f"se_mc is {se:.5f} nats after {draws} draws, target_se {asked.target_se}: "
                f"{draws} more"
            )

        if asked.order is not None:
            order = ORDERS[asked.order]
            result = ordered(denoiser, self.process, batches, order, asked.block_size, progress)
        elif self.kind == "mdlm":
            is_text = self.process.vocab.complement is None
            result = one_draw(
                denoiser, self.process, batches, asked.seed, asked.block_size, progress, is_text
            )
        else:
            target_se = asked.target_se if same_draws_as is None else None
            result = estimate(
                denoiser,
                self.process,
                batches,
                asked.num_draws,
                asked.seed,
                asked.block_size,
                progress,
                curve,
                target_se,
                asked.max_draws,
                on_doubling,
                0 if same_draws_as is None else same_draws_as.num_draws,
            )
            if target_se is not None and result.se_mc() > target_se:
                log.warning(
                    f"se_mc is {result.se_mc():.5f} nats after max_draws={asked.max_draws}, above "
                    f"target_se {target_se}; raise max_draws"
                )
        bar.close()
        return result

    def other_strand(self, result: Likelihood) -> Likelihood:
        """The likelihood of the reverse complements, with the noise of `result`."""
        vocab = self.process.vocab
        denoiser = self.denoiser
        # Other blocks, another order, or a network with more than predictions.
        if denoiser.left_to_right or self.kind in ("order", "own"):
            return self.run(denoiser, ReverseComplemented(self.windows, vocab), result)
        return self.run(OtherStrand(denoiser, vocab), same_draws_as=result)

    def protocol(self, result: Likelihood, layout: str | None) -> str:
        """How the likelihood was estimated, in words, and for text how documents became windows."""
        asked = self.settings
        b = self.model.denoiser.block_size
        blocks = "" if b is None else f" in blocks of b = {b} token{'s' * (b > 1)}"
        described = {
            "count": f"NELBO, count form{blocks}, {result.num_draws} stratified draws per window",
            "own": f"bound of the objective, {result.num_draws} stratified draws per window",
            "mdlm": "NELBO, MDLM's protocol: one draw of Bernoulli masks per window, times "
            f"stratified over batches of {asked.batch_size}",
            "chain rule": f"-log p by the chain rule{blocks}, exact",
            "order": f"-log p of unmasking in the order {asked.order}, exact",
        }
        size = effective_block_size(len(result.available), asked.block_size)
        bootstrap = f"blocks of {size} window{'s' * (size > 1)}"
        bootstrap += f" (not {asked.block_size}, to have 20)" * (size < asked.block_size)
        both = "both strands' probabilities averaged at every call" if asked.conjoin else ""
        cond = self.windows.tiles.cond
        given = ""
        if self.windows.cond_ndim == 3 and isinstance(cond, Columns):
            given = f"conditional on {len(cond.alignment.genomes)} related genomes"
        return "; ".join(filter(None, [described[self.kind], given, both, bootstrap, layout]))


@dataclass(frozen=True)
class HeldOut:
    """Held-out windows.

    Attributes:
        own: whether the model was trained on these data.
        groups: which tokens of each window are counted, (S, L) bool each.
        novelty: what novel bases are novel against; None if it is not known.
    """

    data: SequenceDataModule
    own: bool
    tiles: TiledWindows
    groups: dict[str, np.ndarray]
    novelty: str | None

    @classmethod
    def of(cls, models: Sequence[Loaded], settings: Evaluation) -> HeldOut:
        """The windows of the data of the first model, or of data that the settings name. A base is
        novel if it is so for all models, and repeated otherwise.

        Raises:
            ValueError: if the data do not fit a model.
        """
        first, *rest = models
        trust = settings.trust
        data, own = data_of(first, settings.data, settings.length, trust, settings.alignment)
        data.check_corruption(settings.protocol)
        for other in rest:
            check_length(settings.length or data.length, other.denoiser.max_length, "b")
            if data.alignment is None:
                other.columns_for(None)  # the remark
        tiles = data.test_windows(settings.part, settings.length)
        part = settings.part
        name = "" if rest else f"model: {first.path}, step {first.step:,}; "
        log.info(f"{name}{len(tiles):,} windows of {tiles.length} tokens of {data.name} ({part})")
        first = first.with_tokenizer(data.tokenizer)
        found: list[SequenceDataModule | None] = []
        if first.is_dna:
            found.append(training_data(first, data if own else None, trust))
        for other in rest if found else ():
            if first.config.get("data") != other.config.get("data"):
                found.append(training_data(other, None, trust))
                if own:
                    log.warning(
                        "b was trained with other settings of the data: windows held out for a "
                        "may be in its training part (group repeated)"
                    )
        known = [one for one in found if one is not None]
        known = known if len(known) == len(found) else []
        names = " and of ".join(dict.fromkeys(one.name for one in known))
        novelty = f"against the training part of {names}" if known else None
        return cls(
            data, own, tiles, token_groups(data, tiles, part, known, settings.annotation), novelty
        )

    def about(self, settings: Evaluation) -> Json:
        """What the JSON file records of the data: with the windows in a block of the bootstrap, a
        note if it treats adjacent windows as independent, and what novelty refers to."""
        layout = self.data.layout(self.tiles.length)
        size = settings.block_size
        about = {**self.data.describe(), "window": self.tiles.length}
        return {
            "data": about if layout is None else {**about, "layout": layout},
            "own_data": self.own,
            "part": settings.part,
            "seed": settings.seed,
            "block_size": effective_block_size(len(self.tiles), size),
            "se_total_note": dependence_note(self.tiles, size),
            "units": _UNITS,
            "novelty": self.novelty,
            **({} if settings.annotation is None else {"annotation": settings.annotation}),
        }

    def markov_rows(
        self, result: Likelihood, tuned: Mapping[int, BackoffMarkov], part: str
    ) -> list[Json]:
        """`markov_nats` as rows for JSON, each with the paired difference between the network
        (`result`) and the Markov model."""
        rows = []
        for order, model, nats in markov_nats(self.data, self.tiles, tuned, part):
            groups = {}
            strengths = model.strengths[: order + 1]
            for name, mask in self.groups.items():
                if not mask.any():
                    continue
                of_markov = (nats * mask).sum(1)
                total = ratio(of_markov, mask.sum(1), blocks(len(mask), result.block_size))
                difference = result.interval_of(result.per_sequence(name) - of_markov, name)
                groups[name] = {
                    "bits": total.value / BIT,
                    "perplexity": math.exp(total.value),
                    "difference_bits": difference.value / BIT,
                    "low": difference.low / BIT,
                    "high": difference.high / BIT,
                }
            rows.append(
                {
                    "order": order,
                    "trained_on": str(self.data.name),
                    "strength": strengths[-1],
                    "strengths": strengths,
                    "groups": groups,
                }
            )
        return rows


def evaluate(
    model: Loaded, settings: Evaluation, output: Path, windows: Path | None = None
) -> Json:
    """Evaluate a model on held-out windows, write the JSON file, and return its contents and
    `is_dna`.

    Args:
        windows: an `.npz` file for the scores of each window.

    Raises:
        ValueError: if model, data and settings do not fit, before the network runs.
    """
    made = Estimator(model, settings)
    held_out = HeldOut.of([model], settings)
    source = held_out.data
    tiles = held_out.tiles
    about = held_out.about(settings)
    is_dna = model.is_dna
    model = model.with_tokenizer(source.tokenizer)
    markov = fit_markov(source, settings.orders) if is_dna else {}  # errors before the network runs
    result = made.of(held_out, curve=True)
    curve = None
    costs = None
    if made.kind == "count":
        points = result.curve()
        curve = {
            "visible": points.visible.tolist(),
            "bits": (points.nats / BIT).tolist(),
            "se": (points.se / BIT).tolist(),
        }
        costs = code_length_table(CurveSums.from_estimates(result, tiles.length))
    named = [name for name in result.tokens if result.tokens[name].sum()]
    strands = {}
    if settings.both_strands:
        reverse = made.other_strand(result)
        strands = {name: both_strands(result, reverse, name) for name in named}
    content = {
        "model": describe_model(model, settings.conjoin),
        **about,
        "num_draws": result.num_draws,
        "target_se": settings.target_se,
        "protocol": made.protocol(result, about["data"].get("layout")),
        "groups": {name: result.summary(name) for name in named},
        "both_strands": strands,
        "markov": held_out.markov_rows(result, markov, settings.part),
        "curve": curve,
        "code_length": costs,
    }
    if windows is not None:
        nats = {name: result.per_sequence(name) for name in result.tokens}
        split = about["data"]
        places = np.array([(t.record, t.start, tiles.length) for t in tiles.tiles])
        Scores(places, nats, result.tokens, result.block_size, split["split_hash"]).save(windows)
    write_json(output, content)
    return content | {"is_dna": is_dna}


def compare(
    models: Mapping[str, Loaded],
    settings: Evaluation,
    output: Path,
    conjoined: Sequence[str] = (),
) -> Json:
    """Evaluate two models on the same windows with the same masks, and write the JSON file.

    Args:
        models: `a` and `b`.
        conjoined: the names of models whose probabilities of both strands are averaged.

    Returns:
        The contents of the JSON file, and `is_dna`.

    Raises:
        ValueError: if models, data and settings do not fit, before a network runs.
    """
    check_vocabularies(**models)
    made = {}
    for name, model in models.items():
        try:
            made[name] = Estimator(model, replace(settings, conjoin=name in conjoined))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    held_out = HeldOut.of(list(models.values()), settings)
    about = held_out.about(settings)
    results = {}
    for name, model in models.items():
        log.info(f"{name}: {model.path}, step {model.step:,}")
        results[name] = made[name].of(held_out)
    difference = results["a"].minus(results["b"])
    groups = {}
    for group, tokens in difference.tokens.items():
        if not tokens.sum():
            continue
        found = difference.interval(group)
        se_mc = difference.se_mc(group)
        groups[group] = {
            **{name: result.summary(group) for name, result in results.items()},
            "difference": {  # a minus b; lower is better
                "nll": found.value,
                "low": found.low,
                "high": found.high,
                "se_mc": None if math.isnan(se_mc) else se_mc,
                "se_total": found.se,
                "bits": found.value / BIT,
                "bits_low": found.low / BIT,
                "bits_high": found.high / BIT,
                "verdict": verdict(found.low, found.high, above="worse", below="better"),
            },
        }
    layout = about["data"].get("layout")
    content = {
        **{name: describe_model(model, name in conjoined) for name, model in models.items()},
        **about,
        "num_draws": settings.num_draws,
        "protocol": {name: made[name].protocol(result, layout) for name, result in results.items()},
        "groups": groups,
    }
    write_json(output, content)
    return content | {"is_dna": models["a"].is_dna}


def describe_model(model: Loaded, conjoined: bool) -> Json:
    """What the JSON file records of the model."""
    return {
        "checkpoint": str(model.path),
        "backbone": type(model.denoiser.backbone).__name__,
        "parameters": sum(p.numel() for p in model.denoiser.parameters()),
        "step": model.step,
        "conjoined": conjoined,
        "fingerprint": fingerprint(model.denoiser),
    }


def check_length(length: int, longest: int | None, name: str = "this network") -> None:
    """Raise ValueError for windows that are longer than a network accepts."""
    if longest is not None and length > longest:
        raise ValueError(
            f"windows of {length} tokens are longer than the {longest} that {name} accepts; set "
            f"length={longest} or less"
        )


def data_of(
    model: Loaded,
    given: Config | None,
    length: int | None = None,
    trust: Sequence[str] = (),
    alignment: str | None = None,
) -> tuple[SequenceDataModule, bool]:
    """The data to evaluate on, with an `alignment` in place of theirs (`none`: without), prepared,
    and whether the model was trained on them; raises ValueError if they do not fit the model.

    Data that are named again count as those of the training if their sequence and split are the
    same.
    """
    config = model.config
    if alignment is not None:
        other = {"alignment": None if alignment == "none" else alignment}
        given = given and {**given, **other}
        config = {**config, "data": config.get("data") and {**config["data"], **other}}
    data = run_data(config.get("data"), model.known_tokenizer, trust, given)
    model.columns_for(data.alignment or alignment)
    check_length(length or data.length, model.denoiser.max_length)
    data.prepare()
    read = None if alignment else data.describe().get("alignment")
    if read and model.origin.alignment not in (None, read["identity"]):
        log.warning(f"{data.alignment} is not the alignment that {model.path} was trained with")
    known = model.was_trained_on(data)
    if known is False and not given:
        log.warning(
            f"{data.name} changed since {model.path} was trained on it: what is held out now may "
            "have been in its training part"
        )
    return data, known is True or (known is None and not given)


def training_data(
    model: Loaded, own: SequenceDataModule | None, trust: Sequence[str]
) -> SequenceDataModule | None:
    """The data that the model was trained on (`own`, if it is evaluated anyway), to distinguish
    novel from repeated bases.

    None, with a message, if it is not available.
    """
    data = own
    if data is None:
        try:
            data = model.training_data(trust)
        except (ValueError, FileNotFoundError) as error:
            log.info(
                "novel and repeated bases are left out because the training data are not "
                f"available: {error}"
            )
            return None
    tokens = num_tokens(data.intervals["train"])
    if tokens > MAX_KMERS:
        log.info(
            f"novel and repeated bases are left out because the 24-mers of {tokens:,} training "
            "bases do not fit into memory"
        )
        return None
    return data


def check_vocabularies(a: Loaded, b: Loaded) -> None:
    """ValueError unless the tokens of both models are the same, and their labels if both have
    some."""
    models = {"a": a, "b": b}
    if a.tokenizer.config() != b.tokenizer.config():
        kinds = [
            f"{name} reads {m.tokenizer.name} ({m.tokenizer.vocab.size} tokens)"
            for name, m in models.items()
        ]
        raise ValueError(
            f"{', and '.join(kinds)}: likelihoods per token of different vocabularies cannot be "
            "compared; name two models with one tokenizer"
        )
    given = {name: m.conditions.choices for name, m in models.items()}
    if all(given.values()) and given["a"] != given["b"]:
        labels = [f"{name} has the labels {', '.join(many)}" for name, many in given.items()]
        raise ValueError(
            f"{', and '.join(labels)}: windows cannot have the labels of both; name two models "
            "with the same labels"
        )


def dependence_note(tiles: TiledWindows, block_size: int) -> str | None:
    """A note if `se_total` treats adjacent windows as independent; None if it does not."""
    near = any(
        a.record == b.record and b.start - a.start <= tiles.length for a, b in pairwise(tiles.tiles)
    )
    if effective_block_size(len(tiles), block_size) > 1 or not near:
        return None
    return (
        "se_total may be too narrow: adjacent windows are treated as independent (blocks of 1); "
        "evaluate more of them"
    )
