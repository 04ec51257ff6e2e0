"""Mamba (arXiv 2312.00752): one direction of reading, for autoregressive models."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from dnadiff.backbone.base import State
from dnadiff.backbone.blocks import MambaBackbone, MambaBlock
from dnadiff.backbone.conditioning import modulate
from dnadiff.backbone.layers import widened
from dnadiff.backbone.mixer import UniMamba
from dnadiff.vocab import Vocab


class Mamba(MambaBackbone):
    """The published Mamba language model: position l of the features knows tokens 0..l and nothing else.

    Args:
        vocab, d_model, n_layers, d_state, d_conv, expand, dt_rank, norm_eps, rms_norm, residual_in_fp32, pad_vocab_to, num_labels,
            time_conditioning, cond_dim, activation_checkpointing, scan, compile: as in `Caduceus`.
        dropout: on what each block adds to the residual stream, before it is added.
    """

    causal = True

    def __init__(
        self,
        vocab: Vocab,
        d_model: int = 128,
        n_layers: int = 4,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        norm_eps: float = 1e-5,
        rms_norm: bool = True,
        residual_in_fp32: bool = False,
        pad_vocab_to: int = 8,
        num_labels: int = 0,
        time_conditioning: bool = False,
        cond_dim: int = 128,
        activation_checkpointing: bool = False,
        scan: str = "auto",
        dropout: float = 0.0,
        compile: bool = False,
    ) -> None:
        super().__init__(
            vocab,
            d_model,
            n_layers,
            partial(UniMamba, d_model, d_state, d_conv, expand, dt_rank),
            norm_eps=norm_eps,
            rms_norm=rms_norm,
            residual_in_fp32=residual_in_fp32,
            pad_vocab_to=pad_vocab_to,
            num_labels=num_labels,
            time_conditioning=time_conditioning,
            cond_dim=cond_dim,
            activation_checkpointing=activation_checkpointing,
            scan=scan,
            dropout=dropout,
            compile=compile,
        )

    def step(self, ids: Tensor, state: State | None = None, cond: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Backbone.step`: a few numbers for each channel are all there is to remember, however long the sequence."""
        self.check(ids[:, None], None, cond)
        if state is None:
            state = State([x for layer in self.layers for x in layer.mixer.fwd.start(len(ids))])
        condition = None if self.condition is None else self.condition(None, cond)
        stream = widened(self.embedding(ids)) if self.residual_in_fp32 else self.embedding(ids)
        remembered: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            change, *memory = _step(layer, stream, condition, *state.tensors[2 * number : 2 * number + 2])
            stream = stream + change
            remembered += memory
        return self.norm_f(stream).to(self.norm_f.weight.dtype), State(remembered, state.length + 1)


def _step(block: MambaBlock, stream: Tensor, condition: Tensor | None, past: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`MambaBlock.forward` at one position: stream (B, D) -> what is added to it (B, D), and what the mixer remembers."""
    hidden = block.norm(stream).to(block.norm.weight.dtype)
    if condition is None:
        return block.mixer.step(hidden, past, h)
    shift, scale, gate = (x[:, 0] for x in block.adaLN_modulation(condition))
    mixed, past, h = block.mixer.step(modulate(hidden, shift, scale), past, h)
    return (1 + gate) * mixed, past, h
