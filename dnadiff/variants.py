"""`python -m dnadiff.variants`: effects of variants from a VCF file, a table, or of all variants of
some regions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user
from dnadiff.config import SHARED, Config, Json, Keys, build
from dnadiff.variant_effect import options

if TYPE_CHECKING:
    from dnadiff.formats.regions import Region
    from dnadiff.jobs.job import Job
    from dnadiff.variant_effect.base import VariantMethod
    from dnadiff.variant_effect.network import Network
    from dnadiff.variant_effect.sources import VariantSource
    from dnadiff.variant_effect.variant import Reference
    from dnadiff.weights.loaded import Loaded

log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "vcf": str | None,
    "genome": str,
    "saturate": str | list[str] | None,
    "feature": str | None,
    "deletions": bool,
    "on_mismatch": Literal["error", "skip", "flag"],
    "stranded": bool,
    "sites_per_window": PositiveInt,
    "block": PositiveInt | None,
    "num_orders": PositiveInt,
    "L2": bool,
    "dependency": str | None,
    "dependency_span": PositiveInt,
    "report": str | None,
    "target": str | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Score the variants and return the file written."""
    from dnadiff.jobs.runner import RunOptions, run_jobs

    options.check(config)
    run_options = RunOptions.checked(
        "variants",
        overrides,
        config["output"],
        shard=config["shard"],
        resume=config["resume"],
        overwrite=config["overwrite"],
    )
    return run_jobs(jobs(config, run_dir, overrides), run_options)


def jobs(config: Config, run_dir: Path, overrides: Sequence[str]) -> list[Job]:
    """The file of effects, by a pretrained model or by the predictions of a fine-tuned run."""
    from dnadiff.supervised import runs

    options.check(config)
    output = expand_user(config["output"] or run_dir / "variants.tsv")
    if runs.is_fine_tuned(config["checkpoint"]):
        return [compare_predictions(config, output)]
    if config["target"] is not None:
        raise ValueError(
            f"target={config['target']} belongs to a fine-tuned run, and {config['checkpoint']} is "
            "a pretrained one; leave it out"
        )
    return [compare_likelihoods(config, run_dir, output)]


def compare_likelihoods(config: Config, run_dir: Path, output: Path) -> Job:
    """Score the variants by the log-likelihood ratios of a pretrained model."""
    from dnadiff.report.heat_map import draw_regions
    from dnadiff.variant_effect.base import check_method
    from dnadiff.variant_effect.effects import COLUMNS, Scorer
    from dnadiff.variant_effect.summary import FLAG, SKIP, summarize, training_part
    from dnadiff.variant_effect.variant import Alleles
    from dnadiff.variant_effect.work import ExtraOutputs, VariantJob
    from dnadiff.variant_effect.writers import writer_of
    from dnadiff.weights import checkpoint
    from dnadiff.weights.tensors import earlier_identities

    writer = writer_of(
        output, (*COLUMNS, *(["L2"] if config["L2"] else [])), config["on_mismatch"] == FLAG
    )
    method = build(config["variant_method"], trust=None)
    model = checkpoint.load(config["checkpoint"], config["trust"])
    network = open_network(config, model)
    method = check_method(method, network.denoiser)
    source, regions = open_variants(config, network.reference)
    training = training_part(model, network.reference, config["trust"])
    alleles = Alleles(network.reference, network.window, config["on_mismatch"] == SKIP)
    about = {
        "checkpoint": str(config["checkpoint"]),
        "method": method.name,
        "window": network.window,
    }
    page = expand_user(config["report"] or run_dir / "report.html") if regions else None
    extras = ExtraOutputs(
        network,
        None if config["dependency"] is None else expand_user(config["dependency"]),
        config["dependency_span"],
        page,
        config["report"] is not None,
        partial(draw_regions, regions=regions, read=partial(writer.read, output), about=about),
    )
    return VariantJob(
        Scorer(network, method, alleles, config["L2"]),
        source,
        writer,
        output,
        training=training,
        summarized=partial(
            summarize,
            alleles=alleles,
            method=method,
            training=training,
            mismatch_is_error=options.mismatch_is_error(config),
        ),
        settings=output_settings(config, model, network, method, regions),
        earlier=earlier_identities(model.denoiser),
        extras=extras,
    )


def compare_predictions(config: Config, output: Path) -> Job:
    """Score the variants by the predictions of a fine-tuned run."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.supervised import saved
    from dnadiff.variant_effect.effects import PREDICTED_COLUMNS, GenomeWindows, PredictedScorer
    from dnadiff.variant_effect.summary import FLAG, SKIP, TrainingPart, summarize
    from dnadiff.variant_effect.variant import Alleles
    from dnadiff.variant_effect.work import VariantJob
    from dnadiff.variant_effect.writers import writer_of

    options.check_fine_tuned(config)
    writer = writer_of(output, PREDICTED_COLUMNS, config["on_mismatch"] == FLAG)
    model = saved.load(
        config["checkpoint"], config["trust"], commands.pick_device(config["accelerator"])
    )
    predict, window = (
        model.contrasts(config["target"], config["batch_size"]),
        model.window_of(config["window"]),
    )
    target = model.classes[model.number_of(config["target"])]
    writer.predicted = model.target.contrast_name(target)
    reference = Genome.open(config["genome"])
    source, regions = open_variants(config, reference)
    alleles = Alleles(
        reference,
        window,
        config["on_mismatch"] == SKIP,
        fixed_length=model.limits.fixed is not None,
    )
    training = TrainingPart({}, {}, "not known of a fine-tuned run")
    log.info(f"predictions are {writer.predicted}")
    return VariantJob(
        PredictedScorer(predict, GenomeWindows(window, reference), alleles),
        source,
        writer,
        output,
        training=training,
        summarized=partial(
            summarize,
            alleles=alleles,
            method=None,
            training=training,
            mismatch_is_error=options.mismatch_is_error(config),
        ),
        settings={
            "networks": [member.sha256 for member in model.members],
            "device": model.device.type,
            **input_settings(config, reference, window, regions),
            **{key: config[key] for key in ("deletions", "on_mismatch", "batch_size")},
            "target": target,
            "predicted": writer.predicted,
        },
        earlier={},
    )


def open_network(config: Config, model: Loaded) -> Network:
    """The model on its device, with the genome."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.variant_effect.network import Network

    model.denoiser.to(commands.pick_device(config["accelerator"]))
    window = commands.check_window(config["window"], model)
    settings = {key: config[key] for key in ("batch_size", "stranded", "sites_per_window", "seed")}
    return Network.checked(
        model.denoiser, model.process, Genome.open(config["genome"]), window=window, **settings
    )


def open_variants(config: Config, genome: Reference) -> tuple[VariantSource, list[Region]]:
    """The variants, and the regions whose variants they all are."""
    from dnadiff.formats.regions import read_regions
    from dnadiff.variant_effect.sources import Saturation, open_source

    if config["saturate"] is None:
        return open_source(config["vcf"]), []
    regions = read_regions(config["saturate"], genome.lengths, config["feature"])
    if config["stranded"] and (reverse := sum(region.strand == "-" for region in regions)):
        raise ValueError(
            f"stranded=true reads the strand of the genome alone, and {reverse} of {len(regions)} "
            "regions of saturate have strand -; "
            "leave stranded out, which averages both strands, or remove these regions"
        )
    return Saturation(regions, genome, config["deletions"]), regions


def output_settings(
    config: Config,
    model: Loaded,
    network: Network,
    method: VariantMethod,
    regions: Sequence[Region],
) -> dict[str, Json]:
    """Everything that the contents of the output depend on."""
    from dnadiff.weights.tensors import identity

    keys = ("deletions", "on_mismatch", "stranded", "sites_per_window", "L2", "batch_size", "seed")
    return {
        "model": identity(model.denoiser),
        "device": network.device.type,
        **input_settings(config, network.reference, network.window, regions),
        "variant_method": method.settings(),
        **{key: config[key] for key in keys},
    }


def input_settings(
    config: Config, reference: Reference, window: int, regions: Sequence[Region]
) -> dict[str, Json]:
    """What is read, of the settings that the contents of the output depend on."""
    from dnadiff.jobs.journal import sha256
    from dnadiff.store.files import resolve

    variants = [list(region[:3]) for region in regions] or sha256(resolve(config["vcf"]))
    return {"variants": variants, "genome": reference.digest, "window": window}


def main() -> None:
    """The command line."""
    commands.run("variants", run, KEYS)


if __name__ == "__main__":
    main()
