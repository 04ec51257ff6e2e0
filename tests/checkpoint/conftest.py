"""Exported folders."""

import pytest

from dnadiff import export
from dnadiff.config import compose


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory):
    """The folder that `export` writes of the trained run."""
    folder = tmp_path_factory.mktemp("exported")
    return export.run(compose("export", [f"checkpoint={trained}", f"output={folder}/model"]), folder, [])
