"""What a model's source records besides the network: training data, held-out likelihood, licenses.
All values are plain, as in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, get_type_hints

from dnadiff.checks import check_arguments, check_value
from dnadiff.config import Config, Json


class GroupLikelihood(TypedDict):
    """The likelihood of one group of held-out tokens; None is what too few windows leave
    unknown."""

    bits: float | None
    bits_low: float | None
    bits_high: float | None
    nll: float | None
    perplexity: float | None
    se_total: float | None
    tokens: int


class MarkovGroup(TypedDict):
    """A Markov model on one group of tokens, and the model minus it with a 95 % interval, in bits
    per token."""

    bits: float | None
    difference_bits: float | None
    low: float | None
    high: float | None


class MarkovLikelihood(TypedDict):
    """A Markov model of one order."""

    order: int
    groups: dict[str, MarkovGroup]


class HeldOutLikelihood(TypedDict):
    """Held-out likelihood with its baselines."""

    part: str
    data: str
    own_data: bool
    window: int
    split: str
    split_hash: str
    protocol: str
    groups: dict[str, GroupLikelihood]
    markov: list[MarkovLikelihood]


class CurvePoints(TypedDict):
    """h(n): bits per token of a token with n others visible, in ranges of n."""

    visible: list[float]
    bits: list[float]


class DataDescription(TypedDict, total=False):
    """What is used of a description of data (`SequenceDataModule.describe`)."""

    name: str
    split: str
    split_hash: str
    split_tokens: dict[str, int]
    held_out_records: dict[str, list[str]]


@dataclass(frozen=True)
class Origin:
    """What the source of a model records besides what is needed to use it; None is not recorded.

    Attributes:
        kind: of the source, in words.
        tokens: tokens seen in training.
        split_hash: of the records and their split (`dnadiff.data.splits.split_hash`).
        digest: of the sequence that it was trained on (`SequenceDataModule.digest`).
        data: description of the training data (`SequenceDataModule.describe`).
        data_changed: the files of the training data held something else when the model was
            exported.
        likelihood: held-out likelihood with its baselines, as `held_out_likelihood` returns it.
        curve: h(n) on the held-out part, if the order of the tokens is free.
        seconds: of training.
        license: of the weights.
        data_license: of the training data.
        note: how it was trained and what it is for, in words.
    """

    kind: str = "run"
    tokens: int | None = None
    split_hash: str | None = None
    digest: str | None = None
    data: Config | None = None
    data_changed: bool = False
    likelihood: Config | None = None
    curve: Config | None = None
    seconds: float | None = None
    license: str | None = None
    data_license: str | None = None
    note: str | None = None


def read_origin(kind: str, content: Mapping[str, Json]) -> Origin:
    """The origin in the description of a model.

    Raises:
        KeyError, TypeError, ValueError: naming the key, if one is missing, unknown, or of another
            type.
    """
    check_value("origin", content, dict)
    check_arguments(Origin, content, "origin.")
    check_value("origin.data", content.get("data"), DataDescription | None)
    check_value("origin.curve", content.get("curve"), CurvePoints | None)
    likelihood = content.get("likelihood")
    found = None if likelihood is None else held_out_likelihood(likelihood, "origin.likelihood")
    return Origin(kind, **{**content, "likelihood": found})


def held_out_likelihood(content: Mapping[str, Json], key: str = "likelihood") -> Config:
    """A `HeldOutLikelihood` without further keys.

    Raises:
        KeyError, TypeError, AttributeError: if a key is missing, or something else than a mapping
            is in its place.
        ValueError: naming the key, if a value has another type.
    """
    hints = get_type_hints(HeldOutLikelihood)
    found = {name: content[name] for name in hints}
    found["groups"] = {
        name: {one: group[one] for one in get_type_hints(GroupLikelihood)}
        for name, group in found["groups"].items()
    }
    found["markov"] = [
        {
            "order": row["order"],
            "groups": {
                name: {one: group[one] for one in get_type_hints(MarkovGroup)}
                for name, group in row["groups"].items()
            },
        }
        for row in found["markov"]
    ]
    check_value(key, found, HeldOutLikelihood)
    return found
