"""`python -m dnadiff.judge`: compare samples with held-out windows of the same number and length,
every metric with a real-vs-real baseline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dnadiff import checks, commands
from dnadiff.config import SHARED, Config, Keys

if TYPE_CHECKING:
    import numpy as np

    from dnadiff.data.base import SequenceDataModule
    from dnadiff.jobs.job import Job
    from dnadiff.metrics.sample_quality import SampleQuality

log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "samples": str,
    "checkpoint": str | None,
    "real": str | None,
    "part": str,
    "order": checks.Natural,
    "num_splits": Annotated[int, checks.Range(20)],
    "stranded": bool | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Compare samples with real windows, and return the JSON file."""
    from dnadiff.jobs.runner import RunOptions, run_jobs

    options = RunOptions.checked(
        "judge",
        overrides,
        config["output"],
        shard=config["shard"],
        overwrite=config["overwrite"],
    )
    return run_jobs(jobs(config, run_dir, overrides), options)


def jobs(config: Config, run_dir: Path, overrides: Sequence[str]) -> list[Job]:
    """The metrics of the samples."""
    from dnadiff.metrics import memorization
    from dnadiff.metrics.real_windows import cut, held_out_windows, read_bases
    from dnadiff.metrics.sample_quality import SampleQualityEvaluator
    from dnadiff.metrics.work import JudgeJob
    from dnadiff.store.address import shown

    order, num_splits = (
        checks.integer("order", config["order"], 0),
        checks.integer("num_splits", config["num_splits"], 20),
    )
    seed = checks.integer("seed", config["seed"], 0)
    if config["checkpoint"] is None and config["real"] is None and not config.get("data"):
        raise ValueError(
            "no real windows to compare with: give checkpoint=RUN, whose held-out part is read, "
            "data=, or real=y.fa"
        )
    samples = read_bases(config["samples"])
    length = common_length(samples, shown(config["samples"]))
    data, searched = sources(config)
    if config["real"] is not None or data is None:
        real, source = cut(read_bases(config["real"]), length), shown(config["real"])
    else:
        real, source = (
            held_out_windows(data, config["part"], length),
            f"{data.name}, part {config['part']}",
        )
    training = None
    if searched is not None and memorization.fits_in_memory(searched):
        training = memorization.indexed(searched)
    if searched is not None and training is None:
        number = memorization.num_training_bases(searched)
        log.info(
            "copies of the training part are not searched for: an index is made of at most "
            f"{memorization.LARGEST:,} bases, and it has {number:,}"
        )
    log.info(
        f"{len(samples):,} samples of {length:,} bases; {len(real):,} real windows of {source}"
    )
    of_data = any(one.stranded for one in (data or searched,) if one is not None)
    stranded = (
        of_data if config["stranded"] is None else checks.boolean("stranded", config["stranded"])
    )
    evaluator = SampleQualityEvaluator(
        samples, real, training, not stranded, order, num_splits, seed
    )
    options = {
        "both_strands": not stranded,
        "order": order,
        "num_splits": num_splits,
        "seed": seed,
    }
    about = {
        "samples": {"path": shown(config["samples"]), "number": len(samples)},
        "real": {
            "source": source,
            "number": len(evaluator.real),
            **({} if data is None or config["real"] is not None else {"data": data.describe()}),
        },
        "searched": None if training is None or searched is None else searched.describe(),
        "settings": options,
    }
    digest = None if training is None or searched is None else searched.digest
    output = checks.expand_user(config["output"] or run_dir / "judge.json")
    return [JudgeJob(evaluator, output, about, options, digest, picture)]


def picture(quality: SampleQuality) -> bytes:
    """The picture of the metrics that are curves, as a PNG file."""
    from dnadiff.report import figures
    from dnadiff.report.panels import kmer_divergences, mutual_information

    panels = [partial(panel, quality=quality) for panel in (kmer_divergences, mutual_information)]
    return figures.rendered(figures.overview(panels), "png")


def sources(config: Config) -> tuple[SequenceDataModule | None, SequenceDataModule | None]:
    """The data that the real windows are cut from, and those whose training part is searched for
    copies; None where there are none.

    Copies are of the model's training data, also if `data` names others
    (`dnadiff.metrics.memorization.searched_data`).
    """
    from dnadiff.data.run_data import chosen_data
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.metrics import memorization
    from dnadiff.weights import checkpoint

    given, data = config.get("data"), None
    if config["checkpoint"] is None:
        if given:
            data = chosen_data(given, {}, DNATokenizer())
            data.prepare()
        return data, data
    model = checkpoint.load(config["checkpoint"], config["trust"])
    memorization.check_dna(model)
    if given or config["real"] is None:
        data = memorization.dna_data(model, config["trust"], given)
    return data, memorization.searched_data(model, data, config["trust"])


def common_length(samples: Sequence[np.ndarray], path: str | Path) -> int:
    """The length of all samples; raises ValueError if their lengths differ."""
    lengths = sorted({len(bases) for bases in samples})
    if len(lengths) > 1:
        raise ValueError(
            f"{path}: records have {lengths[0]:,} to {lengths[-1]:,} bases; samples must have the "
            "same length, so cut them to it"
        )
    return lengths[0]


def main() -> None:
    """The command line."""
    commands.run("judge", run, KEYS)


if __name__ == "__main__":
    main()
