"""The grid of designed sigma-70 promoters of Urtecho et al. 2019 (Biochemistry 58:1539), whose
names spell their elements.

A name ends in `_bgSTART:END`: the part of the E. coli genome that the elements were put into.
Promoters in one background share most of their bases, so a background is in one part only.
Controls, whose names begin with `neg` or `pos`, are not of the grid.
"""

from __future__ import annotations

import re
from pathlib import Path

from typing_extensions import Unpack, override

from dnadiff import checks
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.store.files import resolve
from dnadiff.supervised.labeled import LabeledSequences, LabeledTask, LabeledTaskSettings
from dnadiff.supervised.table import read_rows

_BACKGROUND, _CONTROLS = re.compile(r"_bg(\d+:\d+)"), ("neg", "pos")


class PromoterGrid(LabeledTask):
    """A table of designed promoters with a column of names.

    Args:
        start, end: the bases of a sequence that are the promoter, 0-based and half-open; the rest
            are adapters.
    """

    def __init__(
        self,
        path: str,
        sequence_column: str = "sequence",
        label_column: str = "expression",
        name_column: str = "name",
        start: checks.Natural = 24,
        end: checks.PositiveInt = 174,
        name: str = "ecoli_sigma70",
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        self.path = str(path)
        self.columns = {
            "task.sequence_column": checks.name("task.sequence_column", sequence_column),
            "task.label_column": checks.name("task.label_column", label_column),
            "task.name_column": checks.name("task.name_column", name_column),
        }
        self.start, self.end = (
            checks.integer("task.start", start, 0),
            checks.integer("task.end", end),
        )
        if self.end <= self.start:
            raise ValueError(
                f"task.end {self.end} is not after task.start {self.start}; give the bases of the "
                "promoter, such as 24 and 174"
            )
        super().__init__(name, columns=[self.columns["task.label_column"]], **settings)

    @override
    def sources(self) -> list[Path]:
        return [resolve(self.path)]

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        label_source = f"column {self.columns['task.label_column']!r}"
        found, controls, number = LabeledSequences(self.path, label_source=label_source), 0, 0
        for number, (sequence, label, name) in read_rows(self.path, self.columns):
            where = f"{self.path}: line {number}"
            if name.startswith(_CONTROLS):
                controls += 1
                continue
            background = _BACKGROUND.search(name)
            if background is None:
                raise ValueError(
                    f"{where} has the name {name!r}, which has no background such as "
                    "_bg977040:977190; complete or remove it"
                )
            if len(sequence) < self.end:
                raise ValueError(
                    f"{where} has {len(sequence)} bases, and the promoter ends at {self.end}; set "
                    "task.end to less"
                )
            self.target.check([label], where)
            found.add(tokenizer, sequence[self.start : self.end], label, "train", where)
            found.groups.append(background[1])
        if not found.labels:
            raise ValueError(f"{self.path} has no promoter of the grid; add some")
        found.notes = {"controls_left_out": controls, "backgrounds": len(set(found.groups))}
        return found
