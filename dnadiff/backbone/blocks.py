"""What the three networks of Mamba mixers share: embedding, a residual stream of blocks, a final norm and a head tied to the embedding."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from dnadiff.backbone.base import Backbone
from dnadiff.backbone.conditioning import Condition, Modulation, modulate
from dnadiff.backbone.layers import LayerNorm, RMSNorm, widened
from dnadiff.kernels import check_scan
from dnadiff.vocab import Vocab


class MambaBlock(nn.Module):
    """One layer: take in what the layer before adds to the residual stream, and find what to add next: normalise, modulate if there is a condition, mix, gate.

    The gate is 1 + an output that starts at zero: a new network is the same with and without a condition, and its layers
    are connected either way.
    """

    def __init__(self, norm: nn.Module, mixer: nn.Module, modulation: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.mixer, self.adaLN_modulation = norm, mixer, modulation

    def forward(
        self, stream: Tensor, branch: Tensor | None, condition: Tensor | None, valid: Tensor | None, scan: str
    ) -> tuple[Tensor, Tensor]:
        """stream, branch (B, L, D), condition (B, cond_dim) -> stream + branch and this layer's branch, which the next one adds."""
        stream, hidden = self.norm.after(stream, branch)
        if condition is None:
            return stream, self.mixer(hidden, valid, scan)
        shift, scale, gate = self.adaLN_modulation(condition)
        return stream, (1 + gate) * self.mixer(modulate(hidden, shift, scale), valid, scan)


class MambaBackbone(Backbone):
    """A residual stream of mixers.

    The published code adds a branch before each norm and once more at the end; that is this stream, written the usual way.

    Args:
        vocab: the alphabet.
        d_model: width D of the stream.
        n_layers: number of blocks.
        mixer: makes the mixer of one block, called as mixer(hidden, valid, scan).
        norm_eps: epsilon of every norm.
        rms_norm: RMSNorm; False takes LayerNorm with a bias.
        residual_in_fp32: keep the stream in float32 when the weights are narrower.
        pad_vocab_to: the embedding's rows are rounded up to a multiple of this.
        num_labels: see `Backbone`.
        time_conditioning: take the noise level.
        cond_dim: width of what labels and noise level are mapped to.
        activation_checkpointing: keep each layer's input alone and compute the layer again in the backward pass.
        compile: compile the blocks (`torch.compile`); they are alike, so that one compilation serves all but the first, which adds no branch.
        scan: which kernel runs the recurrence; `auto` takes the fastest that works here.
        dropout: on what each block adds to the stream.
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: int,
        n_layers: int,
        mixer: Callable[[], nn.Module],
        *,
        norm_eps: float,
        rms_norm: bool,
        residual_in_fp32: bool,
        pad_vocab_to: int,
        num_labels: int,
        time_conditioning: bool,
        cond_dim: int,
        activation_checkpointing: bool,
        scan: str,
        dropout: float = 0.0,
        compile: bool = False,
    ) -> None:
        super().__init__(vocab, d_model, takes_sigma=bool(time_conditioning), num_labels=num_labels)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout {dropout} must lie in [0, 1); set backbone.dropout")
        self.dropout = nn.Dropout(dropout)
        self.scan, self.residual_in_fp32, self.activation_checkpointing = check_scan(scan), residual_in_fp32, activation_checkpointing
        self.pad_vocab_to = pad_vocab_to
        told = bool(num_labels or time_conditioning)

        def norm() -> nn.Module:
            return RMSNorm(d_model, norm_eps, scan) if rms_norm else LayerNorm(d_model, norm_eps, bias=True)

        self.embedding = nn.Embedding(math.ceil(vocab.size / pad_vocab_to) * pad_vocab_to, d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(MambaBlock(norm(), mixer(), Modulation(cond_dim, d_model) if told else None) for _ in range(n_layers))
        self.norm_f = norm()
        self.condition = Condition(cond_dim, num_labels, time_conditioning) if told else None
        with torch.no_grad():  # GPT-2's rule: the residual stream of n layers keeps unit scale at the start
            for name, parameter in self.layers.named_parameters():
                if ".mixer.out_proj" in name:
                    parameter /= math.sqrt(n_layers)
        for layer in self.layers if compile else ():
            layer.compile()

    @property
    @override
    def trunk(self) -> nn.ModuleList:
        return self.layers

    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """See `Backbone.features`; None leaves the network as it is without noise level or labels."""
        self.check(ids, sigma, cond)
        return self.read(ids, sigma, cond, valid)

    def read(self, ids: Tensor, sigma: Tensor | None, cond: Tensor | None, valid: Tensor | None) -> Tensor:
        """Token ids (B, L) through all layers, normalised: (B, L, D)."""
        condition = None if self.condition is None else self.condition(sigma, cond)
        stream = widened(self.embedding(ids)) if self.residual_in_fp32 else self.embedding(ids)
        branch = None
        for layer in self.layers:
            stream, branch = self.enter(stream, branch)
            stream, branch = self._run(layer, stream, branch, condition, valid)
            branch = self.dropout(branch)
        stream = stream if branch is None else stream + branch
        return self.norm_f(stream).to(self.norm_f.weight.dtype)

    def enter(self, stream: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What happens to the stream (B, L, D) and its last branch in front of each layer: nothing, unless two strands change places."""
        return stream, branch

    def _run(self, layer: nn.Module, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, self.scan, use_reentrant=False, preserve_rng_state=False)
        return layer(*inputs, self.scan)

    def head(self, features: Tensor) -> Tensor:
        """Raw logits (..., rows) in float32: products with the embedding's rows."""
        return widened(nn.functional.linear(features, self.embedding.weight))

    def head_matrix(self) -> tuple[Tensor, Tensor | None] | None:
        """See `Backbone.head_matrix`."""
        return self.embedding.weight, None
