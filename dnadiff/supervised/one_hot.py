"""A head on the bases alone, without a network: what a fine-tuned network has to beat before its
gain can be ascribed to pretraining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch
from typing_extensions import Unpack, override

from dnadiff import checks
from dnadiff.checks import Positive, optional_integer
from dnadiff.config import Json
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.draws import hash64
from dnadiff.supervised.classifier import Classifier
from dnadiff.supervised.finetuning import NetworkModel, TrainingSettings
from dnadiff.supervised.head.base import Head
from dnadiff.supervised.head_inputs import HeadInputs
from dnadiff.supervised.items import TaskData


class OneHotModel(NetworkModel):
    """A head of `configs/head` on one-hot bases, without a network.

    Args:
        head: makes the head from `width`, `num_outputs` and `max_length` (`_partial_: true` in a
            configuration).
        lr, head_epochs, device, stored_width, **settings: as in `NetworkModel`. The control of a
            fine-tuned network has the same two stages, with as many sequences (`stored_width` of
            the network) and the same learning rates.
        length: the head also reads the length, as the heads of the networks do with
            `inputs.length=true`.
    """

    def __init__(
        self,
        tokenizer: DNATokenizer,
        head: Callable[..., Head],
        lr: Positive | Sequence[float] = 2e-3,
        head_epochs: int | None = 0,
        device: str = "cpu",
        stored_width: int | None = None,
        length: bool = False,
        **settings: Unpack[TrainingSettings],
    ) -> None:
        super().__init__(lr, **settings)
        self.head_epochs, self.device = optional_integer("head_epochs", head_epochs, 0), device
        self.stored_width = optional_integer("stored_width", stored_width)
        self.vocab, self.head, self.inputs = (
            tokenizer.vocab,
            head,
            HeadInputs(one_hot=True, length=checks.boolean("length", length)),
        )

    @override
    def describe(self) -> dict[str, Json]:
        described = super().describe() | {"head": repr(self.head)}
        return described | {"inputs": asdict(self.inputs)} if self.inputs.length else described

    @override
    def build_classifier(self, data: TaskData, seed: int) -> Classifier:
        torch.manual_seed(hash64(seed, "one-hot") % 2**63)
        if (
            isinstance(self.head, partial)
            and isinstance(self.head.func, type)
            and issubclass(self.head.func, Head)
        ):
            self.head.func.check_lengths(data.min_length, data.max_length)
        width = self.inputs.width(None, self.vocab, data.stranded)
        head = self.head(
            width=width, num_outputs=data.target.num_outputs, max_length=data.max_length
        )
        return Classifier(None, head, data.stranded, self.inputs, self.vocab)
