"""The options of the command `sample` as a request, as a sampler that fits the model, and as the
settings that its file depends on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dnadiff.checks import integer
from dnadiff.config import Config, Json, build
from dnadiff.design import reward_options

if TYPE_CHECKING:
    import torch

    from dnadiff.data.genome.genome import Genome
    from dnadiff.data.tokenizer import Tokenizer
    from dnadiff.denoiser import BaseDenoiser
    from dnadiff.design.generate import ConditionalSampler
    from dnadiff.design.request import Motif, Pattern, Request
    from dnadiff.formats.regions import Region
    from dnadiff.likelihood.curve import StoredCurve
    from dnadiff.weights.loaded import Loaded

WRITE_WHOLE = {"window": True, "designed": False}  # write= -> whether whole windows are written
_CHOSEN = (
    "window",
    "num_groups",
    "sizes",
)  # settings of a sampler that `resolved_sampler` can choose
log = logging.getLogger("dnadiff")


class SamplingModel(Protocol):
    """What the options need of a model (`dnadiff.model.Model`, which imports this package)."""

    tokenizer: Tokenizer
    denoiser: BaseDenoiser
    path: Path
    device: torch.device
    stored_curve: StoredCurve
    loaded: Loaded

    @property
    def length(self) -> int:
        """Tokens in a training window."""

    def check_infill(self) -> None:
        """Raises ValueError if the model cannot fill an interval from both flanks."""


def make_request(config: Config, model: SamplingModel) -> Request:
    """The request that the options describe; raises ValueError if they contradict each other or the
    model."""
    from dnadiff.design.request import Free, Infill, Templates, read_motifs

    tokenizer, each = model.tokenizer, config["proposals"] or config["num_samples"]
    motifs = read_motifs(config["motif"])
    patterns = (
        None
        if config["template"] is None
        else list(read_patterns(config["template"], tokenizer, motifs))
    )
    if config["start"] is not None:
        return reward_options.start_request(config, tokenizer, patterns)
    if patterns is not None:
        if config["length"] is not None:
            raise ValueError("the template defines the length; leave length out")
        return Templates(patterns, each, tokenizer.vocab.mask_id)
    low, high = length_range(model.length if config["length"] is None else config["length"])
    if config["infill"] is not None:
        genome, regions = read_intervals(config, model)
        if low != high:
            raise ValueError(
                f"length={config['length']}: intervals are read in windows of one length; set "
                "length to a number"
            )
        return Infill(genome, regions, each, low, WRITE_WHOLE[config["write"]])
    return Free(tokenizer, each, (low, high), config["seed"], config["prompt"] or "", motifs)


def read_intervals(config: Config, model: SamplingModel) -> tuple[Genome, list[Region]]:
    """The genome and the intervals to design; raises ValueError naming file and line."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.design.request import dna_tokenizer
    from dnadiff.formats.regions import read_regions

    model.check_infill()
    dna_tokenizer(model.tokenizer)  # refuses a model of text
    genome = Genome.open(config["genome"])
    regions = read_regions(config["infill"], genome.lengths, config["feature"])
    used = {region.chrom for region in regions}
    if ambiguous := [
        row["name"] for row in genome.rows if row["name"] in used and row["ambiguous"][0]
    ]:
        log.warning(
            f"{', '.join(ambiguous[:8])}: ambiguity codes (R, Y, ...) are read and written as N"
        )
    return genome, regions


def read_patterns(
    path: str, tokenizer: Tokenizer, motifs: Sequence[Motif]
) -> Iterator[tuple[str, Pattern]]:
    """Name and pattern of each record of a FASTA file of IUPAC letters, or of a text file as a
    whole."""
    from dnadiff.design.request import template_pattern
    from dnadiff.formats.sequences import read_sequences
    from dnadiff.store.address import shown
    from dnadiff.store.files import open_text

    if tokenizer.vocab.complement is None:
        with open_text(path) as file:
            texts = [("sample", file.read().removesuffix("\n"))]
    else:
        texts = [(record.name, record.sequence.decode("ascii")) for record in read_sequences(path)]
    for name, text in texts:
        try:
            pattern = template_pattern(tokenizer, text, motifs)
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}") from None
        yield name, pattern


def length_range(length: int | str) -> tuple[int, int]:
    """The shortest and the longest length of `512` or `200:1000`; raises ValueError for others."""
    if isinstance(length, str) and ":" in length:
        low, _, high = length.partition(":")
        if not (low.strip().isdigit() and high.strip().isdigit()) or not 1 <= int(low) <= int(high):
            raise ValueError(
                f"length {length!r} cannot be parsed; write a number, or SHORTEST:LONGEST such as "
                "200:1000"
            )
        return int(low), int(high)
    number = integer("length", length)
    return number, number


def check_weights(
    config: Config, generator: ConditionalSampler, request: Request, is_dna: bool
) -> bool:
    """Whether samples have weights; logs what the distribution of the samples is if it is not
    corrected.

    Resampling without weights is a ValueError.
    """
    weighted = generator.has_weights(request)
    if config["resample"] and not (weighted and is_dna):
        if weighted is None:
            raise ValueError(
                "resample=true needs a sampler with importance weights: not low_confidence, "
                "threshold, fast_dllm, remdm or forward_backward, "
                "gibbs only with num_groups equal to the length, and temperature, top_k, nucleus "
                "and noise_removal at their defaults; "
                "method=resample_move needs sampler=first_hitting and method.num_groups=null"
            )
        raise ValueError(
            "resample=true: these samples have no weights; samples of DNA have them with partial "
            "letters (R, Y, ...), with gc, and with "
            "templates that have given letters to the right of what sampler=ar or sampler=block "
            "generates"
        )
    if config["resample"] and request.lengths[0] < request.lengths[1] and request.num_groups == 1:
        # Weights grow with the length (with a tilt, exponentially), so resampling would change the
        # distribution of lengths.
        raise ValueError(
            f"resample=true compares sequences of one length, and length={config['length']} draws "
            "many; set length to a number"
        )
    if weighted is None and not reward_options.is_design(config):
        log.info(
            "this sampler has no importance weights: constraints hold, but the distribution is not "
            "corrected (docs/designing.md)"
        )
    if any(map(generator.has_fixed_after_mask, request.evenly_spaced())):
        seen = "this model does not see fixed tokens to the right of a mask" + (
            " in later blocks" if generator.denoiser.block_size else ""
        )
        log.warning(
            f"{seen}; {'weights correct for it' if weighted else 'nothing corrects for it'} "
            "(docs/designing.md)"
        )
    return bool(weighted)


def output_settings(
    config: Config, model: SamplingModel, request: Request, sampler: Config
) -> dict[str, Json]:
    """Everything that the bytes of the output file depend on."""
    from dnadiff.design.request import Infill
    from dnadiff.jobs.journal import sha256
    from dnadiff.store.files import resolve

    plain = (
        "num_samples",
        "batch_size",
        "seed",
        "label",
        "guidance",
        "length",
        "motif",
        "prompt",
        "gc",
        "resample",
        "proposals",
        "write",
    )
    files = {
        key: sha256(resolve(config[key]))
        for key in ("template", "infill", "start")
        if config[key] is not None and is_file(config[key])
    }
    return {
        "model": sha256(model.path),
        **{key: config[key] for key in plain},
        **{
            key: files.get(key, config[key])
            for key in ("template", "infill", "start")
            if key != "start" or config[key] is not None
        },
        **({} if config["feature"] is None else {"feature": config["feature"]}),
        "genome": request.genome.digest if isinstance(request, Infill) else None,
        "lengths": list(request.lengths),
        "sampler": sampler,
        "device": model.device.type,
    }


def is_file(name: str | Path | Sequence[str]) -> bool:
    """Whether an option names a file, not a region such as chr1:1-2000."""
    from dnadiff.store import files

    return isinstance(name, (str, Path)) and files.is_file(name)


def sampler_settings(
    config: Config, model: SamplingModel, request: Request, output: Path
) -> Config:
    """The settings of the sampler for a request, with the defaults that depend on the model
    (`resolved_sampler`).

    A file of the same model that is resumed with the same options keeps the choices that it was
    started with, also if `evaluate.json` has changed since.
    """
    from dnadiff.jobs.journal import sha256

    settings, (low, high) = config["sampler"], request.lengths
    options, earlier = (
        _started_with(output, config["overwrite"]) if config["resume"] else (None, {})
    )
    is_same = (
        options is not None
        and options == json.loads(json.dumps(settings))
        and earlier.get("lengths") == [low, high]
    )
    if is_same and earlier.get("model") == sha256(model.path):
        return _with_choices(settings, earlier.get("sampler", {}))
    return resolved_sampler(settings, model, high, low)


def _started_with(output: Path, overwrite: bool) -> tuple[Config | None, Config]:
    """The options of the sampler that a file was started with, None if they are not known, and its
    settings.

    A complete file that may be overwritten is not one that is continued.
    """
    from dnadiff.jobs.journal import json_path, read_journal
    from dnadiff.renamed import with_current_names
    from dnadiff.store.disk import read_json

    found: Config = {}
    with suppress(OSError, ValueError):  # of a complete file
        found = {} if overwrite else read_json(json_path(output), ("settings", "sampler_options"))
    with suppress(
        OSError, ValueError
    ):  # of an unfinished one; `ResumableOutput` refuses a damaged journal
        journal = read_journal(output)
        found = journal["notes"] | {"settings": journal["settings"]}
    settings = found.get("settings")
    return found.get("sampler_options"), with_current_names(settings) if isinstance(
        settings, dict
    ) else {}


def _with_choices(settings: Config, chosen: Config) -> Config:
    """The settings of a sampler with what `resolved_sampler` chose; all others stay, and are
    compared later."""
    return {
        key: _with_choices(value, chosen.get(key, {}))
        if isinstance(value, dict)
        else chosen.get(key, value)
        if key in _CHOSEN
        else value
        for key, value in settings.items()
    }


def resolved_sampler(
    settings: Config,
    model: SamplingModel,
    length: int,
    shortest: int | None = None,
    has_curve: bool = True,
) -> Config:
    """The settings of a sampler with defaults that depend on the model: the window, the block, and
    groups from its h(n).

    Groups are chosen for `length` tokens, and at most as many as the shortest sequence has tokens.
    Without `has_curve`, as inside the blocks of a model that was trained without them, the h(n) is
    not used. A model that does not define a default is a ValueError.
    """
    settings = dict(settings)
    if "window" in settings:
        key, window = "sampler.window", settings["window"]
        window = model.loaded.training_length(key) if window is None else integer(key, window)
        within = None if shortest is None else min(window, shortest)
        inner = resolved_sampler(settings["sampler"], model, min(window, length), within, has_curve)
        settings |= {"window": window, "sampler": inner}
    if "block_size" in settings:
        own, trained = settings["block_size"], model.denoiser.block_size
        size = min(
            (trained if own is None else integer("sampler.block_size", own)) or length, length
        )
        within = None if shortest is None else min(size, shortest)
        settings |= {
            "sampler": resolved_sampler(
                settings["sampler"], model, size, within, has_curve and trained is not None
            )
        }
    if "sizes" in settings and has_curve:
        settings |= _groups(settings, model, length, shortest)
    elif isinstance(settings.get("sizes"), str):
        raise ValueError(
            f"sizes {settings['sizes']!r} needs the h(n) of a block, and this model was trained "
            "without blocks; expected numbers such as "
            "[8,8,16], or null: leave sizes out for equal groups"
        )
    return settings


def _groups(settings: Config, model: SamplingModel, length: int, shortest: int | None) -> Config:
    """`num_groups` and `sizes` of the settings of a sampler, from the h(n) of the model where they
    are automatic."""
    chosen = model.stored_curve.groups(length, settings["num_groups"], settings["sizes"])
    num_groups, sizes = chosen["num_groups"], chosen["sizes"]
    is_automatic = settings["num_groups"] is None and (
        settings["sizes"] is None or isinstance(settings["sizes"], str)
    )
    if is_automatic and (num_groups is not None or sizes is not None):
        kind = "groups of optimal sizes" if sizes else "equal groups"
        measured = model.stored_curve.measured_length()
        assumed = (
            ""
            if measured == length
            else f" of {measured} tokens, if h(n) depends on the visible fraction only"
        )
        number = num_groups or len(sizes or ())
        log.info(
            f"{number} {kind} lose at most 2 % of the structure, by evaluate.json in the "
            f"run{assumed}"
        )
    if settings["num_groups"] is None and num_groups is not None and shortest is not None:
        num_groups = min(num_groups, shortest)
    return {"num_groups": num_groups, "sizes": sizes}


def check_settings(settings: Config) -> None:
    """Check the settings of a sampler before a model is loaded; raises ValueError naming the
    setting."""
    if _leaves_masks(settings):
        raise ValueError(
            "noise_removal=none leaves masks in the samples, which a file cannot represent; choose "
            "sample or argmax"
        )
    build(without_sizes(settings), trust=None)


def _leaves_masks(settings: Config) -> bool:
    nested = (value for value in settings.values() if isinstance(value, dict))
    return settings.get("noise_removal") == "none" or any(map(_leaves_masks, nested))


def without_sizes(settings: Config) -> Config:
    """The settings of a sampler without the sizes of groups, which may depend on the h(n) of the
    model."""
    return {
        key: without_sizes(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if key != "sizes"
    }
