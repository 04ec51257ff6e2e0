"""Records of samples: how a sample and the way it was made are written as FASTA, as JSON lines or
as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dnadiff.config import Config, Json

if TYPE_CHECKING:
    from dnadiff.sampler.base import Sampler

FASTA = (".fa", ".fasta", ".fna")
JSONL = ".jsonl"
TEXT = (".txt", JSONL)
Writer: TypeAlias = Callable[
    [str, str, Mapping[str, object]], bytes
]  # name, text and header of a record -> its bytes


def fasta_record(name: str, text: str, about: Mapping[str, object]) -> bytes:
    """A FASTA record whose header has `key=value` pairs."""
    from dnadiff.design.provenance import header_value
    from dnadiff.formats.fasta import as_bytes, synthetic_record

    return as_bytes(
        synthetic_record(name, text, **{key: header_value(value) for key, value in about.items()})
    )


def jsonl_record(name: str, text: str, about: Mapping[str, Json]) -> bytes:
    """A line of JSON."""
    about = {**about, "log_weight": float(about["log_weight"])} if "log_weight" in about else about
    return (
        json.dumps(
            {"name": name, "synthetic": True, **about, "text": text}, ensure_ascii=False
        ).encode()
        + b"\n"
    )


def text_record(name: str, text: str, about: Mapping[str, object]) -> bytes:
    """The text, followed by an empty line."""
    return text.encode() + b"\n\n"


def writer_of(output: Path) -> Writer:
    """The function that formats records for a file of this name."""
    name = output.name.removesuffix(".gz")
    return (
        fasta_record
        if name.endswith(FASTA)
        else jsonl_record
        if name.endswith(JSONL)
        else text_record
    )


def header_of(sampler: Sampler, config: Config) -> dict[str, Json]:
    """How the samples were made, for their headers: the name of the sampler on the command line,
    and settings that are not the default."""
    from dnadiff.design.provenance import header_settings, sampler_name

    label = (
        ",".join(map(str, config["label"]))
        if isinstance(config["label"], list)
        else config["label"]
    )
    settings = {
        "label": (label, None),
        "guidance": (config["guidance"], 1),
        "gc": (config["gc"], None),
    }  # value and default
    changed = {name: value for name, (value, default) in settings.items() if value != default}
    if config["reward"]:
        method = config["method"]["_target_"].rpartition(".")[0].rpartition(".")[2]
        changed |= {"method": method} | ({} if method == "best_of_n" else {"beta": config["beta"]})
    # The calls are those of the batch, known afterwards.
    return {
        "sampler": sampler_name(sampler),
        "calls": 0,
        **header_settings(sampler),
        **changed,
        "seed": config["seed"],
    }


def check_suffix(output: Path, is_dna: bool) -> None:
    """Raise ValueError unless DNA is written to FASTA, or text to .txt or .jsonl."""
    allowed = [
        end + compressed for compressed in ("", ".gz") for end in (FASTA if is_dna else TEXT)
    ]
    if not output.name.endswith(tuple(allowed)):
        raise ValueError(
            f"output {output} is the name of another kind of file; this model writes "
            f"{', '.join(allowed)}"
        )
