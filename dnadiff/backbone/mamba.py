"""Mamba (arXiv 2312.00752): one direction of reading, for autoregressive models."""

from __future__ import annotations

from functools import partial

from dnadiff.backbone.blocks import MambaBackbone
from dnadiff.backbone.mixer import UniMamba
from dnadiff.vocab import Vocab


class Mamba(MambaBackbone):
    """The published Mamba language model: position l of the features knows tokens 0..l and nothing else.

    Args:
        vocab, d_model, n_layers, d_state, d_conv, expand, dt_rank, norm_eps, rms_norm, residual_in_fp32, pad_vocab_to, num_labels,
            time_conditioning, cond_dim, activation_checkpointing, scan: as in `Caduceus`.
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
        )
