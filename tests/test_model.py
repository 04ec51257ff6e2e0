import numpy as np
import pytest
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

import dnadiff


@pytest.fixture(scope="module")
def model(trained):
    return dnadiff.load(trained, device="cpu")


def test_samples_are_strings_of_bases(model):
    samples = model.sample(5, length=70)
    assert [len(s) for s in samples] == [70] * 5 and set("".join(samples)) <= set("ACGT") and len(set(samples)) > 1
    assert model.sample(5, length=70) == samples != model.sample(5, length=70, seed=2)
    assert model.sample(2, length=70) == samples[:2]


def test_nll_takes_strings_and_records_of_any_length(model):
    text = "ACGTTGA" * 10
    values = model.nll([text, SeqRecord(Seq(text.lower()), id="a"), "CCCCCCCC", "NNNN"], num_draws=16)
    assert values.shape == (4,) and np.isnan(values[3])
    assert values[0] < 1.2 < values[2]  # trained on repeats of ACGTTGA; 1.386 is guessing
    assert values[1] == pytest.approx(values[0], abs=0.3)


def test_nll_of_a_sequence_does_not_depend_on_its_company(model):
    one, two = "ACGTTGA" * 10, "CCGTA" * 14
    together = model.nll([two, one, two])
    assert together[1] == pytest.approx(model.nll([one])[0], rel=1e-6) and together[0] == pytest.approx(together[2], rel=1e-6)
    assert together[1] == pytest.approx(model.nll([one, two], batch_size=1)[0], rel=1e-6) != model.nll([one], seed=2)[0]


def test_embeddings_tell_sequences_apart(model):
    vectors = model.embed(["ACGTTGA" * 10, "ACGTTGA" * 10, "C" * 30])
    assert vectors.shape == (3, 16) and vectors.dtype == np.float32
    assert np.array_equal(vectors[0], vectors[1]) and not np.allclose(vectors[0], vectors[2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.sample(0), "num_samples 0"),
        (lambda m: m.sample(1, length=0), "length 0"),
        (lambda m: m.nll([""]), "length 0"),
        (lambda m: m.nll(["ACGZ"]), "'Z' at position 4"),
        (lambda m: m.sample(1, batch_size=0), "batch_size 0"),
        (lambda m: m.nll("ACGT"), "put it into a list"),
        (lambda m: m.embed(SeqRecord(Seq("ACGT"))), "put it into a list"),
    ],
)
def test_impossible_requests_are_refused(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


def test_load_is_the_only_public_name():
    assert dnadiff.__all__ == ["load"]
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        dnadiff.lod  # noqa: B018
