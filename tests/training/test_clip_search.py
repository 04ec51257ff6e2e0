"""The search for the interval of mask rates: known variances, refusals, and what a run does with
it."""

import copy
import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.masking import Clipped
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.context import spread
from dnadiff.options.command import compose
from dnadiff.training import clip_search
from dnadiff.training.clip_search import ClipSearch, candidates, least_variance, sums_by_count
from dnadiff.training.module import DiffusionModule
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import build_objective

DNA = DNATokenizer().vocab
BLOCKS = [
    "objective=block_mdlm",
    "objective/masking=clipped",
    "objective.weighting=nelbo",
    "objective.block_size=4",
    "callbacks=clip_search",
]


def interval(masking):
    return masking.low, masking.high


def sums(mean, mean_square, blocks=None):
    """Sums by count of 100 blocks of each count, or of as many as given, with these means of the
    cost and its square."""
    blocks = torch.full((len(mean),), 100.0) if blocks is None else torch.tensor(blocks)
    return torch.stack(
        [blocks, blocks * torch.tensor(mean), blocks * torch.tensor(mean_square)]
    ).double()


def test_the_candidates_are_the_published_ones():
    found = [interval(each) for each in candidates((0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 0.05)]
    assert len(found) == len(set(found)) == 11 + 9 + 7 + 5 + 3 + 1
    assert found[0] == (0.001, 1.0) and found[1:4] == [(0.001, 0.9), (0.05, 0.95), (0.1, 1.0)]
    assert {(0.45, 0.95), (0.3, 0.8), (0.5, 1.0), (0.001, 0.5)} <= set(found)


def test_equal_costs_choose_the_highest_rates():
    # Every mask costs 1: the variance is E[(1 - p)/p]/b, 0.386/b for [0.5, 1].
    k = [1.0, 2.0, 3.0, 4.0]
    chosen = least_variance(sums(k, [x**2 for x in k]), ClipSearch().candidates)
    assert interval(chosen) == (0.5, 1.0)
    first, second = chosen.moments(4)
    variance = float(
        second @ torch.tensor(k).double() ** 2 - (first @ torch.tensor(k).double()) ** 2
    )
    assert variance == pytest.approx((2 * math.log(2) - 1) / 4)


def test_a_wild_cost_of_many_masks_chooses_low_rates():
    # Blocks of four masks cost 0 or 400, each as often: four masks at rate p have the probability
    # p^4.
    chosen = least_variance(
        sums([1.0, 2.0, 3.0, 200.0], [1.0, 4.0, 9.0, 80_000.0]), ClipSearch().candidates
    )
    assert interval(chosen) == (0.001, 0.5)
    # One mask costs 0 or 40, each as often.
    assert interval(
        least_variance(
            sums([20.0, 2.0, 3.0, 4.0], [800.0, 4.0, 9.0, 16.0]), ClipSearch().candidates
        )
    ) == (0.5, 1.0)


def test_the_widest_of_equal_variances_is_chosen():
    zero = [0.0] * 4
    assert interval(least_variance(sums(zero, zero), ClipSearch().candidates)) == (0.001, 1.0)


def test_counts_without_a_block_are_interpolated():
    every = sums(
        [2.0, 4.0, 6.0, 8.0], [5.0, 20.0, 45.0, 80.0]
    )  # cost per token: mean 2, mean square 5
    some = sums([2.0, 9.0, 9.0, 8.0], [5.0, 9.0, 9.0, 80.0], blocks=[3.0, 0.0, 0.0, 7.0])
    assert all(least_variance(s, ClipSearch().candidates) is not None for s in (every, some))
    for each in ClipSearch().candidates:  # any two intervals compare in the same way
        pair = [Clipped(0.3, 0.8), each]
        assert interval(least_variance(every, pair)) == interval(least_variance(some, pair))


def test_no_block_and_no_finite_cost_choose_nothing():
    assert least_variance(torch.zeros(3, 4, dtype=torch.float64), ClipSearch().candidates) is None
    nan = float("nan")
    assert least_variance(sums([nan] * 4, [nan] * 4), ClipSearch().candidates) is None


@pytest.mark.parametrize(
    "make",
    [lambda p: BlockMDLM(p, 4, Clipped(), "nelbo"), lambda p: MDLM(p, Clipped())],
    ids=["blocks", "windows"],
)
def test_sums_are_those_of_whole_blocks(make):
    objective = make(AbsorbingProcess(DNA, LogLinear())).evaluation()
    torch.manual_seed(0)
    denoiser = objective.denoiser(Caduceus(DNA, 8, 1).double())
    x0, weight = torch.randint(7, 11, (6, 10)), torch.ones(6, 10)
    weight[0, 1] = weight[5, 9] = 0
    draws = Draws.for_batch(0, 6)
    with torch.no_grad():
        found = sums_by_count(objective, denoiser, {"ids": x0, "weight": weight}, draws)
        masked, positions = objective.masked_positions(TrainingBatch(x0, weight, draws))
        nll = denoiser.nll(x0, masked.xt, positions=torch.ones_like(positions))
        cost = torch.where(positions, nll.view(6, 10), 0.0)
    size = found.shape[1]
    assert size == (4 if isinstance(objective, BlockMDLM) else 10)
    expected = torch.zeros(3, size, dtype=torch.float64)
    for row in range(6):
        for start in range(0, 10 - size + 1, size):  # the last two positions are no block of four
            part = slice(start, start + size)
            if weight[row, part].all():
                k, total = int(positions[row, part].sum()), cost[row, part].sum()
                expected[:, k - 1] += torch.stack([torch.ones_like(total), total, total**2])
    assert float(expected[0].sum()) == (11 if size == 4 else 4)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_windows_in_pieces_have_the_sums_of_the_whole(peers):
    torch.manual_seed(0)
    batch = {"ids": torch.randint(7, 11, (6, 12)), "weight": torch.ones(6, 12)}
    objective = MDLM(AbsorbingProcess(DNA, LogLinear()), Clipped())
    denoiser = objective.denoiser(Caduceus(DNA, 8, 1).double())
    trainer = SimpleNamespace(precision_plugin=SimpleNamespace(val_step_context=torch.no_grad))

    def own(one=None):
        module, search = (
            DiffusionModule(copy.deepcopy(denoiser), objective, None, None),
            ClipSearch(),
        )
        module.draws = lambda purpose, size, step: Draws.for_batch(0, size)
        if one is not None:
            module.peers = one
            spread(module.denoiser.backbone, one)
        search.on_validation_batch_end(trainer, module, None, batch, 0)
        return search._sums

    expected = own()
    for found in peers.together(2, own):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def module_with(masking):
    """A module outside of a run, and what it logs."""
    logged, objective = {}, BlockMDLM(AbsorbingProcess(DNA, LogLinear()), 4, masking, "nelbo")
    module = DiffusionModule(objective.denoiser(Caduceus(DNA, 8, 1)), objective, None, None)
    module.log_dict = lambda values, **_: logged.update(values)
    return module, logged


def test_the_sums_of_all_devices_are_added():
    own, other = (
        sums([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]),
        1000 * sums([1.0, 2.0, 3.0, 200.0], [1.0, 4.0, 9.0, 80_000.0]),
    )
    for strategy, chosen in (
        (None, (0.5, 1.0)),
        (SimpleNamespace(reduce=lambda mine, reduce_op: mine + other), (0.001, 0.5)),
    ):
        module, logged = module_with(Clipped())
        search = ClipSearch()
        search._sums = own
        search.on_validation_epoch_end(
            SimpleNamespace(world_size=1 if strategy is None else 2, strategy=strategy), module
        )
        assert (
            interval(module.objective.masking)
            == search.interval
            == chosen
            == (logged["clip/low"], logged["clip/high"])
        )


def test_a_restored_search_sets_the_interval_before_training():
    module, _ = module_with(Clipped())
    first, again = ClipSearch(), ClipSearch()
    again.load_state_dict(first.state_dict())
    again.on_fit_start(None, module)
    assert interval(module.objective.masking) == (0.0, 1.0)
    first.interval = (0.3, 0.8)
    again.load_state_dict(first.state_dict())
    again.on_fit_start(None, module)
    assert interval(module.objective.masking) == (0.3, 0.8)


def test_an_interval_is_kept_without_a_block(caplog):
    module, logged = module_with(Clipped(0.2, 0.7))
    search = ClipSearch()
    search._sums = torch.zeros(3, 4, dtype=torch.float64)
    search.on_validation_epoch_end(SimpleNamespace(world_size=1), module)
    assert interval(module.objective.masking) == (0.2, 0.7) and logged == {
        "clip/low": 0.2,
        "clip/high": 0.7,
    }
    assert "the mask rates stay between 0.2 and 0.7" in caplog.text


def test_a_run_logs_the_intervals_of_the_averaged_weights(cli, train_args, tmp_path, monkeypatch):
    used = []

    def recorded(objective, denoiser, batch, draws):
        used.append(
            (float(sum(p.double().sum() for p in denoiser.parameters())), denoiser.training)
        )
        return sums_by_count(objective, denoiser, batch, draws)

    monkeypatch.setattr(clip_search, "sums_by_count", recorded)
    more = [
        "callbacks.clip_search.max_batches=2",
        "data.max_valid_windows=16",
        "lr_scheduler=constant",
        "lr_scheduler.warmup_steps=1",
    ]
    status, _, err = cli("train", *train_args("caduceus", 8, *BLOCKS, *more))
    assert status == 0, err
    assert len(used) == 4  # two batches of each of two validations
    content = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.ckpt")
    averaged, live = (
        sum(
            float(value.double().sum())
            for key, value in content[name].items()
            if key.startswith("denoiser")
        )
        for name in ("state_dict", "current_model_state")
    )
    assert abs(averaged - live) > 1e-3 and used[-1] == (pytest.approx(averaged, abs=1e-9), False)
    header, *rows = (tmp_path / "run" / "metrics.csv").read_text().split()
    assert header.endswith("valid_nll_live,clip_low,clip_high")
    logged = [tuple(map(float, row.split(",")[-2:])) for row in rows if row.split(",")[6]]
    assert (
        len(logged) == 2
        and content["callbacks"]["ClipSearch"] == {"interval": list(logged[-1])}
        and logged[-1] != (0, 1)
    )
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["callbacks"]
    assert saved["clip_search"]["widths"][-1] == 1 and saved["ema"]["decay"] == 0.999


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "objective/masking=count",
            "the masking ExactCount; set objective/masking=clipped, or leave out "
            "callbacks=clip_search",
        ),
        (
            "objective.block_size=1",
            "objective.block_size 1: callbacks.clip_search has no mask rates to choose",
        ),
        (
            "objective.weighting=cross_entropy",
            "objective.weighting=cross_entropy: callbacks.clip_search minimizes the variance of "
            "the bound",
        ),
        ("objective.masking.low=0.9", None),
        (
            "objective.masking.high=0",
            "objective.masking.low 0.0 must be below objective.masking.high 0",
        ),
        (
            "callbacks.clip_search.widths=[0.5,1.5]",
            "callbacks.clip_search.widths[1] 1.5 must be a number above 0.001 and at most 1",
        ),
        ("callbacks.clip_search.widths=[]", "callbacks.clip_search.widths is empty"),
        ("callbacks.clip_search.step=0", "callbacks.clip_search.step 0 must be a number above 0"),
        (
            "callbacks.clip_search.max_batches=0",
            "callbacks.clip_search.max_batches 0 must be an integer of at least 1",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_before_data_is_read(wrong, message, cli, tmp_path):
    (tmp_path / "empty.fa").touch()
    status, _, err = cli(
        "train", "data=fasta", "data.path=empty.fa", "hydra.run.dir=run", *BLOCKS, wrong
    )
    assert status == 1 and (message or "empty.fa") in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


def test_objectives_without_masking_are_refused():
    args = [each for each in BLOCKS if "objective" not in each]
    for name, which in (
        ("ar", "objective AR has no masking"),
        ("mlm", "objective MLM has no masking"),
    ):
        config = compose(
            "train",
            [
                *args,
                f"objective={name}",
                f"backbone={'transformer' if name == 'ar' else 'caduceus'}",
            ],
        )
        objective = build_objective(config, AbsorbingProcess(DNA, LogLinear()), trust=None)
        with pytest.raises(ValueError, match=which):
            clip_search.check_search(config["callbacks"], objective)


RECORDER = """
import json
from lightning.pytorch.callbacks import Callback
from dnadiff.training.clip_search import ClipSearch

class Recorder(Callback):
    def on_validation_end(self, trainer, module):
        search = next(each for each in trainer.callbacks if isinstance(each, ClipSearch))
        masking = module.objective.masking
        with open(f"seen-{trainer.global_rank}", "a") as file:
            rates = [masking.low, masking.high]
            file.write(json.dumps([search._sums.tolist(), search.interval, rates]) + "\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_choose_one_interval(strategy, tiny_fasta, train_args, tmp_path):
    (tmp_path / "recorder.py").write_text(RECORDER)
    two = [
        "trainer.devices=2",
        f"trainer.strategy={strategy}",
        "+callbacks.recorder._target_=recorder.Recorder",
    ]
    command = [sys.executable, "-m", "dnadiff.train", *train_args("caduceus", 8, *BLOCKS, *two)]
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
    }
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr
    first, second = (
        [json.loads(line) for line in (tmp_path / f"seen-{rank}").read_text().splitlines()]
        for rank in (0, 1)
    )
    assert len(first) == len(second) == 2
    for (own, chosen, used), (other, *same) in zip(first, second):
        assert own != other and [chosen, used] == same and chosen == used
        both = least_variance(
            torch.tensor(own, dtype=torch.float64) + torch.tensor(other, dtype=torch.float64),
            ClipSearch().candidates,
        )
        assert list(interval(both)) == chosen
