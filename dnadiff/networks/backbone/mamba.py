"""Mamba (arXiv 2312.00752): a unidirectional network for autoregressive models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, Probability, checked
from dnadiff.networks.backbone.base import CausalBackbone, State
from dnadiff.networks.backbone.layers import modulate
from dnadiff.networks.backbone.mamba_backbone import MambaBackbone, MambaBlock, MambaOptions
from dnadiff.networks.backbone.mixer import UniMamba
from dnadiff.networks.kernels.select import SCANS, chosen_scan


@checked
class Mamba(MambaBackbone, CausalBackbone):
    """The published Mamba language model: the features of position l depend on tokens 0..l only.

    Args:
        vocab, d_model, n_layers, dropout, **options: as in `MambaBackbone`.
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: PositiveInt = 128,
        n_layers: PositiveInt = 4,
        *,
        dropout: Probability = 0.0,
        **options: Unpack[MambaOptions],
    ) -> None:
        super().__init__(vocab, d_model, n_layers, UniMamba, dropout=dropout, **options)

    @override
    def step(
        self, ids: Tensor, state: State | None = None, cond: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_inputs(ids[:, None], None, cond)
        if state is None:
            state = State(
                [x for _, mixer in self._blocks() for x in mixer.fwd.initial_state(len(ids))]
            )
        condition = None if self.condition is None else self.condition(None, cond)
        stream = self.embed(ids)
        tensors: list[Tensor] = []
        for number, (block, mixer) in enumerate(self._blocks()):
            past, h = state.tensors[2 * number : 2 * number + 2]
            change, past, h = _step(block, mixer, stream, condition, past, h)
            stream = stream + change
            tensors += [past, h]
        return self.norm_f(stream).to(self.norm_f.weight.dtype), State(tensors, state.length + 1)

    @override
    def read(
        self, ids: Tensor, state: State | None = None, cond: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_inputs(ids, None, cond)
        weight = self.embedding.weight
        if SCANS[chosen_scan(self.scan, weight.device.type, weight.dtype)].lacks_states():
            return super().read(ids, state, cond)
        stream, branch, state = self.carried(ids, state, cond, None)
        return self.normalized(stream, branch), state

    def _blocks(self) -> Iterator[tuple[MambaBlock, UniMamba]]:
        for block in self.layers:
            assert isinstance(block, MambaBlock) and isinstance(block.mixer, UniMamba)
            yield block, block.mixer


def _step(
    block: MambaBlock,
    mixer: UniMamba,
    stream: Tensor,
    condition: Tensor | None,
    past: Tensor,
    h: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """`MambaBlock.forward` at one position: stream (B, D) -> what is added to it (B, D), and the
    mixer's new state."""
    hidden = block.norm(stream).to(block.norm.weight.dtype)
    if condition is None or block.adaLN_modulation is None:
        return mixer.step(hidden, past, h)
    shift, scale, gate = (x[:, 0] for x in block.adaLN_modulation(condition))
    mixed, past, h = mixer.step(modulate(hidden, shift, scale), past, h)
    return (1 + gate) * mixed, past, h
