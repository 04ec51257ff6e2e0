"""Execute the notebooks of docs/notebooks and store them with their outputs.

    python scripts/docs/notebooks.py [NAME ...]      # all, or those with these names

Each runs in an empty folder, in a process of its own. Nothing is stored if a cell fails.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

try:
    import nbformat
    from nbclient import NotebookClient
except ModuleNotFoundError as error:
    raise SystemExit(
        f"error: notebooks need a package that is not installed ({error}): pip install -e "
        "'.[docs]' in the checkout"
    ) from None

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
SECONDS = 600  # of a cell, on a slow machine


def main(names: list[str]) -> None:
    """Execute them one after the other."""
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = (
        "1"  # the debugger of Jupyter warns about frozen modules
    )
    for name in names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(
                notebook,
                timeout=SECONDS,
                resources={"metadata": {"path": folder}},
                record_timing=False,
            ).execute()
        seconds = time.monotonic() - start
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                if output.get("name") == "stderr":
                    raise SystemExit(f"error: {path.name} prints to stderr: {output['text'][:300]}")
        notebook.metadata.pop("widgets", None)
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(f"{path.name}: {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
