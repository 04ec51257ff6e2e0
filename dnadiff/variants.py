"""`python -m dnadiff.variants`: effects of variants from a VCF file, a table, or of all variants of some regions."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user
from dnadiff.config import SHARED, Config, Json, Keys, build
from dnadiff.progress import Progress, table

if TYPE_CHECKING:
    from dnadiff.checkpoint import Loaded
    from dnadiff.data.genome.regions import Region
    from dnadiff.design.output import ResumableOutput
    from dnadiff.variant_effect.base import VariantMethod
    from dnadiff.variant_effect.census import Census
    from dnadiff.variant_effect.effects import Scorer
    from dnadiff.variant_effect.network import Network
    from dnadiff.variant_effect.sources import VariantSource
    from dnadiff.variant_effect.training_part import TrainingPart
    from dnadiff.variant_effect.variant import Reference
    from dnadiff.variant_effect.writers import Writer

log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "vcf": str | None,
    "genome": str,
    "saturate": str | list[str] | None,
    "deletions": bool,
    "on_mismatch": Literal["error", "skip", "flag"],
    "stranded": bool,
    "sites_per_window": PositiveInt,
    "block": PositiveInt,
    "num_orders": PositiveInt,
    "L2": bool,
    "dependency": str | None,
    "dependency_span": PositiveInt,
    "report": str | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Score the variants and return the file written."""
    from dnadiff import checkpoint
    from dnadiff.design.bgzip import BgzipOutput
    from dnadiff.design.output import ResumableOutput, discard
    from dnadiff.design.provenance import is_complete
    from dnadiff.variant_effect.census import ON_MISMATCH, SKIP, take_census
    from dnadiff.variant_effect.effects import Scorer
    from dnadiff.variant_effect.training_part import training_part
    from dnadiff.variant_effect.variant import Alleles
    from dnadiff.variant_effect.writers import writer_of

    check_options(config)
    output = expand_user(config["output"] or run_dir / "variants.tsv")
    writer = writer_of(output, config["L2"], config["on_mismatch"] == ON_MISMATCH[-1])
    method = build(config["variant_method"], trust=None)
    model = checkpoint.load(config["checkpoint"], config["trust"])
    network = open_network(config, model)
    method = checked_method(method, network)
    source, regions = open_variants(config, network.reference)
    source.check(network.reference)
    training = training_part(model, network.reference, config["trust"])
    alleles = Alleles(network.reference, network.window, config["on_mismatch"] == SKIP)
    census = take_census(source, alleles, method, training, config["on_mismatch"] == ON_MISMATCH[0])
    if config["dependency"] is not None and (census.alleles != 1 or expand_user(config["dependency"]).suffix != ".tsv"):
        raise ValueError(
            f"dependency writes the matrix of a single variant to a .tsv file; got {config['dependency']} and {census.alleles:,} alleles"
        )
    settings = output_settings(config, model, network, method, source, regions)
    if config["resume"] and is_complete(output, settings):
        discard(output)
        print(f"{output} is complete already")
        return output
    kind = BgzipOutput if writer.bgzip and output.suffix == ".gz" else ResumableOutput
    stream = kind(output, settings, config["resume"], config["overwrite"])
    scorer = Scorer(network, method, alleles, config["L2"])
    start = time.monotonic()
    generate(scorer, source, writer, stream, census)
    seconds = time.monotonic() - start
    finish(config, run_dir, scorer, writer, stream, census, training, regions)
    show(census, training, scorer, seconds)
    print(f"files are in {output}")
    return output


def check_options(config: Config) -> None:
    """Check the options that need no model; raises ValueError naming the key."""
    if (config["vcf"] is None) == (config["saturate"] is None):
        raise ValueError("give either vcf= (VCF, BCF or a table of variants) or saturate= (regions whose variants are all scored)")
    if config["saturate"] is None:
        for key, value in (("deletions", config["deletions"]), ("report", config["report"] is not None)):
            if value:
                raise ValueError(f"{key} belongs to saturate=regions.bed; leave it out, or give regions")
    if config["report"] is not None and not config["report"].endswith(".html"):
        raise ValueError(f"report {config['report']} is a page; its name must end in .html")
    if config["num_orders"] < 2:
        raise ValueError(f"num_orders {config['num_orders']} must be an integer of at least 2: the spread between orders gives the error")
    if config["num_draws"] % 2:
        raise ValueError(f"num_draws {config['num_draws']} must be even: two draws per stratum give the error")
    if config["resume"] and config["output"] is None:
        raise ValueError("resume=true needs output=, the file to resume")


def open_network(config: Config, model: Loaded) -> Network:
    """The model on its device, with the genome."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.variant_effect.network import Network

    model.denoiser.to(commands.pick_device(config["accelerator"]))
    window = commands.check_window(config["window"], model)
    if config["sites_per_window"] > max(window // 8, 1):
        raise ValueError(
            f"sites_per_window {config['sites_per_window']} leaves fewer than 8 bases between the sites of a window of {window}; set less"
        )
    settings = {key: config[key] for key in ("batch_size", "stranded", "sites_per_window", "seed")}
    return Network(model.denoiser, model.process, Genome.open(config["genome"]), window, **settings)


def checked_method(method: object, network: Network) -> VariantMethod:
    """The method for this kind of model; raises ValueError if it is none."""
    from dnadiff.variant_effect.base import VariantMethod

    if not isinstance(method, VariantMethod):
        raise ValueError(f"variant_method is a {type(method).__name__}, not a method; choose by_kind, masked, block, window or log_prob")
    return method.fitting(network.denoiser.causal)


def open_variants(config: Config, genome: Reference) -> tuple[VariantSource, list[Region]]:
    """The variants, and the regions whose variants they all are."""
    from dnadiff.data.genome.regions import read_regions
    from dnadiff.variant_effect.sources import Saturation, open_source

    if config["saturate"] is None:
        return open_source(config["vcf"]), []
    regions = read_regions(config["saturate"], genome.lengths)
    return Saturation(regions, genome, config["deletions"]), regions


def output_settings(
    config: Config, model: Loaded, network: Network, method: VariantMethod, source: VariantSource, regions: Sequence[Region]
) -> dict[str, Json]:
    """Everything that the contents of the output depend on."""
    from dnadiff.data.files import resolve
    from dnadiff.design.output import sha256
    from dnadiff.published.tensors import fingerprint

    keys = ("deletions", "on_mismatch", "stranded", "sites_per_window", "L2", "batch_size", "seed")
    return {
        "model": fingerprint(model.denoiser),
        "device": network.device.type,
        "variants": [list(region[:3]) for region in regions] or sha256(resolve(config["vcf"])),
        "genome": network.reference.digest,
        "window": network.window,
        "variant_method": method.settings(),
        **{key: config[key] for key in keys},
    }


def generate(scorer: Scorer, source: VariantSource, writer: Writer, stream: ResumableOutput, census: Census) -> None:
    """Score and write the remaining rows."""
    network = scorer.network
    log.info(f"{census.alleles:,} alleles in {census.rows:,} rows, windows of {network.window} bases, method {scorer.method.name}")
    if stream.done:
        log.info(f"resuming after {stream.done:,} rows")
    bar = Progress(census.rows, "variants", stream.done)
    scorer.audit.squared, scorer.audit.count = stream.notes.get("audit", (0.0, 0))
    content = b"" if stream.done else writer.header(source, network.reference)
    try:
        for chunk in scorer.chunks(islice(source, stream.done, None)):
            stream.append(content + writer.rows(chunk), len(chunk), audit=[scorer.audit.squared, scorer.audit.count])
            content = b""
            bar.update(len(chunk))
    finally:
        bar.close()
        stream.close()


def finish(
    config: Config,
    run_dir: Path,
    scorer: Scorer,
    writer: Writer,
    stream: ResumableOutput,
    census: Census,
    training: TrainingPart,
    regions: Sequence[Region],
) -> None:
    """Give the file its name, draw the heat maps, and write the dependency matrix and the JSON file."""
    from dnadiff import __version__
    from dnadiff.data.files import atomic_write, write_json
    from dnadiff.design.output import discard, sha256
    from dnadiff.design.provenance import json_path
    from dnadiff.variant_effect.dependency import as_table, dependency

    output = stream.output
    if not writer.convert(stream.part, output):
        stream.finish()
    about = {"checkpoint": str(config["checkpoint"]), "method": scorer.method.name, "window": scorer.network.window}
    if regions:
        from dnadiff.report.heat_map import collect, write_heat_maps

        if found := collect(writer.read(output), regions):
            page = expand_user(config["report"] or run_dir / "report.html")
            print(f"heat maps are in {', '.join(map(str, write_heat_maps(page, found, about)))}")
        else:
            log.info("no heat map: the regions are too long")
    if config["dependency"] is not None:
        edit = census.edits[0]
        content = as_table(dependency(scorer.network, edit, config["dependency_span"]), edit.record)
        with atomic_write(config["dependency"], config["overwrite"] or config["resume"]) as file:
            file.write(content)
    audit = {"rms": scorer.audit.rms, "sites": scorer.audit.count // 4} if scorer.audit.count else None
    counted = {**census.summary(), "in_training_part": census.in_training if training.known else None, "training_part": training.note}
    write_json(
        json_path(output),
        {
            "file": output.name,
            "sha256": sha256(output),
            "dnadiff": __version__,
            **counted,
            "sites_per_window_error": audit,
            "settings": stream.settings,
        },
    )
    discard(output)


def show(census: Census, training: TrainingPart, scorer: Scorer, seconds: float) -> None:
    """Print the closing table."""
    rows: list[tuple[str, ...]] = [(kind, f"{count:,}") for kind, count in census.kinds.items() if count]
    rows += [(f"skipped: {reason}", f"{count:,}") for reason, count in sorted(census.skipped.items())]
    if census.mismatches:
        rows.append(("rows with another REF than the genome", f"{census.mismatches:,}"))
    rows.append(("in the training part of the model", f"{census.in_training:,} ({training.note})" if training.known else training.note))
    if scorer.audit.count:
        rows.append(("error of several sites per window", f"{scorer.audit.rms:.4f} nats (RMS, {scorer.audit.count // 4} sites)"))
    rate = census.alleles / max(seconds, 1e-9)
    rows.append(("variants/s", f"{rate:,.1f}" if math.isfinite(rate) else "n/a"))
    print(table(rows))


def main() -> None:
    """The command line."""
    commands.run("variants", run, KEYS)


if __name__ == "__main__":
    main()
