"""Translate between languages with masked, block and autoregressive models at equal tokens.

    pip install num2words -e '.[translation]'
    python scripts/studies/translation.py [--output DIR] [--only NAME] [--list] [--table] [--quick]

The corpus is made here: numbers below 100,000 in words, German to English, by the package num2words
(LGPL), which differ in order ("einundzwanzig", "twenty-one") and in spaces. 20,000 are for
training, 500 for validation, and 500 that no model has seen are the test. All models are DiT of
128x4 (`ar`: the causal transformer), by characters, with the same pairs in the same order. Samples
have temperature 0.1.
"""

import random
from pathlib import Path

import study

SYSTEMS = {
    "mdlm": (["backbone=dit"], ["sampler=confidence", "sampler.temperature=0.1"]),
    "block_mdlm": (
        ["backbone=dit", "objective=block_mdlm", "objective.block_size=8"],
        ["sampler=block", "sampler.sampler.temperature=0.1"],
    ),
    "ar": (
        ["backbone=transformer", "objective=ar"],
        ["sampler=ar", "sampler.temperature=0.1"],
    ),
}
FULL = {"steps": 2500, "numbers": (20_000, 500, 500), "d_model": 128, "n_layers": 4}
QUICK = {"steps": 8, "numbers": (200, 20, 20), "d_model": 32, "n_layers": 1}


class Translation:
    """The pieces of the study in a folder."""

    def __init__(self, folder: Path, settings: dict) -> None:
        self.folder = folder
        self.settings = settings
        self.kept = study.Kept(folder / "pieces", settings)
        self.pieces = {name: lambda name=name: self.translated(name) for name in SYSTEMS}

    def corpus(self) -> dict[str, Path]:
        """The file of each part, made once."""
        parts = dict(zip(("train", "valid", "test"), self.settings["numbers"]))
        paths = {part: self.folder / f"{part}.tsv" for part in parts}
        if not paths["test"].is_file():
            from num2words import num2words

            numbers = iter(random.Random(0).sample(range(100_000), sum(parts.values())))
            self.folder.mkdir(parents=True, exist_ok=True)
            for part, count in parts.items():
                chosen = [next(numbers) for _ in range(count)]
                lines = ("\t".join(num2words(n, lang=x) for x in ("de", "en")) for n in chosen)
                paths[part].write_text("".join(f"{line}\n" for line in lines))
        return paths

    def translated(self, name: str) -> dict:
        """Train one model, translate the test part, and compare."""
        paths = self.corpus()
        run = self.folder / "runs" / name
        steps, (training, sampling) = self.settings["steps"], SYSTEMS[name]
        parts = ",".join(f"{part}:{path.resolve()}" for part, path in paths.items())
        trained = study.train(
            run,
            [
                *("data=pairs", f"data.path={{{parts}}}", "data.length=112", *training),
                *(f"backbone.{k}={self.settings[k]}" for k in ("d_model", "n_layers")),
                *("optimizer.lr=1e-3", f"trainer.max_steps={steps}", "matmul_precision=medium"),
                f"trainer.val_check_interval={steps // 4}",
            ],
        )
        samples = run / "targets.jsonl"
        found = run / "judged.json"
        more = "overwrite=true", f"hydra.run.dir={run}"
        given = f"checkpoint={run}", f"input={paths['test']}", f"output={samples}"
        study.command("sample", *given, *sampling, *more)
        given = f"samples={samples}", f"reference={paths['test']}", f"output={found}"
        study.command("judge_text", *given, *more)
        about = study.read_json(Path(f"{samples}.json"))
        cost = {key: about[key] for key in ("network_calls", "rows", "seconds")}
        return {"training": trained, **study.read_json(found), **cost}

    def table(self) -> str:
        """The metrics with their intervals."""
        rows = []
        for name in filter(self.kept.__contains__, SYSTEMS):
            row = self.kept[name]
            cells = [
                "{value:.1f} ({low:.1f} to {high:.1f})".format(**m) for m in row["metrics"][:2]
            ]
            rows.append([f"`{name}`", *cells, f"{row['seconds'] / row['texts']:.2f}"])
        header = ["model", "BLEU", "chrF", "seconds a sentence"]
        return study.markdown(header, rows)


if __name__ == "__main__":
    study.run_study(Translation, __doc__, "runs/translation", FULL, QUICK)
