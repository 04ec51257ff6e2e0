"""Text to text through the command lines: train on pairs, write targets of sources, compare them
with references."""

import json

import pytest
import torch

from dnadiff.data.tokenizer import SEPARATOR
from dnadiff.design.translation import Translator, read_sources
from dnadiff.diffusion.draws import Draws
from dnadiff.model import Model
from dnadiff.options.command import compose
from dnadiff.store.objects import build
from dnadiff.train import train
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import build_denoiser, build_objective

WORDS = {"the": "der", "cat": "katze", "dog": "hund", "red": "rot", "sat": "sass"}
SMALL = ["data.length=48", "data.batch_size=4", "data.max_valid_windows=4", "data.bucket=8"]
SMALL += ["backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2"]
SMALL += ["trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.accelerator=cpu"]
KINDS = {
    "mdlm": ["backbone=dit"],
    "block": ["objective=block_mdlm", "objective.block_size=8", "backbone=dit"],
    "ar": ["objective=ar", "backbone=transformer"],
    "uniform": ["objective=bound", "process=uniform", "backbone=dit"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, words = tmp_path_factory.mktemp("pairs"), list(WORDS)
    lines = [[words[(i * i + k) % 5] for k in range(1 + i % 4)] for i in range(120)]
    text = [f"{' '.join(one)}\t{' '.join(WORDS[word] for word in one)}\n" for one in lines]
    (folder / "p.tsv").write_text("".join(text))
    (folder / "sources.txt").write_text("the cat\nred dog sat\nthe\n")
    (folder / "r.txt").write_text("der katze\nrot hund sass\nder\n")
    for name, args in KINDS.items():
        args = ["data=pairs", f"data.path={folder / 'p.tsv'}", *args, *SMALL]
        train.start([*args, f"hydra.run.dir={folder / name}"])
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_targets_are_written_and_compared(cli, runs, tmp_path, name):
    pytest.importorskip("sacrebleu")
    args = [f"checkpoint={runs / name}", f"input={runs / 'sources.txt'}", "accelerator=cpu"]
    status, out, err = cli("sample", *args, "num_draws=2", "output=t.jsonl")
    assert status == 0, err
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert "log_prob" not in rows[0]  # bounds choose the length alone
    assert [row["source"] for row in rows] == ["the cat", "red dog sat", "the"]
    assert [row["name"] for row in rows] == ["source_1_1", "source_2_1", "source_3_1"]
    assert not any({"\x1e", "\ufffd"} & set(row["text"]) for row in rows)
    settings = json.loads((tmp_path / "t.jsonl.json").read_text())["settings"]
    assert settings["num_samples"] == 1 and settings["length_beam"] == 3
    # a file of pairs has the same sources
    pairs = "".join(f"{row['source']}\tx\n" for row in rows)
    (tmp_path / "p.tsv").write_text(pairs)
    status, _, err = cli("sample", args[0], "input=p.tsv", "num_draws=2", "output=u.txt")
    assert status == 0, err
    assert (tmp_path / "u.txt").read_text() == "".join(f"{row['text']}\n\n" for row in rows)
    for file in ("t.jsonl", "u.txt"):
        status, out, err = cli(
            "judge_text", f"samples={file}", f"reference={runs / 'r.txt'}", f"output={file}.j"
        )
        assert status == 0 and "chrF" in out, err
    found = [json.loads((tmp_path / f"{file}.j").read_text()) for file in ("t.jsonl", "u.txt")]
    assert found[0]["metrics"] == found[1]["metrics"] and found[0]["texts"] == 3


@pytest.mark.parametrize("name", KINDS)
def test_targets_have_a_likelihood_given_their_sources(cli, runs, tmp_path, name):
    status, _, err = cli("evaluate", f"checkpoint={runs / name}", "num_draws=2", "output=e.json")
    assert status == 0, err
    content = json.loads((tmp_path / "e.json").read_text())
    lines = (runs / "p.tsv").read_text().splitlines()[96:108]
    tokens = sum(len(line.split("\t")[1]) // 8 * 8 + 8 for line in lines)
    assert content["groups"]["all"]["tokens"] == tokens


def test_free_text_of_a_model_of_pairs_comes_with_a_remark(cli, runs):
    args = [f"checkpoint={runs / 'mdlm'}", "num_samples=1", "accelerator=cpu", "output=x.txt"]
    status, _, err = cli("sample", *args)
    assert status == 0 and "without input=sources.txt this model writes free text" in err


def test_the_best_length_is_kept(runs):
    model = Model(checkpoint.load(runs / "mdlm"))
    request = read_sources(str(runs / "sources.txt"), model.loaded, 2, 3)
    assert len(request) == 6 and request.beam == 3  # 8, 16 or 24 tokens
    generator = model.conditional_sampler(model.default_sampler(48), request)
    best = Translator(generator, request, 4)
    (batch,) = best.batches(request, 1, 6)
    for number, (target, tokens) in enumerate(zip(batch.targets, batch.tokens)):
        tried = request.candidates(number)
        made = generator.fill([(number, each) for each in tried], generator_seed(1), False)
        scores = best.bounds(made, [number] * len(tried), 4, generator_seed(1))
        mask_id = model.tokenizer.vocab.mask_id
        scores = scores / [(each.pattern.ids == mask_id).sum() for each in tried]
        assert len(tokens) == len(made.tokens[int(scores.argmax())])
        assert (
            tokens[: target.shown[0] - 1].tolist()
            == model.tokenizer.encode(target.about["source"]).tolist()
        )
    one = Translator(generator, read_sources(str(runs / "sources.txt"), model.loaded, 2, 1), 4)
    assert one.of_beam == 0


def generator_seed(seed):
    from dnadiff.diffusion.draws import hash64

    return hash64(seed, "sample")


def test_a_target_ends_at_its_first_end_token(runs):
    model = Model(checkpoint.load(runs / "ar"))
    request = read_sources(str(runs / "sources.txt"), model.loaded, 1, 3)
    assert request.beam == 1  # the longest alone
    generator = model.conditional_sampler(model.default_sampler(48), request)
    translator, target = Translator(generator, request, 8), request[0]
    ids = target.pattern.ids.copy()
    end, text = model.tokenizer.encode("\x1e"), model.tokenizer.encode("der rot")
    ids[target.shown[0] :] = end
    ids[target.shown[0] : target.shown[0] + len(text)] = text
    assert translator.text(target, ids) == "der rot"
    ids[target.shown[0]] = end[0]
    assert translator.text(target, ids) == ""


@pytest.mark.parametrize(
    ("objective", "process"),
    [
        ("mdlm", "absorbing"),
        ("d3pm", "absorbing"),
        ("sedd", "absorbing"),
        ("mlm", "absorbing"),
        ("learned_order", "absorbing"),
        ("block_mdlm", "absorbing"),
        ("bound", "uniform"),
        ("bound", "hybrid"),
        ("bound", "spindle"),
        ("genmd4", "token_rates"),
        ("sundae", "uniform"),
    ],
)
def test_sources_are_visible_to_every_objective(runs, objective, process):
    torch.manual_seed(0)
    args = [f"objective={objective}", f"process={process}", "data=pairs", "data.path=x", *SMALL]
    args += ["objective.block_size=8"] if objective == "block_mdlm" else []
    config = compose("train", ["backbone=dit", *args])
    data = checkpoint.load(runs / "mdlm").training_data()
    denoiser, made = build_denoiser(config, data.tokenizer, trust=None)
    made.observe(lambda: torch.from_numpy(data.token_counts()))
    batch = next(iter(data.train_dataloader()))
    x0, weight = batch["ids"].long(), batch["weight"].float()
    seen, embed = [], denoiser.backbone.embed
    denoiser.backbone.embed = lambda ids: seen.append(ids) or embed(ids)
    loss = build_objective(config, made, trust=None)
    loss(denoiser, x0, weight, Draws.for_batch(0, len(x0)), valid=batch["valid"]).loss.backward()
    source = (weight == 0) & batch["valid"]
    assert seen and source.any()
    for ids in seen:
        if ids.shape[1] == 2 * x0.shape[1]:  # clean and noisy stream of block diffusion
            ids = ids[:, x0.shape[1] :]
        if ids.shape == x0.shape:
            assert torch.equal(ids[source], x0[source])
    assert any((ids[: len(x0), : x0.shape[1]] != x0).any() for ids in seen if len(ids) >= len(x0))


@pytest.mark.parametrize(
    ("text", "args", "message"),
    [
        ("the cat " * 9, [], "source 1 has 71 tokens, and the window of this model 48 for source"),
        ("the Cat\n", [], "source 1: character 'C' at position 5 is not among"),
        ("\tx\n", [], "line 1 has an empty source; complete or remove the pair"),
        ("\n", [], "has no source; give one in each line"),
        ("the\n", ["prompt=a"], "input and prompt exclude each other"),
        ("the\n", ["length=20"], "input and length exclude each other"),
        ("the\n", ["num_draws=3"], "num_draws 3 must be even"),
    ],
)
def test_bad_sources_are_one_line(cli, runs, tmp_path, text, args, message):
    (tmp_path / "s.txt").write_text(text)
    status, _, err = cli(
        "sample", f"checkpoint={runs / 'mdlm'}", "input=s.txt", "output=o.txt", *args
    )
    assert status == 1 and message in err and "Traceback" not in err
    assert not (tmp_path / "o.txt").exists()


def test_what_does_not_fit_pairs_is_refused(cli, runs, tmp_path):
    (tmp_path / "s.txt").write_text("ACGT\n")
    status, _, err = cli("sample", "checkpoint=ecoli", "input=s.txt")
    assert status == 1 and "input has sources for a model of data=pairs" in err
    args = ["data=pairs", f"data.path={runs / 'p.tsv'}", "backbone=dit", *SMALL]
    status, _, err = cli("train", *args, "objective.protocol=mdlm", "hydra.run.dir=x")
    assert status == 1 and "protocol=mdlm masks every token" in err
    status, _, err = cli("evaluate", f"checkpoint={runs / 'mdlm'}", "protocol=mdlm")
    assert status == 1 and "set protocol=count" in err
    for wrong in ([], [f"judge={runs / 'ar'}", "reference=r.txt"]):
        status, _, err = cli("judge_text", "samples=s.txt", *wrong)
        assert status == 1 and "give either judge=" in err


def test_a_run_of_pairs_resumes_and_is_exported(cli, runs, tmp_path):
    args = ["data=pairs", f"data.path={runs / 'p.tsv'}", "backbone=dit", *SMALL]
    assert cli("train", *args, "hydra.run.dir=r")[0] == 0
    status, _, err = cli("train", *args, "hydra.run.dir=r", "trainer.max_steps=4", "resume=true")
    assert status == 0, err
    status, _, err = cli("export", "checkpoint=r", "output=e")
    assert status == 0, err
    args = [f"input={runs / 'sources.txt'}", "num_draws=0", "accelerator=cpu"]
    for source in ("r", "e"):
        status, _, err = cli("sample", f"checkpoint={source}", *args, f"output={source}.txt")
        assert status == 0, err
        model = checkpoint.load(tmp_path / source)
        assert model.process.separator == model.tokenizer.encode(SEPARATOR).item()
    assert (tmp_path / "r.txt").read_text() == (tmp_path / "e.txt").read_text()


def test_dna_to_dna_is_characters(cli, tmp_path):
    lines = ["ACGT" * (1 + i % 3) for i in range(60)]
    (tmp_path / "p.tsv").write_text("".join(f"{x}\t{x[::-1]}\n" for x in lines))
    args = ["data=pairs", "data.path=p.tsv", "backbone=caduceus", *SMALL[:6]]
    args += [each for each in SMALL[6:] if "n_heads" not in each]
    status, _, err = cli("train", *args, "hydra.run.dir=r")
    assert status == 0, err
    (tmp_path / "s.txt").write_text("ACGT\n")
    status, _, err = cli("sample", "checkpoint=r", "input=s.txt", "output=o.txt", "num_draws=2")
    assert status == 0 and set((tmp_path / "o.txt").read_text()) <= set("ACGT\n"), err


def test_the_sampler_is_built_as_for_templates(runs):
    model = Model(checkpoint.load(runs / "uniform"))
    request = read_sources(str(runs / "sources.txt"), model.loaded, 1, 2)
    sampler = build(compose("sample", ["checkpoint=x", "sampler=reverse"])["sampler"])
    translator = Translator(model.conditional_sampler(sampler, request), request, 2)
    (batch,) = translator.batches(request, 1, 3)
    for target, tokens in zip(batch.targets, batch.tokens):
        source = model.tokenizer.encode(target.about["source"])
        assert tokens[: len(source)].tolist() == source.tolist()
