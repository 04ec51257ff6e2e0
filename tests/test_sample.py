"""The command line `sample`: samplers, labels, groups from h(n), and invalid options."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff.diffusion.likelihood import curve
from dnadiff.diffusion.likelihood.curve import fingerprint
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.semi_ar import SemiAR
from dnadiff.formats.sequences import read_sequences
from dnadiff.options.base import Start
from dnadiff.options.command import compose
from dnadiff.sample import SampleOptions, sample
from dnadiff.train import train


def store_curve(folder, length=64, best=1.1, model=None, **changes):
    """The part of an evaluation that sampling reads: h decreases from 2 bits to 1, and optimal
    sizes of 8 groups cost `best` bits."""
    rows = [
        {"groups": k, "uniform": {"bits": 1.2}, "optimal": {"bits": bits}}
        for k, bits in ((1, 1.2), (8, best))
    ]
    curve = {
        "length": length,
        "h": {
            "visible": list(range(length)),
            "bits": (1 + np.exp(-np.arange(length) / 8)).tolist(),
        },
        "rows": rows,
    }
    about = (
        {"fingerprint": fingerprint(dnadiff.load(folder, "cpu").denoiser), "conjoined": False}
        if model is None
        else model
    )
    content = {
        "model": about,
        "data": {"name": "x.fa"},
        "own_data": True,
        "part": "test",
        "code_length": curve,
    }
    (folder / "evaluate.json").write_text(json.dumps(content | changes))


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the trained run that a test may write into."""
    return shutil.copytree(trained, tmp_path / "run")


def steps(path):
    return int(path.read_text().split("calls=")[1].split()[0])


def header_of(path):
    """The key=value pairs of the first header of a FASTA file."""
    words = shlex.split(path.read_text().splitlines()[0])
    assert words[:2] == [">sample_1", "synthetic"]
    return dict(word.split("=", 1) for word in words[2:])


@pytest.mark.parametrize(
    ("arguments", "header"),
    [
        (["sampler=first_hitting"], {"sampler": "first_hitting", "calls": "64"}),
        (
            [
                "sampler=remdm",
                "sampler/remasking=loop",
                "sampler.num_steps=20",
                "sampler.nucleus=0.9",
                "sampler.remasking.eta=0.1",
            ],
            {
                "sampler": "remdm",
                "calls": "20",
                "num_steps": "20",
                "nucleus": "0.9",
                "remasking.class": "Loop",
                "remasking.eta": "0.1",
            },
        ),
        (
            [
                "sampler=confidence",
                "sampler.order=margin",
                "sampler.num_steps=8",
                "sampler.temperature=0.8",
            ],
            {
                "sampler": "confidence",
                "calls": "8",
                "num_steps": "8",
                "order": "margin",
                "temperature": "0.8",
            },
        ),
        (
            [
                "sampler=semi_ar",
                "length=150",
                "sampler@sampler.sampler=entropy_bounded",
                "sampler.window=60",
            ],
            {
                "sampler": "semi_ar",
                "calls": None,
                "sampler.window": "60",
                "sampler.class": "EntropyBounded",
            },
        ),
        (
            ["sampler=gibbs", "sampler.num_groups=4"],
            {"sampler": "gibbs", "calls": "8", "num_groups": "4"},
        ),
    ],
)
def test_any_sampler_by_name(arguments, header, cli, trained, tmp_path):
    status, out, err = cli(
        "sample", f"checkpoint={trained}", "num_samples=3", "output=a.fa", *arguments
    )
    assert status == 0, err
    calls = int(
        out.split("network calls")[1].split()[0]
    )  # the actual calls of the only batch, not their upper limit
    assert header_of(tmp_path / "a.fa") == header | {"calls": str(calls), "seed": "1"} and header[
        "calls"
    ] in (None, str(calls))
    assert calls <= int(err.split("at most ")[1].split()[0]) and calls == steps(tmp_path / "a.fa")
    assert [len(r.sequence) for r in read_sequences(tmp_path / "a.fa")] == [
        150 if "semi_ar" in arguments[0] else 64
    ] * 3


def test_header_and_json_record_every_setting_of_a_users_own_sampler(
    trained, tmp_path, monkeypatch
):
    (tmp_path / "own_sampler.py").write_text(
        "from dnadiff.diffusion.sampler.grouped import Grouped\n\n\n"
        "class Own(Grouped):\n"
        "    def __init__(self, note='plain', seed=0, weights=(1, 2), temperature=1.0, "
        "unused=None):\n"
        "        super().__init__(num_groups=4, temperature=temperature)\n"
        "        self.note, self.seed, self.weights, self.unused = note, seed, list(weights), "
        "unused\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = compose(
        "sample",
        [
            f"checkpoint={trained}",
            f"output={tmp_path}/a.fa",
            "num_samples=2",
            "length=30",
            "seed=5",
        ],
    )
    config["sampler"] = {
        "_target_": "own_sampler.Own",
        "note": "two words = 1",
        "seed": 7,
        "weights": [3, 4],
    }
    sample.run(SampleOptions.of(config, Start(tmp_path)))
    expected = {
        "sampler": "own_sampler",
        "calls": "4",
        "note": "two words = 1",
        "sampler.seed": "7",
        "weights": "[3,4]",
        "seed": "5",
    }
    assert header_of(tmp_path / "a.fa") == expected
    content = json.loads((tmp_path / "a.fa.json").read_text())
    settings = {
        "note": "two words = 1",
        "seed": 7,
        "weights": [3, 4],
        "temperature": 1.0,
        "unused": None,
    }
    assert content["sampler"] == "own_sampler" and content["sampler_settings"] == {
        "class": "own_sampler.Own",
        **settings,
    }
    assert dnadiff.load(trained, "cpu").sample(2, length=30, seed=5, sampler=Grouped(4)) == [
        r.sequence.decode() for r in read_sequences(tmp_path / "a.fa")
    ]


def test_groups_come_from_the_curve_in_the_run(cli, copy, tmp_path):
    args = [f"checkpoint={copy}", "num_samples=1", "overwrite=true", "output=a.fa"]
    assert cli("sample", *args)[0] == 0 and steps(tmp_path / "a.fa") == 64  # no curve: the default
    store_curve(copy)
    h = curve.curve_from(json.loads((copy / "evaluate.json").read_text())["code_length"], 64)
    equal, best = curve.fewest_groups(h), curve.fewest_groups(h, optimal=True)
    assert cli("sample", *args)[0] == 0 and steps(tmp_path / "a.fa") == len(equal) < 64
    assert cli("sample", *args, "sampler.sizes=optimal")[0] == 0 and steps(
        tmp_path / "a.fa"
    ) == len(best) < len(equal)
    assert (
        cli("sample", *args, "sampler.sizes=optimal", "sampler.num_groups=5")[0] == 0
        and steps(tmp_path / "a.fa") == 5
    )
    assert cli("sample", *args, "sampler.num_groups=7")[0] == 0 and steps(tmp_path / "a.fa") == 7
    assert cli("sample", *args, "sampler=semi_ar", "length=90")[0] == 0 and steps(
        tmp_path / "a.fa"
    ) == 2 * len(equal)
    status, _, err = cli("sample", *args, "length=100")
    assert (
        status == 0
        and "by evaluate.json in the run of 64 tokens, if h(n) depends on the visible fraction only"
        in err
    )
    assert "if h(n)" not in cli("sample", *args)[2]
    assert dnadiff.load(copy, "cpu").default_sampler(64).num_groups == len(equal)


def test_optimal_sizes_that_save_nothing_on_other_windows_are_not_used(cli, copy, tmp_path):
    store_curve(copy, best=1.2)
    h = curve.curve_from(json.loads((copy / "evaluate.json").read_text())["code_length"], 64)
    for more, calls in (((), len(curve.fewest_groups(h))), (("sampler.num_groups=5",), 5)):
        args = [
            f"checkpoint={copy}",
            "num_samples=1",
            "overwrite=true",
            "sampler.sizes=optimal",
            *more,
        ]
        status, _, err = cli("sample", *args, "output=a.fa")
        assert (
            status == 0
            and "optimal sizes save nothing on windows not used to choose them" in err
            and steps(tmp_path / "a.fa") == calls
        )
    assert dnadiff.load(copy, "cpu").stored_curve.groups(64, 5, "optimal") == {
        "num_groups": 5,
        "sizes": None,
    }


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            {"model": {"fingerprint": "0", "conjoined": False, "step": 30}},
            "it was measured with other weights",
        ),
        (
            {"model": {"step": 30, "checkpoint": "best.ckpt"}},
            "an older version wrote it without a fingerprint of the weights",
        ),
        ({"own_data": False}, r"it was measured on different data from those of the run \(x\.fa\)"),
        ({"part": "train"}, "it was measured on the training part"),
        ({"model": {"fingerprint": "0", "conjoined": True}}, "both strands conjoined"),
        ({"code_length": {"alone_bits": "x"}}, "it is damaged"),
        ({"code_length": {"rows": [{"groups": 8, "optimal": None}]}}, "it is damaged"),
    ],
)
def test_a_curve_that_is_not_of_the_held_out_data_of_this_model_is_ignored_with_one_warning(
    other, why, cli, copy, tmp_path
):
    store_curve(copy, **other)
    if damaged := other.get("code_length"):
        store_curve(copy)
        content = json.loads((copy / "evaluate.json").read_text())
        content["code_length"] |= damaged
        (copy / "evaluate.json").write_text(json.dumps(content))
    status, _, err = cli("sample", f"checkpoint={copy}", "num_samples=1", "output=a.fa")
    assert status == 0 and steps(tmp_path / "a.fa") == 64
    assert (
        len(
            re.findall(
                f"is ignored: .*{why}.*; python -m dnadiff.evaluate checkpoint=.* "
                "output=.*evaluate.json overwrite=true",
                err,
            )
        )
        == 1
    )


def test_averaged_and_live_weights_have_different_fingerprints(copy):
    last = copy / "checkpoints" / "last.ckpt"
    averaged = fingerprint(dnadiff.load(last, "cpu").denoiser)
    content = torch.load(last, weights_only=True)
    torch.save(content | {"state_dict": content["current_model_state"]}, last)
    assert len(averaged) == 64 and fingerprint(dnadiff.load(last, "cpu").denoiser) != averaged


def test_an_evaluation_stores_a_curve_that_sampling_uses(cli, copy, tmp_path):
    args = [f"checkpoint={copy}", "num_draws=2", "orders=[]", f"output={copy}/evaluate.json"]
    assert cli("evaluate", *args)[0] == 0
    assert dnadiff.load(copy, "cpu").stored_curve.curve(64) is not None
    assert cli("evaluate", *args, "overwrite=true", "part=train")[0] == 0
    assert dnadiff.load(copy, "cpu").stored_curve.curve(64) is None


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"model": {"step": 30, "checkpoint": "best.ckpt"}, "code_length": null}'],
)
def test_a_file_that_holds_no_curve_is_no_curve(content, copy):
    (copy / "evaluate.json").write_text(content)
    assert dnadiff.load(copy, "cpu").stored_curve.groups(64) == {"num_groups": None, "sizes": None}


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """A run trained for two steps on two labeled files."""

    folder = tmp_path_factory.mktemp("labeled")
    for name, unit in (("human", "ACGTTGA"), ("yeast", "CCATG")):
        (folder / f"{name}.fa").write_text(f">one\n{unit * 600}\n")
    data = [
        f"data.path={{human:{folder}/human.fa,yeast:{folder}/yeast.fa}}",
        "data=fasta",
        "data.length=64",
        "data.batch_size=4",
    ]
    network = [
        "backbone=caduceus",
        "backbone.d_model=16",
        "backbone.n_layers=1",
        "backbone.num_labels=2",
    ]
    args = [
        *data,
        *network,
        "trainer.accelerator=cpu",
        "trainer.max_steps=2",
        "data.max_valid_windows=2",
    ]
    train.start([*args, f"hydra.run.dir={folder / 'run'}"])
    return folder / "run"


def test_labels_and_guidance(cli, labeled, tmp_path):
    args = [f"checkpoint={labeled}", "num_samples=2", "sampler.num_groups=4"]
    for name, more in (
        ("plain", []),
        ("labeled", ["label=yeast"]),
        ("guided", ["label=yeast", "guidance=2"]),
    ):
        status, out, err = cli("sample", *args, *more, f"output={name}.fa")
        assert status == 0, err
        assert f"4 ({14 if name == 'guided' else 7} sequences" in out  # two are one at first
        shown = {"plain": "", "labeled": " label=yeast", "guided": " label=yeast guidance=2"}[name]
        header = f">sample_1 synthetic sampler=grouped calls=4 num_groups=4{shown} seed=1\n"
        assert (tmp_path / f"{name}.fa").read_text().startswith(header)
    model = dnadiff.load(labeled, "cpu")
    assert model.labels == ("human", "yeast")
    assert model.conditioned("yeast")[1].tolist() == [[0, 1]] and model.conditioned(
        ["yeast", "human"], 2
    )[1].tolist() == [[1, 1]]
    plain, none = model.conditioned("yeast", 0)
    assert plain is model.denoiser and not none.any()
    assert len(model.sample(2, label="human", guidance=1.5)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["label=yest"],
            "label 'yest' is not known; did you mean yeast?; this model knows human, yeast",
        ),
        (
            ["label=[]"],
            "label [] is empty; leave it out for sequences without a label; this model knows "
            "human, yeast",
        ),
        (["guidance=2"], "guidance=2 needs a label; this model knows human, yeast"),
        (["guidance=high", "label=yeast"], "guidance 'high' must be a number of at least 0"),
        (["guidance=-1", "label=yeast"], "guidance -1 must be a number of at least 0"),
    ],
)
def test_invalid_labels(arguments, message, cli, labeled):
    status, _, err = cli("sample", f"checkpoint={labeled}", *arguments)
    assert status == 1 and message in err and err.count("\n") == 1


def test_guidance_needs_training_without_labels(labeled):
    model = dnadiff.load(labeled, "cpu")
    model.config = model.config | {"data": model.config["data"] | {"label_dropout": 0.0}}
    assert model.conditioned("yeast")[1].tolist() == [[0, 1]]
    with pytest.raises(
        ValueError,
        match=r"guidance=2 needs a model that was also trained without labels, and this one has "
        r"data.label_dropout=0",
    ):
        model.conditioned("yeast", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["label=yeast"], "this model was trained without labels; leave label and guidance out"),
        (["guidance=2"], "this model was trained without labels; leave label and guidance out"),
        (
            ["sampler=ar"],
            "Autoregressive samples from an autoregressive model, and this is a model that unmasks "
            "in any order; set sampler=grouped",
        ),
        (
            ["sampler.num_groups=65"],
            "num_groups 65 is larger than the length 64; set sampler.num_groups to at most 64",
        ),
        (
            ["sampler=confidence", "sampler.num_steps=20", "length=10"],
            "num_steps 20 is larger than the length 10",
        ),
        (["sampler.sizes=optimal"], "sizes=optimal needs the h(n) of this checkpoint"),
        (["sampler.sizes=best"], "sizes 'best' must be a list, one of optimal or null"),
        (["sampler.sizes=[4,5]"], "sizes add up to 9, not to the length 64"),
        (
            ["sampler=ancestral", "sampler.noise_removal=none"],
            "noise_removal=none leaves masks in the samples",
        ),
        (
            ["sampler=ancestral", "sampler.noise_removal=maybe"],
            "noise_removal 'maybe' is not known; choose one of sample, argmax, none",
        ),
        (
            ["sampler=semi_ar", "sampler.stride=100", "length=90"],
            "stride 100 is larger than the window 64",
        ),
        (["sampler.temperature=abc"], "sampler.temperature 'abc' must be a number above 0"),
        (["sampler.temperature=inf"], "temperature inf must be a number above 0"),
        (["sampler.num_groups=8.5"], "sampler.num_groups 8.5 must be an integer of at least 1"),
        (
            ["sampler.num_groups=2.5", "sampler.sizes=optimal"],
            "sampler.num_groups 2.5 must be an integer of at least 1",
        ),
        (["sampler.sizes=24"], "sizes 24 must be a list"),
        (["sampler.sizes=[a,b]"], "sizes[0] 'a' must be an integer of at least 1"),
        (
            ["sampler=ancestral", "sampler.num_steps=null"],
            "sampler.num_steps None must be an integer of at least 1",
        ),
        (
            ["sampler=confidence", "sampler.order=[max]"],
            "sampler.order ['max'] is not known; choose one of max, margin, entropy",
        ),
        (
            ["sampler=semi_ar", "sampler.window=0"],
            "sampler.window 0 must be an integer of at least 1",
        ),
        (
            ["sampler=fast_dllm"],
            "this sampler needs a transformer with a key-value cache, such as dit; Caduceus has "
            "none",
        ),
        (["sampler=grouping"], "sampler=grouping does not exist; did you mean grouped?"),
    ],
)
def test_invalid_options_give_one_line(arguments, message, cli, trained):
    status, _, err = cli("sample", f"checkpoint={trained}", *arguments)
    assert status == 1 and message in err and err.count("\n") == 1, err


def test_the_error_of_a_length_beyond_the_network_suggests_a_sampler(cli, train_args, tmp_path):
    assert cli("train", *train_args("dit", 1, "backbone.max_length=64"))[0] == 0
    status, _, err = cli("sample", "checkpoint=run", "length=100")
    assert status == 1 and err.count("\n") == 1
    assert (
        "length 100 is more than this network takes; use at most 64, sampler=semi_ar for longer "
        "sequences, or train" in err
    )
    assert (
        cli(
            "sample",
            "checkpoint=run",
            "length=100",
            "sampler=semi_ar",
            "num_samples=1",
            "output=a.fa",
        )[0]
        == 0
    )
    assert len(read_sequences(tmp_path / "a.fa")[0].sequence) == 100
    for cache in ("dual", "prefix"):
        output = f"output={cache}.fa"
        status, _, err = cli(
            "sample",
            "checkpoint=run",
            "sampler=fast_dllm",
            f"sampler/cache={cache}",
            "num_samples=1",
            output,
        )
        assert (
            status == 0
            and "sampler=fast_dllm" in read_sequences(tmp_path / f"{cache}.fa")[0].description
        ), err
    model = dnadiff.load("run", "cpu")
    assert [len(s) for s in model.sample(2, length=100, sampler=SemiAR(Grouped(4)))] == [
        100,
        100,
    ]  # the window is the network's
    # a bound needs the whole sequence in one call: left out if not requested, else an error before
    # anything is sampled
    designed = model.sample(1, length=100, sampler=SemiAR(Grouped(4)), motif="TATA@5")
    assert designed[0][5:9] == "TATA" and designed[0].log_prob is None
    infilled = model.infill("ACGTA" * 30, 70, 80, length=100, sampler=SemiAR(Grouped(4)))
    assert (
        len(infilled[0]) == 150
        and infilled[0].log_prob is None
        and model.infill("ACGTA" * 30, 70, 80)[0].log_prob < 0
    )
    with pytest.raises(
        ValueError,
        match=r"num_draws 2: bounds need whole sequences, and 100 tokens are more than the 64",
    ):
        model.sample(1, length=100, sampler=SemiAR(Grouped(4)), num_draws=2)
    with pytest.raises(
        ValueError,
        match=r"window 65 is more than the 64 tokens that this network takes; set "
        r"sampler.window to that or less",
    ):
        model.sample(1, length=100, sampler=SemiAR(Grouped(4), window=65))


def test_integers_in_any_notation(cli, trained, tmp_path):
    for arguments in (
        ["sampler.num_groups=1e1"],
        ["sampler=ancestral", "sampler.num_steps=1e1", "sampler.top_k=3.0"],
    ):
        status, _, err = cli(
            "sample",
            f"checkpoint={trained}",
            "num_samples=1",
            "output=a.fa",
            "overwrite=true",
            *arguments,
        )
        assert status == 0 and steps(tmp_path / "a.fa") <= 10, err
