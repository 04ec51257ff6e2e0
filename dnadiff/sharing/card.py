"""The model card: `README.md` in the format of the Hugging Face Hub, written from what is recorded
of a model by the template `card.md.j2`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dnadiff.config import Config, Json, config_dir
from dnadiff.data.splits import MAX_HELD_OUT
from dnadiff.sharing.record import bits_text

_SHOWN = 8  # held-out records named in the table
_POINTS = 8  # of h(n)
_GUIDE = "RESPONSIBLE_USE.md"


def model_card(name: str, about: Config) -> str:
    """The card of a model.

    Args:
        name: of the model, its title.
        about: as `dnadiff.sharing.record.summary` returns it; optionally with `duplicate_tied` and
            `dtype` of the weights in the file.
    """
    is_dna = about["alphabet"] == "DNA"
    kind = ["dna", "genomics"] if is_dna else ["text"]
    metadata = {
        "library_name": "dnadiff",
        "license": about["license"] or "unknown",  # what the Hub calls one that is not stated
        "tags": [*kind, "masked-diffusion", "language-model", about["network"].lower()],
        "pipeline_tag": "fill-mask",
    }
    split = {
        "split": about["split"],
        "hash of records and split": about["split_hash"],
        **{f"tokens, {part}": number for part, number in (about["split_tokens"] or {}).items()},
        **{
            f"records with held-out parts, {part}": named(names)
            for part, names in (about["held_out_records"] or {}).items()
        },
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"cell": _cell, "bits": bits_text}
    return environment.get_template("card.md.j2").render(
        name=name,
        about=about,
        is_dna=is_dna,
        metadata=yaml.safe_dump(metadata, sort_keys=False),
        split=split.items(),
        points=_points(about["curve"]) if about["curve"] else [],
        guide=_guide(),
        round=round,
    )


def _cell(value: Json) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def named(records: Sequence[str]) -> str:
    """The first records, and how many more there are; a run stores at most `MAX_HELD_OUT` names."""
    least = "at least " if len(records) == MAX_HELD_OUT else ""
    return ", ".join(records[:_SHOWN]) + (
        f" and {least}{len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    )


def _points(curve: Config) -> list[tuple[float, float]]:
    """Points of h(n) at equal distances."""
    last = len(curve["visible"]) - 1
    shown = sorted({round(i * last / (_POINTS - 1)) for i in range(_POINTS)})
    return [(curve["visible"][i], curve["bits"][i]) for i in shown]


def _guide() -> str:
    """The guide of the package for models of DNA, its headings one level deeper."""
    lines = (config_dir().parent / _GUIDE).read_text(encoding="utf-8").splitlines()[1:]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines).strip()
