"""Published folders made of the files in tests/parity."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

PARITY = Path(__file__).parents[1] / "parity"


@pytest.fixture(scope="session")
def folder_of():
    """folder_of(name, path, change of the weights, changed keys, binary) -> the folder, and the
    arrays of the parity file."""

    def make(name, tmp_path, change=lambda weights: weights, settings=None, binary=False):
        with safe_open(PARITY / f"{name}.safetensors", "pt") as file:
            config, arrays = (
                json.loads(file.metadata()["config"]),
                {key: file.get_tensor(key) for key in file.keys()},  # noqa: SIM118
            )
        weights = {
            key.removeprefix("weights."): value
            for key, value in arrays.items()
            if key.startswith("weights.")
        }
        if name.startswith("mdlm"):
            weights = {f"backbone.{key}": value for key, value in weights.items()}
            config = {
                "vocab_size": 33,
                "model_length": 24,
                "hidden_dim": 64,
                "cond_dim": 16,
                "n_blocks": 2,
                "n_heads": 4,
                "dropout": 0.1,
            }
            config["time_conditioning"] = False
        config |= {"model_type": name.split("_")[0]} | (settings or {})
        tmp_path.mkdir(exist_ok=True)
        (tmp_path / "config.json").write_text(json.dumps(config))
        weights = change(weights)
        if binary:
            torch.save(weights, tmp_path / "pytorch_model.bin")
        else:
            save_file(weights, tmp_path / "model.safetensors")
        return tmp_path, arrays

    return make
