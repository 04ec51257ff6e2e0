"""`python -m dnadiff.sample`: sequences from a trained model, to FASTA or text: free, by templates and motifs, or within a genome."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff import checks, commands
from dnadiff.config import build
from dnadiff.design import options
from dnadiff.progress import Progress, duration, table

FASTA = (".fa", ".fasta", ".fna")
TEXT = (".txt", ".jsonl")
log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> Path:
    """Sample and return the file written."""
    from dnadiff.design.output import ResumableOutput, discard, temporary_path
    from dnadiff.design.provenance import is_complete
    from dnadiff.model import load

    check_numbers(config)
    options.check_settings(config["sampler"])
    model = load(config["checkpoint"], commands.pick_device(config["accelerator"]), config["trust"])
    is_dna = model.tokenizer.vocab.complement is not None
    output = Path(config["output"] or run_dir / ("samples.fa" if is_dna else "samples.txt")).expanduser()
    check_suffix(output, is_dna)
    if config["resume"] and config["output"] is None:
        raise ValueError("resume=true goes on with a file: give output=, the one that was begun")
    model.conditioned(config["label"], config["guidance"])
    request = options.request(config, model)
    low, high = request.lengths
    settings = options.resolved_sampler(config["sampler"], model, high, low)
    filler = model.conditional_sampler(build(settings, trust=None), request, config["label"], config["guidance"])
    if config["gc"] is not None:
        from dnadiff.design import gc_tilt

        config["gc"] = gc_tilt.check(config["gc"], request, model.tokenizer)
        filler = filler.with_tilt(1.0)  # how much is calibrated when everything else is known to be possible
    weighed = options.check_weights(config, filler, request, is_dna)
    training = options.training(config, model)
    kept = options.depends_on(config, model, request, settings)
    if config["resume"] and is_complete(output, kept):
        discard(output)  # of a process that ended while it was tidying up
        looked = " (python -m dnadiff.copies looks for copies in it)" if config["copies"] else ""
        print(f"{output} is complete already{looked}")
        return output
    if config["resume"] and not temporary_path(output, "journal").is_file():
        log.info(f"{output}: there is nothing to go on with; a new file begins")
    stream = ResumableOutput(output, kept, config["resume"], config["overwrite"])
    fill(config, model, request, filler, stream, weighed)
    finish(config, model, request, filler.sampler, stream, training)
    return output


def check_numbers(config: dict[str, Any]) -> None:
    """Whole numbers, whatever the notation, and words that must be known; raises ValueError naming the key."""
    for key, least in (("num_samples", 1), ("batch_size", 1), ("seed", 0), ("proposals", 1)):
        if config[key] is not None:
            config[key] = checks.integer(key, config[key], least)
    for key in ("resample", "copies", "resume", "overwrite"):
        if not isinstance(config[key], bool):  # a word such as no would count as true
            raise ValueError(f"{key} {config[key]!r} must be true or false")
    for key in ("prompt", "output"):
        if config[key] is not None and not isinstance(config[key], (str, Path)):
            raise ValueError(f"{key} {config[key]!r} is not text; put it into quotes, as in '{key}=\"1984\"'")
    if config["proposals"] is not None:
        if not config["resample"]:
            raise ValueError("proposals are what resample=true chooses from; set it, or leave proposals out")
        if config["proposals"] < config["num_samples"]:
            raise ValueError(
                f"proposals {config['proposals']} are fewer than the num_samples {config['num_samples']} that are taken from them; set more"
            )
    if config["write"] not in ("window", "designed"):
        raise ValueError(f"write {config['write']!r} is not known; choose window or designed")
    if config["write"] == "designed" and config["infill"] is None:
        raise ValueError("write=designed is for infill=, which has flanks to leave out; leave write out")
    for one, other in (("template", "prompt"), ("infill", "template"), ("infill", "prompt"), ("infill", "motif")):
        if config[one] is not None and config[other] not in (None, "", []):
            raise ValueError(f"{one} and {other} exclude each other; leave one out")
    if (config["infill"] is None) != (config["genome"] is None):
        raise ValueError("infill=regions.bed and genome=g.fa belong together; give both")


def fill(config: Mapping[str, Any], model: Any, request: Any, filler: Any, stream: Any, weighed: bool) -> None:
    """Write the batches that are not written yet."""
    how = described(filler.sampler, config)
    low, high = request.lengths
    most = filler.sampler.num_steps_for(high)
    span = f"{high} tokens" if low == high else f"{low} to {high} tokens"
    log.info(f"model: {model.path}; {len(request)} sequences of {span} by {how['sampler']}, at most {most} network calls a batch")
    totals = {"nfe": 0, "rows": 0, "tokens": 0, "gc": [0, 0], "seconds": 0.0, "tilt": None, "sessions": 0} | stream.notes
    totals["sessions"] += 1
    start, before = time.monotonic(), totals["seconds"]
    if stream.done:
        log.info(f"going on after {stream.done:,} sequences")
    if config["gc"] is not None and not stream.complete:
        filler = tilted(config, request, filler, totals)
    bar = Progress(len(request), "sample", stream.done)
    written = writer(stream.output, filler, how, weighed)
    try:
        for batch in filler.batches(request, config["seed"], config["batch_size"], stream.done):
            totals["nfe"] += batch.nfe
            totals["rows"] += batch.rows
            tokens = sum(len(x) for x in batch.tokens)
            totals["tokens"] += tokens
            if config["gc"] is not None:
                totals["gc"] = [a + b for a, b in zip(totals["gc"], filler.gc(batch))]
            totals["seconds"] = before + time.monotonic() - start
            stream.append(b"".join(written(batch)), len(batch.targets), **totals)
            rate = (stream.done - bar.initial) / max(time.monotonic() - start, 1e-9)
            bar.update(len(batch.targets), tokens, **{"sequences/s": f"{rate:.2f}", "network calls": f"{totals['nfe']:,}"})
    finally:
        bar.close()
        stream.close()


def tilted(config: Mapping[str, Any], request: Any, filler: Any, totals: dict[str, Any]) -> Any:
    """The filler with the tilt for the GC that is asked for, calibrated now or when the file was begun."""
    from dnadiff.design import gc_tilt

    if totals["tilt"] is None:
        found = gc_tilt.fit(filler, request, config["gc"], config["seed"], config["batch_size"])
        totals["tilt"] = {"log_odds": found.tilt, "pilot": found.reached, "pilot_calls": found.nfe}
        log.info(f"gc: the pilot comes to {found.reached:.4f} with log-odds {found.tilt:+.4f} for G and C ({found.nfe} network calls)")
    return filler.with_tilt(totals["tilt"]["log_odds"])


def writer(output: Path, filler: Any, how: Mapping[str, Any], weighed: bool) -> Any:
    """What turns a batch into the bytes of its records, by the name of the file."""
    from dnadiff.data.genome.fasta import as_bytes, synthetic_record

    name = output.name.removesuffix(".gz")

    def records(batch: Any) -> Iterator[bytes]:
        for i, (target, tokens) in enumerate(zip(batch.targets, batch.tokens)):
            text = filler.text(target, tokens)
            about = how | {"calls": batch.nfe} | target.about
            if weighed:
                about["log_weight"] = f"{batch.log_weight[i]:.6f}"
            if name.endswith(FASTA):
                yield as_bytes(synthetic_record(target.name, text, **about))
            elif name.endswith(".jsonl"):
                about |= {"log_weight": float(about["log_weight"])} if weighed else {}
                yield json.dumps({"name": target.name, "synthetic": True, **about, "text": text}, ensure_ascii=False).encode() + b"\n"
            else:
                yield text.encode() + b"\n\n"

    return records


def finish(config: Mapping[str, Any], model: Any, request: Any, sampler: Any, stream: Any, training: Any) -> None:
    """Resample if asked, give the file its name, and write the JSON beside it; then the closing table."""
    from dnadiff.design import provenance
    from dnadiff.design.output import discard

    output, totals = stream.output, stream.notes
    written, weighed = len(request), {}
    part = stream.part if stream.part.exists() else output
    stated = stream.output.name.removesuffix(".gz").endswith((*FASTA, ".jsonl"))
    if stated and provenance.has_weights(part, output.suffix == ".gz"):
        weighed = {"weights": provenance.of_weights(provenance.weights(part, output.suffix == ".gz"), request.each)}
    gc = totals["gc"]
    if config["resample"]:  # leads on from the GC of the proposals, too
        gc = provenance.resample(stream.part, output, request.each, config["num_samples"], config["seed"])
        written = request.num_groups * config["num_samples"]
        weighed["weights"] |= {"resampled": config["num_samples"]}
    else:
        stream.finish()
    gc_tilt = {} if config["gc"] is None else {"gc": {"target": config["gc"], "reached": gc[0] / max(gc[1], 1), **totals["tilt"]}}
    memorization = {} if training is None else memorised(output, training)
    content = {
        "records": written,
        "model": {"checkpoint": str(model.path), "sha256": stream.settings["model"], "step": model.step},
        "sampler": described(sampler, config)["sampler"],
        "steps": sampler.num_steps_for(request.lengths[1]),  # of a batch: the upper limit of its calls
        "network_calls": totals["nfe"],
        "rows": totals["rows"],
        "tokens": totals["tokens"],
        "seconds": round(totals["seconds"], 3),
        "sessions": totals["sessions"],
        "seed": config["seed"],
        **gc_tilt,
        **weighed,
        **memorization,
        "inputs": {key: config[key] for key in ("template", "motif", "prompt", "infill", "genome", "label") if config[key] is not None},
        "settings": stream.settings,
    }
    provenance.write(output, content)
    discard(output)
    show(config, content, len(request))
    print(f"files are in {output} and {provenance.json_path(output)}")


def memorised(output: Path, training: Any) -> dict[str, Any]:
    """The longest exact match of each record with the training part, either strand."""
    from dnadiff.metrics import memorization

    return {"copies": memorization.summary(memorization.of_file(output, memorization.indexed(training)))}


def show(config: Mapping[str, Any], content: Mapping[str, Any], made: int) -> None:
    """The closing table."""
    seconds = content["seconds"]
    rows = [
        ("sequences", f"{content['records']:,} of {content['tokens'] / made:,.0f} tokens"),
        ("sampler", f"{content['sampler']}, seed {config['seed']}"),
        ("network calls", f"{content['network_calls']:,} ({content['rows']:,} sequences in them)"),
        ("time", duration(seconds)),
        ("sequences/s", f"{made / max(seconds, 1e-9):.2f}"),
    ]
    if "gc" in content:
        rows.append(("GC", f"{content['gc']['reached']:.4f}, asked for {content['gc']['target']:g}"))
    if "weights" in content:
        w = content["weights"]
        size = w["effective_size"]
        rows.append(("effective sample size", f"{size['mean']:.1f} of {w['proposals']:,}" + (", resampled" if "resampled" in w else "")))
        rows.append(("log mass of the constraints", f"{w['log_mass']['mean']:.2f} nats"))
    if "copies" in content:
        rows.append(
            (
                "longest match with training",
                f"{content['copies']['longest']['max']} bases, {content['copies']['longest']['mean']:.1f} on average",
            )
        )
    print(table(rows))


def described(sampler: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a header says of how a sequence was made: the sampler's word on the command line, and what is not as usual."""
    how: dict[str, Any] = {"sampler": type(sampler).__module__.rpartition(".")[2], "calls": 0}  # of the batch, known afterwards
    settings = {name: getattr(sampler, name) for name in ("temperature", "top_k", "nucleus")}
    settings |= {"label": config["label"], "guidance": config["guidance"], "gc": config["gc"]}
    usual = {"temperature": 1, "top_k": None, "nucleus": 1, "label": None, "guidance": 1, "gc": None}
    how |= {name: value for name, value in settings.items() if value != usual[name]}
    if isinstance(how.get("label"), list):
        how["label"] = ",".join(map(str, how["label"]))
    return how | {"seed": config["seed"]}


def check_suffix(output: Path, is_dna: bool) -> None:
    """DNA goes to FASTA, text to .txt or .jsonl.

    Raises:
        ValueError: if the name says otherwise.
    """
    wanted = [end + packed for packed in ("", ".gz") for end in (FASTA if is_dna else TEXT)]
    if not output.name.endswith(tuple(wanted)):
        raise ValueError(f"output {output} has a name for another kind of file; this model writes {', '.join(wanted)}")


def main() -> None:
    """The command line."""
    commands.run("sample", run)


if __name__ == "__main__":
    main()
