"""The curve h(n) that `evaluate` stored next to a checkpoint, and the numbers of groups derived
from it."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dnadiff.checks import is_number, optional_integer
from dnadiff.config import Json
from dnadiff.likelihood import code_length
from dnadiff.weights.tensors import fingerprint

FILE_NAME = "evaluate.json"
OPTIMAL = "optimal"
# What reading a file that something else wrote or damaged can raise.
_DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
log = logging.getLogger("dnadiff")


class StoredCurve:
    """h(n) of a model, read from `evaluate.json` in the folder of its run at every use.

    An evaluation of other weights, on other data than those of the training run, on its training
    part, or of both strands conjoined is ignored, with a warning that says why.

    Args:
        path: the checkpoint.
        network: the model with the weights of the checkpoint.
    """

    def __init__(self, path: Path, network: torch.nn.Module) -> None:
        self.path, self.network = path, network
        self._warned: set[str] = set()

    @functools.cached_property
    def fingerprint(self) -> str:
        """That of the weights, computed when it is first needed."""
        return fingerprint(self.network)

    @property
    def file(self) -> Path:
        """Where the evaluation of this run is."""
        folder = (
            self.path.parent.parent if self.path.parent.name == "checkpoints" else self.path.parent
        )
        return folder / FILE_NAME

    def groups(
        self, length: int, num_groups: int | None = None, sizes: str | Sequence[int] | None = None
    ) -> Json:
        """The arguments `num_groups` and `sizes` of `Grouped` for sequences of `length` tokens.

        If the folder of the run has an `evaluate.json` of this checkpoint, the number of groups is
        the smallest number of equal groups that loses at most 2 % of the structure
        (`dnadiff.likelihood.code_length`).

        Args:
            length: L.
            num_groups: None chooses it.
            sizes: `optimal` for the sizes of minimum cost under h(n), if they also help on other
                windows; numbers of tokens; or None for equal groups.

        Raises:
            ValueError: if `optimal` is requested without an h(n).
        """
        num_groups = optional_integer("sampler.num_groups", num_groups)
        optimal = isinstance(sizes, str)
        if isinstance(sizes, str):
            if sizes != OPTIMAL:
                raise ValueError(
                    f"sizes {sizes!r} is not known; choose optimal, numbers such as [8,16,40], or "
                    "null for equal groups"
                )
        elif sizes is not None or num_groups is not None:
            return {"num_groups": num_groups, "sizes": sizes}
        h = self.curve(length)
        if optimal and h is None:
            raise ValueError(
                f"sizes=optimal needs the h(n) of this checkpoint: {self._remedy()} stores it"
            )
        alone = None if h is None else self._alone()
        equal = None if h is None else code_length.fewest_groups(h, alone=alone)
        if h is None or equal is None:  # nothing measured, or no structure to lose
            return {"num_groups": num_groups, "sizes": None}
        if not optimal:
            return {"num_groups": len(equal), "sizes": None}
        if not self._optimal_sizes_help(num_groups or len(equal)):
            log.warning(
                f"sizes=optimal: by {FILE_NAME} optimal sizes save nothing on windows not used to "
                "choose them; groups are equal"
            )
            return {"num_groups": num_groups or len(equal), "sizes": None}
        best = (
            code_length.fewest_groups(h, optimal=True, alone=alone)
            if num_groups is None
            else code_length.optimal_sizes(h, num_groups)
        )
        return {"num_groups": None, "sizes": (equal if best is None else best).tolist()}

    def curve(self, length: int) -> np.ndarray | None:
        """h(n) for sequences of `length` tokens, as stored by `evaluate`; None if there is none of
        this model."""
        try:
            h = code_length.curve_from(self._stored(), length)
        except _DAMAGED:
            return None
        return h if np.isfinite(h).all() and (h >= 0).all() else None

    def _alone(self) -> float | None:
        """The nats of a token without context of a block diffusion model; see
        `code_length.lost_structure`."""
        bits = self._stored().get("alone_bits")
        return float(bits) * math.log(2) if is_number(bits) else None

    def _optimal_sizes_help(self, num_groups: int) -> bool:
        try:
            return code_length.optimal_sizes_help(self._stored(), num_groups)
        except _DAMAGED:
            return False

    def measured_length(self) -> int | None:
        """Tokens per sequence at which the stored h(n) was measured; at other lengths `curve`
        assumes a function of n/L."""
        return None if self.curve(1) is None else int(self._stored()["length"])

    def _stored(self) -> Json:
        """The code length in the run's `evaluate.json`; any error means that there is none of this
        model."""
        content = json.loads(self.file.read_text(encoding="utf-8"))
        if not content["code_length"]:
            raise ValueError(f"{self.file} has no h(n)")
        if (reason := self._unusable(content)) is not None:
            if reason not in self._warned:
                log.warning(
                    f"the h(n) in {self.file} is ignored: {reason}; {self._remedy()} measures it"
                )
                self._warned.add(reason)
            raise ValueError(reason)
        return content["code_length"]

    def _unusable(self, content: Json) -> str | None:
        model = content["model"]
        if "fingerprint" not in model:
            return "an older version wrote it without a fingerprint of the weights"
        if model.get("conjoined"):
            return "it is of both strands conjoined, which is another denoiser"
        if not content["own_data"]:
            return (
                "it was measured on different data from those of the run "
                f"({content['data']['name']})"
            )
        if content["part"] == "train":
            return "it was measured on the training part"
        return (
            None
            if model["fingerprint"] == self.fingerprint
            else "it was measured with other weights"
        )

    def _remedy(self) -> str:
        return (
            f"python -m dnadiff.evaluate checkpoint={self.path} output={self.file} overwrite=true"
        )
