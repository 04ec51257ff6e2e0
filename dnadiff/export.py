"""`python -m dnadiff.export`: a trained model as a folder to share: published layout, what loads it
back, and a model card."""

import re
from typing import Literal, Self

from pydantic import model_validator

from dnadiff.options.base import Checkpoint, Options, Result
from dnadiff.options.command import command
from dnadiff.progress import table


class ExportOptions(Options):
    """A trained model as a folder to share, in the layout of published Caduceus and MDLM weights.

        python -m dnadiff.export checkpoint=RUN output=my_model license=apache-2.0

    The folder has config.json and model.safetensors (the published layout), dnadiff.json
    (objective, noise, tokenizer, data, split, likelihood, hash of the weights), README.md (the
    model card) and, if the run has one, evaluate.json. Paths of this machine are left out.
    checkpoint=my_model then works in every command; data that do not ship with dnadiff are named
    again by data=.
    """

    chooses_threads = False
    checkpoint: Checkpoint
    output: str | None = None
    """folder; it appears when it is complete; null: model in the run folder"""
    name: str | None = None
    """title of the model card; null: the name of the folder"""
    license: str | None = None
    """of the weights, an identifier of the Hugging Face Hub: apache-2.0, cc-by-4.0, other, ...;
    null: as recorded, or unknown"""
    data_license: str | None = None
    """of the training data, in words; null: as recorded"""
    duplicate_tied: bool = True
    """false writes tied projections once, for a smaller file that only dnadiff loads"""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """of the weights in the file, which are rounded; null: as in the network"""
    note: str | None = None
    """for the model card: how it was trained, what it is for"""

    @model_validator(mode="after")
    def _license_is_an_identifier(self) -> Self:
        if self.license is not None and not re.fullmatch(r"[\w.-]{1,60}", self.license):
            raise ValueError(
                f"license {self.license!r} is not an identifier of the Hugging Face Hub, such as "
                "apache-2.0, cc-by-4.0 or other"
            )
        return self


@command(ExportOptions)
def export(options: ExportOptions) -> Result:
    """Export; the only path of the result is the folder."""
    from dnadiff.sharing.record import export_model

    output = options.output_path("model")
    target, about = options.into(export_model, source=options.checkpoint, output=output)
    size = (target / "model.safetensors").stat().st_size
    rows = [("network", about["network"]), ("parameters", f"{about['parameters']:,}")]
    print(table([*rows, ("weights", f"{size:,} bytes")]))
    if about["data_license"] is None:
        print(
            "the license of the training data is not recorded: give data_license=, or state it in "
            "README.md before you share the folder"
        )
    print(f"files are in {target}")
    return Result(about, (target,))


main = export.main

if __name__ == "__main__":
    main()
