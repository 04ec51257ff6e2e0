"""Labels by name: the vector that a denoiser is conditioned on, and guidance."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import torch
from torch import Tensor

from dnadiff.checks import is_number
from dnadiff.denoiser import BaseDenoiser
from dnadiff.design.guidance import Guided

Labels = str | Sequence[str] | None


def conditioned(
    denoiser: BaseDenoiser,
    known: Sequence[str],
    label: Labels,
    guidance: float = 1.0,
    label_dropout: float | None = None,
) -> tuple[BaseDenoiser, Tensor | None]:
    """The denoiser, with guidance if requested, and the labels `(1, C)` to condition on; None is no
    label.

    `known` are the names of the model's labels, `guidance` is the weight of the label (1 is the
    model's distribution given the label), and `label_dropout` the fraction of training windows
    without labels (None if unknown). An unknown label, or guidance without a label, is a
    ValueError.
    """
    if not is_number(guidance) or guidance < 0:
        raise ValueError(
            f"guidance {guidance!r} must be a number of at least 0; 1 is the model's distribution "
            "given the label"
        )
    if label is None and guidance == 1:
        return denoiser, None
    if not known:
        raise ValueError("this model was trained without labels; leave label and guidance out")
    choices = f"this model knows {', '.join(known)}"
    if label is None:
        raise ValueError(f"guidance={guidance} needs a label; {choices}")
    names = [str(name) for name in (label if isinstance(label, (list, tuple)) else [label])]
    if not names:
        raise ValueError(
            f"label {label!r} is empty; leave it out for sequences without a label; {choices}"
        )
    if guidance != 1 and label_dropout == 0:
        raise ValueError(
            f"guidance={guidance} needs a model that was also trained without labels, and this one "
            "has data.label_dropout=0; set guidance=1"
        )
    labels = torch.zeros(1, len(known), device=next(denoiser.parameters()).device)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise ValueError(
                f"label {name!r} is not known{f'; did you mean {close[0]}?' if close else ''}; "
                f"{choices}"
            )
        labels[0, known.index(name)] = 1
    return (denoiser if guidance == 1 else Guided(denoiser, guidance)), labels
