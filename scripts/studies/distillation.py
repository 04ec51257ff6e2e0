"""Students of SDTT and their teachers: the bound of each, and samples judged against network calls.

    python scripts/studies/distillation.py [--output DIR] [--only NAME] [--list] [--table]
    [--collect FILE] [--quick]

`dna` is `checkpoint=ecoli` in windows of 200 bases. `text` is the `mdlm` run on characters of War
and Peace that `scripts/studies/systems.py` trains, judged by its `ar` run. The last student is for
8 steps. The lost structure is that of random groups, from the loss h(n) of each model. Samples of
DNA are judged by the divergence of 6-mers and a discriminator (`dnadiff.judge`), those of text by
generative perplexity and entropy (`dnadiff.judge_text`). A student is a piece, and so are the
results of a model.
"""

from functools import partial
from pathlib import Path

import pandas
import study

SAMPLERS = {"ancestral": "num_steps", "grouped": "num_groups", "spaced": "num_groups"}
# The command, what it compares samples with, and what is shown of its results.
JUDGES = {
    "dna": ("judge", "data=ecoli", "js_6", "discriminator_auroc"),
    "text": ("judge_text", "judge=runs/systems/runs/book-ar-1", "entropy", "perplexity"),
}
TEACHERS = {
    "dna": ["checkpoint=ecoli", "data=ecoli", "data.length=200"],
    "text": ["checkpoint=runs/systems/runs/book-mdlm-1"],
}
LENGTHS = {"dna": 200, "text": 128}
ENDINGS = {"dna": "fa", "text": "jsonl"}
COLUMNS = ("samples", "bound, bits", "lost structure", "6-mers or entropy", "AUROC or perplexity")
FULL = {"steps": 1500, "calls": (8, 16, 64), "samples": 500}
QUICK = {"steps": 1, "calls": (2, 4), "samples": 20}


class Study:
    """The pieces `DATA-student` and `DATA-MODEL-results`."""

    def __init__(self, folder: Path, size: dict) -> None:
        self.kept = study.Kept(folder, size)
        self.size = size
        self.runs = folder / "runs"
        self.pieces = {}
        for data, (teacher, *same) in TEACHERS.items():
            run = self.runs / f"{data}-run"
            rounds = "objective.num_steps=64", "objective.num_rounds=3"
            arguments = [teacher, *same, *rounds, f"trainer.max_steps={size['steps']}"]
            self.pieces[f"{data}-student"] = partial(
                study.train, run, arguments, lambda _, *how: study.command("distill", *how)
            )
            for model, name in (("teacher", teacher), ("student", f"checkpoint={run}")):
                self.pieces[f"{data}-{model}-results"] = partial(
                    self.results, data, f"{data}-{model}", [name, *same]
                )

    def results(self, data: str, model: str, given: list[str]) -> dict:
        """`COLUMNS` for each sampler and number of calls."""
        content = self.run("evaluate", f"{model}.json", *given)
        bits = content["groups"]["all"]["bits"]
        found = {}
        lost = {row["groups"]: row["uniform"] for row in content["code_length"]["rows"]}
        judge, against, *keys = JUDGES[data]
        for sampler, calls in SAMPLERS.items():
            for number in self.size["calls"]:
                name = f"{model}-{sampler}-{number}"
                file = f"{self.runs / name}.{ENDINGS[data]}"
                how = [f"sampler={sampler}", f"sampler.{calls}={number}", f"output={file}"]
                how += [f"num_samples={self.size['samples']}", f"length={LENGTHS[data]}"]
                study.command("sample", given[0], *how, "resume=true")
                judged = self.run(judge, f"{name}.json", against, f"samples={file}")
                if data == "dna":
                    row = judged["findings"]
                    values = [[row[key][end] for end in ("samples", "low", "high")] for key in keys]
                else:
                    row = judged["rows"]["samples"]
                    values = [[row[key + end] for end in ("", "_low", "_high")] for key in keys]
                found[name] = [bits, lost[number]["lost_structure"], *values]
        return found

    def run(self, name: str, output: str, *arguments: str) -> dict:
        """The JSON file of a command, which is run if there is none."""
        path = self.runs / output
        if not path.is_file():
            study.command(name, *arguments, f"output={path}")
        return study.read_json(path)

    def table(self) -> str:
        """A row for each number of calls, and a picture for each kind of data."""
        names = [name for name in self.pieces if name.endswith("results") and name in self.kept]
        rows, points = [], []
        found = [each for name in names for each in self.kept[name].items() if "-" in each[0]]
        for name, (bits, lost, *values) in found:
            cells = ["{:.4g} ({:.4g} to {:.4g})".format(*each) for each in values]
            rows.append([name, f"{bits:.4f}", f"{lost:.1%}", *cells])
            sampler, calls = name.rsplit("-", 1)
            points.append([int(calls), sampler, values[-1][0]])
        lines = (
            pandas.DataFrame(points).pivot(index=0, columns=1, values=2).rename_axis(columns=None)
        )
        for data, (*_, label) in JUDGES.items():
            axes = lines.filter(like=data).plot(
                marker="o", xticks=self.size["calls"], xlabel="network calls", ylabel=label
            )
            axes.figure.savefig(self.runs / f"{data}.svg", metadata={"Date": None})
        return study.markdown(COLUMNS, rows)


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/studies/distillation", FULL, QUICK)
