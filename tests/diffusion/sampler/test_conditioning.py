"""What the network is conditioned on: each sequence gets its own labels, padding and time,
whichever sequences are evaluated."""

import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess, log_expm1
from dnadiff.diffusion.sampler.base import CountedDenoiser
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.remasking import Loop
from dnadiff.diffusion.sampler.remdm import ReMDM
from dnadiff.diffusion.sampler.semi_ar import SemiAR
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import BidirectionalBackbone, BlockBackbone, State
from dnadiff.options.command import compose
from dnadiff.store.objects import config_dir, locate

BIT = Vocab(3, 2, 2, (2,))


def masks(name):
    """Whether the sampler is for models of masks, and takes those without an order too."""
    settings = compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"]
    return name != "learned_order" and issubclass(
        AbsorbingProcess, locate(settings["_target_"], None).process_type
    )


NAMES = sorted(filter(masks, (p.stem for p in (config_dir() / "sampler").glob("*.yaml"))))
GRID = ("ancestral", "analytic", "forward_backward", "remdm")
KINDS = torch.tensor(
    [
        [2, 2, 2, 2, 2, 2, 2, 2],  # all to fill
        [0, 2, 1, 2, 2, 0, 2, 1],  # half of it
        [0, 1, 1, 0, 1, 0, 0, 1],  # nothing
        [0, 2, 2, 2, 1, 2, 0, 0],  # padded after 6 tokens
        [2, 2, 1, 2, 0, 2, 1, 2],  # with a mask that is frozen
    ]
)
TEMPLATE = KINDS.repeat(8, 1)
VALID, FROZEN = torch.ones(40, 8, dtype=torch.bool), torch.zeros(40, 8, dtype=torch.bool)
VALID[3::5, 6:], FROZEN[4::5, 0] = False, True
LENGTH = VALID.sum(-1)


class Recorder(MaskedDenoiser):
    """One distribution at every position, and a record (row, t, fraction masked) of each sequence
    that it is requested about; its label is its row."""

    def __init__(self, reads=BidirectionalBackbone, **more):
        super().__init__(BIT)
        self.length, self.reads, self.calls, self.read = 8, reads, [], set()
        self.block_size = 4 if reads is BlockBackbone else None
        self.distribution = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64).log()
        for name, value in more.items():
            setattr(self, name, value)

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        row = cond[:, 0].long()
        whole = VALID[row].unfold(1, xt.shape[1], 1)  # every window of the row's own padding
        assert (whole == valid[:, None]).all(-1).any(-1).all()
        if xt.shape[1] == 8:
            given = (TEMPLATE[row] != 2) & (TEMPLATE[row] == 2).any(-1, keepdim=True)
            assert (xt == TEMPLATE[row])[given].all() and (xt == 2)[FROZEN[row]].all()
        self.read |= set(zip((row % 5).tolist(), valid.sum(-1).tolist()))
        self.calls.append((row, t, (xt == 2).sum(-1) / valid.sum(-1)))
        return self.distribution.expand(int(positions.sum()), -1)

    def log_score(self, xt, t, cond=None, positions=None, valid=None):
        factor = log_expm1(LogLinear(1e-3).sigma(t.double()))[:, None].expand(xt.shape)[positions]
        return self.log_probs(xt, t, cond, positions, valid) - factor[:, None]

    def step(self, token, state=None, cond=None):
        row = cond[:, 0].long()
        seen = (
            State([torch.stack([row, token], 1)])
            if state is None
            else State([torch.cat([state.tensors[0], token[:, None]], 1)])
        )
        read = seen.tensors[0]
        assert torch.equal(read[:, 0], row) and (
            read.shape[1] == 2 or torch.isin(token, torch.tensor([0, 1, 2])).all()
        )
        given = TEMPLATE[row][:, : read.shape[1] - 2]
        assert (read[:, 2:] == given)[given != 2].all()
        return self.distribution.expand(len(token), -1), seen

    def step_block(self, query, state=None):
        xt, _, cond, positions, valid = query
        self._check_block(xt, state, cond, valid)
        return self.distribution.expand(int(positions.sum()), -1)

    def advance(self, query, state=None):
        x0, _, cond, _, valid = query
        row, read = self._check_block(x0, state, cond, valid)
        assert (x0 != 2)[~FROZEN[row][:, read.shape[1] - x0.shape[1] : read.shape[1]]].all()
        return State([row[:, None], read])

    def _check_block(self, block, state, cond, valid):
        """The rows of the batch, and the tokens read: those given by the template."""
        row = cond[:, 0].long()
        before = block[:, :0] if state is None else state.tensors[1]
        assert state is None or torch.equal(state.tensors[0][:, 0], row)
        read = torch.cat([before, block], 1)
        given = TEMPLATE[row][:, : read.shape[1]]
        assert (read == given)[given != 2].all() and torch.equal(
            valid, VALID[row][:, before.shape[1] : read.shape[1]]
        )
        return row, read


def conditioned(world, sampler, model=None):
    """{row: [(t, fraction masked), ...] in the order of the calls}."""
    model = model or Recorder(sampler.reads)
    world.draw(
        sampler,
        model,
        40,
        x_init=TEMPLATE,
        frozen=FROZEN,
        cond=torch.arange(40.0)[:, None],
        valid=VALID,
    )
    rows = {}
    for row, t, fraction in model.calls:
        for key, *value in zip(row.tolist(), t.tolist(), fraction.tolist()):
            rows.setdefault(key, []).append(value)
    return rows


class Letters(MaskedDenoiser):
    """A distribution of its own at every position, for each time, label and padding; it counts the
    sequences that it reads."""

    def __init__(self, **more):
        super().__init__(BIT)
        self.read = []
        for name, value in more.items():
            setattr(self, name, value)

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.read.append(len(xt))
        parts = (
            xt.cumsum(-1),
            t[:, None] * 7,
            0 if cond is None else cond[:, :1] * 3,
            0 if valid is None else valid.sum(-1, True),
        )
        number = torch.arange(xt.shape[1]) + sum(parts)
        distribution = torch.stack(
            [torch.sin(number), torch.cos(number), torch.full_like(number, -torch.inf)], -1
        )
        return distribution.log_softmax(-1)[positions]

    def step_block(self, query, state=None):
        return self.log_probs(*query._replace(t=torch.zeros(len(query.xt))))

    def advance(self, query, state=None):
        self.read.append(len(query.xt))
        return State([query.xt])

    def around(self, query, columns):
        return self.advance(query)

    def require_cache(self):
        pass


@pytest.mark.parametrize("conditioned", [False, True])
def test_equal_sequences_are_evaluated_once(conditioned):
    # Each gets its own positions of the one answer, as if it had been requested alone.
    x, model = (
        torch.tensor([[2, 0, 2, 2, 1, 2, 2, 2]]).expand(3, -1),
        Letters(time_conditioning=conditioned),
    )
    positions = torch.zeros(3, 8, dtype=torch.bool)
    positions[0, [0, 5]], positions[2, [2, 5, 7]] = True, True
    calls, t = CountedDenoiser(model), torch.tensor([0.3, 0.9, 0.3])
    alone = torch.cat(
        [model.log_probs(x[i : i + 1], t[i : i + 1], None, positions[i : i + 1]) for i in (0, 2)]
    )
    assert (
        torch.equal(calls.log_probs(x, t, positions), alone)
        and (calls.nfe, calls.rows) == (1, 1)
        and model.read[-1] == 1
    )


@pytest.mark.parametrize(
    "differs",
    [
        {"x": [0, 1]},
        {"t": torch.tensor([0.3, 0.4])},
        {"cond": torch.tensor([[1.0], [0.0]])},
        {"valid": torch.arange(8) < torch.tensor([[8], [6]])},
    ],
    ids=lambda d: next(iter(d)),
)
def test_sequences_that_differ_in_any_input_are_evaluated_separately(differs):
    x = torch.full((2, 8), 2)
    x[:, 3] = torch.tensor(differs.get("x", [0, 0]))
    t, cond, valid = (
        differs.get("t", torch.full((2,), 0.3)),
        differs.get("cond"),
        differs.get("valid"),
    )
    positions = torch.zeros(2, 8, dtype=torch.bool)
    positions[:, [1, 5]] = True
    model = Letters(time_conditioning=True)
    calls = CountedDenoiser(model, cond, valid)
    found = calls.log_probs(x, t, positions)
    assert torch.equal(found, model.log_probs(x, t, cond, positions, valid)) and (
        calls.nfe,
        calls.rows,
    ) == (1, 2)
    kept = CountedDenoiser(Letters(time_conditioning=False), cond, valid)
    kept.log_probs(x, t, positions)
    assert kept.rows == (
        1 if "t" in differs else 2
    )  # without time conditioning the predictions are equal


def test_ratios_at_other_times_are_evaluated_separately():
    # They are scaled by the noise level, also by a network that is not conditioned on time.
    x, model, t = torch.full((2, 8), 2), Letters(time_conditioning=False), torch.tensor([0.2, 0.9])
    model.log_score = lambda xt, t, cond, positions, valid: t[:, None, None].expand(*xt.shape, 3)[
        positions
    ]
    calls = CountedDenoiser(model)
    found = calls.log_probs(x, t, x == 2, "log_score")
    assert torch.equal(found, t.repeat_interleave(8)[:, None].expand(-1, 3)) and calls.rows == 2


@pytest.mark.parametrize("name", [n for n in NAMES if n != "ar"])
def test_a_fully_masked_batch_is_evaluated_as_one_sequence(name, world):
    sampler = world.make(name)
    model = Letters(
        time_conditioning=False,
        reads=sampler.reads,
        block_size=4 if sampler.reads is BlockBackbone else None,
    )
    model.length = 8
    result = world.draw(sampler, model, 12)
    assert (
        model.read[0] == 1
        and sum(model.read) == result.rows
        and max(model.read) > 1
        and len(result.tokens.unique(dim=0)) > 4
    )


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in (*GRID, "first_hitting", "fast_dllm", "reverse")]
)
def test_the_time_matches_the_masked_fraction(name, world):
    rows = conditioned(world, world.make(name))
    assert all(
        t == pytest.approx(fraction, abs=1e-6) for calls in rows.values() for t, fraction in calls
    )
    assert name in ("ar", "block") or (
        len(rows) >= 32 and len({round(t, 3) for calls in rows.values() for t, _ in calls}) > 4
    )


def test_the_time_matches_for_groups_of_other_sizes(world):
    for sampler in (Grouped(3), Grouped(sizes=[1, 5, 2]), SemiAR(Grouped(2), window=5, stride=3)):
        model = Recorder()
        assert all(
            t == pytest.approx(fraction, abs=1e-6)
            for calls in conditioned(world, sampler, model).values()
            for t, fraction in calls
        )
    assert {
        (3, 5),
        (3, 3),
    } <= model.read  # the first window has no padding, the second two tokens of it


@pytest.mark.parametrize("name", [*GRID, "ratios", "loop"])
def test_a_grid_starts_at_the_fraction_of_the_template(name, world):
    model = Recorder(normalized=False, time_conditioning=True) if name == "ratios" else Recorder()
    sampler = (
        ReMDM(Loop(0.3, 0.5, 0.25), num_steps=4)
        if name == "loop"
        else world.make("analytic" if name == "ratios" else name, num_steps=5)
    )
    rows, levels = (
        conditioned(world, sampler, model),
        [1, 0.55, 0.1, 0.1] if name == "loop" else [1, 0.8, 0.6, 0.4, 0.2],
    )
    for row, calls in rows.items():
        frozen = int(FROZEN[row].sum())
        ours = int((TEMPLATE[row] == 2).sum()) - frozen
        grid = [(frozen + level * ours) / int(LENGTH[row]) for level in levels]
        times = [t for t, _ in calls]
        assert all(min(abs(t - g) for g in grid) < 1e-6 for t in times), (row, times, grid)
        assert name == "loop" or times == sorted(set(times), reverse=True)
    assert {round(t, 3) for calls in rows.values() for t, _ in calls} >= {
        1.0,
        0.5,
        0.2 if name != "loop" else 0.1,
    }


def test_first_hitting_times_of_a_template_lie_below_its_fraction(world):
    rows, start = conditioned(world, world.make("first_hitting")), (TEMPLATE == 2).sum(-1) / LENGTH
    for row, calls in rows.items():
        times = [t for t, _ in calls]
        assert times == sorted(set(times), reverse=True) and times[0] < start[row]
    # The mean of m times between a frozen fraction f and f + m/L is f + m/(2L).
    half = [t for row in range(1, 40, 5) for t, _ in rows[row]]
    assert sum(half) / len(half) == pytest.approx(0.25, abs=5 * 0.5 * (1 / 12 / len(half)) ** 0.5)
