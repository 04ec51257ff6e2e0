"""What is written next to the scores: the dependency matrix of a single variant, and the page with
heat maps of saturated regions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dnadiff.store.disk import atomic_write, check_output
from dnadiff.variant_effect.dependency import as_table, dependency
from dnadiff.variant_effect.network import Network
from dnadiff.variant_effect.summary import InputSummary


def picture_of(page: Path, number: int) -> Path:
    """The picture of a region, counted from 1, next to a page."""
    return page.with_name(f"{page.stem}_heat_map_{number}.png")


def pictures_of(page: Path) -> list[Path]:
    """The existing files that are named as pictures of a page. How many it will have is known when
    the scores are."""
    name = re.compile(rf"{re.escape(page.stem)}_heat_map_\d+\.png")
    return sorted(path for path in page.parent.glob("*.png") if name.fullmatch(path.name))


@dataclass(frozen=True)
class ExtraOutputs:
    """The files that are written when all variants have been scored.

    Attributes:
        matrix: the dependency matrix, a .tsv file; None for none.
        span: bases on each side of the variant in it.
        page: an .html file with heat maps, and pictures next to it; None for none.
    """

    network: Network
    summary: InputSummary
    matrix: Path | None
    span: int
    page: Path | None

    def check(self, output: Path, overwrite: bool) -> None:
        """Refuse, before anything is scored, what cannot be written; raises ValueError or OSError
        naming the key."""
        if self.page is not None:
            for file in (self.page, *pictures_of(self.page)):
                check_output(file, overwrite)
        if self.matrix is None:
            return
        if self.summary.alleles != 1:
            raise ValueError(
                "dependency writes the matrix of a single variant, and there are "
                f"{self.summary.alleles:,} alleles; give one variant"
            )
        if self.network.denoiser.left_to_right:
            raise ValueError(
                "dependency masks bases around the variant, which a model from left to right "
                "cannot do; leave dependency out"
            )
        if self.matrix.resolve() == output.resolve():
            raise ValueError(f"dependency {self.matrix} is the output as well; choose another name")
        check_output(self.matrix, overwrite)

    def missing(self) -> ExtraOutputs:
        """The outputs that have not been written yet."""
        matrix, page = (
            None if path is not None and path.exists() else path
            for path in (self.matrix, self.page)
        )
        return ExtraOutputs(self.network, self.summary, matrix, self.span, page)

    def write(self, draw: Callable[[Path], object]) -> None:
        """Write them; `draw` writes the page with its pictures."""
        if self.page is not None:
            draw(self.page)
        if self.matrix is not None and self.summary.first is not None:
            edit = self.summary.first
            with atomic_write(
                self.matrix, overwrite=True
            ) as file:  # `check` has refused a file that must be kept
                file.write(as_table(dependency(self.network, edit, self.span), edit.record))
            print(f"the dependency matrix is in {self.matrix}")
