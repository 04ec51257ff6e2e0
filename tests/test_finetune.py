import csv
import errno
import html
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dnadiff import finetune
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.options.command import compose
from dnadiff.supervised import finetuning
from dnadiff.supervised.baselines import KmerLogistic
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.protocol import build_protocol
from dnadiff.supervised.study import headline
from dnadiff.supervised.targets import ValidScore
from dnadiff.weights.checkpoint import load
from dnadiff.weights.loaded import Loaded, build_denoiser

BASELINES = (
    "+baselines.length={_target_: dnadiff.supervised.baselines.LengthAlone}",
    "+baselines.GC={_target_: dnadiff.supervised.baselines.GCAlone}",
    "+baselines.boosting={_target_: dnadiff.supervised.baselines.KmerBoosting, k: 2, rounds: [5]}",
)
DIT = ("backbone=dit", "backbone.d_model=16", "backbone.n_heads=2", "backbone.n_layers=1")
CADUCEUS = ("backbone=caduceus", "backbone.d_model=16", "backbone.n_layers=1")

NO_NETWORK = ("fine_tune=false", "scratch=false")

ITEMS = Items.from_sequences([np.full(9, 7, np.uint8)] * 2, [0, 1], 4)
DATA = TaskData("t", ["a", "b"], ITEMS, ITEMS, ITEMS)


def checkpoint(path: Path, tokenizer, network: tuple[str, ...] = DIT) -> str:
    """A checkpoint of an untrained network, as a training run would save it."""
    config = compose("train", [*network, "data.length=40"])
    torch.manual_seed(0)
    denoiser, _ = build_denoiser(config, tokenizer)
    state = {f"denoiser.{name}": tensor for name, tensor in denoiser.state_dict().items()}
    torch.save(
        {
            "state_dict": state,
            "hyper_parameters": {"config": config, "tokenizer": tokenizer.config()},
            "global_step": 7,
        },
        path,
    )
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    with open(tmp_path / "table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "label"])
        for i in range(120):
            letters = random.choice(
                list("ACGT"),
                random.integers(20, 40),
                p=[0.35, 0.15, 0.15, 0.35] if i % 2 else [0.15, 0.35, 0.35, 0.15],
            )
            writer.writerow(["".join(letters), "rich" if i % 2 == 0 else "poor"])
    return str(tmp_path / "table.csv")


def call(tmp_path: Path, *overrides: str) -> Path:
    """The run folder of the command."""
    run_dir = tmp_path / "runs" / "tiny"
    os.environ.pop(
        "HYDRA_FULL_ERROR", None
    )  # a command line sets it, and an earlier one in this process left it
    finetune.main([f"hydra.run.dir={run_dir}", "accelerator=cpu", *overrides])
    return run_dir


def test_the_published_protocol_has_the_published_head_and_inputs_unless_others_are_named(tmp_path):
    loaded = load(checkpoint(tmp_path / "tiny.ckpt", DNATokenizer()))
    conv, paper, fixed = "ConvHead", build_protocol("paper", 4), build_protocol("fixed", 4)

    def found(protocol, overrides, trains=True):
        settings = [f"fine_tune={trains}", "scratch=false", *overrides]
        study = study_of_data(loaded, settings, protocol)
        return study.head["_target_"].rpartition(".")[2], study.head_inputs.one_hot

    assert found(fixed, []) == (conv, True)
    assert found(paper, ["lr=1e-3"]) == ("MeanHead", False)
    assert found(paper, ["head=conv"]) == found(paper, ["head.dropout=0.3"]) == (conv, False)
    assert found(fixed, ["inputs.one_hot=false"]) == (conv, False)
    assert found(paper, ["inputs.one_hot=true"]) == ("MeanHead", True)
    assert found(fixed, [], trains=False) == (conv, False)  # no head is trained or reported


def test_finetune_compares_models_on_a_table(tmp_path, table, capsys):
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer())
    overrides = [
        f"checkpoint={run}",
        "task=csv",
        f"task.path={table}",
        "seeds=2",
        "epochs=1",
        "batch_size=32",
        "lr=0.01",
        "lr_scratch=0.01",
        "kmer=3",
        "average=false",
    ]
    run_dir = call(tmp_path, *overrides)
    result = json.loads((run_dir / "finetune.json").read_text())
    members = ["fine-tuned", "small network on the bases", "3-mer logistic regression"]
    assert list(result["models"]) == ["combination", *members, "scratch"]
    assert [len(m["per_seed"]) for m in result["models"].values()] == [2, 2, 2, 1, 2]
    assert all(m["low"] <= m["accuracy"] <= m["high"] for m in result["models"].values())
    assert result["models"]["3-mer logistic regression"]["accuracy"] > 0.8
    assert [(d["a"], d["b"]) for d in result["differences"]] == [
        *(("combination", member) for member in members),
        ("fine-tuned", "scratch"),
        ("fine-tuned", "3-mer logistic regression"),
        ("fine-tuned", "small network on the bases"),
    ]
    assert result["task"]["name"] == "table"
    assert result["step"] == 7
    printed = capsys.readouterr().out
    assert printed.startswith(headline(result)) and "; combination has " in headline(result)
    assert "; fine-tuned has" in headline(result) and "from pretraining: " in headline(result)
    assert f"files are in {run_dir}" in printed

    again = json.loads((call(tmp_path, *overrides, "overwrite=true") / "finetune.json").read_text())
    assert [m["per_seed"] for m in again["models"].values()] == [
        m["per_seed"] for m in result["models"].values()
    ]


def test_the_command_is_a_function_that_returns_its_numbers(tmp_path, table, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer())
    settings = {"task.path": table, "fine_tune": False, "scratch": False, "kmer": 1}
    settings |= {"checkpoint": run, "task": "csv", "hydra.run.dir": "study", "output": "f.json"}
    found = finetune.finetune(seeds=1, **settings)
    assert found.models["1-mer logistic regression"]["accuracy"] > 0.8
    assert found.content == json.loads((tmp_path / "f.json").read_text())
    assert found.paths[0] == Path("f.json")
    capfd.readouterr()
    again = finetune.finetune(seeds=1, resume=True, **settings)  # a job that is started once more
    assert again == found and capfd.readouterr().out.startswith("f.json is complete already; to")
    assert finetune.finetune(seeds=1, resume=True, accelerator="cpu", **settings) == found
    (tmp_path / "t.csv").touch()
    for key, value, was, now in (
        ("seeds", 2, "1", "2"),
        ("task.path", "t.csv", "/", "t.csv"),
        ("scratch", True, "False", "True"),
        ("lr", 1e-5, "['auto']", "[1e-05]"),
        ("kmer", 2, "1", "2"),
        ("inputs.one_hot", True, "False", "True"),
        ("head", "attention", "dnadiff.supervised.heads.ConvHead", None),
        ("baselines", "all", "None", None),
        ("train_items", 20, "None", "20"),
    ):
        with pytest.raises(ValueError, match="; name another hydra") as error:
            finetune.finetune(**{"seeds": 1, "resume": True, **settings, key: value})
        begin, _, end = str(error.value).partition(", not ")
        named = begin.removeprefix("study has a complete study with ")
        assert named.startswith(key) and f"={was}" in named and end.startswith(now or "dnadiff.")
    with pytest.raises(ValueError, match=r"resume=true needs hydra\.run\.dir=, the folder"):
        finetune.finetune(resume=True, **{k: v for k, v in settings.items() if "hydra" not in k})


def refusal(tmp_path: Path, capsys, *overrides: str) -> str:
    with pytest.raises(SystemExit) as end:
        call(tmp_path, *overrides)
    assert end.value.code == 1
    assert not (tmp_path / "runs").exists()
    lines = capsys.readouterr().err.strip().splitlines()
    return lines[-1]


def test_bad_input_gets_a_one_line_error_and_leaves_no_run_folder(tmp_path, table, capsys):
    run = f"checkpoint={checkpoint(tmp_path / 'tiny.ckpt', DNATokenizer())}"
    text = f"checkpoint={checkpoint(tmp_path / 'text.ckpt', CharTokenizer('abc'))}"
    csv_task = ["task=csv", f"task.path={table}"]
    assert "was trained on text" in refusal(tmp_path, capsys, text, *csv_task)
    assert "does not exist" in refusal(tmp_path, capsys, "checkpoint=nowhere", *csv_task)
    assert "task.path" in refusal(tmp_path, capsys, run, "task=csv")
    assert "no column 'y'" in refusal(tmp_path, capsys, run, *csv_task, "task.label_column=y")
    assert "ecoli_coding" in refusal(tmp_path, capsys, run, "task=ecoli")
    assert "exists; set overwrite=true" in refusal(
        tmp_path, capsys, run, *csv_task, f"output={table}"
    )
    assert "one of fixed, paper" in refusal(
        tmp_path, capsys, run, *csv_task, "task.protocol=papers"
    )
    assert "holds none of demo_coding" in refusal(
        tmp_path, capsys, run, "task=genomic_benchmarks", f"task.path={tmp_path}"
    )
    assert "seeds 0 must be" in refusal(tmp_path, capsys, run, *csv_task, "seeds=0")


def test_folds_baselines_and_probes_are_in_one_table_and_stored(tmp_path, table, capsys):
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer())
    overrides = [
        f"checkpoint={run}",
        "task=csv",
        f"task.path={table}",
        "task.folds=5",
        "seeds=1",
        "kmer=2",
        *BASELINES,
        "probe=true",
        "neighbors=true",
        "fine_tune=false",
        "scratch=false",
        f"results={tmp_path / 'kept'}",
    ]
    result = json.loads((call(tmp_path, *overrides) / "finetune.json").read_text())
    assert result["task"]["tested"] == 120
    assert {"length", "GC", "boosting", finetuning.PROBE, finetuning.NEIGHBORS} <= set(
        result["models"]
    )
    assert all(len(m["per_seed"]) == 1 for m in result["models"].values())
    assert set(result["models"]["GC"]["metrics"]) == {
        "accuracy",
        "mcc",
        "f1",
        "auroc",
        "auprc",
        "calibration_error",
    }
    pairs = [
        (finetuning.PROBE, finetuning.RANDOM_PROBE),
        (finetuning.PROBE, "2-mer logistic regression"),
    ]
    assert [(d["a"], d["b"]) for d in result["differences"]] == pairs
    assert all(0 <= m["low"] <= m["accuracy"] <= m["high"] <= 1 for m in result["models"].values())
    assert 0 < result["differences"][0]["p_value"] <= 1
    rows = list(csv.DictReader((tmp_path / "kept" / "results.csv").open()))
    assert len(rows) == len(result["models"])
    again = json.loads((call(tmp_path, *overrides, "overwrite=true") / "finetune.json").read_text())
    assert len(list(csv.DictReader((tmp_path / "kept" / "results.csv").open()))) == len(rows)
    assert again["models"]["GC"]["per_seed"] == result["models"]["GC"]["per_seed"]


def test_a_suite_runs_the_available_tasks(tmp_path, table, capsys):
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer())
    random = np.random.default_rng(1)
    for part, count in (("train", 30), ("test", 8)):
        for name, share in (("negative", [0.4, 0.1, 0.1, 0.4]), ("positive", [0.1, 0.4, 0.4, 0.1])):
            folder = tmp_path / "gb" / "human_ocr_ensembl" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.txt").write_text(
                    "".join(random.choice(list("ACGT"), 30, p=share))
                )
    settings = ["fine_tune=false", "scratch=false", "seeds=1", "kmer=2"]
    suite = [
        f"checkpoint={run}",
        "task=genomic_benchmarks",
        f"task.path={tmp_path / 'gb'}",
        "task.protocol=paper",
    ]
    run_dir = call(tmp_path, *suite, *settings)
    result = json.loads((run_dir / "finetune.json").read_text())
    assert list(result["tasks"]) == ["human_ocr_ensembl"]
    one = result["tasks"]["human_ocr_ensembl"]
    assert (one["task"]["protocol"], one["task"]["tested"]) == ("paper", 16)
    assert one["notes"]["differs_from_the_known_counts"]["test"] == {"found": 16, "known": 34952}
    printed = capsys.readouterr().out
    assert "all tasks; a published number used the training sequences in parentheses" in printed
    assert (run_dir / "report.html").is_file() and (run_dir / "results" / "results.csv").is_file()


def test_validation_chooses_rate_and_batch_size_with_the_first_layer_only(tmp_path, table):
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer())
    overrides = [
        f"checkpoint={run}",
        "task=csv",
        f"task.path={table}",
        "seeds=1",
        "kmer=2",
        "scratch=false",
        "layer=1",
    ]
    run_dir = call(
        tmp_path,
        *overrides,
        "lr=[1e-7,2e-2]",
        "batch_size=[16,64]",
        "epochs=1",
        "pretraining_overlap=true",
    )
    model = json.loads((run_dir / "finetune.json").read_text())["models"]["fine-tuned"]
    (found,), parts = model["found"][0], model["subsets"]
    assert (
        parts["inside pretraining"]["items"] == 0
        and parts["outside pretraining"]["accuracy"] == model["accuracy"]
    )
    assert [(one["lr"], one["batch_size"]) for one in found["tried"]] == [
        (1e-7, 16),
        (1e-7, 64),
        (2e-2, 16),
        (2e-2, 64),
    ]
    best = max(found["tried"], key=lambda one: (one["valid_accuracy"], -one["valid_loss"]))
    assert found["chosen"] == {"lr": best["lr"], "batch_size": best["batch_size"]}
    assert (run_dir / "results" / "table").is_dir()


def test_a_bad_rate_or_layer_gets_a_one_line_error(tmp_path, table, capsys):
    run = f"checkpoint={checkpoint(tmp_path / 'tiny.ckpt', DNATokenizer())}"
    csv_task = ["task=csv", f"task.path={table}", "kmer=2"]
    assert "lr[1] 0 must be a number above 0" in refusal(
        tmp_path, capsys, run, *csv_task, "lr=[1e-3,0]"
    )
    assert "lr_scratch is an empty list; give at least one value" in refusal(
        tmp_path, capsys, run, *csv_task, "lr_scratch=[]"
    )
    assert "layer 9 is not one of this network's 1" in refusal(
        tmp_path, capsys, run, *csv_task, "layer=9"
    )
    assert "batch_size[1] 0 must be" in refusal(
        tmp_path, capsys, run, *csv_task, "batch_size=[4,0]"
    )


def test_settings_of_the_wrong_type_are_refused_before_anything_is_read(tmp_path, table, capsys):
    start = ["checkpoint=nowhere", "task=csv", f"task.path={table}"]
    for setting, message in (
        (
            "save_models=[scratch] scratch=false",
            "save_models [scratch] saves the network from scratch, and scratch is false; set "
            "scratch=true",
        ),
        ("weight_decay=abc", "weight_decay 'abc' must be a number of at least 0"),
        ("weight_decay=-1", "weight_decay -1 must be a number of at least 0"),
        ("warmup=2", "warmup 2 must be a number from 0 to 1"),
        ("warmup=abc", "warmup 'abc' must be a number from 0 to 1"),
        ("lr=inf", "lr inf must be a number above 0"),
        ("probe=maybe", "probe=maybe is neither true nor false"),
        ("overwrite=2", "overwrite 2 must be true or false"),
        ("output=[a]", "output ['a'] must be a string"),
        (f"results={table}", "is a file; name a folder"),
        ("trust=5", "trust 5 must be a list"),
        ("accelerator=quantum", "accelerator 'quantum' is not known"),
    ):
        assert message in refusal(tmp_path, capsys, *start, *setting.split())
    run = f"checkpoint={checkpoint(tmp_path / 'tiny.ckpt', DNATokenizer())}"
    assert "baselines.x is 5; give it a _target_" in refusal(
        tmp_path, capsys, run, *start[1:], "+baselines.x=5"
    )


def test_a_suite_leaves_out_tasks_that_it_cannot_use(tmp_path, capsys):
    run, random, folder = (
        checkpoint(tmp_path / "tiny.ckpt", DNATokenizer()),
        np.random.default_rng(2),
        tmp_path / "gb",
    )
    folder.mkdir()
    rows = [
        ("".join(random.choice(list("ACGT"), 30)), "ab"[i % 2], "test" if i % 3 else "train")
        for i in range(90)
    ]
    lines = [",".join(row) + "\n" for row in rows]
    (folder / "human_ocr_ensembl.part.csv").write_text("sequence,class,split\n" + "".join(lines))
    (folder / "human_ensembl_regulatory.csv").write_text(
        "sequence,class,split\nAC,a,train\n" + "".join(lines)
    )
    (folder / "human_enhancers_cohn.csv").write_text(
        "sequence,class,split\nACXT,a,train\n" + "".join(lines)
    )
    too_long = [line.replace(",", "ACGT" * 10 + ",", 1) for line in lines]
    (folder / "human_nontata_promoters.csv").write_text(
        "sequence,class,split\n" + "".join(too_long)
    )
    suite = [
        f"checkpoint={run}",
        "task=genomic_benchmarks",
        f"task.path={folder}",
        "fine_tune=false",
        "scratch=false",
        "seeds=1",
        "kmer=2",
    ]
    flat = (
        "{_target_: dnadiff.supervised.networks.OneHotModel, head: {_target_: "
        "dnadiff.supervised.heads.FlattenHead, _partial_: true}}"
    )
    run_dir = call(
        tmp_path, *suite, f"+baselines.flat={flat}", 'task.genome="https://server/x.fa?sig=SECRET"'
    )
    result = json.loads((run_dir / "finetune.json").read_text())
    with np.load(next((run_dir / "results").rglob("*.npz"))) as stored:
        assert "https://server/x.fa?..." in json.loads(str(stored["about"]))["command"]
    assert "https://server/x.fa?..." in (run_dir / "finetune.yaml").read_text()
    assert not [
        path for path in run_dir.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()
    ]
    assert (
        list(result["tasks"]) == ["human_ocr_ensembl"]
        and result["tasks"]["human_ocr_ensembl"]["task"]["tested"] == 60
    )
    assert result["left_out"]["demo_human_or_worm"] == "no data"
    assert "letter 'X' at position 3" in result["left_out"]["human_enhancers_cohn"]
    assert "takes at most 40" in result["left_out"]["human_nontata_promoters"]
    assert "for sequences of one length" in result["left_out"]["human_ensembl_regulatory"]
    assert "left out: human_enhancers_cohn (" in capsys.readouterr().out
    for name in ("human_ocr_ensembl.part.csv", "human_ensembl_regulatory.csv"):
        (folder / name).unlink()
    with pytest.raises(SystemExit):
        call(tmp_path, *suite, "overwrite=true")
    assert "takes at most 40" in capsys.readouterr().err


def test_trained_baselines_use_the_accelerator_of_the_command(tmp_path):
    loaded = load(checkpoint(tmp_path / "tiny.ckpt", DNATokenizer()))
    models = models_of_network(loaded, "baselines=all", "accelerator=cpu")
    assert models["CNN"].device == "cpu"


@pytest.mark.parametrize(
    "network, layer, model",
    [
        (CADUCEUS, None, "Caduceus MDLM"),
        ((*CADUCEUS, "objective=mlm"), None, "Caduceus MLM"),
        ((*CADUCEUS, "objective=sedd"), None, None),
        (CADUCEUS, 1, None),
        (DIT, None, None),
    ],
)
def test_a_checkpoint_has_the_published_counterpart_of_its_kind(tmp_path, network, layer, model):
    loaded = load(checkpoint(tmp_path / "tiny.ckpt", DNATokenizer(), network))
    assert finetuning.published_counterpart(loaded, layer) == model


def test_the_result_names_the_published_counterpart(tmp_path, table):
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer(), CADUCEUS)
    run_dir = call(
        tmp_path,
        f"checkpoint={run}",
        "task=csv",
        f"task.path={table}",
        "seeds=1",
        "kmer=1",
        "fine_tune=false",
        "scratch=false",
    )
    assert json.loads((run_dir / "finetune.json").read_text())["counterpart"] == "Caduceus MDLM"


def test_the_result_is_written_last_so_that_an_interrupted_command_can_be_started_again(
    tmp_path, table
):
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer())
    (tmp_path / "runs" / "tiny" / "report.html").mkdir(parents=True)  # cannot be written
    settings = ("seeds=1", "kmer=1", "fine_tune=false", "scratch=false")
    with pytest.raises(SystemExit):
        call(tmp_path, f"checkpoint={run}", "task=csv", f"task.path={table}", *settings)
    assert not (tmp_path / "runs" / "tiny" / "finetune.json").exists()


RECIPE = ("seeds=1", "kmer=2", "batch_size=32", "epochs=1", "lr=1e-2", "lr_scratch=1e-2")


def study_of(tmp_path: Path, table: str, *overrides: str) -> dict:
    run = checkpoint(tmp_path / "tiny.ckpt", DNATokenizer(), CADUCEUS)
    run_dir = call(
        tmp_path,
        f"checkpoint={run}",
        "task=csv",
        f"task.path={table}",
        *RECIPE,
        *overrides,
    )
    return json.loads((run_dir / "finetune.json").read_text())


def models_of(tmp_path: Path, *overrides: str) -> dict:
    return models_of_network(
        load(checkpoint(tmp_path / "tiny.ckpt", DNATokenizer(), CADUCEUS)),
        "combine=false",
        *overrides,
    )


def models_of_network(loaded: Loaded, *overrides: str) -> dict:
    return study_of_data(loaded, overrides).build_models()


def study_of_data(loaded: Loaded, overrides, protocol=None) -> finetuning.TaskStudy:
    """The study of `DATA`, with the protocol of the overrides."""
    options = finetune.finetune.compose(["checkpoint=x", "task=csv", "task.path=x", *overrides])
    protocol = protocol or build_protocol(options.task["protocol"], 4)
    return finetuning.TaskStudy(
        loaded=loaded, task=options.task, data=DATA, protocol=protocol, asked=options
    )


def test_the_defaults_search_rates_and_epochs_and_decay_the_rate_of_the_first_layers(tmp_path):
    models = models_of(tmp_path)
    tuned, scratch = (models[name].describe() for name in ("fine-tuned", "scratch"))
    assert (tuned["epochs"], tuned["patience"], tuned["layer_decay"], tuned["lr"]) == (
        None,
        5,
        0.8,
        [3e-4, 8e-4, 2e-3, 5e-3],
    )
    assert scratch["lr"] == [5e-4, 1.2e-3, 2.5e-3, 6e-3] and scratch["layer_decay"] == 1
    set_by_hand = models_of(tmp_path, "epochs=3", "lr=1e-3", "layer_decay=0.5", "minutes=null")[
        "fine-tuned"
    ].describe()
    assert [set_by_hand[key] for key in ("epochs", "patience", "layer_decay", "lr")] == [
        3,
        None,
        0.5,
        1e-3,
    ]


def test_the_protocol_of_the_paper_keeps_its_epochs_rates_and_one_rate_for_all_layers(tmp_path):
    for candidate, lr in zip(
        models_of(tmp_path, "task.protocol=paper")["fine-tuned"].describe()["candidates"],
        (1e-3, 2e-3),
        strict=True,
    ):
        assert (candidate["epochs"], candidate["patience"], candidate["lr"]) == (
            10,
            None,
            lr,
        ) and candidate["layer_decay"] == 1
    with pytest.raises(
        ValueError,
        match=r"minutes 2 sets the number of epochs, and task\.protocol=paper has 10 epochs; set "
        r"minutes=null",
    ):
        models_of(tmp_path, "task.protocol=paper", "minutes=2")


def test_candidates_of_a_grid_share_the_minutes(tmp_path):
    candidates = models_of(tmp_path, "minutes=6", "head=auto")["fine-tuned"].describe()[
        "candidates"
    ]
    assert [one["minutes"] for one in candidates] == [1.5] * 4
    assert models_of(tmp_path, "minutes=6")["scratch"].describe()["minutes"] == 6


def test_new_parameters_alone_are_trained_at_their_own_rates(tmp_path):
    for override in ("adapter=lora", "freeze=backbone"):
        tuned = models_of(tmp_path, override)["fine-tuned"].describe()
        assert tuned["lr"] == [5e-4, 1.2e-3, 2.5e-3, 6e-3] and tuned["layer_decay"] == 1
    assert (
        models_of(tmp_path, "adapter=lora", "layer_decay=0.5")["fine-tuned"].describe()[
            "layer_decay"
        ]
        == 0.5
    )
    with pytest.raises(ValueError, match="freeze=backbone trains no layer"):
        models_of(tmp_path, "adapter=lora", "freeze=backbone")
    tuned, scratch = (
        models_of(tmp_path, "class_weights=balanced", "mixup=0.2", "freeze=1")[name].describe()
        for name in ("fine-tuned", "scratch")
    )
    balanced = DATA.target.balanced(DATA.train.labels)
    weighted = balanced.record(ValidScore(0.5, -1.0))
    assert weighted == {"valid_weighted_accuracy": 0.5, "valid_loss": 1.0}
    assert tuned["balanced"] and tuned["mixup"] == scratch["mixup"] == 0.2 and scratch["balanced"]
    assert tuned["frozen"] == {"backbone": False, "layers": 1} and not any(
        scratch["frozen"].values()
    )


def test_the_network_on_the_bases_has_the_head_and_the_settings_of_the_network_from_scratch(
    tmp_path,
):
    models = models_of(tmp_path, "batch_size=[8,16]", "lr_scratch=[1e-3,2e-3]", "epochs=4")
    on_bases, scratch = (
        models[name].describe()["candidates"] for name in ("small network on the bases", "scratch")
    )
    same = ("lr", "batch_size", "epochs", "patience", "weight_decay", "warmup", "head_epochs")
    assert [[one[key] for key in same] for one in on_bases] == [
        [one[key] for key in same] for one in scratch
    ]
    assert [one["head"] for one in on_bases] == [one["head"] for one in scratch]
    for without in ("inputs.one_hot=false", "task.protocol=paper"):
        assert "small network on the bases" not in models_of(tmp_path, without)
    assert "small network on the bases" not in models_of(
        tmp_path, "fine_tune=false", "scratch=false"
    )
    combined = models_of(tmp_path, "combine=true", "inputs.one_hot=false")["combination"]
    assert "small network on the bases" in combined.members


def test_heads_are_checked_before_any_model_is_fitted(tmp_path, table, capsys):
    run = f"checkpoint={checkpoint(tmp_path / 'tiny.ckpt', DNATokenizer(), CADUCEUS)}"
    flat = (
        "{_target_: dnadiff.supervised.networks.OneHotModel, head: {_target_: "
        "dnadiff.supervised.heads.FlattenHead, _partial_: true}}"
    )
    for setting, message in (
        ("freeze=4", "freeze 4 is more than the 1 layers of this Caduceus"),
        ("adapter=lora adapter.rank=100", "adapter.rank 100: this Caduceus has no linear map"),
        ("inputs.layers=[3]", "inputs.layers 3 is not one of the 1 layers"),
        (f"+baselines.x={flat}", "head=flatten"),
    ):
        overrides = [setting] if setting.startswith("+") else setting.split()
        assert message in refusal(
            tmp_path, capsys, run, "task=csv", f"task.path={table}", *RECIPE, *overrides
        )
    assert not list(tmp_path.rglob("*.npz"))


def test_averaged_seeds_are_a_row_with_an_interval(tmp_path, table, capsys):
    quick = ("seeds=2", "scratch=false", "adapter=lora", "adapter.rank=2", "inputs.one_hot=false")
    result = study_of(tmp_path, table, *quick, "combine=false")
    names = ["fine-tuned", "fine-tuned, 2 seeds averaged", "2-mer logistic regression"]
    assert list(result["models"]) == names
    assert [len(result["models"][name]["per_seed"]) for name in names] == [2, 1, 1]
    assert all(m["low"] <= m["accuracy"] <= m["high"] for m in result["models"].values())
    assert [(d["a"], d["b"]) for d in result["differences"]][1:] == [
        (names[1], other) for other in (names[0], names[2])
    ]
    assert "combine=true combines" in refusal_of_a_second_run(
        tmp_path, table, capsys, "combine=true", "fine_tune=false"
    )


def refusal_of_a_second_run(tmp_path: Path, table: str, capsys, *overrides: str) -> str:
    with pytest.raises(SystemExit):
        call(
            tmp_path, "checkpoint=x", "task=csv", f"task.path={table}", *overrides, "overwrite=true"
        )
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_pretraining_that_does_not_help_is_a_warning_below_the_first_line(tmp_path, table, capsys):
    helps = ("epochs=4", "lr_scratch=1e-9")
    hurts = ("epochs=4", "lr=1e-9", "head_epochs=0")
    assert study_of(tmp_path, table, *helps)["warning"] is None
    capsys.readouterr()
    more = ("overwrite=true", "trust=[]", *hurts)
    warning = study_of(tmp_path, table, *more)["warning"]
    assert "worse than the same network from scratch (" in warning
    assert capsys.readouterr().out.splitlines()[1] == f"warning: table: {warning}"
    page = (tmp_path / "runs" / "tiny" / "report.html").read_text()
    assert page.index("Warning: table: on validation") < page.index("<figure")
    assert "overwrite=true 'trust=[]'" in html.unescape(page)  # can be pasted into a shell


def test_classifiers_of_an_earlier_run_stay_until_the_first_training(tmp_path, table, capsys):
    kept = tmp_path / "runs" / "tiny" / "models" / "seed_1" / "model.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    run, task = (
        f"checkpoint={checkpoint(tmp_path / 'tiny.ckpt', DNATokenizer())}",
        ("task=csv", f"task.path={table}"),
    )
    for setting in ("task.label_column=y", "layer=9", "train_items=1000"):
        refusal_of_a_second_run(tmp_path, table, capsys, run, setting)
        assert kept.is_file()
    call(tmp_path, run, *task, "seeds=1", "kmer=1", "fine_tune=false", "scratch=false")
    assert not kept.exists()


FAILURES = [
    ValueError("diverged"),
    RuntimeError("out of memory"),
    PermissionError("denied"),
    MemoryError(),
    OSError(errno.ENOSPC, "No space left on device"),
]


class Failing(KmerLogistic):
    """A baseline that fails on one task."""

    def __init__(self, tokenizer, number: int) -> None:
        super().__init__(tokenizer, 1)
        self.failure = FAILURES[number]

    def fit_predict(self, data, *args):
        if data.name == "human_enhancers_cohn":
            raise self.failure
        return super().fit_predict(data, *args)


@pytest.mark.parametrize("number", range(4))
def test_a_task_that_fails_in_training_does_not_end_the_others(tmp_path, number):
    run, random, folder = (
        checkpoint(tmp_path / "tiny.ckpt", DNATokenizer()),
        np.random.default_rng(2),
        tmp_path / "gb",
    )
    folder.mkdir()
    rows = "".join(
        f"{''.join(random.choice(list('ACGT'), 30))},{'ab'[i % 2]},{'test' if i % 3 else 'train'}\n"
        for i in range(90)
    )
    for name in ("human_ocr_ensembl", "human_enhancers_cohn"):
        (folder / f"{name}.csv").write_text("sequence,class,split\n" + rows)
    suite = (
        f"checkpoint={run}",
        "task=genomic_benchmarks",
        f"task.path={folder}",
        "fine_tune=false",
        "scratch=false",
        "seeds=1",
        "kmer=2",
    )
    failing = f"+baselines.x={{_target_: {__name__}.Failing, number: %d}}"
    run_dir = call(tmp_path, *suite, failing % number)
    result, failure = json.loads((run_dir / "finetune.json").read_text()), FAILURES[number]
    assert list(result["tasks"]) == ["human_ocr_ensembl"]
    assert result["left_out"]["human_enhancers_cohn"] == (str(failure) or "MemoryError")
    # Of a full disk every other task would fail as well, after its training.
    (tmp_path / "full").mkdir()
    with pytest.raises(SystemExit):
        call(tmp_path / "full", *suite, failing % 4)
    assert not (tmp_path / "full" / "runs" / "tiny" / "finetune.json").exists()


def test_few_items_are_drawn_with_the_seeds_of_the_study(tmp_path, table):
    settings = ("task=csv", f"task.path={table}", "seed=5", "seeds=3", "train_items=40")
    run_dir = call(
        tmp_path,
        f"checkpoint={checkpoint(tmp_path / 'tiny.ckpt', DNATokenizer())}",
        *settings,
        "kmer=1",
        *NO_NETWORK,
    )
    assert json.loads((run_dir / "finetune.json").read_text())["seeds"] == [5, 6, 7]
    assert {path.stem.split("-")[-2] for path in run_dir.rglob("*.npz")} == {"s5", "s6", "s7"}
