"""The noise of training: one global batch over devices and accumulation steps."""

from types import SimpleNamespace

import pytest
import torch

from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import Loss
from dnadiff.diffusion.objective.masking import Bernoulli, ExactCount
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.training.module import DiffusionModule


def of_process(rank, world, pieces=1, **trainer):
    """What a module of one process of a run knows of it."""
    return SimpleNamespace(
        trainer=SimpleNamespace(world_size=world, global_rank=rank, **trainer),
        groups=world // pieces,
        **dict(device=torch.device("cpu"), seed=2, context_parallel=pieces),
    )


@pytest.mark.parametrize(("world", "accumulated"), [(1, 1), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize(
    "masking", [Bernoulli(t_min=0.0), ExactCount()], ids=lambda m: type(m).__name__
)
def test_times_are_stratified_over_all_devices_and_accumulation_steps(masking, world, accumulated):
    process = AbsorbingProcess(Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11)), LogLinear())
    x0, step, rows, times = torch.full((4, 4000), 7), 5, [], []
    for rank in range(world):
        module = of_process(rank, world)
        for micro in range(accumulated):
            draws = DiffusionModule.draws(module, "train", 4, step, micro, accumulated)
            rows += draws.rows.tolist()
            times += masking(process, x0, x0 > 0, draws).t.tolist()
            assert (draws.seed, draws.step, draws.global_batch_size) == (
                hash64(2, "train"),
                step,
                4 * world * accumulated,
            )
    size = 4 * world * accumulated
    alone = of_process(0, 1)
    if accumulated == 1:  # row i of rank r is row i world + r of one process
        assert rows == [
            row
            for rank in range(world)
            for row in DiffusionModule.draws(alone, "train", size, step).rows.tolist()[rank::world]
        ]
    assert sorted(rows) == list(range(size))
    places = (
        [int(t * size) for t in times]
        if isinstance(masking, Bernoulli)
        else [int((t * 0.999 - 1e-4) * size) for t in times]
    )
    assert sorted(places) == list(range(size))


def test_processes_that_share_windows_have_the_same_noise():
    def draws(rank, world, pieces):
        return DiffusionModule.draws(of_process(rank, world, pieces), "train", 4, step=5)

    for rank in range(6):
        ours, theirs = draws(rank, 6, 3), draws(rank // 3, 2, 1)
        assert torch.equal(ours.rows, theirs.rows) and ours.num_rows == theirs.num_rows == 8


@pytest.mark.parametrize(
    ("world", "pieces", "total", "expected"),
    [(1, 1, None, 1.0), (2, 2, None, 1.0), (4, 1, 40.0, 1.2), (4, 2, 48.0, 1.0)],
)
def test_a_loss_is_weighted_by_its_tokens_on_all_devices(world, pieces, total, expected):
    strategy = SimpleNamespace(reduce=lambda tokens, reduce_op: torch.tensor(total))
    module = of_process(0, world, pieces, strategy=strategy)
    assert DiffusionModule.share(module, torch.tensor(12.0)) == expected


def test_the_logged_losses_of_a_process_are_weighted_by_their_tokens():
    logged = {}
    total = {12.0: 40.0, 50.0: 80.0}  # over both processes
    strategy = SimpleNamespace(reduce=lambda tokens, reduce_op: torch.tensor(total[float(tokens)]))
    optimizers = [SimpleNamespace(param_groups=[{"lr": 0.1}])]
    found = Loss(
        torch.tensor(1.0), torch.tensor(2.0), torch.tensor(50.0), num_averaged=torch.tensor(12.0)
    )
    module = SimpleNamespace(
        trainer=SimpleNamespace(
            accumulate_grad_batches=1,
            world_size=2,
            global_rank=0,
            strategy=strategy,
            optimizers=optimizers,
        ),
        **dict(seed=1, global_step=1, context_parallel=1, groups=2, objective=None),
        draws=lambda *args: None,
        loss=lambda *args: found,
        share=lambda tokens: DiffusionModule.share(module, tokens),
        log_dict=lambda values, **options: logged.update(values),
        log=lambda *args, **options: None,
    )
    DiffusionModule.training_step(module, {"ids": torch.ones(1, 4), "weight": torch.ones(1, 4)}, 0)
    assert float(logged["train/loss"]) == pytest.approx(1.0 * 12 * 2 / 40) and float(
        logged["train/nll"]
    ) == pytest.approx(2.0 * 50 * 2 / 80)


def test_a_training_step_does_not_wait_for_the_device():
    def on_device(*shape):
        return torch.ones(
            *shape, device="meta"
        )  # has no values: reading one raises an error, where a GPU would be waited for

    trainer = SimpleNamespace(
        accumulate_grad_batches=1,
        world_size=1,
        global_rank=0,
        optimizers=[SimpleNamespace(param_groups=[{"lr": 0.1}])],
    )
    module = SimpleNamespace(
        **dict(trainer=trainer, seed=1, global_step=1, context_parallel=1, objective=None),
        groups=1,
        draws=lambda *args: None,
        loss=lambda *args: Loss(
            on_device(()), on_device(()), on_device(()), num_averaged=on_device(())
        ),
        share=lambda tokens: DiffusionModule.share(module, tokens),
        log_dict=lambda values, **options: None,
        log=lambda *args, **options: None,
    )
    assert DiffusionModule.training_step(
        module, {"ids": on_device(1, 4), "weight": on_device(1, 4)}, 0
    ).is_meta


def test_tokens_are_counted_in_batches_of_training_and_complete_optimizer_steps():
    module = SimpleNamespace(
        trainer=SimpleNamespace(training=True, world_size=4),
        groups=2,
        tokens_seen=100,
        _tokens_of_step=0,
    )
    batch = {"weight": torch.tensor([[1, 0, 3], [0, 1, 0]], dtype=torch.uint8)}
    for training, expected in ((True, 6), (True, 12), (False, 12)):
        module.trainer.training = training
        assert (
            DiffusionModule.on_before_batch_transfer(module, batch, 0) is batch
            and module._tokens_of_step == expected
        )
    assert module.tokens_seen == 100
    DiffusionModule.on_before_optimizer_step(module, None)
    assert (module.tokens_seen, module._tokens_of_step) == (112, 0)
