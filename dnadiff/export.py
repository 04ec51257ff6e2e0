"""`python -m dnadiff.export`: a trained model as a folder to share: published layout, what loads it
back, and a model card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dnadiff import commands
from dnadiff.config import SHARED, Config, Keys
from dnadiff.progress import table

if TYPE_CHECKING:
    import torch

    from dnadiff.denoiser import BaseDenoiser

FILES = ("config.json", "model.safetensors", "dnadiff.json", "evaluate.json", "README.md")
_LICENSE = re.compile(r"[\w.-]{1,60}")
_OF_MODEL = ("license", "data_license", "note")  # if they are null, those recorded
KEYS: Keys = {
    **SHARED,
    **dict.fromkeys(("name", *_OF_MODEL), str | None),
    "duplicate_tied": bool,
    "dtype": Literal["float32", "float16", "bfloat16"] | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Export, and return the folder."""
    import torch

    from dnadiff.sharing import record
    from dnadiff.sharing.card import write_card
    from dnadiff.sharing.folder import check_folder, new_folder
    from dnadiff.store.disk import write_json
    from dnadiff.weights import checkpoint, exported
    from dnadiff.weights.layouts import published_layout
    from dnadiff.weights.published import export_published

    if config["license"] is not None and not _LICENSE.fullmatch(config["license"]):
        raise ValueError(
            f"license {config['license']!r} is not an identifier of the Hugging Face Hub, such as "
            "apache-2.0, cc-by-4.0 or other"
        )
    output = run_dir / "model" if config["output"] is None else config["output"]
    target = check_folder(output, config["overwrite"], FILES)
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    published_layout(loaded.denoiser.backbone)  # refuses networks without one
    dtype = None if config["dtype"] is None else getattr(torch, config["dtype"])
    changed = dtype is not None and rounded(
        loaded.denoiser, dtype
    )  # before the hash of the weights is compared with that of the evaluation
    evaluation = record.stored_evaluation(loaded)
    if changed and evaluation is None:  # what the source records is of other weights
        loaded = replace(loaded, origin=replace(loaded.origin, likelihood=None, curve=None))
    origin = record.origin_of(loaded, evaluation, config["trust"], reads_data=True)
    given = {key: config[key] or vars(origin)[key] for key in _OF_MODEL}
    origin = replace(origin, data=record.without_paths(origin.data), **given)
    name = config["name"] or target.name
    about = record.summary(loaded, origin) | {
        key: config[key] for key in ("duplicate_tied", "dtype")
    }
    with new_folder(target) as folder:
        export_published(
            loaded.denoiser,
            folder,
            needs_description=True,
            duplicate_tied=config["duplicate_tied"],
            dtype=dtype,
        )
        write_json(folder / exported.DESCRIPTION, exported.description(loaded, origin))
        if evaluation is not None:  # sampling chooses its groups from it
            write_json(folder / "evaluate.json", record.shared_evaluation(evaluation, name))
        write_card(folder, name, about)
    size = (target / "model.safetensors").stat().st_size
    print(
        table(
            [
                ("network", about["network"]),
                ("parameters", f"{about['parameters']:,}"),
                ("weights", f"{size:,} bytes"),
            ]
        )
    )
    if origin.data_license is None:
        print(
            "the license of the training data is not recorded: give data_license=, or state it in "
            "README.md before you share the folder"
        )
    print(f"files are in {target}")
    return target


def rounded(denoiser: BaseDenoiser, dtype: torch.dtype) -> bool:
    """Round the weights to what a file of `dtype` can hold; returns whether that changed them."""
    from dnadiff.weights.tensors import fingerprint, round_weights

    before = fingerprint(denoiser)
    round_weights(denoiser, dtype)
    return fingerprint(denoiser) != before


def main() -> None:
    """The command line."""
    commands.run("export", run, KEYS)


if __name__ == "__main__":
    main()
