"""Distillation on a world of 27 sequences, in which the teacher's two steps can be enumerated."""

import itertools
from functools import partial

import pytest
import torch

from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.ar import AR
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.masking import Bernoulli
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.sdtt import SDTT
from dnadiff.diffusion.process import AbsorbingProcess, UniformProcess
from dnadiff.networks.backbone.base import BidirectionalBackbone

ROWS = 60_000


class Table(BidirectionalBackbone):
    """A network with any output for any input: logits (64, 3, 4), indexed by the three tokens."""

    def __init__(self, vocab, seed=0):
        super().__init__(vocab, 4)
        logits = torch.randn(64, 3, 4, generator=torch.Generator().manual_seed(seed))
        self.logits = torch.nn.Parameter(2 * logits.double())

    def embed(self, ids):
        return self.logits[(ids * torch.tensor([16, 4, 1])).sum(-1)]

    def mix(self, h, sigma=None, cond=None, valid=None):
        return h

    def head(self, features):
        return features


@pytest.fixture
def process(toy):
    return AbsorbingProcess(toy.vocab, LogLinear(0.0))


def batch_of(toy, rows, step=0):
    """Sequences of the world, `rows` of each."""
    x0 = toy.sequences.repeat(rows, 1)
    return x0, torch.ones(x0.shape), Draws.for_batch(0, len(x0), step)


def two_steps(denoiser, toy, alpha_t, alpha_s):
    """The mean of the target's probabilities and of its logarithms at every position of three
    masks, over all that the teacher may do: (2, 3, 3)."""
    empty = torch.full((1, 3), 3)
    first, total = denoiser.log_probs(empty)[0, :, :3], 0
    unmask = (alpha_s - alpha_t) / (1 - alpha_t)
    for chosen in itertools.product([False, True], repeat=3):
        now = torch.tensor(chosen)
        chance = torch.where(now, unmask, 1 - unmask).prod()
        for tokens in toy.sequences if now.any() else empty:
            inside = first.gather(-1, tokens[:, None].clamp(max=2))[:, 0]
            weight = torch.where(now, inside.exp(), 1.0).prod() / 3 ** int((~now & now.any()).sum())
            xs = torch.where(now, tokens, 3)
            target = torch.where(now[:, None], first, denoiser.log_probs(xs[None])[0, :, :3])
            total = total + chance * weight * torch.stack([target.exp(), target])
    return total


@pytest.fixture
def targets(toy, process):
    """The targets (rows, masks, 3) of some tokens at t = 0.9, after two steps of 0.3."""

    def draw(denoiser, tokens=(3, 3, 3)):
        xt = torch.tensor(tokens).repeat(ROWS, 1)
        t = torch.full((ROWS,), 0.9, dtype=torch.float64)
        batch = TrainingBatch(xt, torch.ones(xt.shape), Draws.for_batch(1, ROWS))
        found = SDTT(process, MDLM).targets(denoiser, batch, xt, t, xt == 3, 0.3)
        return found.view(ROWS, -1, 4)[..., :3]

    return draw


def test_targets_have_the_mean_of_the_enumerated_steps(toy, process, targets):
    denoiser = Denoiser(Table(toy.vocab))
    found = targets(denoiser)
    with torch.no_grad():
        alpha = [torch.tensor(x, dtype=torch.float64) for x in (0.1, 0.4)]
        exact = two_steps(denoiser, toy, *alpha)
    for each, mean in zip((found.exp(), found), exact):
        error = each.std(0) / ROWS**0.5 + 1e-12
        assert ((each.mean(0) - mean).abs() / error).max() < 4.5


def test_of_a_consistent_teacher_the_mean_target_is_its_own_prediction(oracle, targets):
    # So a student of the forward divergence would stay where it began. With two masks: of more the
    # first step may draw several independently.
    found = targets(oracle, (0, 3, 3)).exp()
    expected = oracle.log_probs(torch.tensor([[0, 3, 3]]))[0, 1:, :3].exp()
    error = found.std(0) / ROWS**0.5 + 1e-12
    assert ((found.mean(0) - expected).abs() / error).max() < 4.5


def test_the_best_student_is_the_normalized_geometric_mean_of_the_targets(toy, process, targets):
    class Given(SDTT):
        def targets(self, *args):
            return torch.nn.functional.pad(found.flatten(0, 1), (0, 1), value=-torch.inf)

    rows = 9  # of each of the 27 sequences
    found = targets(Denoiser(Table(toy.vocab)))[: 27 * rows]
    student = Denoiser(Table(toy.vocab, seed=1))
    with torch.no_grad():
        student.backbone.logits[-1, :, :3] = found.mean(0)
    objective = Given(AbsorbingProcess(toy.vocab, LogLinear(0.0)), MDLM)
    objective.process.corrupt = lambda x0, *rest: torch.full_like(x0, 3)
    loss = objective(student, *batch_of(toy, rows)).loss
    loss.backward()
    assert loss > 1e-3 and student.backbone.logits.grad.abs().max() < 1e-9


def test_with_one_step_of_the_teacher_loss_and_gradient_are_zero(toy, process):
    student = Denoiser(Table(toy.vocab))
    for n, is_zero in ((1, True), (2, False)):
        objective = SDTT(process, MDLM, num_steps=2, num_rounds=1, teacher_steps=n)
        student.zero_grad()
        loss = objective(student, *batch_of(toy, 4)).loss
        loss.backward()
        assert bool(loss == 0) == is_zero
        assert bool(student.backbone.logits.grad.abs().max() < 1e-12) == is_zero


def test_nll_is_the_bound_of_mdlm_with_the_same_masks(toy, process):
    student, given = Denoiser(Table(toy.vocab)), batch_of(toy, 4)
    mdlm = MDLM(process, Bernoulli(t_min=0.0))
    found, expected = SDTT(process, MDLM)(student, *given), mdlm(student, *given)
    torch.testing.assert_close(found.nll, expected.nll)
    assert found.num_tokens == expected.num_tokens and not found.nll.requires_grad
    assert found.num_averaged < found.num_tokens


def test_the_teacher_changes_with_the_round_alone(toy, process):
    student = Denoiser(Table(toy.vocab))
    objective = SDTT(process, MDLM, num_steps=8, num_rounds=2, steps_per_round=2)
    assert objective.notes() == ["rounds of 2 optimizer steps, for students of 4, 2 sampling steps"]
    first = []
    for step in range(6):
        objective(student, *batch_of(toy, 1, step)).loss.backward()
        first.append(float(objective.teacher.backbone.logits.detach()[0, 0, 0]))
        with torch.no_grad():
            student.backbone.logits += 1
    assert [x - first[0] for x in first] == pytest.approx([0, 0, 2, 2, 2, 2])
    assert not objective.teacher.training and objective.teacher.backbone.logits.grad is None
    assert [objective.round_of(step) for step in (0, 1, 2, 3, 9)] == [0, 0, 1, 1, 1]


def test_a_state_gives_the_teacher_back_in_its_round_alone(toy, process):
    made = partial(SDTT, process, MDLM, num_steps=8, num_rounds=2, steps_per_round=2)
    before, student = made(), Denoiser(Table(toy.vocab))
    assert before.state_dict() == {}
    before(student, *batch_of(toy, 1))
    with torch.no_grad():
        student.backbone.logits += 1
    for step, is_same in ((1, True), (2, False)):
        after = made()
        after(student, *batch_of(toy, 1))  # the check before training, of the round 0
        after.load_state_dict(before.state_dict())
        assert after.state_dict()["round"] == 0
        after(student, *batch_of(toy, 1, step))
        same = torch.equal(after.teacher.backbone.logits, before.teacher.backbone.logits)
        assert same == is_same


def test_what_cannot_be_distilled_is_refused(toy, process):
    with pytest.raises(ValueError, match="objective AR cannot be distilled: the teacher must"):
        SDTT(process, AR)
    with pytest.raises(ValueError, match="SDTT needs an absorbing process"):
        SDTT(UniformProcess(toy.vocab, LogLinear()), MDLM)
    with pytest.raises(ValueError, match=r"num_rounds 4 is too large.*num_steps to at least 16"):
        SDTT(process, MDLM, num_steps=8)
