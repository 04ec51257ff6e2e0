"""The curve h(n) that `evaluate` stored next to a checkpoint, and the numbers of groups derived from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dnadiff.checks import optional_integer
from dnadiff.config import Json
from dnadiff.likelihood import code_length

FILE_NAME = "evaluate.json"
OPTIMAL = "optimal"
log = logging.getLogger("dnadiff")


class StoredCurve:
    """h(n) of a checkpoint, read from `evaluate.json` in the folder of its run at every use.

    Args:
        path: the checkpoint.
        step: its training step; an evaluation at another step is ignored.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def groups(self, length: int, num_groups: int | None = None, sizes: str | Sequence[int] | None = None) -> Json:
        """The arguments `num_groups` and `sizes` of `Grouped` for sequences of `length` tokens.

        If the folder of the run has an `evaluate.json` of this checkpoint, the number of groups is the smallest number of equal groups
        that loses at most 2 % of the structure (`dnadiff.likelihood.code_length`).

        Args:
            length: L.
            num_groups: None chooses it.
            sizes: `optimal` for the sizes of minimum cost under h(n), if they also help on other windows; numbers of tokens; or None for
                equal groups.

        Raises:
            ValueError: if `optimal` is requested without an h(n).
        """
        num_groups = optional_integer("sampler.num_groups", num_groups)
        optimal = isinstance(sizes, str)
        if isinstance(sizes, str):
            if sizes != OPTIMAL:
                raise ValueError(f"sizes {sizes!r} is not known; choose optimal, numbers such as [8,16,40], or null for equal groups")
        elif sizes is not None or num_groups is not None:
            return {"num_groups": num_groups, "sizes": sizes}
        h = self.curve(length)
        if optimal and h is None:
            raise ValueError(
                f"sizes=optimal needs the h(n) of this checkpoint: python -m dnadiff.evaluate checkpoint=RUN output=RUN/{FILE_NAME} stores it"
            )
        equal = None if h is None else code_length.fewest_groups(h)
        if h is None or equal is None:  # nothing measured, or no structure to lose
            return {"num_groups": num_groups, "sizes": None}
        if not optimal:
            return {"num_groups": len(equal), "sizes": None}
        if not code_length.optimal_sizes_help(self._stored(), num_groups or len(equal)):
            log.warning(f"sizes=optimal: by {FILE_NAME} optimal sizes save nothing on windows not used to choose them; groups are equal")
            return {"num_groups": num_groups or len(equal), "sizes": None}
        best = code_length.fewest_groups(h, optimal=True) if num_groups is None else code_length.optimal_sizes(h, num_groups)
        return {"num_groups": None, "sizes": (equal if best is None else best).tolist()}

    def curve(self, length: int) -> np.ndarray | None:
        """h(n) for sequences of `length` tokens, as stored by `evaluate`; None if there is none for this checkpoint."""
        try:
            h = code_length.curve_from(self._stored(), length)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None
        return h if np.isfinite(h).all() and (h >= 0).all() else None

    def measured_length(self) -> int | None:
        """Tokens per sequence at which the stored h(n) was measured; at other lengths `curve` assumes a function of n/L."""
        return None if self.curve(1) is None else int(self._stored()["length"])

    def _stored(self) -> Json:
        """The code length in the run's `evaluate.json`; any error means that this checkpoint has none."""
        folder = self.path.parent.parent if self.path.parent.name == "checkpoints" else self.path.parent
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        if content["model"]["step"] != self.step or Path(content["model"]["checkpoint"]).name != self.path.name:
            raise ValueError(f"{folder / FILE_NAME} is of another checkpoint")
        if content["model"].get("conjoined"):
            raise ValueError(f"{folder / FILE_NAME} is of both strands conjoined, which is another denoiser")
        return content["code_length"]
