"""What the head of a classifier reads: the features of a network, and on request those of its first
layers, the bases, and the length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dnadiff import checks
from dnadiff.backbone import rc
from dnadiff.backbone.base import Backbone
from dnadiff.supervised.head.base import length_features
from dnadiff.supervised.items import reverse_complement_rows
from dnadiff.vocab import Vocab

_Output: TypeAlias = Tensor | tuple[Tensor, Tensor]
_LENGTH_WAVES = 6  # wavelengths of 4 to 724 bases
LENGTH_WIDTH = 1 + 2 * _LENGTH_WAVES


@dataclass(frozen=True)
class HeadInputs:
    """Features of each position, concatenated.

    Args:
        layers: also the outputs of these layers (1 is the first), each normalized to zero mean and
            unit variance over its channels.
        one_hot: also the token itself, as one channel for each id that samples may contain; the
            last channels.
        length: also the number of bases (`length_features`), the same at each position. It can
            reveal the class where the parts of a data set differ in length.
    """

    layers: tuple[int, ...] = ()
    one_hot: bool = False
    length: bool = False

    @classmethod
    def of(
        cls, layers: Sequence[int] = (), one_hot: bool = False, length: bool = False
    ) -> HeadInputs:
        """Checked values of a configuration; raises ValueError."""
        numbers = tuple(checks.integer("inputs.layers", layer) for layer in layers)
        return cls(
            numbers,
            checks.boolean("inputs.one_hot", one_hot),
            checks.boolean("inputs.length", length),
        )

    def describe(self) -> str:
        """What the head reads besides the features, in words; empty if there is nothing."""
        parts = [f"layers {', '.join(map(str, self.layers))}"] if self.layers else []
        parts += ["the bases"] * self.one_hot
        parts += [
            "the length, which can reveal the class (inputs.length=true; compare with "
            "baselines=all)"
        ] * self.length
        return ", ".join(parts)

    def check(self, backbone: Backbone) -> None:
        """Raise ValueError for layers that the network does not have."""
        if not self.layers:
            return
        name = type(backbone).__name__
        if backbone.trunk is None or backbone.reads_both_strands:
            raise ValueError(
                f"inputs.layers {list(self.layers)}: the layers of a {name} cannot be read one by "
                "one; set inputs.layers=[]"
            )
        if max(self.layers) > len(backbone.trunk):
            raise ValueError(
                f"inputs.layers {max(self.layers)} is not one of the {len(backbone.trunk)} layers "
                f"of this {name}"
            )

    def width(self, backbone: Backbone | None, vocab: Vocab, stranded: bool) -> int:
        """Channels of each position."""
        own = 0
        if backbone is not None:
            own = (
                backbone.d_model // 2
                if backbone.reads_both_strands and not stranded
                else backbone.d_model
            )
            own += len(self.layers) * backbone.d_model
        return own + self.length * LENGTH_WIDTH + self.bases_width(vocab)

    def bases_width(self, vocab: Vocab) -> int:
        """The number of last channels that are the bases."""
        return len(vocab.emitted) if self.one_hot else 0

    def read(
        self,
        backbone: Backbone | None,
        vocab: Vocab,
        ids: Tensor,
        valid: Tensor | None,
        stranded: bool,
    ) -> list[Tensor]:
        """Features (B, L, D) float32, of the given strand; of a network that reads both, one for
        each strand as it is read there.

        The strands of an unstranded task are exchanged by the reverse complement of the sequence,
        so that a mean over the results of a head does not depend on which strand is given.
        """
        if backbone is None:
            return [self._with_tokens([], vocab, ids, valid)]
        with self._recorded(backbone) as recorded:
            features = backbone.features(ids, valid=valid).float()
        if stranded or not backbone.reads_both_strands:
            return [self._with_tokens([features, *map(_normalized, recorded)], vocab, ids, valid)]
        lengths = (
            torch.full((len(ids),), ids.shape[1], device=ids.device)
            if valid is None
            else valid.sum(1)
        )
        first, second = rc.strands(features)
        place = (lengths[:, None] - 1 - torch.arange(ids.shape[1], device=ids.device)).clamp(min=0)
        second = second.gather(
            1, place[..., None].expand_as(second)
        )  # from its own beginning, with the padding at its end
        other = reverse_complement_rows(ids, lengths, vocab)
        return [
            self._with_tokens([first], vocab, ids, valid),
            self._with_tokens([second], vocab, other, valid),
        ]

    def _with_tokens(
        self, parts: list[Tensor], vocab: Vocab, ids: Tensor, valid: Tensor | None
    ) -> Tensor:
        if self.length:
            count = ids.new_full((len(ids),), ids.shape[1]) if valid is None else valid.sum(1)
            parts.append(
                length_features(count, _LENGTH_WAVES)[:, None].expand(-1, ids.shape[1], -1)
            )
        if self.one_hot:
            tokens = torch.arange(vocab.size, device=ids.device)
            # An embedding, so that gradients with respect to the bases are found as those of a
            # network (`dnadiff.reward.predicted`).
            parts.append(
                nn.functional.embedding(
                    ids, (tokens[:, None] == torch.tensor(vocab.emitted, device=ids.device)).float()
                )
            )
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    @contextmanager
    def _recorded(self, backbone: Backbone) -> Iterator[list[_Output]]:
        """The outputs of the layers, in their order, after the network has run in the block."""
        found: list[_Output] = [torch.empty(0)] * len(self.layers)
        handles = []
        for number, layer in enumerate(self.layers):

            def keep(
                module: nn.Module, inputs: object, output: _Output, number: int = number
            ) -> None:
                found[number] = (
                    # nothing is computed here: activation checkpointing runs the layer again
                    # without the hook
                    output
                )

            assert backbone.trunk is not None
            handles.append(backbone.trunk[layer - 1].register_forward_hook(keep))
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()


def _normalized(output: _Output) -> Tensor:
    """The output of a layer with zero mean and unit variance over its channels."""
    # A Mamba layer returns the residual stream and what is to be added to it.
    value = output if isinstance(output, Tensor) else output[0] + output[1]
    return nn.functional.layer_norm(value.float(), value.shape[-1:])
