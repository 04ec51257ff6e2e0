"""Self-distillation through time (SDTT, arXiv 2410.21035): a student learns to do in one step what
its teacher does in several."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import Backbone, BaseDenoiser, BidirectionalBackbone, MaskedDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch, mean_over
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.sampler.base import redrawn
from dnadiff.fields import Config, PositiveInt, checked_dataclass


@checked_dataclass
class SDTT(Objective):
    """KL(student || teacher) of the masked tokens, where the teacher takes n steps and the student
    one (arXiv 2410.21035, algorithms 1 and 2).

    From xt at a random time t the teacher takes n ancestral steps of length dt. The target of a
    position is the teacher's distribution in the step that unmasks it, and that of the last step if
    none does. The loss is the plain mean over masked tokens. Training has rounds. A round begins
    with a copy of the student as the new teacher, and its dt is n times that of the round before.
    So the student of the last round is for num_steps / n^num_rounds steps. Further training steps
    stay in the last round.

    The reverse divergence prefers tokens that are probable in all of the teacher's continuations.
    So the student's samples vary less than the teacher's, and its likelihood is worse. `nll` is the
    bound of the student, as in `MDLM`. With `teacher_steps=1` the target is the student of the
    beginning of the round, so loss and gradient are 0.

    As in the published code, the teacher is a copy of the live weights, also with averaged ones
    (`EMA`). Times are spread over the global batch. A teacher with self-conditioning always reads
    its first pass, a student in the share of batches that its training had.

    Args:
        process: the absorbing process.
        objective: makes the objective of the teacher's training from the process. It chooses the
            denoiser, and measures the validation loss.
        num_steps: steps of the teacher from t = 1 to t = 0 in the first round: 1/dt.
        num_rounds: rounds.
        steps_per_round: optimizer steps of a round.
        teacher_steps: n.

    Attributes:
        teacher: of the current round; None before the first batch.

    Raises:
        ValueError: if the objective is not of a model that unmasks in any order, or the last round
            would have less than one step.
    """

    distills = True

    objective: Callable[..., Objective]
    num_steps: PositiveInt = 128
    num_rounds: PositiveInt = 4
    steps_per_round: PositiveInt = 500
    teacher_steps: PositiveInt = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.of_teacher = self.objective(process=self.process)
        if self.of_teacher.reads is not BidirectionalBackbone or self.of_teacher.own_bound:
            raise ValueError(
                f"objective {type(self.of_teacher).__name__} cannot be distilled: the teacher must "
                "unmask random positions; name a model of objective=mdlm, d3pm, sedd or mlm"
            )
        if (needed := self.teacher_steps**self.num_rounds) > self.num_steps:
            raise ValueError(
                f"num_rounds {self.num_rounds} is too large: the {self.num_steps} steps of the "
                f"first round are divided by {self.teacher_steps} in each; set num_rounds lower, "
                f"or num_steps to at least {needed}"
            )
        self.masks_padding = self.of_teacher.masks_padding
        self.teacher: MaskedDenoiser | None = None
        self._round = -1
        self._resumed: Config = {}

    def denoiser(self, backbone: Backbone, time_conditioning: bool | None = None) -> BaseDenoiser:
        return self.of_teacher.denoiser(backbone, time_conditioning)

    def evaluation(self) -> Objective:
        return self.of_teacher.evaluation()

    def notes(self) -> list[str]:
        students = [self.num_steps // self.teacher_steps**r for r in range(1, self.num_rounds + 1)]
        return [
            f"rounds of {self.steps_per_round:,} optimizer steps, for students of "
            f"{', '.join(map(str, students))} sampling steps"
        ]

    def state_dict(self) -> Config:
        if self.teacher is None:
            return self._resumed
        return {"round": self._round, "teacher": self.teacher.state_dict()}

    def load_state_dict(self, state_dict: Config) -> None:
        # without the teacher of the check before training
        self._resumed = state_dict
        self.teacher = None

    def round_of(self, step: int) -> int:
        """The round, from 0, of an optimizer step."""
        return min(step // self.steps_per_round, self.num_rounds - 1)

    def begin_round(self, number: int, student: MaskedDenoiser) -> MaskedDenoiser:
        """The teacher of a round: a copy of the student, unless the round began already."""
        if self.teacher is None or number != self._round:
            self.teacher = copy.deepcopy(student).eval().requires_grad_(False)
            self._round = number
            self.teacher.zero_grad()  # gradients are copied too
            if self._resumed.get("round") == number:
                self.teacher.load_state_dict(self._resumed["teacher"])
            self._resumed = {}
        return self.teacher

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        x0 = batch.x0
        weight = batch.weight
        noise = self.process.noise
        number = self.round_of(batch.draws.step)
        teacher = self.begin_round(number, denoiser)
        t = strata(batch.draws, True, x0.device)
        maskable = torch.ones_like(x0, dtype=torch.bool) if self.masks_padding else weight > 0
        xt = self.process.corrupt(x0, t, maskable, batch.draws)
        chosen = (xt == self.process.vocab.mask_id) & (weight > 0)
        dt = self.teacher_steps**number / self.num_steps
        target = self.targets(teacher, batch, xt, t, chosen, dt)
        log_probs = denoiser.log_probs(*batch.query(xt, t.float(), chosen))
        ratio = (log_probs - target).masked_fill(target == -torch.inf, 0)  # both are -inf there
        divergence = (log_probs.exp() * ratio).sum(-1)
        counted = weight[chosen]
        nll = -log_probs.detach().gather(-1, x0[chosen][:, None])[:, 0]
        of_row = noise.weight(t).to(nll)[:, None].expand(x0.shape)[chosen]
        num_masked, num_tokens = counted.sum(), weight.sum()
        bound = mean_over(nll * of_row * counted, num_tokens)
        return Loss(mean_over(divergence * counted, num_masked), bound, num_tokens, num_masked)

    @torch.no_grad()
    def targets(
        self,
        teacher: MaskedDenoiser,
        batch: TrainingBatch,
        xt: Tensor,
        t: Tensor,
        chosen: Tensor,
        dt: float,
    ) -> Tensor:
        """Log-probabilities of the teacher in the step that unmasks each position: (M, V).

        Args:
            teacher: takes the steps.
            batch: labels, padding and random numbers.
            xt: (B, L).
            t: (B,).
            chosen: (B, L) bool, the M masked positions.
            dt: length of a step; steps end at t = 0.
        """
        draws = batch.draws
        last = self.teacher_steps - 1
        times = (t[:, None] - dt * torch.arange(last + 1, device=t.device)).clamp(min=0)
        masked = 1 - self.process.noise.alpha(times)  # probabilities
        still = (masked[:, 1:] / masked[:, :1])[:, None]
        u = draws.uniform("unmask", xt.shape[1]).to(t)
        step = (u[..., None] < still).sum(-1)  # in 0..last: the last step for the rest
        uniform = draws.uniform("token", xt.shape[1])
        step_of = step[chosen]
        target = None
        for i in range(last + 1):
            now = chosen & (step == i)
            found = teacher.log_probs(*batch.query(xt, times[:, i].float(), now))
            target = found.new_empty(len(step_of), found.shape[-1]) if target is None else target
            target[step_of == i] = found
            if i < last:
                xt = redrawn(xt, now, found, uniform)
        assert target is not None
        return target
