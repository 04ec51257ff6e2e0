"""The settings of the command `sample` as a request, a sampler that fits the model, and what the file depends on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff import checks
from dnadiff.config import build

log = logging.getLogger("dnadiff")


def request(config: Mapping[str, Any], model: Any) -> Any:
    """What each sample shall hold.

    Raises:
        ValueError: naming what cannot be kept.
    """
    from dnadiff.design.request import Free, Infill, Templates
    from dnadiff.design.template import read_motifs

    tokenizer, each = model.tokenizer, config["proposals"] or config["num_samples"]
    if config["infill"] is not None:
        genome, regions = intervals(config, model)
        low, high = length_range(config["length"], model.length)
        if low != high:
            raise ValueError(f"length={config['length']}: intervals are read in windows of one length; set length to a number")
        return Infill(genome, regions, each, low, config["write"] == "window")
    motifs = read_motifs(config["motif"])
    if config["template"] is not None:
        if config["length"] is not None:
            raise ValueError("length is that of the template; leave length out")
        return Templates(list(patterns(config["template"], tokenizer, motifs)), each, tokenizer.vocab.mask_id)
    return Free(tokenizer, each, length_range(config["length"], model.length), config["seed"], config["prompt"] or "", motifs)


def intervals(config: Mapping[str, Any], model: Any) -> tuple[Any, Any]:
    """The genome and the regions to be designed; raises ValueError naming file and line."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.data.genome.regions import read_regions

    if model.tokenizer.vocab.complement is None:
        raise ValueError(f"infill is for models of DNA, and {model.path} was trained on text; give a template with [MASK]")
    model.refuse_causal("infill")
    genome = Genome.open(config["genome"], tokenizer=model.tokenizer)
    regions = read_regions(config["infill"], genome.lengths)
    used = {region.chrom for region in regions}
    if mixed := [row["name"] for row in genome.rows if row["name"] in used and row["ambiguous"][0]]:
        log.warning(f"{', '.join(mixed[:8])}: ambiguity codes (R, Y, ...) are read and written as N")
    return genome, regions


def patterns(path: Any, tokenizer: Any, motifs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Name and pattern of each record of a FASTA file of IUPAC letters; of a text file the whole."""
    from dnadiff.data.files import open_text
    from dnadiff.data.genome.fasta import read_fasta
    from dnadiff.design.template import dna_pattern, text_pattern

    if tokenizer.vocab.complement is None:
        if motifs:
            raise ValueError("motif is for models of DNA; for text write the words into the template")
        with open_text(path) as file:
            yield "sample", text_pattern(tokenizer, file.read().removesuffix("\n"))
        return
    for record in read_fasta(path):
        yield record.name, dna_pattern(tokenizer, len(record.sequence), record.sequence.decode("ascii"), motifs)


def length_range(length: Any, default: int) -> tuple[int, int]:
    """The shortest and the longest length of `512` or `200:1000`; raises ValueError for others."""
    if length is None:
        return default, default
    if isinstance(length, str) and ":" in length:
        low, _, high = length.partition(":")
        if not (low.strip().isdigit() and high.strip().isdigit()) or not 1 <= int(low) <= int(high):
            raise ValueError(f"length {length!r} cannot be read; write a number, or SHORTEST:LONGEST such as 200:1000")
        return int(low), int(high)
    length = checks.integer("length", length, 1)
    return length, length


def check_weights(config: Mapping[str, Any], filler: Any, request: Any, is_dna: bool) -> bool:
    """Whether samples have weights; refuses resampling where there are none, and says where a law is not what it may seem."""
    weighed = filler.has_weights(request)
    if config["resample"] and not (weighed and is_dna):
        if weighed is None:
            raise ValueError(
                "resample=true needs a sampler whose draws can be weighed: not low_confidence, threshold, remdm or forward_backward, "
                "and temperature, top_k, nucleus and noise_removal as they are"
            )
        raise ValueError(
            "resample=true: these samples have no weights; it is for partial letters, gc, or templates with sampler=ar, in DNA"
        )
    if config["resample"] and request.lengths[0] < request.lengths[1] and request.num_groups == 1:
        # A weight grows with the length (with a tilt, as its power): the lengths that were asked for would not stay.
        raise ValueError(
            f"resample=true compares sequences of one length, and length={config['length']} draws many; set length to a number"
        )
    if weighed is None:
        log.info("this sampler's draws have no importance weights: constraints hold, and the law is not corrected (docs/designing.md)")
    if any(map(filler.late, request.evenly_spaced())):
        log.warning("an autoregressive model does not see what is given to the right of a mask; weights make up for it (docs/designing.md)")
    return bool(weighed)


def depends_on(config: Mapping[str, Any], model: Any, request: Any, sampler: Mapping[str, Any]) -> dict[str, Any]:
    """All that the bytes of the file depend on."""
    from dnadiff.data.files import resolve
    from dnadiff.design.output import sha256

    plain = ("num_samples", "batch_size", "seed", "label", "guidance", "length", "motif", "prompt", "gc", "resample", "proposals", "write")
    files = {key: sha256(resolve(config[key])) for key in ("template", "infill") if config[key] is not None and is_file(config[key])}
    kept = {key: config[key] for key in plain} | {key: files.get(key, config[key]) for key in ("template", "infill")}
    return {
        "model": sha256(model.path),
        **kept,
        "genome": request.genome.digest if config["genome"] is not None else None,
        "lengths": list(request.lengths),
        "sampler": sampler,
        "device": model.device.type,
    }


def is_file(name: Any) -> bool:
    """Whether a setting names a file, not a region as text."""
    return isinstance(name, (str, Path)) and (str(name).startswith("bundled:") or Path(str(name)).expanduser().is_file())


def resolved_sampler(settings: Mapping[str, Any], model: Any, length: int, shortest: int | None = None) -> dict[str, Any]:
    """A sampler's settings with what only the model can say: its window, and groups from its h(n).

    Groups are those for `length` tokens, and at most as many as the shortest sequence has tokens.

    Raises:
        ValueError: if it cannot say it.
    """
    settings = dict(settings)
    if "window" in settings:
        settings["window"] = model.length if settings["window"] is None else checks.integer("sampler.window", settings["window"], 1)
        inside = [None if n is None else min(settings["window"], n) for n in (length, shortest)]
        settings["sampler"] = resolved_sampler(settings["sampler"], model, *inside)
    if "sizes" in settings:
        chosen = model.stored_curve.groups(length, settings["num_groups"], settings["sizes"])
        if settings["num_groups"] is None and settings["sizes"] in (None, "optimal") and chosen != {"num_groups": None, "sizes": None}:
            kind = "groups of best sizes" if chosen["sizes"] else "equal groups"
            measured = model.stored_curve.measured_length()
            assumed = "" if measured == length else f" of {measured} tokens, if h(n) depends on the visible share alone"
            log.info(
                f"{chosen['num_groups'] or len(chosen['sizes'])} {kind} lose at most 2 % of the structure, by evaluate.json in the run{assumed}"
            )
        if settings["num_groups"] is None and chosen["num_groups"] is not None and shortest is not None:
            chosen["num_groups"] = min(chosen["num_groups"], shortest)
        settings |= chosen
    return settings


def training(config: Mapping[str, Any], model: Any) -> Any:
    """The data whose training part the samples are to be searched for, None if they are not; raises ValueError if it cannot be read."""
    from dnadiff.metrics import memorization

    return memorization.training_data(model, config["trust"]) if config["copies"] else None


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
