"""Caduceus-Ph: a bidirectional Mamba for DNA (arXiv 2403.03234), with a language-model head tied to its embedding."""

from __future__ import annotations

from functools import partial

from dnadiff.backbone.blocks import MambaBackbone
from dnadiff.backbone.mixer import BiMamba
from dnadiff.vocab import Vocab


class Caduceus(MambaBackbone):
    """Embedding, `n_layers` bidirectional Mamba blocks, a final norm and a tied head.

    Deviation from the published code: the number of columns is `vocab.size` padded up to a multiple of
    `pad_vocab_to`, so the DNA alphabet of 12 has the published 16 rows.

    Args:
        vocab: the alphabet.
        d_model: width D.
        n_layers: number of blocks.
        d_state: N, states per channel.
        d_conv: taps of the short convolution.
        expand: inner width over D.
        dt_rank: rank of the step-size projection; None is D/16, rounded up.
        norm_eps: epsilon of every norm.
        rms_norm: RMSNorm; False takes LayerNorm with a bias.
        residual_in_fp32: keep the residual stream in float32 when the weights are narrower.
        bidirectional_strategy: `add` or `ew_multiply` the outputs of the two directions.
        bidirectional_weight_tie: share the projections between the directions.
        pad_vocab_to: the embedding's rows are rounded up to a multiple of this.
        num_labels: C, columns of `cond`; 0 is no labels.
        time_conditioning: take the noise level.
        cond_dim: width of what labels and noise level are mapped to.
        activation_checkpointing: keep each layer's input alone and compute the layer again in the backward pass.
        scan: which kernel runs the recurrence; `auto` takes the fastest that works here.
        compile: compile the blocks (`torch.compile`), which are alike.
    """

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
        bidirectional_strategy: str = "add",
        bidirectional_weight_tie: bool = True,
        pad_vocab_to: int = 8,
        num_labels: int = 0,
        time_conditioning: bool = False,
        cond_dim: int = 128,
        activation_checkpointing: bool = False,
        scan: str = "auto",
        compile: bool = False,
    ) -> None:
        super().__init__(
            vocab,
            d_model,
            n_layers,
            partial(BiMamba, d_model, d_state, d_conv, expand, dt_rank, bidirectional_strategy, bidirectional_weight_tie),
            norm_eps=norm_eps,
            rms_norm=rms_norm,
            residual_in_fp32=residual_in_fp32,
            pad_vocab_to=pad_vocab_to,
            num_labels=num_labels,
            time_conditioning=time_conditioning,
            cond_dim=cond_dim,
            activation_checkpointing=activation_checkpointing,
            scan=scan,
            compile=compile,
        )
