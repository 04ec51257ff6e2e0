"""What `evaluate` left beside a checkpoint: its h(n), and the numbers of groups that follow from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dnadiff.checks import integer as whole
from dnadiff.likelihood import code_length

STORED = "evaluate.json"
log = logging.getLogger("dnadiff")


class StoredCurve:
    """h(n) of a checkpoint, read from `evaluate.json` in its run's folder whenever it is asked for.

    Args:
        path: the checkpoint.
        step: at which it was saved; an evaluation of another step is not its own.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def groups(self, length: int, num_groups: int | None = None, sizes: str | Sequence[int] | None = None) -> dict[str, Any]:
        """`num_groups` and `sizes` of `Grouped` for sequences of `length` tokens.

        Where the run's folder holds `evaluate.json` of this very checkpoint, its h(n) says how many equal groups lose at most 2 % of the
        structure (`dnadiff.likelihood.code_length`).

        Args:
            length: L.
            num_groups: K, if it is chosen already.
            sizes: `optimal` for those that cost least under h(n), where the table says that this holds on other windows too; numbers,
                or None for equal groups.

        Raises:
            ValueError: if `optimal` is asked for without an h(n).
        """
        if isinstance(sizes, str) and sizes != "optimal":
            raise ValueError(f"sizes {sizes!r} is not known; choose optimal, numbers such as [8,16,40], or null for equal groups")
        num_groups = None if num_groups is None else whole("num_groups", num_groups)
        if not (sizes is None or isinstance(sizes, str)) or (sizes is None and num_groups is not None):
            return {"num_groups": num_groups, "sizes": sizes}
        h = self.curve(length)
        if sizes == "optimal" and h is None:
            raise ValueError(
                f"sizes=optimal needs the h(n) of this checkpoint: python -m dnadiff.evaluate checkpoint=RUN output=RUN/{STORED} stores it"
            )
        found = None if h is None else code_length.fewest_groups(h)
        if found is None:  # nothing measured, or no structure to lose
            return {"num_groups": num_groups, "sizes": None}
        if sizes is None:
            return {"num_groups": len(found), "sizes": None}
        if not code_length.best_sizes_hold(self._stored(), num_groups or len(found)):
            log.warning(f"sizes=optimal: by {STORED} best sizes save nothing on windows they were not chosen on; groups are equal")
            return {"num_groups": num_groups or len(found), "sizes": None}
        best = code_length.fewest_groups(h, optimal=True) if num_groups is None else code_length.optimal_sizes(h, num_groups)
        return {"num_groups": None, "sizes": best.tolist()}

    def curve(self, length: int) -> np.ndarray | None:
        """h(n) for sequences of `length` tokens, as `evaluate` stored it in the run's folder; None if it is not there or another model's."""
        try:
            h = code_length.curve_from(self._stored(), length)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None
        return h if np.isfinite(h).all() and (h >= 0).all() else None

    def measured_length(self) -> int | None:
        """Tokens in the sequences on which the stored h(n) was measured; at other lengths `curve` assumes it to be a function of n/L."""
        return None if self.curve(1) is None else int(self._stored()["length"])

    def _stored(self) -> dict[str, Any]:
        """The code length in the run's `evaluate.json`; any error means that this checkpoint has none."""
        folder = self.path.parent.parent if self.path.parent.name == "checkpoints" else self.path.parent
        content = json.loads((folder / STORED).read_text(encoding="utf-8"))
        if content["model"]["step"] != self.step or Path(content["model"]["checkpoint"]).name != self.path.name:
            raise ValueError(f"{folder / STORED} is of another checkpoint")
        if content["model"].get("conjoined"):
            raise ValueError(f"{folder / STORED} is of both strands conjoined, which is another denoiser")
        return content["code_length"]
