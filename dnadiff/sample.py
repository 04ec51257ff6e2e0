"""`python -m dnadiff.sample`: sequences from a trained model, to FASTA or text."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff import commands
from dnadiff.config import build
from dnadiff.progress import Progress, duration, table

log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> Path:
    """Sample and return the file written."""
    from dnadiff.data.fasta import synthetic_record, write_fasta
    from dnadiff.data.files import check_output, replacing
    from dnadiff.model import load

    for key, least in (("num_samples", 1), ("batch_size", 1), ("seed", 0)):
        config[key] = commands.whole(key, config[key], least)
    check_settings(config["sampler"])
    model = load(config["checkpoint"], commands.pick_device(config["accelerator"]), config["trust"])
    is_dna = model.tokenizer.vocab.complement is not None
    output = check_output(config["output"] or run_dir / ("samples.fa" if is_dna else "samples.txt"), config["overwrite"])
    check_suffix(output, is_dna)
    length = model.length if config["length"] is None else commands.whole("length", config["length"], 1)
    model.conditioned(config["label"], config["guidance"])
    sampler = build(settled(config["sampler"], model, length), trust=None)
    sampler = model.check_sampler(sampler, config["num_samples"], length)
    how, most = described(sampler, config), sampler.num_steps_for(length)
    log.info(
        f"model: {model.path}; {config['num_samples']} sequences of {length} tokens by {how['sampler']}, at most {most} network calls a batch"
    )

    total = {"nfe": 0, "rows": 0}
    bar = Progress(config["num_samples"], "sample")

    def texts() -> Iterator[tuple[str, int]]:
        told = {"label": config["label"], "guidance": config["guidance"]}
        for batch in model.batches(sampler, config["num_samples"], length, config["seed"], config["batch_size"], **told):
            total["nfe"] += batch.nfe
            total["rows"] += batch.rows
            bar.update(len(batch.tokens), batch.tokens.numel())
            for row in batch.tokens.cpu().numpy():
                yield model.tokenizer.decode(row), batch.nfe

    start = time.monotonic()
    if is_dna:
        records = (synthetic_record(f"sample_{i}", text, **how | {"calls": calls}) for i, (text, calls) in enumerate(texts(), 1))
        write_fasta(output, records, overwrite=config["overwrite"])
    else:
        with replacing(output, config["overwrite"]) as file:
            for text, _ in texts():
                file.write(text.encode() + b"\n\n")
    bar.close()
    seconds = time.monotonic() - start
    rows = [
        ("sequences", f"{config['num_samples']:,} of {length:,} tokens"),
        ("sampler", f"{how['sampler']}, seed {config['seed']}"),
        ("network calls", f"{total['nfe']:,} ({total['rows']:,} sequences in them)"),
        ("time", duration(seconds)),
        ("sequences/s", f"{config['num_samples'] / max(seconds, 1e-9):.2f}"),
    ]
    print(table(rows))
    print(f"files are in {output}")
    return output


def described(sampler: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a header says of how a sequence was made: the sampler's word on the command line, and what is not as usual."""
    how: dict[str, Any] = {"sampler": type(sampler).__module__.rpartition(".")[2], "calls": 0}  # of the batch, known afterwards
    settings = {name: getattr(sampler, name) for name in ("temperature", "top_k", "nucleus")}
    settings |= {"label": config["label"], "guidance": config["guidance"]}
    usual = {"temperature": 1, "top_k": None, "nucleus": 1, "label": None, "guidance": 1}
    how |= {name: value for name, value in settings.items() if value != usual[name]}
    if isinstance(how.get("label"), list):
        how["label"] = ",".join(map(str, how["label"]))
    return how | {"seed": config["seed"]}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse impossible settings of the sampler before a model is loaded.

    Raises:
        ValueError: naming the setting.
    """
    if "none" in (settings.get("noise_removal"), (settings.get("sampler") or {}).get("noise_removal")):
        raise ValueError("noise_removal=none leaves masks in the samples, which a file cannot hold; choose sample or argmax")
    build(without_sizes(settings), trust=None)


def without_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A sampler's settings less the sizes of groups, which may wait for the model's h(n)."""
    return {key: without_sizes(value) if isinstance(value, Mapping) else value for key, value in settings.items() if key != "sizes"}


def settled(settings: Mapping[str, Any], model: Any, length: int) -> dict[str, Any]:
    """A sampler's settings with what only the model can say: its window, and groups from its h(n).

    Raises:
        ValueError: if it cannot say it.
    """
    settings = dict(settings)
    if "window" in settings:
        settings["window"] = model.length if settings["window"] is None else commands.whole("sampler.window", settings["window"], 1)
        settings["sampler"] = settled(settings["sampler"], model, min(settings["window"], length))
    if "sizes" in settings:
        chosen = model.groups(length, settings["num_groups"], settings["sizes"])
        if settings["num_groups"] is None and settings["sizes"] in (None, "optimal") and chosen != {"num_groups": None, "sizes": None}:
            kind = "groups of best sizes" if chosen["sizes"] else "equal groups"
            measured = model.measured_length()
            assumed = "" if measured == length else f" of {measured} tokens, if h(n) depends on the visible share alone"
            log.info(
                f"{chosen['num_groups'] or len(chosen['sizes'])} {kind} lose at most 2 % of the structure, by evaluate.json in the run{assumed}"
            )
        settings |= chosen
    return settings


def check_suffix(output: Path, is_dna: bool) -> None:
    """DNA goes to FASTA, text to .txt.

    Raises:
        ValueError: if the name says otherwise.
    """
    wanted = (".fa", ".fasta", ".fna", ".fa.gz", ".fasta.gz", ".fna.gz") if is_dna else (".txt", ".txt.gz")
    if not output.name.endswith(wanted):
        raise ValueError(f"output {output} has a name for another kind of file; this model writes {', '.join(wanted)}")


def main() -> None:
    """The command line."""
    commands.run("sample", run)


if __name__ == "__main__":
    main()
