"""h(n) of a block diffusion model: summed over blocks in memory that does not grow with them, with
whole windows resampled."""

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import BlockDenoiser
from dnadiff.diffusion.likelihood.curve import CurveSums, code_length_table
from dnadiff.diffusion.likelihood.estimates import BlockMeasurements
from dnadiff.diffusion.likelihood.estimators import WindowBatch, estimate
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.caduceus import Caduceus

VOCAB = DNATokenizer().vocab
PROCESS = AbsorbingProcess(VOCAB, LogLinear())


@pytest.fixture
def denoiser():
    torch.manual_seed(0)
    return BlockDenoiser(Caduceus(VOCAB, d_model=8, n_layers=1, d_state=4), 4).eval()


def windows(num_windows, length):
    ids = torch.randint(7, 11, (num_windows, length), generator=torch.Generator().manual_seed(1))
    ids[0, :3] = 11  # N
    batch = [WindowBatch(x, {"all": x != 11}) for x in ids.split(3)]
    return batch


def measured(draws=6, sequences=30, blocks=5, size=4, seed=0):
    """Arrays of `BlockMeasurements.of`."""
    random = np.random.default_rng(seed)
    available = random.integers(0, size + 1, (sequences, blocks))
    counts = np.minimum(random.integers(1, size + 1, (draws, sequences, blocks)), available)
    start = available * random.uniform(1, 2, available.shape)
    return counts, available, available * random.uniform(0.5, 1.5, counts.shape), start


def test_the_sums_give_the_curve_of_the_single_measurements():
    counts, available, nats, start = measured()
    sums = BlockMeasurements.of(counts, available, nats, start, 4)
    joined = CurveSums(sums.cells, available.sum(1), start.sum(1), nats.mean(0).sum(1), 4)
    sequence = np.repeat(np.arange(30), 5)[used := available.ravel() > 0]
    a, x0 = available.ravel()[used], start.ravel()[used]
    each = CurveSums.of(
        counts.reshape(6, -1).T[used],
        nats.reshape(6, -1).T[used] / a[:, None],
        x0 / a,
        a,
        sequence,
        4,
    )
    np.testing.assert_allclose(joined.fit(), each.fit(), rtol=1e-12)
    np.testing.assert_allclose(
        joined.bootstrap_replicates(20), each.bootstrap_replicates(20), rtol=1e-12
    )


def test_batches_and_further_draws_are_added_up():
    counts, available, nats, start = measured()
    whole = BlockMeasurements.of(counts, available, nats, start, 4)
    two = [
        BlockMeasurements.of(counts[:, i], available[i], nats[:, i], start[i], 4)
        for i in (slice(10), slice(10, None))
    ]
    for of_parts in (
        BlockMeasurements.joined(two),
        BlockMeasurements.of(counts[:2], available, nats[:2], start, 4).with_draws(
            BlockMeasurements.of(counts[2:], available, nats[2:], start, 4)
        ),
    ):
        for ours, expected in zip(of_parts.cells, whole.cells):
            np.testing.assert_allclose(ours, expected, rtol=1e-12)
        assert of_parts.size == len(start)
        assert (
            of_parts.first_start == pytest.approx(start[:, 0].sum())
            and of_parts.first_tokens == available[:, 0].sum()
        )
    with pytest.raises(
        ValueError,
        match=r"sequences of 2 and of 4 tokens, and h\(n\) of blocks of 4 is of sequences of at "
        r"least 4 tokens, or of one",
    ):
        BlockMeasurements.joined([two[0], BlockMeasurements.of(*measured(size=2), 2)])


@pytest.mark.slow
def test_memory_grows_neither_with_blocks_nor_with_draws(denoiser):
    # It took 1.7 KB per block.
    sizes = [
        sum(
            column.nbytes
            for column in estimate(
                denoiser, PROCESS, windows(7, length), draws, curve=True
            ).by_block.cells
        )
        for length, draws in ((64, 16), (256, 16), (64, 64))
    ]
    assert max(sizes) <= 7 * 4 * 9 * 8  # windows x counts x numbers x bytes


class Counted(BlockDenoiser):
    calls = 0

    def cost(self, x0, query):
        self.calls += 1
        return super().cost(x0, query)


def test_sequences_with_other_first_blocks_are_refused(denoiser):
    batches = [windows(2, length)[0] for length in (16, 3)]
    message = (
        "batches have sequences of 3 and of .* tokens, and h.n. of blocks of 4 is of "
        "sequences of at least 4 .*; evaluate them apart"
    )
    with pytest.raises(ValueError, match=message):
        estimate(denoiser, PROCESS, batches, 2, curve=True)
    assert (
        estimate(
            denoiser, PROCESS, [windows(2, length)[0] for length in (16, 9)], 2, curve=True
        ).by_block.length
        == 4
    )


def test_whole_windows_are_resampled(denoiser):
    # Units of the bootstrap were runs of blocks, which ended inside windows: with 7 windows of 16
    # blocks there were 23.
    result = estimate(denoiser, PROCESS, windows(7, 64), 4, curve=True)
    sums = CurveSums.from_estimates(result, 64)
    assert sums.tokens.tolist() == [61, *[64] * 6]
    np.testing.assert_allclose(sums.nats, result.per_sequence())
    every = [batch.ids.masked_fill(batch.groups["all"], 3) for batch in windows(7, 64)]
    expected = [
        denoiser.nll(batch.ids, xt, positions=batch.groups["all"]).detach().sum()
        for batch, xt in zip(windows(7, 64), every)
    ]
    assert sums.start.sum() == pytest.approx(float(sum(expected)), rel=1e-5)
    assert len(np.unique(result.curve().visible)) == 4
    assert code_length_table(sums)["nelbo_bits"] == pytest.approx(result.summary()["bits"])


def test_h_of_blocks_is_measured_on_request_only(denoiser):
    plain = estimate(denoiser, PROCESS, windows(6, 16), 2)
    for use in (plain.curve, lambda: CurveSums.from_estimates(plain, 16)):
        with pytest.raises(
            ValueError,
            match=r"h\(n\) of blocks was not measured; call likelihood\.estimate with curve=True",
        ):
            use()
    result = estimate(denoiser, PROCESS, windows(6, 16), 2, min_draws=8, curve=True)
    assert result.num_draws == 8 and result.by_block.cells.number.sum() == 8 * (6 * 4)


def test_h_of_no_visible_token_is_measured_once(denoiser):
    denoiser = Counted(denoiser.backbone, 4).eval()
    estimate(denoiser, PROCESS, windows(6, 16), 2, min_draws=8, curve=True)
    assert denoiser.calls == 2 * (8 + 1)  # two batches, eight draws and one call for h(0)


def test_blocks_longer_than_a_window_are_windows(denoiser):
    whole = BlockDenoiser(denoiser.backbone, 64).eval()
    result = estimate(whole, PROCESS, windows(6, 16), 2, curve=True)
    assert CurveSums.from_estimates(result, 16).length == 16
