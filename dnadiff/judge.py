"""`python -m dnadiff.judge`: samples against held-out windows of the same number and length, each number beside a real-against-real floor."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dnadiff import checks, commands
from dnadiff.config import build
from dnadiff.progress import table

MOST_UNKNOWN = 0.1  # share of unknown bases in a real window, as in training
log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Judge and return the contents of the JSON file."""
    from dnadiff.data.files import check_output, write_json
    from dnadiff.data.genome.fasta import read_fasta
    from dnadiff.metrics.composition import as_bases
    from dnadiff.metrics.memorization import TrainingSequence
    from dnadiff.metrics.sample_quality import Judge
    from dnadiff.report import figures
    from dnadiff.report.panels import mutual_information, word_distances

    output = check_output(config["output"] or run_dir / "judge.json", config["overwrite"])
    order, num_splits = checks.integer("order", config["order"], 0), checks.integer("num_splits", config["num_splits"], 20)
    seed = checks.integer("seed", config["seed"], 0)
    if config["checkpoint"] is None and config["real"] is None:
        raise ValueError("there is nothing real to compare with: give checkpoint=RUN, whose held-out part is read, or real=y.fa")
    samples = [as_bases(r.sequence) for r in read_fasta(config["samples"])]
    length = one_length(samples, config["samples"])
    data = held_out_data(config) if config["checkpoint"] is not None else None
    if config["real"] is not None:
        real, source = cut([as_bases(r.sequence) for r in read_fasta(config["real"])], length), str(config["real"])
    else:
        real, source = windows(data, config["part"], length), f"{data.name}, part {config['part']}"
    training = training_text(data) if data is not None else None
    log.info(f"{len(samples):,} samples of {length:,} bases; {len(real):,} real windows of {source}")
    stranded = bool(getattr(data, "stranded", False)) if config["stranded"] is None else bool(config["stranded"])
    judgement = Judge(samples, real, None if training is None else TrainingSequence(training), not stranded, order, num_splits, seed)()
    about = {
        "samples": {"path": str(config["samples"]), "number": len(samples)},
        "real": {"source": source, "number": len(real), **({} if data is None else {"data": data.describe()})},
        "settings": {"both_strands": not stranded, "order": order, "num_splits": num_splits, "seed": seed},
    }
    content = about | judgement.content()
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, content)
    picture = figures.save(
        figures.overview([(word_distances, (judgement,)), (mutual_information, (judgement,))]), output.with_suffix(".png")
    )
    show(judgement)
    print(f"files are in {output} and {picture}")
    return content


def one_length(samples: Sequence[Any], path: Any) -> int:
    """The length of all samples.

    Raises:
        ValueError: if there are several.
    """
    lengths = sorted({len(bases) for bases in samples})
    if len(lengths) > 1:
        raise ValueError(
            f"{path}: records have {lengths[0]:,} to {lengths[-1]:,} bases; samples are judged at one length, so cut them to it"
        )
    return lengths[0]


def held_out_data(config: dict[str, Any]) -> Any:
    """The data that the model was trained on.

    Raises:
        ValueError: if it is no model of DNA.
    """
    from dnadiff import checkpoint
    from dnadiff.likelihood.held_out import without_download

    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    if loaded.tokenizer.vocab.complement is None:
        raise ValueError(f"samples are read as DNA, but {loaded.path} was trained on text; judge samples of a model of DNA")
    data = build(without_download(loaded.config["data"]), trust=("dnadiff", *config["trust"]))
    data.prepare()
    return data


def windows(data: Any, part: str, length: int) -> list[Any]:
    """The windows of a held-out part as bases; none shares a base with another.

    Raises:
        ValueError: if the part is not held out, or too short.
    """
    if part not in ("test", "valid"):
        raise ValueError(f"part {part!r} is not held out; choose test or valid")
    longest = max((i.end - i.start for i in data.intervals[part]), default=0)
    if longest < length:
        holds = f"holds no stretch of {length:,} bases (the longest has {longest:,})" if longest else "is empty"
        raise ValueError(f"the {part} part of {data.name} {holds}; give real=y.fa, or shorter samples")
    tiles = data.test_windows(part, length)
    return [data.tokenizer.bases(tiles[i]["ids"].numpy()) for i, tile in enumerate(tiles.tiles) if tile.skip == 0]


def cut(records: Sequence[Any], length: int) -> list[Any]:
    """Windows side by side, those with many unknown bases left out.

    Raises:
        ValueError: if there is none.
    """
    from dnadiff.kmers import UNKNOWN

    found = [bases[at : at + length] for bases in records for at in range(0, len(bases) - length + 1, length)]
    found = [bases for bases in found if (bases == UNKNOWN).mean() <= MOST_UNKNOWN]
    if not found:
        raise ValueError(
            f"real holds no window of {length:,} bases with at most {100 * MOST_UNKNOWN:g} % unknown ones; give longer records"
        )
    return found


def training_text(data: Any) -> list[Any] | None:
    """The training part as bases; None with a message where it is too large to be searched."""
    from dnadiff.likelihood.held_out import MAX_KMERS

    tokens = sum(i.end - i.start for i in data.intervals["train"])
    if tokens > MAX_KMERS // 4:
        log.info(f"copies of training are not looked for: its {tokens:,} bases would fill the memory")
        return None
    return [data.tokenizer.bases(ids) for ids in data.sequences("train")]


def show(judgement: Any) -> None:
    """The closing table and the warnings."""
    rows = [
        (
            f.name,
            f.unit,
            f"{f.distance.samples:.4g}",
            "" if math.isnan(f.distance.interval[0]) else f"{f.distance.interval[0]:.4g} to {f.distance.interval[1]:.4g}",
            f"{f.distance.floor:.4g}",
            f"{f.distance.low:.4g} to {f.distance.high:.4g}",
            "WARNING: too alike" if f.warns else f.verdict,
        )
        for f in judgement.findings
    ]
    print(table(rows, ("number", "unit", "samples", "95 % interval", "real", "95 % of real sets", "the samples are")))
    print(
        f"sets of {judgement.num_compared:,} sequences of {judgement.length:,} bases; distances are between a set and as many real windows"
    )
    for line in judgement.warnings():
        print(f"WARNING: {line}")


def main() -> None:
    """The command line."""
    commands.run("judge", run)


if __name__ == "__main__":
    main()
