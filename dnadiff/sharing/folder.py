"""Models to share: a folder in the published layout with its model card, `README.md` in the format
of the Hugging Face Hub, which the template `card.md.j2` makes of what is recorded of the model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dnadiff.data.splits import MAX_HELD_OUT
from dnadiff.fields import Config, Json
from dnadiff.sharing import record
from dnadiff.store.disk import atomic_write, check_folder, new_folder, write_json
from dnadiff.store.objects import config_dir
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import DESCRIPTION, description, portable
from dnadiff.weights.published import export_published
from dnadiff.weights.tensors import fingerprint, round_weights

FILES = ("config.json", "model.safetensors", "dnadiff.json", "evaluate.json", "README.md")
_SHOWN = 8  # held-out records named in the table
_GUIDE = "RESPONSIBLE_USE.md"


def export_model(
    source: str,
    output: Path,
    *,
    name: str | None = None,
    license: str | None = None,
    data_license: str | None = None,
    note: str | None = None,
    duplicate_tied: bool = True,
    dtype: str | None = None,
    trust: Sequence[str] = (),
    overwrite: bool = False,
) -> tuple[Path, Config]:
    """Write a model as a folder to share; returns the folder and what its card says.

    Args:
        name: title of the card; None is the name of the folder.
        license, data_license, note: None is what the source records.
        duplicate_tied: write tied projections under both of their published names.
        dtype: that the weights are rounded to: float32, float16 or bfloat16.
    """
    target = check_folder(output, overwrite, FILES)
    loaded = checkpoint.load(source, trust)
    loaded.denoiser.backbone.published_layout()  # refuses networks without one
    before = fingerprint(loaded.denoiser)
    kind = None if dtype is None else getattr(torch, dtype)
    if kind is not None:  # before the hash of the weights is compared with that of the evaluation
        round_weights(loaded.denoiser, kind)
    evaluation = record.stored_evaluation(loaded)
    if evaluation is None and fingerprint(loaded.denoiser) != before:
        # What the source records is of other weights.
        loaded = replace(loaded, origin=replace(loaded.origin, likelihood=None, curve=None))
    origin = record.origin_of(loaded, evaluation, trust, reads_data=True)
    origin = replace(
        origin,
        data=record.without_paths(origin.data),
        license=license or origin.license,
        data_license=data_license or origin.data_license,
        note=note or origin.note,
    )
    about = record.summary(loaded, origin) | {"duplicate_tied": duplicate_tied, "dtype": dtype}
    title = name or target.name
    with new_folder(target) as folder:
        export_published(
            loaded.denoiser,
            folder,
            needs_description=True,
            duplicate_tied=duplicate_tied,
            dtype=kind,
        )
        write_json(folder / DESCRIPTION, description(loaded, origin))
        if evaluation is not None:  # sampling chooses its groups from it
            data = record.without_paths(evaluation["data"])
            model = evaluation["model"] | {"checkpoint": title}  # no path of this machine
            content = portable(evaluation | {"data": data, "model": model})
            write_json(folder / "evaluate.json", content)
        with atomic_write(folder / "README.md") as file:
            file.write(model_card(title, about).encode())
    return target, about


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
    # The guide of the package for models of DNA, its headings one level deeper.
    lines = (config_dir().parent / _GUIDE).read_text(encoding="utf-8").splitlines()[1:]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(cell=_cell, bits=record.bits_text, named=named)
    return environment.get_template("card.md.j2").render(
        name=name,
        about=about,
        is_dna=is_dna,
        metadata=yaml.safe_dump(metadata, sort_keys=False),
        guide="\n".join("#" * line.startswith("#") + line for line in lines).strip(),
        round=round,
    )


def _cell(value: Json) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def named(records: Sequence[str]) -> str:
    """The first records, and how many more there are; a run stores at most `MAX_HELD_OUT` names."""
    least = "at least " if len(records) == MAX_HELD_OUT else ""
    more = f" and {least}{len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    return ", ".join(records[:_SHOWN]) + more
