"""DiT: the bidirectional transformer of MDLM (arXiv 2406.07524, appendix C), with rotary positions
and adaLN (arXiv 2212.09748)."""

import math
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, checked
from dnadiff.networks.backbone.attention import (
    Angles,
    AttentionBackbone,
    AttentionBlock,
    CachedAttention,
    Mask,
    cached_mask,
    two_streams,
)
from dnadiff.networks.backbone.base import AttentionCacheBackbone, OptTensor, PublishedLayout, State
from dnadiff.networks.backbone.layers import (
    KernelLinear,
    LayerNorm,
    SigmaMap,
    at_least_float32,
    rotated,
)


class DiTBlock(AttentionBlock):
    """Attention and a feed-forward network, each scaled, shifted and gated by the noise level
    (adaLN-zero).

    A condition that all sequences share, as without time conditioning, is folded into parameters:
    scale and shift into weight and bias of the norm, the gate into the preceding matrix. This takes
    one operation per layer instead of one per token.
    """

    def __init__(
        self,
        d_model: PositiveInt,
        n_heads: PositiveInt,
        cond_dim: PositiveInt,
        mlp_ratio: int,
        dropout: float,
    ) -> None:
        super().__init__(d_model, n_heads, mlp_ratio, dropout)
        self.adaLN_modulation = nn.Linear(cond_dim, 6 * d_model)
        nn.init.zeros_(self.adaLN_modulation.weight)
        nn.init.zeros_(self.adaLN_modulation.bias)

    def forward(self, x: Tensor, condition: Tensor, angles: Angles, mask: Mask) -> Tensor:
        """(B, L, D), condition (B, cond_dim), or (1, cond_dim) for all sequences -> (B, L, D), or
        the positions `attend` returns."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN_modulation(condition).chunk(
            6, dim=-1
        )
        one = len(condition) == 1
        folded_a, folded_m = (gate_a[0], gate_m[0]) if one else (None, None)
        mixed = self.attend(self.norm1(x, shift_a, scale_a), angles, mask, gate=folded_a)
        mixed = self.dropout(mixed)
        x = x[:, : mixed.shape[1]] + (mixed if one else gate_a[:, None] * mixed)
        mixed = self.mlp[1](self.mlp[0](self.norm2(x, shift_m, scale_m)))
        mixed = self.dropout(self.mlp[2](mixed, folded_m))
        return x + (mixed if one else gate_m[:, None] * mixed)


class FinalNorm(nn.Module):
    """The last adaLN and the linear map to logits; `forward` is the norm alone, which completes
    `features`."""

    def __init__(self, d_model: PositiveInt, rows: int, cond_dim: PositiveInt) -> None:
        super().__init__()
        self.norm_final = LayerNorm(d_model)
        self.linear = KernelLinear(d_model, rows)
        self.adaLN_modulation = nn.Linear(cond_dim, 2 * d_model)
        for layer in (self.linear, self.adaLN_modulation):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(B, L, D), condition as for a `DiTBlock` -> (B, L, D)."""
        return self.norm_final(x, *self.adaLN_modulation(condition).chunk(2, dim=-1))


@checked
class DiT(AttentionBackbone, AttentionCacheBackbone):
    """The published DiT. Its modules have the published names, so that published weights load
    unchanged.

    In blocks (`BlockBackbone`) the state has the keys and values of the clean tokens read so far,
    the last `max_length` of them. After `max_length` tokens, a block of n tokens attends to itself
    and to the last `max_length - n` tokens: a sliding window, and constant memory. Up to then
    `step_block` and `advance` compute the same as `block_features`. With `max_length` None, the
    state grows with the sequence.

    Args:
        vocab: the vocabulary; one embedding row per id, not tied to the head.
        n_layers: number of blocks.
        cond_dim: width of the noise-level embedding.
        d_model, n_heads, **options: as in `AttentionBackbone`.

    Examples:
        >>> import torch
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> network = DiT(DNATokenizer().vocab, d_model=16, n_layers=2, n_heads=2)
        >>> logits = network(torch.tensor([[7, 8, 9, 10]]))  # A, C, G, T
        >>> logits.shape, bool((logits == 0).all())  # the head starts at zero
        (torch.Size([1, 4, 12]), True)
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: PositiveInt = 128,
        n_layers: PositiveInt = 4,
        n_heads: PositiveInt = 4,
        cond_dim: PositiveInt = 128,
        **options: Annotated[Any, AttentionBackbone],
    ) -> None:
        super().__init__(vocab, d_model, n_heads, takes_sigma=True, **options)
        self.vocab_embed = nn.ParameterDict(
            {"embedding": nn.Parameter(torch.empty(vocab.size, d_model))}
        )
        nn.init.kaiming_uniform_(self.vocab_embed["embedding"], a=math.sqrt(5))
        self.sigma_map = SigmaMap(cond_dim)
        self.blocks = self.stack(
            n_layers, lambda: DiTBlock(d_model, n_heads, cond_dim, self.mlp_ratio, self.dropout)
        )
        self.output_layer = FinalNorm(d_model, vocab.size, cond_dim)

    def embed(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.vocab_embed["embedding"])

    def mix(self, h: Tensor, sigma: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        condition = self._condition(sigma, h.device)
        mask = None if valid is None else valid[:, None, None, :]
        angles = self.rotary_emb.angles(h.shape[1], h.device)
        return self.output_layer(self.through_blocks(h, condition, angles, mask), condition)

    def _condition(self, sigma: OptTensor, device: torch.device) -> Tensor:
        """What modulates the layers: (B, cond_dim); (1, cond_dim) without time conditioning, where
        MDLM's network gets sigma = 0."""
        return silu(self.sigma_map(torch.zeros(1, device=device) if sigma is None else sigma))

    def block_features(
        self,
        xt: Tensor,
        x0: Tensor,
        block_size: int,
        cond: OptTensor = None,
        valid: OptTensor = None,
        clean: bool = False,
    ) -> tuple[Tensor, OptTensor]:
        self.check_inputs(xt, None, cond)
        length = xt.shape[1]
        condition = self._condition(None, xt.device)
        cos, sin = self.rotary_emb.angles(length, xt.device)
        angles = cos.repeat(2, 1), sin.repeat(2, 1)
        x = torch.cat([self.embedded(xt, cond), self.embedded(x0, cond)], 1)
        attention = two_streams(x, self.rotary_emb.head_width, block_size, valid)
        for number, block in enumerate(self.blocks):
            if number + 1 == len(self.blocks) and not clean:
                attention = attention.noised_only()
            x = self.run(block, x, condition, angles, attention)
        x = self.output_layer(x, condition)
        return x[:, :length], x[:, length:] if clean else None

    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return self._read(xt, state or State([]), cond, valid)[0]

    def advance(
        self,
        x0: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> State:
        state = state or State([])
        tensors = self._read(x0, state, cond, valid)[1]
        length = state.length + x0.shape[1]
        shift = self._origin(state.length) - self._origin(length)
        if shift:
            keys = slice(0, 2 * len(self.blocks), 2)
            tensors[keys] = [
                rotated(x, self.rotary_emb.angles(1, x.device, shift)) for x in tensors[keys]
            ]
        return State(tensors, length)

    def around(
        self, ids: Tensor, columns: slice, cond: OptTensor = None, valid: OptTensor = None
    ) -> State:
        kept = torch.ones(ids.shape[1], dtype=torch.bool, device=ids.device)
        kept[columns] = False
        tensors = self._read(ids, State([]), cond, valid)[1]
        return State([x[:, :, kept] for x in tensors], columns.start or 0)

    def _read(
        self, ids: Tensor, state: State, cond: OptTensor, valid: OptTensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Features of one block (B, n) after the tokens in `state`, and the tensors of a state with
        this block.

        They are keys and values of each layer (B, heads, m, D / heads), and (B, 1, m) bool, False
        on padding, if there is any.
        """
        self.check_inputs(ids, None, cond)
        size = ids.shape[1]
        past = state.tensors
        if self.max_length is not None:
            past = [x[:, :, max(0, x.shape[2] + size - self.max_length) :] for x in past]
        seen = past[2 * len(self.blocks) :]
        if valid is not None or seen:
            known = past[0].shape[2] if past else 0
            before = seen[0] if seen else ids.new_ones(len(ids), 1, known, dtype=torch.bool)
            here = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            seen = [torch.cat([before, here[:, None]], 2)]
        mask = cached_mask(seen[0], size) if seen else None
        x = self.embedded(ids, cond)
        tensors = list[Tensor]()
        condition = self._condition(None, ids.device)
        angles = self.rotary_emb.angles(size, ids.device, state.length - self._origin(state.length))
        for number, block in enumerate(self.blocks):
            attention = CachedAttention(past[2 * number : 2 * number + 2], mask)
            # not a compiled one: it would be compiled again for most lengths
            x = block.forward(x, condition, angles, attention)
            tensors += attention.cached
        return self.output_layer(x, condition), tensors + seen

    def _origin(self, length: int) -> int:
        """The index of the token with rotary position 0 in the state after `length` tokens.

        It moves, by `max_length` at a time, because large angles are inexact in float32. Attention
        depends on differences of positions only.
        """
        size = self.max_length
        return 0 if size is None else max(0, length // size - 1) * size

    def head(self, features: Tensor) -> Tensor:
        return at_least_float32(self.output_layer.linear(features))

    def head_matrix(self) -> tuple[Tensor, OptTensor]:
        return self.output_layer.linear.weight, self.output_layer.linear.bias

    def published_layout(self) -> PublishedLayout:
        """The layout of MDLM's DiT; ValueError with another `mlp_ratio`, or no layers."""
        if self.mlp_ratio != 4 or not len(self.blocks):
            raise ValueError(
                f"the published DiT has mlp_ratio 4 and layers, not mlp_ratio {self.mlp_ratio} and "
                f"{len(self.blocks)} layers"
            )
        config = {
            "model_type": "mdlm",
            "architectures": ["MDLM"],
            "vocab_size": self.vocab.size,
            "model_length": self.max_length,
            "hidden_dim": self.d_model,
            "cond_dim": self.sigma_map.mlp[-1].out_features,
            "n_blocks": len(self.blocks),
            "n_heads": self.n_heads,
            "dropout": self.dropout,
            "tie_word_embeddings": False,
            "time_conditioning": False,  # that of the denoiser, when it is exported
        }
        return PublishedLayout(
            config,
            [(p.data, (f"backbone.{name}",)) for name, p in self.named_parameters()],
            {"backbone.rotary_emb.inv_freq": self.rotary_emb.frequencies()},
            Vocab.ending_in_mask(self.vocab.size),
        )
