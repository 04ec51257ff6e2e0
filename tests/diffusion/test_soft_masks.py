"""Two passes over the same xt: a model like any other, which is that of one pass at scale 0."""

import itertools

import pytest
import torch
from torch import nn

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.conditioning import Guided
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import exact_nelbo
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.fast_dllm import FastDLLM
from dnadiff.diffusion.sampler.first_hitting import FirstHitting
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.soft_masks import SoftMasked
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import BidirectionalBackbone
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT

DNA = DNATokenizer().vocab
ABC = Vocab(4, 3, 3, (3,))
SEQUENCES = torch.tensor(list(itertools.product(range(3), repeat=3)))


def network(vocab, kind=DiT, *sizes):
    torch.manual_seed(1)
    made = kind(vocab, 16, *(sizes or (1, 2)))
    for name, weight in made.named_parameters():
        torch.nn.init.normal_(weight, std=0.02 if "adaLN" in name else 0.4)
    return made.eval()


class Arbitrary(BidirectionalBackbone):
    """A network of three tokens whose features depend on all vectors in any way."""

    def __init__(self):
        super().__init__(ABC, 8)
        torch.manual_seed(0)
        self.table, self.weight = (
            nn.Parameter(torch.randn(n, 8 * m)) for n, m in ((4, 1), (24, 3))
        )

    def embed(self, ids):
        return self.table[ids]

    def mix(self, h, sigma=None, cond=None, valid=None):
        return (h.flatten(1) @ self.weight).tanh().view(h.shape)

    def head(self, features):
        return features[..., :4] * 1.5


def soft(backbone, scale=1.0, **options):
    """In float64, reading mixtures of which the mask is a small part."""
    made = SoftMasked(backbone, **options).double().eval()
    made.scale.data.fill_(scale)
    made.center.data.fill_(-2.0)
    return made


def masked_half(vocab, rows=8, length=12):
    generator = torch.Generator().manual_seed(1)
    chosen = torch.tensor(vocab.emitted)
    x0 = chosen[torch.randint(len(chosen), (rows, length), generator=generator)]
    hidden = torch.rand(rows, length, generator=generator) < 0.5
    return x0, torch.where(hidden, vocab.mask_id, x0)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("weighting", ["nelbo", "cross_entropy"])
def test_at_scale_0_it_is_the_model_of_one_pass(weighting, mixed):
    process, backbone = AbsorbingProcess(DNA, LogLinear()), network(DNA)
    x0, _ = masked_half(DNA)
    losses, gradients = [], []
    for share in (None, 0.5):
        objective = MDLM(process, weighting=weighting, self_conditioning=share)
        denoiser = objective.denoiser(backbone)
        denoiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            losses.append(objective(denoiser, x0, torch.ones(x0.shape), Draws.for_batch(0, 8)))
        losses[-1].loss.backward()
        gradients.append([p.grad.clone() for p in backbone.parameters() if p.grad is not None])
    assert isinstance(denoiser, SoftMasked) and denoiser.scale == 0
    assert denoiser.scale.grad != 0  # so that training leaves 0
    torch.testing.assert_close(*losses, atol=1e-6, rtol=0)
    torch.testing.assert_close(*gradients)


def chain_rule(denoiser):
    """p(x) of unmasking one token at a time in a random order, for all 27 sequences."""
    total = torch.zeros(27, dtype=torch.float64)
    for order in itertools.permutations(range(3)):
        xt, log_p = torch.full_like(SEQUENCES, 3), torch.zeros(27, dtype=torch.float64)
        for place in order:
            found = denoiser.log_probs(xt)[:, place]
            log_p += found.gather(-1, SEQUENCES[:, place, None])[:, 0]
            xt[:, place] = SEQUENCES[:, place]
        total += log_p.exp() / 6
    return total


@torch.no_grad()
def test_the_bound_holds_for_every_sequence_and_samples_have_the_distribution():
    # By enumeration of all masks and all orders, with an arbitrary network.
    process, denoiser = AbsorbingProcess(ABC, LogLinear()), soft(Arbitrary())
    p = chain_rule(denoiser)
    assert float(p.sum()) == pytest.approx(1, abs=1e-9)
    bound = exact_nelbo(denoiser, process, SEQUENCES)
    assert (bound >= -p.log() - 1e-9).all() and float((bound + p.log()).max()) > 0.01
    one_pass = exact_nelbo(Denoiser(denoiser.backbone), process, SEQUENCES)
    assert float((bound - one_pass).abs().max()) > 0.1  # it is another model
    rows, powers = 40_000, torch.tensor([9, 3, 1])
    drawn = FirstHitting().sample(
        denoiser, process, process.prior(rows, 3), Draws.for_batch(0, rows)
    )
    found = torch.bincount(drawn.tokens @ powers, minlength=27).double() / rows
    assert float((found - p).abs().sum()) / 2 < 0.01


@torch.no_grad()
def test_the_second_pass_reads_the_mixture_of_the_definition():
    denoiser, (_, xt) = soft(network(DNA), 0.7), masked_half(DNA)
    plain = Denoiser(denoiser.backbone).log_probs(xt).exp()
    h = denoiser.backbone.embed(xt)
    for row, place in (xt == DNA.mask_id).nonzero().tolist():
        probs = plain[row, place]
        share = 0.7 / (1 + torch.exp(-20 / 3 * ((probs * probs.clamp(1e-300).log()).sum() + 2.0)))
        top = probs.sort(descending=True)
        mean = sum(
            p / top.values[:3].sum() * denoiser.backbone.embed(token[None, None])[0, 0]
            for p, token in zip(top.values[:3], top.indices[:3])
        )
        h[row, place] = (1 - share) * h[row, place] + share * mean
    logits = denoiser.backbone.head(denoiser.backbone.mix(h, None, None, None))
    expected = denoiser.parameterization.log_probs(logits[..., : DNA.size], xt)
    torch.testing.assert_close(denoiser.log_probs(xt), expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_both_strands_agree_and_large_vocabularies_and_clean_sequences_are_read_alike():
    x0, xt = masked_half(DNA)
    shared = soft(network(DNA, CaduceusPS, 2))
    there = shared.log_probs(DNA.reverse_complement(xt)).flip(1)[..., list(DNA.complement)]
    torch.testing.assert_close(shared.log_probs(xt), there)
    denoiser = soft(network(DNA))
    plain = denoiser.nll(x0, xt, positions=xt == DNA.mask_id)
    denoiser.fused_from = 1
    assert denoiser.fused_head
    torch.testing.assert_close(denoiser.nll(x0, xt, positions=xt == DNA.mask_id), plain)
    torch.testing.assert_close(denoiser.features(x0), denoiser.backbone.features(x0))


@torch.no_grad()
def test_in_training_a_share_of_the_rows_reads_predictions():
    denoiser, (_, xt) = soft(network(DNA), probability=0.3), masked_half(DNA, 400)
    both = denoiser.log_probs(xt), Denoiser(denoiser.backbone).log_probs(xt)
    denoiser.train()
    denoiser.backbone.eval()
    found = denoiser.log_probs(xt).nan_to_num(neginf=0)
    same = [(found - each.nan_to_num(neginf=0)).abs().amax((1, 2)) < 1e-9 for each in both]
    assert (same[0] | same[1]).all()
    assert 70 < int((same[0] & ~same[1]).sum()) < 170  # 120 of 400 expected


def test_network_calls_count_both_passes():
    process, denoiser = AbsorbingProcess(DNA, LogLinear()), soft(network(DNA))
    result = Grouped(num_groups=3).sample(
        denoiser, process, process.prior(1, 12), Draws.for_batch(0, 1)
    )
    assert (result.nfe, result.rows) == (3, 6)
    assert Guided(denoiser, 2.0).rows_per_sequence == 4


class IdsOnly(BidirectionalBackbone):
    """A network without `mix`."""

    def features(self, ids, sigma=None, cond=None, valid=None):
        return torch.zeros(*ids.shape, 4)

    def head(self, features):
        return features


def test_what_cannot_read_predictions_is_refused():
    process, denoiser = AbsorbingProcess(DNA, LogLinear()), soft(network(DNA))
    with pytest.raises(ValueError, match=r"self_conditioning 0\.5 does not fit IdsOnly"):
        MDLM(process, self_conditioning=0.5).denoiser(IdsOnly(DNA, 4))
    with pytest.raises(ValueError, match="self_conditioning 0 must be"):
        MDLM(process, self_conditioning=0)
    with pytest.raises(ValueError, match=r"cache does not fit .* set sampler=grouped"):
        FastDLLM(Grouped(2), block_size=4).sample(
            denoiser, process, process.prior(2, 12), Draws.for_batch(0, 2)
        )
    with pytest.raises(ValueError, match="context_parallel 2 does not fit"):
        denoiser.check_pieces(2, 32)
