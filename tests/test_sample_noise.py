"""The command line `sample` for models of noise that replaces tokens: samplers that fit, and
messages for those that do not."""

import pytest

import dnadiff
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.design.request import starting_from
from dnadiff.diffusion.sampler.reverse import Reverse
from dnadiff.formats.sequences import read_sequences
from dnadiff.train import train


@pytest.fixture(scope="module")
def uniform(tmp_path_factory):
    """The run folder of a small network trained for two steps on uniform noise."""
    folder = tmp_path_factory.mktemp("uniform")
    (folder / "tiny.fa").write_text(">one\n" + "ACGTTGA" * 200 + "\n")
    args = ["data=fasta", f"data.path={folder / 'tiny.fa'}", "data.length=32", "data.batch_size=4"]
    args += ["data.max_valid_windows=4", "backbone=dit", "backbone.d_model=16"]
    args += ["backbone.n_layers=1", "backbone.n_heads=2", "objective=bound", "process=uniform"]
    args += ["trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.accelerator=cpu"]
    train.start([*args, f"hydra.run.dir={folder / 'run'}"])
    return folder / "run"


def records(path):
    return [(r.description, r.sequence.decode()) for r in read_sequences(str(path))]


def test_the_sampler_follows_the_process_unless_one_is_chosen(uniform, cli, tmp_path):
    given = ["sample", f"checkpoint={uniform}", "num_samples=3", "length=20", "batch_size=2"]
    status, _, err = cli(*given, "output=a.fa")
    assert status == 0, err
    found = records(tmp_path / "a.fa")
    assert len(found) == 3 and all(set(text) <= set("ACGT") for _, text in found)
    assert all("sampler=reverse calls=128" in about for about, _ in found)
    model = dnadiff.load(uniform, "cpu")
    assert isinstance(model.default_sampler(20), Reverse)
    assert model.sample(3, length=20, batch_size=2, seed=1) == [text for _, text in found]
    for sampler in ("grouped", "gibbs", "remdm", "semi_ar"):
        status, _, err = cli(*given, f"sampler={sampler}", "output=b.fa")
        assert status == 1 and err.count("\n") < 4 and not (tmp_path / "b.fa").exists()
        assert "needs an absorbing process" in err and "set sampler=reverse" in err


def test_partial_letters_need_masks(uniform, cli, tmp_path):
    (tmp_path / "t.fa").write_text(">t\nACGRNNNNACGT\n")
    given = ["sample", f"checkpoint={uniform}", "template=t.fa", "num_samples=2", "output=a.fa"]
    status, _, err = cli(*given)
    assert status == 1 and "a constraint on samples needs an absorbing process" in err
    (tmp_path / "t.fa").write_text(">t\nACGNNNNNACGT\n")
    status, _, err = cli(*given)
    assert status == 0, err
    assert all(text[:3] == "ACG" and text[-4:] == "ACGT" for _, text in records(tmp_path / "a.fa"))


def write(path, *sequences):
    path.write_text("".join(f">s{i}\n{text}\n" for i, text in enumerate(sequences, 1)))


def test_given_sequences_are_changed_by_more_with_more_noise(uniform, trained, cli, tmp_path):
    start = "ACGTTGA" * 4
    write(tmp_path / "s.fa", start)
    write(tmp_path / "t.fa", "N" * 14 + "ACGTTGA" * 2)
    for model, sampler in ((uniform, "reverse"), (trained, "grouped")):
        total = []
        for t in ("0.05", "0.9"):
            given = [f"checkpoint={model}", "start=s.fa", f"start_t={t}", "num_samples=8"]
            status, _, err = cli("sample", *given, "output=a.fa", "overwrite=true")
            assert status == 0, err
            found = records(tmp_path / "a.fa")
            changes = [sum(a != b for a, b in zip(text, start, strict=True)) for _, text in found]
            for about, change in zip((about.split() for about, _ in found), changes, strict=True):
                assert {f"sampler={sampler}", f"start_t={t}", f"changes={change}"} <= set(about)
            total.append(sum(changes))
        assert total[0] < 30 < total[1]
        given = [f"checkpoint={model}", "start=s.fa", "start_t=1", "template=t.fa"]
        status, _, err = cli("sample", *given, "output=b.fa", "overwrite=true")
        assert status == 0, err
        assert all(text.endswith("ACGTTGA" * 2) for _, text in records(tmp_path / "b.fa"))


def test_changed_sequences_in_python_and_by_gibbs(uniform, trained, cli, tmp_path):
    model, start = dnadiff.load(uniform, "cpu"), "ACGTTGA" * 3
    found = model.sample(3, start=start, start_t=0.3, seed=1)
    assert [each.changes for each in found] == [
        sum(a != b for a, b in zip(each, start)) for each in found
    ]
    assert found == model.sample(3, start=start, start_t=0.3, seed=1)
    assert "changes" in found.to_frame()
    with pytest.raises(ValueError, match=r"this sampler does not change; set start_t= "):
        model.sample(3, start=start)
    with pytest.raises(ValueError, match=r"start_t 2.* must be "):
        model.sample(3, start=start, start_t=2.0)
    with pytest.raises(ValueError, match="leave length, motif and prompt out"):
        model.sample(3, start=start, length=3)
    write(tmp_path / "s.fa", start)
    given = ["sample", f"checkpoint={trained}", "start=s.fa", "sampler=gibbs", "num_samples=3"]
    status, _, err = cli(*given, "output=g.fa")
    assert status == 0, err
    assert all(len(text) == len(start) for _, text in records(tmp_path / "g.fa"))
    (tmp_path / "t.fa").write_text(">t\n" + "R" * 21 + "\n")
    status, _, err = cli(*given[:3], "start_t=0.5", "template=t.fa", "resample=true")
    assert status == 1 and "start: s1 has C at position 2" in err
    write(tmp_path / "s.fa", "AGGA" * 5 + "A")
    status, _, err = cli(*given[:3], "start_t=0.5", "template=t.fa", "resample=true")
    assert status == 1 and "resample=true needs a sampler with importance weights" in err


def test_corrected_sequences_on_the_command_line(uniform, cli, tmp_path):
    start = "ACGTTGA" * 3
    write(tmp_path / "s.fa", start)
    given = ["sample", f"checkpoint={uniform}", "start=s.fa", "sampler=self_correction"]
    status, _, err = cli(*given, "sampler.num_corrections=3", "num_samples=2", "output=a.fa")
    assert status == 0, err
    for about, text in records(tmp_path / "a.fa"):
        changed = sum(a != b for a, b in zip(text, start, strict=True))
        assert changed <= 3 and f"changes={changed} " in f"{about} "
    inner = ["sampler@sampler.sampler=predictor_corrector", "sampler.sampler.num_steps=2"]
    status, _, err = cli(*given, *inner, "start_t=0.5", "num_samples=2", "output=b.fa")
    assert status == 0 and "sampler=self_correction" in (tmp_path / "b.fa").read_text(), err
    status, _, err = cli(*given, "sampler@sampler.sampler=grouped", "output=c.fa")
    assert status == 1 and "sampler Grouped needs an absorbing process" in err
    for name in ("renoising", "predictor_corrector"):
        free = ["sample", f"checkpoint={uniform}", "num_samples=2", "length=9:20"]
        status, _, err = cli(*free, f"sampler={name}", "output=d.fa", "overwrite=true")
        assert status == 0, err
        assert all(set(text) <= set("ACGT") for _, text in records(tmp_path / "d.fa"))


def test_a_text_to_change_is_read_as_its_tokens():
    tokenizer = CharTokenizer("a dgot")
    request = starting_from(tokenizer, [("sample", "a dog")], 2)
    assert len(request) == 2 and request.lengths == (5, 5)
    assert tokenizer.decode(request[1].start) == "a dog"
    assert (request[1].pattern.ids == tokenizer.vocab.mask_id).all()
    with pytest.raises(ValueError, match="'x' at position 3 is not among the 6 characters"):
        starting_from(tokenizer, [("sample", "a xog")], 2)
