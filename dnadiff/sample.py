"""`python -m dnadiff.sample`: sequences from a trained model, to FASTA or text: free, from
templates and motifs, or within a genome."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dnadiff import commands
from dnadiff.checks import Natural, NonNegative, PositiveInt, Range, boolean, expand_user, integer
from dnadiff.config import SHARED, Config, Json, Keys, build
from dnadiff.design import options, reward_options
from dnadiff.design.records import check_suffix, header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dnadiff.jobs.job import Job

KEYS: Keys = {
    **SHARED,
    "length": PositiveInt | str | None,
    "template": str | None,
    "motif": str | list[str] | None,
    "prompt": str | None,
    "infill": str | list[str] | None,
    "feature": str | None,
    "genome": str | None,
    "write": str,
    "gc": Annotated[float, Range(above=0, below=1)] | None,
    "resample": bool,
    "proposals": PositiveInt | None,
    "copies": bool,
    "label": str | int | list[str | int] | None,
    "guidance": NonNegative,
    "start": str | None,
    "target": float | None,
    "beta": NonNegative,
    "num_draws": Natural,
    "report": str | None,
    "real": str | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Sample and return the file written."""
    from dnadiff.jobs.runner import RunOptions, run_jobs

    check_options(config)
    run_options = RunOptions.checked(
        "sample",
        overrides,
        config["output"],
        shard=config["shard"],
        resume=config["resume"],
        overwrite=config["overwrite"],
    )
    return run_jobs(jobs(config, run_dir, overrides), run_options)


def jobs(config: Config, run_dir: Path, overrides: Sequence[str]) -> list[Job]:
    """The file of samples."""
    from dnadiff.design import provenance
    from dnadiff.design.work import SampleJob
    from dnadiff.jobs.journal import temporary_path
    from dnadiff.metrics import memorization
    from dnadiff.model import Model
    from dnadiff.weights import checkpoint

    check_options(config)
    reward_options.check(config)
    options.check_settings(config["sampler"])
    device = commands.pick_device(config["accelerator"])
    model = Model(checkpoint.load(config["checkpoint"], config["trust"]), device)
    is_dna = model.tokenizer.vocab.complement is not None
    output = expand_user(config["output"] or run_dir / ("samples.fa" if is_dna else "samples.txt"))
    check_suffix(output, is_dna)
    model.conditioned(config["label"], config["guidance"])
    request = options.make_request(config, model)
    settings = options.sampler_settings(config, model, request, output)
    generator = model.conditional_sampler(
        build(settings, trust=None), request, config["label"], config["guidance"]
    )
    if config["gc"] is not None:
        from dnadiff.design.generate import check_gc

        config["gc"] = check_gc(config["gc"], request, model.tokenizer)
        generator = generator.with_tilt(1.0)  # calibrated after all other checks
    training = (
        memorization.training_data(model.loaded, config["trust"]) if config["copies"] else None
    )
    index = (
        None if training is None else cache(lambda: memorization.indexed(training))
    )  # made when it is needed first, once
    design: dict[str, Json] = {}
    if reward_options.is_design(config):
        search = None if index is None else lambda bases: index().longest_match(bases)
        generator, design = reward_options.make_designer(config, generator, request, search)
    weighted = options.check_weights(config, generator, request, is_dna)
    kept = options.output_settings(config, model, request, settings) | design
    page: Callable[[], object] | None = None
    if config["report"] is not None and config["shard"] is None:
        from dnadiff.design.designer import Designer
        from dnadiff.report.designs import open_page  # loads Lightning

        assert isinstance(generator, Designer)  # `reward_options.check` refuses report= without one
        found = output.is_file() or temporary_path(output, "journal").is_file()
        opened = open_page(
            config["report"],
            generator,
            request,
            model.loaded,
            trust=config["trust"],
            real=config["real"],
            num_samples=config["num_samples"],
            batch_size=config["batch_size"],
            seed=config["seed"],
            replace=config["overwrite"] or (config["resume"] and found),
        )
        page = partial(opened.write, output, overrides)
    return [
        SampleJob(
            model.loaded,
            generator,
            request,
            output,
            seed=config["seed"],
            batch_size=config["batch_size"],
            header=header_of(generator.sampler, config),
            weighted=weighted,
            gc=config["gc"],
            resampled=config["num_samples"] if config["resample"] else None,
            settings=kept,
            started=config["sampler"],
            inputs=provenance.inputs(config),
            index=index,
            design=reward_options.Summary(config) if design else None,
            page=page,
        )
    ]


def check_options(config: Config) -> None:
    """Check the options that need no model, and convert integers; raises ValueError naming the
    key."""
    for key, minimum in (("num_samples", 1), ("batch_size", 1), ("seed", 0), ("proposals", 1)):
        if config[key] is not None:
            config[key] = integer(key, config[key], minimum)
    for key in ("resample", "copies", "resume", "overwrite"):
        boolean(key, config[key])
    for key in ("prompt", "output"):
        if config[key] is not None and not isinstance(config[key], (str, Path)):
            raise ValueError(
                f"{key} {config[key]!r} must be a string; put it into quotes, as in "
                f"'{key}=\"1984\"'"
            )
    if config["proposals"] is not None:
        if not config["resample"]:
            raise ValueError(
                "proposals are what resample=true chooses from; set it, or leave proposals out"
            )
        if (proposals := config["proposals"]) < (drawn := config["num_samples"]):
            raise ValueError(
                f"proposals {proposals} are fewer than the num_samples {drawn} drawn from them; "
                "set more"
            )
    if config["write"] not in tuple(options.WRITE_WHOLE):
        raise ValueError(f"write {config['write']!r} is not known; choose window or designed")
    if not options.WRITE_WHOLE[config["write"]] and config["infill"] is None:
        raise ValueError(
            "write=designed is for infill=, which has flanks to leave out; leave write out"
        )
    for one, other in (
        ("template", "prompt"),
        ("infill", "template"),
        ("infill", "prompt"),
        ("infill", "motif"),
    ):
        if config[one] is not None and config[other]:
            raise ValueError(f"{one} and {other} exclude each other; leave one out")
    if (config["infill"] is None) != (config["genome"] is None):
        raise ValueError("infill=regions.bed and genome=g.fa belong together; give both")
    if config["feature"] is not None and config["infill"] is None:
        raise ValueError(
            "feature chooses rows of a GTF or GFF file of infill=; give infill and genome, or "
            "leave feature out"
        )


def main() -> None:
    """The command line."""
    commands.run("sample", run, KEYS)


if __name__ == "__main__":
    main()
