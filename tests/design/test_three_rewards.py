"""An automatic beta on three rewards of a trained model: designs that are written, without weights,
have the mean reward that is asked for."""

import csv

import numpy as np
import pytest

import dnadiff
from dnadiff.design.generate import effective_size
from dnadiff.design.method.resample_move import ResampleMove
from dnadiff.design.method.smc import SMC
from dnadiff.design.pilot import quantile
from dnadiff.design.predicted import PredictedReward
from dnadiff.design.reward import MotifMatch
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.finetune import finetune

LENGTH = 60
GIVEN = {"length": LENGTH, "sampler": Grouped(4), "num_draws": 0, "batch_size": 100}
METHODS = {"smc": SMC(), "resample_move": ResampleMove(num_groups=1)}


def write_tasks(folder):
    """Tables of a planted class, -35 and -10 boxes, and of a value with a small spread:
    0.35 and half of the share of A and T."""
    random = np.random.default_rng(0)
    for name in ("class", "value"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("sequence", "label", "split"))
            for i in range(240):
                text = "".join(random.choice(list("ACGT"), LENGTH))
                if i % 2 and name == "class":
                    text = text[:10] + "TTGACA" + text[16:33] + "TATAAT" + text[39:]
                share = (text.count("A") + text.count("T")) / LENGTH
                label = i % 2 if name == "class" else 0.35 + 0.5 * share
                table.writerow((text, label, "test" if i >= 200 else "train"))


@pytest.mark.slow
def test_designs_have_the_quantile_that_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_tasks(tmp_path)
    fitted = {}
    for name, kind in (("class", "classification"), ("value", "regression")):
        finetune(
            checkpoint="ecoli",
            accelerator="cpu",
            task="csv",
            seeds=1,
            epochs=2,
            batch_size=8,
            lr=3e-3,
            kmer=1,
            scratch=False,
            **{
                "hydra.run.dir": name,
                "task.path": f"{name}.csv",
                "task.label_column": "label",
                "task.kind": kind,
            },
        )
        fitted[name] = PredictedReward(str(tmp_path / name))
    rewards = {
        "log-odds of a class": fitted["class"],
        "value of a regression": fitted["value"],
        "motif": MotifMatch("TTGACANNNTATAAT"),
    }
    model = dnadiff.load("ecoli", device="cpu")
    unguided = model.sample(2000, seed=99, **GIVEN)
    rows = []
    for name, reward in rewards.items():
        free = reward(unguided)
        low, high = quantile(free, 0.85), quantile(free, 0.95)
        for method, made in METHODS.items():
            found = model.design(reward, 200, made, seed=3, **GIVEN)
            mean = float(np.mean([each.reward for each in found]))
            of_unguided = effective_size(found.beta * free)  # of the 2,000
            numbers = (free.mean(), free.std(), low, high, mean, found.beta, len({*found}))
            numbers += (of_unguided,)
            rows.append((name, method, *(float(f"{x:.4g}") for x in numbers), low <= mean <= high))
            with capsys.disabled():
                print("|", *rows[-1], "|", flush=True)
    assert all(row[-1] for row in rows), rows
