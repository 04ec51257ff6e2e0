"""The options of `python -m dnadiff.sample` for designs: reward, target, method, and sequences to
start from."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dnadiff.config import PACKAGE, Config, Json, build

if TYPE_CHECKING:
    from pathlib import Path

    from dnadiff.data.tokenizer import Tokenizer
    from dnadiff.design.designer import Designer, LongestMatch
    from dnadiff.design.generate import ConditionalSampler
    from dnadiff.design.method.base import DesignMethod
    from dnadiff.design.request import Pattern, Request

_METHOD = {"_target_": "dnadiff.design.method.best_of_n.BestOfN", "num_candidates": 16}
# Keys and their defaults.
_ONLY_WITH_REWARD = {
    "target": None,
    "start": None,
    "report": None,
    "real": None,
    "beta": 10.0,
    "num_draws": 8,
    "method": _METHOD,
}
_REWARD = re.compile(rb'[ "]reward(?:=|": )(-?[0-9.e+-]+)')
log = logging.getLogger("dnadiff")


def is_design(config: Config) -> bool:
    """Whether the samples are designed for a reward."""
    return bool(config.get("reward"))


def check(config: Config) -> None:
    """Check the combination of options; raises ValueError naming the key."""
    if not is_design(config):
        if set_ := [key for key, default in _ONLY_WITH_REWARD.items() if config[key] != default]:
            raise ValueError(
                f"{set_[0]} is for designs; set reward= too, such as reward=gc "
                "(docs/guided_design.md)"
            )
        return
    if config["report"] is not None and not config["report"].lower().endswith(".html"):
        raise ValueError(
            f"report {config['report']} has another format; its name must end in .html"
        )
    if config["real"] is not None and config["report"] is None:
        raise ValueError(
            "real= has the sequences that the page of report= compares designs with; set "
            "report=report.html too"
        )
    if config["gc"] is not None:
        raise ValueError(
            "gc and reward exclude each other; set reward=gc target=0.5, or add "
            "+reward@reward.terms.gc=gc to reward=weighted"
        )
    if config["num_draws"] % 2:
        raise ValueError(
            f"num_draws {config['num_draws']} must be even: two draws for each stratum; 0 leaves "
            "the bounds out"
        )
    method = method_of(config)
    if config["start"] is not None and not method.changes_given:
        raise ValueError(
            f"start= is for methods that change given sequences, and {type(method).__name__} does "
            "not; set method=metropolis"
        )
    if config["resample"] and not method.has_weights:
        raise ValueError(
            f"resample=true needs a method with importance weights, and {type(method).__name__} "
            "has none; set method=smc, svdd or resample_move"
        )
    if config["start"] is not None and (
        config["infill"] is not None
        or config["length"] is not None
        or config["prompt"]
        or config["motif"]
    ):
        raise ValueError(
            "start= has complete sequences; leave infill, length, prompt and motif out, and fix "
            "positions with template="
        )


def method_of(config: Config) -> DesignMethod:
    """The design method; raises ValueError if it is not one."""
    from dnadiff.design.method.base import DesignMethod

    method = build(config["method"], trust=(PACKAGE, *config["trust"]))
    if not isinstance(method, DesignMethod):
        raise ValueError(
            f"method {config['method'].get('_target_')} is not a design method "
            "(dnadiff.design.method.base.DesignMethod)"
        )
    return method


def make_designer(
    config: Config,
    generator: ConditionalSampler,
    request: Request,
    longest_match: LongestMatch | None,
) -> tuple[Designer, dict[str, Json]]:
    """The designer of a configuration, and what its designs depend on.

    Raises:
        ValueError: if the reward or the method cannot be built, or do not fit the model, the
            sampler, the request or the size of a batch.
    """
    from dnadiff.design.designer import Designer
    from dnadiff.design.reward import Reward, as_reward
    from dnadiff.store.address import shown_addresses

    reward = build(config["reward"], trust=(PACKAGE, *config["trust"]))
    if not isinstance(reward, Reward):
        raise ValueError(
            f"reward {config['reward'].get('_target_')} is not a reward "
            "(dnadiff.design.reward.Reward)"
        )
    goal = as_reward(reward, config["target"])
    made = Designer(
        generator, method_of(config), goal, config["beta"], config["num_draws"], longest_match
    )
    made.check_request(request, config["batch_size"])
    log.info(
        "designs are statistical samples without any claim of function; screen them before "
        "synthesis (RESPONSIBLE_USE.md)"
    )
    if made.has_weights(request) is None and made.constrains(request):
        log.info(
            "these designs have no importance weights: constraints hold, but the distribution is "
            "not corrected (docs/designing.md)"
        )
    keys = ("reward", "target", "method", "beta", "num_draws")
    return made, {
        **{key: shown_addresses(without_trust(config[key])) for key in keys},
        "reward_inputs": reward.inputs(),
        "copies": longest_match is not None,
    }


def without_trust(settings: Json) -> Json:
    """Settings of a reward without `trust`, which decides whether a reward can be loaded, not its
    values."""
    if not isinstance(settings, Mapping):
        return settings
    return {key: without_trust(value) for key, value in settings.items() if key != "trust"}


def start_request(
    config: Config, tokenizer: Tokenizer, patterns: Sequence[tuple[str, Pattern]] | None
) -> Request:
    """The request for designs that begin with the sequences of `start=`; raises ValueError as
    `starting_from`."""
    from dnadiff.design.request import starting_from
    from dnadiff.formats.sequences import read_sequences

    given = [
        (record.name, record.sequence.decode("ascii")) for record in read_sequences(config["start"])
    ]
    return starting_from(
        tokenizer,
        given,
        config["num_samples"],
        None if patterns is None else [pattern for _, pattern in patterns],
    )


class Summary:
    """What is added up and reported of designs.

    Attributes:
        totals: before the first batch.
    """

    totals: ClassVar[Mapping[str, Json]] = {
        "reward_sum": 0.0,
        "reward_best": None,
        "reward_calls": 0,
    }

    def __init__(self, config: Config) -> None:
        self.config = config

    def add(self, totals: Json, about: Mapping[str, Json]) -> None:
        """Add the rewards of a batch to the totals of a run."""
        best = totals["reward_best"]
        totals["reward_sum"] += about["reward_sum"]
        totals["reward_best"] = (
            about["reward_best"] if best is None else max(about["reward_best"], best)
        )
        totals["reward_calls"] += about["reward_calls"]

    def summary(self, totals: Mapping[str, Json], generated: int, output: Path) -> dict[str, Json]:
        """The entry `design` of the JSON file; `beta` is null if the method has none.

        With `resample=true` the mean and the best reward are those of the records written.
        """
        from dnadiff.store.address import shown_addresses

        config = self.config
        mean, best = totals["reward_sum"] / generated, totals["reward_best"]
        proposals: dict[str, Json] = {}
        if config["resample"]:
            proposals, written = (
                {"proposals": {"mean": mean, "best": best}},
                written_rewards(output),
            )
            mean, best = sum(written) / len(written), max(written)
        keys = ("reward", "target", "method", "beta", "start")
        about = {key: shown_addresses(config[key]) for key in keys} | (
            {} if method_of(config).uses_beta else {"beta": None}
        )
        return {**about, "mean": mean, "best": best, **proposals, "calls": totals["reward_calls"]}

    def rows(self, design: Mapping[str, Json], generated: int) -> list[tuple[str, str]]:
        """Rows of the closing table."""
        each = design["calls"] / generated
        return [
            ("reward", f"{design['mean']:.4f} on average, {design['best']:.4f} at best"),
            ("reward calls", f"{design['calls']:,} ({each:.1f} for each design)"),
        ]


def written_rewards(path: Path) -> list[float]:
    """The rewards in the headers of a FASTA file, or in the lines of a .jsonl file."""
    from dnadiff.jobs.journal import is_compressed, open_bytes

    with open_bytes(path, is_compressed(path)) as file:
        return [
            float(found[1])
            for line in file
            if line[:1] in b">{" and (found := _REWARD.search(line))
        ]
