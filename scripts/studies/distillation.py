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

import study

SAMPLERS = {"ancestral": "num_steps", "grouped": "num_groups", "spaced": "num_groups"}
# The command, what it compares samples with, and what is shown of its results.
JUDGES = {
    "dna": ("judge", "data=ecoli", "js_6", "discriminator_auroc"),
    "text": ("judge_text", "judge=runs/systems/runs/book-ar-1", "perplexity", "entropy"),
}
TEACHERS = {
    "dna": ["checkpoint=ecoli", "data=ecoli", "data.length=200"],
    "text": ["checkpoint=runs/systems/runs/book-mdlm-1"],
}
LENGTHS = {"dna": 200, "text": 128}
ENDINGS = {"dna": "fa", "text": "jsonl"}
COLUMNS = ("samples", "bound, bits", "lost structure", "6-mers or perplexity", "AUROC or entropy")
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
            rounds = ["objective.num_steps=64", "objective.num_rounds=3"]
            arguments = [teacher, *same, *rounds, f"trainer.max_steps={size['steps']}"]
            self.pieces[f"{data}-student"] = partial(study.train, run, arguments, distill)
            for model, name in (("teacher", teacher), ("student", f"checkpoint={run}")):
                results = partial(self.results, data, f"{data}-{model}", [name, *same])
                self.pieces[f"{data}-{model}-results"] = results

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
                    values = [judged["findings"][key]["samples"] for key in keys]
                else:
                    values = [judged["rows"]["samples"][key] for key in keys]
                found[name] = [bits, lost[number]["lost_structure"], *values]
        return found

    def run(self, name: str, output: str, *arguments: str) -> dict:
        """The JSON file of a command, which is run if there is none."""
        path = self.runs / output
        if not path.is_file():
            study.command(name, *arguments, f"output={path}")
        return study.read_json(path)

    def table(self) -> str:
        """A row for each number of calls."""
        names = [name for name in self.pieces if name.endswith("results") and name in self.kept]
        found = [each for name in names for each in self.kept[name].items() if "-" in each[0]]
        return study.markdown(COLUMNS, [[name, *map(str, row)] for name, row in found])


def distill(_: str, *arguments: str) -> None:
    """Train a student."""
    study.command("distill", *arguments)


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/studies/distillation", FULL, QUICK)
