"""Caduceus-Ph: a bidirectional Mamba for DNA (arXiv 2403.03234), with a language-model head tied to its embedding."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn

from dnadiff.backbone.base import Backbone
from dnadiff.backbone.layers import RMSNorm
from dnadiff.backbone.mixer import BiMamba
from dnadiff.kernels import check_scan
from dnadiff.vocab import Vocab


class Block(nn.Module):
    """Add the incoming branch to the residual stream, normalise, mix."""

    def __init__(self, d_model: int, norm_eps: float, **mixer: int | None) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model, norm_eps)
        self.mixer = BiMamba(d_model, **mixer)

    def forward(self, branch: Tensor, residual: Tensor | None, valid: Tensor | None, scan: str) -> tuple[Tensor, Tensor]:
        """Both (B, L, D); returns the new branch and the residual stream."""
        residual = branch if residual is None else residual + branch
        return self.mixer(self.norm(residual), valid, scan), residual


class Caduceus(Backbone):
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
        norm_eps: epsilon of every RMSNorm.
        pad_vocab_to: the embedding's rows are rounded up to a multiple of this.
        scan: which kernel runs the recurrence; `auto` takes the fastest that works here.
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: int = 128,
        n_layers: int = 4,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        norm_eps: float = 1e-5,
        pad_vocab_to: int = 8,
        scan: str = "auto",
    ) -> None:
        super().__init__(vocab, d_model)
        rows = math.ceil(vocab.size / pad_vocab_to) * pad_vocab_to
        self.scan = check_scan(scan)
        self.embedding = nn.Embedding(rows, d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(Block(d_model, norm_eps, d_state=d_state, d_conv=d_conv, expand=expand) for _ in range(n_layers))
        self.norm_f = RMSNorm(d_model, norm_eps)
        with torch.no_grad():  # GPT-2's rule: the residual stream of n layers keeps unit scale at the start
            for layer in self.layers:
                layer.mixer.out_proj.weight /= math.sqrt(n_layers)

    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """See `Backbone.features`; this network has neither a time input nor labels."""
        self.check(ids, sigma, cond, takes_sigma=False)
        branch, residual = self.embedding(ids), None
        for layer in self.layers:
            branch, residual = layer(branch, residual, valid, self.scan)
        return self.norm_f(branch if residual is None else residual + branch)

    def head(self, features: Tensor) -> Tensor:
        """Raw logits (..., rows) in float32: products with the embedding's rows."""
        return nn.functional.linear(features, self.embedding.weight).float()


def from_published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published Caduceus-Ph tensors under this module's names.

    The published checkpoints store tied projections once per direction and the tied head beside the embedding;
    the copies are dropped here.
    """
    renamed = {}
    for name, tensor in state.items():
        if name == "lm_head.weight" or re.search(r"mamba_rev\.(in|out)_proj", name):
            continue
        name = name.removeprefix("caduceus.").removeprefix("backbone.").replace("embeddings.word_embeddings", "embedding")
        name = re.sub(r"mamba_fwd\.(in|out)_proj", r"\1_proj", name)
        name = name.replace("mamba_fwd", "fwd").replace("mamba_rev", "rev")
        name = name.replace("conv1d.", "conv_").replace("dt_proj.", "dt_")
        renamed[name] = tensor.squeeze(1) if name.endswith("conv_weight") else tensor
    return renamed
