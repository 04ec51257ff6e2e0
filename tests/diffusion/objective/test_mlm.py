import itertools

import pytest
import torch

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.mlm import MLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


def test_fractions_are_those_of_bert():
    x0 = torch.full((500, 400), 8)
    x0[:, ::4] = 11
    xt, chosen = MLM(AbsorbingProcess(DNA, LogLinear())).corrupt(
        x0, x0 != 11, Draws.for_batch(0, 500)
    )
    assert not chosen[x0 == 11].any() and torch.equal(xt[~chosen], x0[~chosen])
    n = int(chosen.sum())
    assert n / 150_000 == pytest.approx(0.15, abs=5 * (0.15 * 0.85 / 150_000) ** 0.5)
    counts = torch.bincount(xt[chosen], minlength=12) / n
    assert set(xt[chosen].tolist()) == {3, 7, 8, 9, 10}
    error = 5 / n**0.5
    assert counts[3].item() == pytest.approx(0.8, abs=error * 0.4)
    assert counts[8].item() == pytest.approx(
        0.1 + 0.1 / 4, abs=error * 0.35
    )  # kept, or replaced by itself
    assert counts[[7, 9, 10]].tolist() == pytest.approx([0.1 / 4] * 3, abs=error * 0.16)


class Cells:
    """Draws that run through every outcome of three tokens: left alone, hidden, replaced by letter
    0, 1 or 2, kept."""

    outcomes = (
        (0.5, 0.5, 0.5),
        (0.07, 0.4, 0.5),
        (0.07, 0.85, 1 / 6),
        (0.07, 0.85, 0.5),
        (0.07, 0.85, 5 / 6),
        (0.07, 0.95, 0.5),
    )
    chances = torch.tensor([0.85, 0.12, 0.005, 0.005, 0.005, 0.015], dtype=torch.float64)

    def __init__(self, sequences):
        cells = list(itertools.product(range(6), repeat=3)) * sequences
        self.index = torch.tensor(cells)
        self.chance = self.chances[self.index].prod(-1)

    def uniform(self, purpose, *shape):
        column = ("mask", "kind", "letter").index(purpose)
        return torch.tensor([o[column] for o in self.outcomes], dtype=torch.float64)[self.index]


def test_the_loss_is_the_exact_mean_over_all_corruptions(toy, table):
    objective = MLM(AbsorbingProcess(toy.vocab, LogLinear()))
    backbone = table()
    denoiser = objective.denoiser(backbone)
    draws = Cells(27)
    x0 = toy.sequences.repeat_interleave(216, 0)
    chance = draws.chance * toy.joint.repeat_interleave(216)
    loss = objective(denoiser, x0, chance[:, None].expand(-1, 3), draws).loss
    total = 0.0
    for x, p in zip(toy.sequences, toy.joint):
        for cell in itertools.product(range(6), repeat=3):
            xt = torch.tensor([[int(x[l]), 3, 0, 1, 2, int(x[l])][c] for l, c in enumerate(cell)])[
                None
            ]
            log_probs = torch.log_softmax(backbone(xt)[0, :, :3].detach(), -1)
            costs = [-log_probs[l, x[l]] for l, c in enumerate(cell) if c > 0]
            total += float(p * Cells.chances[list(cell)].prod() * sum(costs)) if costs else 0.0
    assert loss.item() == pytest.approx(total / (3 * 0.15), abs=1e-6)


def test_a_visible_wrong_letter_has_a_finite_cost_and_samplers_keep_what_they_see():
    torch.manual_seed(0)
    objective = MLM(AbsorbingProcess(DNA, LogLinear()), selected=1.0, masked=0.0, replaced=1.0)
    denoiser = objective.denoiser(DiT(DNA, 16, 1, 2, 8))
    x0 = torch.randint(7, 11, (4, 20))
    result = objective(denoiser, x0, torch.ones(4, 20), Draws.for_batch(0, 4))
    assert result.loss.isfinite() and result.num_tokens == 80
    assert denoiser.log_probs(x0).exp().gather(-1, x0[..., None]).eq(1).all()


def test_an_empty_batch_costs_nothing():
    torch.manual_seed(0)
    objective = MLM(AbsorbingProcess(DNA, LogLinear()))
    denoiser = objective.denoiser(DiT(DNA, 16, 1, 2, 8))
    result = objective(denoiser, torch.full((2, 8), 11), torch.zeros(2, 8), Draws.for_batch(0, 2))
    result.loss.backward()
    assert result.loss == 0 and all(
        p.grad is None or (p.grad == 0).all() for p in denoiser.parameters()
    )


def test_impossible_fractions_are_refused():
    process = AbsorbingProcess(DNA, LogLinear())
    with pytest.raises(ValueError, match="selected 0 must be a number above 0 and at most 1"):
        MLM(process, selected=0)
    with pytest.raises(ValueError, match="must sum to at most 1"):
        MLM(process, masked=0.8, replaced=0.3)
