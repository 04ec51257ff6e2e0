"""Bins of Sort-seq and PSI of splice sites: fine-tuning with its defaults against ridge or logistic
regression on the bases and on k-mers, boosting and a CNN, by Spearman's correlation.

    python scripts/studies/ordered.py [--data FOLDER] [--minutes 3] [--quick]

FOLDER holds `variants/`: 50,518 variants of the lac promoter, each in one of ten bins of
fluorescence, and 30,483 5' splice sites of nine bases with the logarithm of their PSI. Bins are
predicted as levels (`task.kind=ordinal`) and as values. The parts are those of the tables. With
`--quick` a sample of the training part is divided again, and no test row is read.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import study
from sklearn.preprocessing import StandardScaler

from dnadiff.progress import configure_logging
from dnadiff.supervised.baselines import Estimators, SklearnModel
from dnadiff.supervised.intervals import interval_text

TASKS = {"bins, levels": "ordinal", "bins, values": "regression", "psi": "regression"}
FILES = {"bins": "sortseq_data.csv.gz", "psi": "mpsa_data.csv.gz"}
MODELS = {"bins": "ecoli", "psi": "human_chr20"}
PARTS = {"training": "train", "validation": "valid", "test": "test"}
METRICS = ("spearman", "mse", "calibration_error")


class OneHotLinear(SklearnModel):
    """Logistic or ridge regression on the bases at their places, for sequences of one length."""

    def features(self, items: Any, stranded: bool) -> np.ndarray:
        bases = self.bases(items.ids.numpy())
        return (bases[..., None] == np.arange(4)).reshape(len(bases), -1).astype(np.float32)

    def candidates(self, estimators: Estimators, num_items: int) -> Any:
        return estimators.linear(StandardScaler(), (1e-3, 0.01, 0.1, 1.0))


def write_table(source: Path, path: Path, number: int | None) -> None:
    """The rows as `sequence`, `label`, `split`; of a `number` only so many training rows, without
    their split."""
    frame = pandas.read_csv(source)
    bins = [column for column in frame if column.startswith("ct_")]
    label = frame[bins].to_numpy().argmax(1) if bins else frame["y"]
    rows = pandas.DataFrame({"sequence": frame["x"], "label": label})
    rows["split"] = frame["set"].map(PARTS)
    if number is not None:
        rows = rows[rows["split"] == "train"].sample(number, random_state=0).drop(columns="split")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(path, index=False)


def compare(folder: Path, data: Path, name: str, kind: str, settings: dict) -> dict[str, Any]:
    """The metrics and differences of all models on one task."""
    of = name.partition(",")[0]
    run = folder / "runs" / name.replace(", ", "-")
    write_table(data / "variants" / FILES[of], run / "table.csv", settings["rows"])
    arguments = [f"checkpoint={MODELS[of]}", "task=csv", f"task.kind={kind}", "task.stranded=true"]
    arguments += ["baselines=all", "+baselines.bases={_target_: ordered.OneHotLinear}"]
    arguments += [f"minutes={settings['minutes']}", *settings["more"]]
    where = [f"task.path='{run / 'table.csv'}'", f"hydra.run.dir='{run}'", "save_models=[]"]
    study.command("finetune", *arguments, *where, "overwrite=true")
    found = study.read_json(run / "finetune.json")
    models = {
        model: {key: m["metrics"][key] for key in METRICS if key in m["metrics"]}
        for model, m in found["models"].items()
    }
    kept = {key: found[key] for key in ("task", "data", "differences")}
    return {"models": models, **kept, "arguments": arguments}


class Study:
    """The pieces, one for each task, and their table."""

    def __init__(self, folder: Path, data: Path, settings: dict) -> None:
        self.kept = study.Kept(folder, settings, strict=True)
        self.pieces = {
            name.replace(", ", "-"): partial(compare, folder, data, name, kind, settings)
            for name, kind in TASKS.items()
        }

    def table(self) -> str:
        """The metrics of each model with the interval of Spearman's correlation."""
        rows = [
            (
                piece,
                model,
                f"{m['spearman']['value']:.3f} ({interval_text(m['spearman'])})",
                *(f"{m[key]['value']:.3f}" if key in m else "" for key in METRICS[1:]),
            )
            for piece in filter(self.kept.__contains__, self.pieces)
            for model, m in self.kept[piece]["models"].items()
        ]
        return study.markdown(("task", "model", "Spearman", *METRICS[1:]), rows)


def main() -> None:
    """Run the pieces and print the table."""
    parser = study.arguments(__doc__ or "", "runs/ordered")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--minutes", type=float, default=3)
    options = parser.parse_args()
    configure_logging()
    # where the commands find `OneHotLinear`
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    settings = {"rows": None, "more": ["seeds=3"], "minutes": options.minutes}
    if options.quick:
        settings = {"rows": 600, "more": ["seeds=1", "scratch=false"], "minutes": 0.2}
    folder = options.output / "quick" if options.quick else options.output
    made = Study(folder, options.data, settings)
    study.work(made.pieces, made.kept, options)
    if not options.list:
        print("\n" + made.table())


if __name__ == "__main__":
    main()
