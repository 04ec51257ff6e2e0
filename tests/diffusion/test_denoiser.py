import pytest
import torch

from dnadiff.design.conditioning import Guided
from dnadiff.diffusion.denoiser import BlockDenoiser, CausalDenoiser, Denoiser, MaskedDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.transformer import Transformer

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


@pytest.fixture
def denoiser():
    torch.manual_seed(0)
    backbone = DiT(DNA, 16, 1, 2, 8, max_length=32).eval()
    torch.nn.init.normal_(backbone.output_layer.linear.weight)
    return Denoiser(backbone)


def test_only_emitted_ids_have_probability(denoiser):
    xt = torch.tensor([[7, 3, 11, 3]])
    probs = denoiser.log_probs(xt).exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(1, 4))
    assert probs[0, 1, [0, 1, 2, 3, 4, 5, 6, 11]].sum() == 0
    assert probs[0, 0, 7] == 1 and probs[0, 2, 11] == 1


def test_positions_give_the_same_rows_as_everything(denoiser):
    xt = torch.tensor([[7, 3, 8, 3], [3, 3, 9, 10]])
    torch.testing.assert_close(
        denoiser.log_probs(xt, positions=xt == 3), denoiser.log_probs(xt)[xt == 3]
    )


def test_time_reaches_the_network_only_with_time_conditioning():
    torch.manual_seed(0)
    backbone = DiT(DNA, 16, 1, 2, 8).eval()
    for p in backbone.parameters():
        torch.nn.init.normal_(p, std=0.3)
    xt, early, late = torch.tensor([[3, 7]]), torch.tensor([0.1]), torch.tensor([0.9])
    without, conditioned = (
        Denoiser(backbone),
        Denoiser(backbone, noise=LogLinear(), time_conditioning=True),
    )
    assert torch.equal(without.log_probs(xt, early), without.log_probs(xt, late))
    assert not torch.equal(conditioned.log_probs(xt, early), conditioned.log_probs(xt, late))
    with pytest.raises(ValueError, match="pass t"):
        conditioned.log_probs(xt)


def test_a_causal_backbone_is_refused():
    with pytest.raises(
        ValueError, match="Denoiser does not fit Transformer: it needs a bidirectional network"
    ):
        Denoiser(Transformer(DNA, 16, 1, 2))


def test_time_conditioning_needs_a_network_with_a_time_input():
    backbone = DiT(DNA, 16, 1, 2, 8)
    backbone.takes_sigma = False
    with pytest.raises(ValueError, match="this DiT has no time input; set time_conditioning=false"):
        Denoiser(backbone, noise=LogLinear(), time_conditioning=True)


def test_features_are_read_as_the_model_reads_whole_sequences(denoiser):
    ids, valid = (
        torch.tensor([[7, 8, 9, 10, 7, 4], [8, 8, 7, 9, 10, 10]]),
        torch.tensor([[True] * 5 + [False], [True] * 6]),
    )
    changed = torch.where(torch.arange(6) < 4, ids, 9)
    for parameter in denoiser.parameters():  # otherwise no position sees another one
        torch.nn.init.normal_(parameter, std=0.3)
    causal, blocks = (
        CausalDenoiser(Transformer(DNA, 16, 1, 2).eval()),
        BlockDenoiser(denoiser.backbone, 4),
    )
    for each, unchanged in (
        (denoiser, 0),
        (causal, 4),
        (blocks, 4),
    ):  # positions that do not see tokens 4 and 5
        found, same = (
            each.features(ids, valid),
            (each.features(ids, valid) == each.features(changed, valid)).all(-1).all(0),
        )
        assert found.shape == (2, 6, 16) and same.tolist() == [
            position < unchanged for position in range(6)
        ]
    assert torch.equal(denoiser.features(ids), denoiser.backbone.features(ids))
    assert torch.equal(causal.features(ids), causal.backbone.features(ids))
    assert torch.equal(blocks.features(ids), blocks.backbone.block_features(ids, ids, 4)[0])
    assert torch.equal(Guided(blocks, 2.0).features(ids), blocks.features(ids))


def test_one_block_needs_no_clean_stream(denoiser):
    backbone, x0, xt = (
        denoiser.backbone,
        torch.tensor([[7, 8, 9, 10]]),
        torch.tensor([[7, 3, 9, 3]]),
    )
    with torch.no_grad():
        features = backbone.block_features(xt, x0, 4)[0]
    expected = -backbone.head(features)[..., 7:11].log_softmax(-1)
    backbone.block_features = None
    found = BlockDenoiser(backbone, 16).nll(x0, xt, positions=xt == 3)
    torch.testing.assert_close(found, torch.stack([expected[0, 1, 1], expected[0, 3, 3]]))


class Labeled(MaskedDenoiser):
    """p = (.7, .3) with a label and (.5, .5) without, at every position; the mask is id 2."""

    def __init__(self):
        super().__init__(Vocab(3, 2, 2, (2,)))
        self.calls, self.rows = 0, 0

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.calls, self.rows = self.calls + 1, self.rows + len(xt)
        conditioned, plain = (
            torch.tensor([0.7, 0.3, 0.0]).log(),
            torch.tensor([0.5, 0.5, 0.0]).log(),
        )
        distribution = torch.where(cond.any(-1)[:, None, None], conditioned, plain).expand(
            *xt.shape, 3
        )
        return distribution if positions is None else distribution[positions]


@pytest.mark.parametrize(
    ("weight", "expected"), [(2, [0.844828, 0.155172]), (1, [0.7, 0.3]), (0, [0.5, 0.5])]
)
def test_guidance_raises_the_label_to_a_power(weight, expected):
    # facts 21
    inside, xt = Labeled(), torch.tensor([[2, 2, 0], [2, 0, 2]])
    guided = Guided(inside, weight)
    probs = guided.log_probs(xt, torch.ones(2), torch.ones(2, 1), xt == 2).exp()
    assert probs.shape == (4, 3) and torch.allclose(
        probs, torch.tensor([*expected, 0.0]), atol=1e-6
    )
    assert inside.calls == 1 and inside.rows == 4 == 2 * guided.rows_per_sequence


def test_guidance_needs_a_label_and_a_model_that_unmasks():
    with pytest.raises(ValueError, match="guidance needs a label"):
        Guided(Labeled(), 2).log_probs(torch.tensor([[2]]))
    with pytest.raises(ValueError, match="guidance is for models that unmask"):
        Guided(CausalDenoiser(Transformer(DNA, 16, 1, 2)), 2)
