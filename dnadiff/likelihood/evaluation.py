"""The evaluation of a trained model on held-out windows: what `python -m dnadiff.evaluate` and
`zero_shot` compute and write, and the protocols that estimate likelihoods."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from dnadiff import likelihood
from dnadiff.bootstrap import effective_block_size
from dnadiff.checks import boolean, integer, is_integer, is_number, optional_integer
from dnadiff.config import Config, Json
from dnadiff.data.intervals import num_tokens
from dnadiff.data.run_data import chosen_data
from dnadiff.denoiser import BaseDenoiser
from dnadiff.likelihood.curve import CurveSums, code_length_table, fingerprint
from dnadiff.likelihood.estimates import Likelihood
from dnadiff.likelihood.estimators import (
    ORDERS,
    Batches,
    check_one_draw,
    check_ordered,
    is_exact,
    ordered,
)
from dnadiff.likelihood.held_out import (
    MAX_KMERS,
    Scores,
    Windows,
    fit_markov,
    markov_rows,
    token_groups,
    window_positions,
)
from dnadiff.noise import NoiseSchedule
from dnadiff.process import AbsorbingProcess, Process, require
from dnadiff.progress import Progress
from dnadiff.store.disk import check_output, write_json

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule
    from dnadiff.data.windows import TiledWindows
    from dnadiff.weights.loaded import Loaded


log = logging.getLogger("dnadiff")


class Estimator(ABC):
    """A way to estimate the likelihood of windows.

    Args:
        config: options of `dnadiff.evaluate`, as `evaluation.check_options` returns them.
        process: the absorbing process.
        windows: what to evaluate.

    Attributes:
        process_type: the process whose bound or likelihood it is.
        has_curve: whether the estimates yield h(n).
        has_se: whether they have a Monte Carlo error.
    """

    process_type: ClassVar[type[Process]] = AbsorbingProcess
    has_curve: ClassVar[bool] = False
    has_se: ClassVar[bool] = True
    can_mirror: ClassVar[bool] = (
        True  # whether reading the other strand with mirrored masks is the same estimate of it
    )

    def __init__(self, config: Config, process: AbsorbingProcess, windows: Windows) -> None:
        self.config, self.process, self.windows = config, process, windows

    @classmethod
    def check_model(cls, denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
        """Raises ValueError if the estimate is not valid for this model or its schedule."""
        require(f"estimator {cls.__name__}", denoiser, cls.process_type)

    @classmethod
    def check_draws(cls, num_draws: int) -> None:
        """Raises ValueError if the estimate cannot use this number of draws."""

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
            curve: measure all that h(n) needs, if `has_curve`.
        """
        self.bar, self.calls, self.curve = Progress(len(self.windows), "evaluate"), 1, curve
        result = self.estimate(
            denoiser, self.windows if batches is None else batches, same_draws_as
        )
        self.bar.close()
        return result

    def _progress(self, num_windows: int) -> None:
        self.bar.update(num_windows, num_windows * self.windows.tiles.length * self.calls)

    @abstractmethod
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        """The likelihood of the batches; see `run`."""

    def other_strand(self, denoiser: BaseDenoiser, result: Likelihood) -> Likelihood:
        """The likelihood of the reverse complements, with the noise of `result`."""
        if (
            denoiser.left_to_right or not self.can_mirror
        ):  # other blocks or another order, so other masks
            return self.run(
                denoiser,
                likelihood.ReverseComplemented(self.windows, self.process.vocab),
                same_draws_as=result,
            )
        return self.run(likelihood.OtherStrand(denoiser, self.process.vocab), same_draws_as=result)

    @abstractmethod
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        """The protocol in words; `blocks` describes those of block diffusion, and `bootstrap` those
        of windows."""


class CountForm(Estimator):
    """The NELBO in count form, with stratified draws."""

    has_curve = True

    @classmethod
    @override
    def check_draws(cls, num_draws: int) -> None:
        likelihood.check_num_draws(num_draws)

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        settings = {
            key: self.config[key] for key in ("num_draws", "max_draws", "seed", "block_size")
        } | {"curve": self.curve}
        target_se, settings["min_draws"] = self.config["target_se"], 0
        if same_draws_as is not None:
            target_se, settings["min_draws"] = None, same_draws_as.num_draws
        self.calls = settings["num_draws"]
        result = likelihood.estimate_to(
            denoiser,
            self.process,
            batches,
            target_se,
            progress=self._progress,
            on_doubling=self._on_doubling,
            **settings,
        )
        if target_se is not None and result.se_mc() > target_se:
            most = settings["max_draws"]
            log.warning(
                f"se_mc is {result.se_mc():.5f} after max_draws={most}, above target_se "
                f"{target_se}; raise max_draws"
            )
        return result

    def _on_doubling(self, draws: int, se: float) -> None:
        self.calls = draws
        self.bar.total = (self.bar.total or 0) + len(self.windows)
        log.info(
            f"se_mc is {se:.5f} nats after {draws} draws, target_se {self.config['target_se']}: "
            f"{draws} more"
        )

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        return (
            f"NELBO, count form{blocks}, {result.num_draws} stratified draws per window; "
            f"{bootstrap}"
        )


class OneDraw(Estimator):
    """The NELBO by the protocol of MDLM's tables."""

    has_se = False

    @classmethod
    @override
    def check_model(cls, denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
        super().check_model(denoiser, noise)
        check_one_draw(denoiser, noise)

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        seed, block_size, is_text = (
            self.config["seed"],
            self.config["block_size"],
            self.process.vocab.complement is None,
        )
        return likelihood.one_draw(
            denoiser,
            self.process,
            batches,
            seed,
            block_size,
            self._progress,
            mask_everything=is_text,
        )

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        batch_size = self.config["batch_size"]
        return (
            "NELBO, MDLM's protocol: one draw of Bernoulli masks per window, times stratified "
            f"over batches of {batch_size}; {bootstrap}"
        )


class ChainRule(Estimator):
    """The exact likelihood of an autoregressive model, or of block diffusion in blocks of one
    token."""

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        return likelihood.chain_rule(denoiser, batches, self.config["block_size"], self._progress)

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        return f"-log p by the chain rule{blocks}, exact; {bootstrap}"


class Ordered(Estimator):
    """The exact likelihood of a model that unmasks one token at a time in a deterministic order."""

    can_mirror = False

    @classmethod
    @override
    def check_model(cls, denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
        super().check_model(denoiser, noise)
        check_ordered(denoiser)

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        self.calls = self.windows.tiles.length
        return ordered(
            denoiser,
            self.process,
            batches,
            ORDERS[self.config["order"]],
            self.config["block_size"],
            self._progress,
        )

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        return f"-log p of unmasking in the order {self.config['order']}, exact; {bootstrap}"


PROTOCOLS: dict[str, type[Estimator]] = {"count": CountForm, "mdlm": OneDraw}


def estimator_for(
    denoiser: BaseDenoiser, protocol: str, order: str | None = None
) -> type[Estimator]:
    """How the likelihood of a model is estimated with `protocol`; exactly, if one call gives it
    (`is_exact`) or an order is given."""
    if order is not None:
        return Ordered
    return ChainRule if is_exact(denoiser) else PROTOCOLS[protocol]


PARTS = ("test", "valid", "train")
log = logging.getLogger("dnadiff")


def check_options(config: Config) -> Config:
    """The options of `dnadiff.evaluate` with integers converted (8.0 and 1e1 are integers), checked
    before anything is read.

    Raises:
        FileExistsError: if an output file exists and `overwrite` is false.
        ValueError: for an impossible value, naming the key, the value and the choices.
    """
    config = dict(config)
    for key in ("output", "windows"):
        config[key] = check_output(config[key], config["overwrite"]) if config[key] else None
    for key, minimum in (
        ("num_draws", 1),
        ("max_draws", 2),
        ("batch_size", 1),
        ("block_size", 1),
        ("seed", 0),
    ):
        config[key] = integer(key, config[key], minimum)
    config["length"] = optional_integer("length", config["length"])
    orders = config["orders"]
    if not isinstance(orders, list) or not all(is_integer(k, 0) and k <= 26 for k in orders):
        raise ValueError(
            f"orders {orders} must be a list of Markov orders from 0 to 26, such as [0,3,6,12]"
        )
    config["orders"] = [int(k) for k in orders]
    if config["part"] not in PARTS:
        raise ValueError(f"part {config['part']!r} is not known; choose test, valid or train")
    if config["protocol"] not in tuple(PROTOCOLS):
        raise ValueError(
            f"protocol {config['protocol']!r} is not known; choose count or mdlm (one draw, "
            "without se_mc)"
        )
    if config.get("order") not in (None, *ORDERS):
        raise ValueError(
            f"order {config['order']!r} is not known; choose {', '.join(ORDERS)}, or null for the "
            "bound"
        )
    target_se = config["target_se"]
    if config.get("order") is not None and (config["protocol"] != "count" or target_se is not None):
        raise ValueError(
            f"order={config['order']} is exact and draws nothing; leave protocol and target_se out"
        )
    if target_se is not None and not PROTOCOLS[config["protocol"]].has_se:
        raise ValueError(
            f"protocol={config['protocol']} has no se_mc; leave target_se out, or set "
            "protocol=count"
        )
    if target_se is not None and not (is_number(target_se) and target_se > 0):
        raise ValueError(
            f"target_se {target_se} must be positive, in nats per token; null makes num_draws draws"
        )
    if config["max_draws"] < config["num_draws"]:
        raise ValueError(
            f"max_draws {config['max_draws']} is less than num_draws {config['num_draws']}; set "
            "max_draws to at least as many"
        )
    return config


def check_strands(config: Config, left_to_right: bool, is_dna: bool) -> None:
    """Raise ValueError, naming the key, if the model cannot evaluate the other strand as the
    options request."""
    for key in ("both_strands", "conjoin"):
        if boolean(key, config[key]) and not is_dna:
            raise ValueError(
                f"{key}=true needs DNA; this model was trained on text, which has one strand: "
                "leave it out"
            )
    if config["conjoin"] and config["both_strands"]:
        raise ValueError(
            "with conjoin=true both strands have the same likelihood, so both_strands=true "
            "compares nothing; leave one out"
        )
    if config["conjoin"] and left_to_right:
        raise ValueError(
            "conjoin=true needs a model that unmasks in any order; one that goes from left to "
            "right predicts the bases of the other strand "
            "in the opposite order: set both_strands=true"
        )


def describe_model(model: Loaded, conjoined: bool) -> Json:
    """What the JSON file records of the model."""
    backbone, parameters = (
        model.denoiser.backbone,
        sum(p.numel() for p in model.denoiser.parameters()),
    )
    about = {
        "checkpoint": str(model.path),
        "backbone": type(backbone).__name__,
        "parameters": parameters,
    }
    return about | {
        "step": model.step,
        "conjoined": conjoined,
        "fingerprint": fingerprint(model.denoiser),
    }


def evaluate(model: Loaded, config: Config, device: str) -> Json:
    """Evaluate a model on held-out windows, write the JSON file, and return its contents and
    `is_dna`.

    Args:
        config: as `check_options` returns it; `data` replaces the data of the training run. The
            scores of each window are written if `windows` names a file.

    Raises:
        ValueError: if model, data and options do not fit, before the network runs.
    """
    is_dna = model.tokenizer.vocab.complement is not None
    protocol = estimator_for(model.denoiser, config["protocol"], config.get("order"))
    protocol.check_model(model.denoiser, model.process.noise)
    protocol.check_draws(config["num_draws"])
    check_strands(config, model.denoiser.left_to_right, is_dna)
    data, own = data_of(model, config)
    model = model.with_tokenizer(data.tokenizer)
    tiles = data.test_windows(config["part"], config["length"])
    log.info(
        f"model: {model.path}, step {model.step:,}; {len(tiles):,} windows of {tiles.length} "
        f"tokens of {data.name} ({config['part']})"
    )
    trained_on = training_data(model, data if own else None, config["trust"]) if is_dna else None
    groups = token_groups(data, tiles, trained_on, config["part"])
    markov = (
        fit_markov(data, config["orders"]) if is_dna else {}
    )  # its errors come before the network runs
    denoiser = model.denoiser.to(device)
    windows = Windows(tiles, groups, config["batch_size"], denoiser.num_labels > 0)
    estimator = protocol(config, model.process, windows)
    evaluated = (
        likelihood.Conjoined(denoiser, model.tokenizer.vocab) if config["conjoin"] else denoiser
    )
    result = estimator.run(evaluated, curve=True)
    curve, costs = None, None
    if estimator.has_curve:
        points, bit = result.curve(), math.log(2)
        curve = {
            "visible": points.visible.tolist(),
            "bits": (points.nats / bit).tolist(),
            "se": (points.se / bit).tolist(),
        }
        start = (
            None
            if result.by_block is not None
            else likelihood.all_masked(evaluated, model.process, windows)
        )
        costs = code_length_table(CurveSums.from_estimates(result, start, tiles.length))
    reverse = estimator.other_strand(evaluated, result) if config["both_strands"] else None
    named = [name for name in result.tokens if result.tokens[name].sum()]
    layout = data.layout(tiles.length)
    about = {
        **data.describe(),
        "window": tiles.length,
        **({} if layout is None else {"layout": layout}),
    }
    content = {
        "model": describe_model(model, config["conjoin"]),
        "data": about,
        "own_data": own,
        "part": config["part"],
        "num_draws": result.num_draws,
        "target_se": config["target_se"],
        "seed": config["seed"],
        "protocol": describe_protocol(config, estimator, result, model.denoiser.block_size, about),
        "block_size": effective_block_size(len(tiles), config["block_size"]),
        "se_total_note": dependence_note(tiles, config["block_size"]),
        "novelty": None
        if trained_on is None
        else f"against the training part of {trained_on.name}",
        "groups": {name: result.summary(name) for name in named},
        "both_strands": {}
        if reverse is None
        else {name: likelihood.both_strands(result, reverse, name) for name in named},
        "markov": markov_rows(data, tiles, groups, result, markov, config["part"]),
        "curve": curve,
        "code_length": costs,
    }
    if config["windows"]:
        nats = {name: result.per_sequence(name) for name in result.tokens}
        Scores(
            window_positions(tiles), nats, result.tokens, result.block_size, about["split_hash"]
        ).save(config["windows"])
    write_json(config["output"], content)
    return content | {"is_dna": is_dna}


def data_of(model: Loaded, config: Config) -> tuple[SequenceDataModule, bool]:
    """The data to evaluate on, prepared, and whether the model was trained on them; raises
    ValueError if they do not fit the model.

    Data that are named again count as those of the training if their sequence and split are the
    same.
    """
    given = bool(config.get("data"))
    data = chosen_data(config.get("data"), model.config, model.known_tokenizer, config["trust"])
    length, longest = config["length"] or data.length, model.denoiser.max_length
    if longest is not None and length > longest:
        raise ValueError(
            f"windows of {length} tokens are longer than the {longest} that this network accepts; "
            f"set length={longest} or less"
        )
    data.prepare()
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


def describe_protocol(
    config: Config, estimator: Estimator, result: Likelihood, b: int | None, about: Json
) -> str:
    """How the likelihood was estimated, in words, and for text how documents became windows; `b` is
    the block size of block diffusion."""
    size = effective_block_size(len(result.available), config["block_size"])
    bootstrap = (
        f"blocks of {size} window{'s' * (size > 1)}"
        + f" (not {config['block_size']}, to have 20)" * (size < config["block_size"])
    )
    if config["conjoin"]:
        bootstrap = f"both strands' probabilities averaged at every call; {bootstrap}"
    of_tokens = "" if b is None else f" in blocks of b = {b} token{'s' * (b > 1)}"
    return "; ".join(
        [
            estimator.describe(result, of_tokens, bootstrap),
            *([about["layout"]] if "layout" in about else []),
        ]
    )


def dependence_note(tiles: TiledWindows, block_size: int) -> str | None:
    """A note if `se_total` treats adjacent windows as independent; None if it does not."""
    near = any(
        a.record == b.record and b.start - a.start <= tiles.length for a, b in pairwise(tiles.tiles)
    )
    if effective_block_size(len(tiles), block_size) > 1 or not near:
        return None
    return (
        "se_total may be too narrow: adjacent windows are treated as independent (blocks of "
        "1); "
        "evaluate more of them"
    )
