"""Haplotypes of one sample of a VCF file: neighboring variants on one copy of a chromosome, scored
as one variant. The difference from the sum of their own scores is their interaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import nan
from typing import Any

import numpy as np

from dnadiff.formats.regions import Row, VariantSource, listing
from dnadiff.genomics.variants.methods import Block, Network, Places, VariantMethod
from dnadiff.genomics.variants.variant import (
    TOKENIZER,
    Alleles,
    Edit,
    Pair,
    Skipped,
    clipped,
    trimmed,
)

_MOST = 64  # places of a haplotype that are predicted one after the other
_GENOTYPE = re.compile(r"(\.|\d+)(?:([|/])(\.|\d+))?")
NO_VALUE = f"its alleles overlap, are long, or differ at more than {_MOST} places"


class HaplotypeBlock(Block):
    """The chain rule over the places at which the windows differ, in random orders; with an
    insertion or deletion, over all places from the first variant to the last.

    The bases between substitutions stay visible, so that the estimand is log p(alleles given the
    rest), exact for the model when all orders are averaged. None for more than 64 places.
    """

    def blocks(self, pair: Pair) -> list[tuple[Places, Places] | None]:
        here = np.flatnonzero(pair.ref != pair.alt)
        places = (here, here) if pair.equal else pair.aligned(0)
        return [None if places is None or len(places[0]) > _MOST else places]


def column_of(source: VariantSource, sample: str | None) -> tuple[str, int]:
    """The name of a sample and the column of its genotypes; None is the only one. ValueError if
    there is none, or several."""
    names = source.header[-1].split("\t")[9:] if source.header else []
    if not names:
        raise ValueError(
            f"phased=true needs a VCF with genotypes, and {source.name} has none; leave phased out"
        )
    if sample is None and len(names) == 1:
        sample = names[0]
    if sample not in names:
        raise ValueError(
            f"sample_name is {sample or 'missing'}; set sample_name to one of {listing(names)}, "
            f"the samples of {source.name}"
        )
    return sample, 9 + names.index(sample)


@dataclass(frozen=True)
class Phased:
    """The haplotypes of a sample of a VCF file.

    Rows are in one group if they follow each other within a quarter of a window, all of them are
    within half of it, and they are of one phase set (PS; 0 without one). Homozygous and haploid
    calls are in any set. The alleles of a copy in a group are a haplotype. Calls with `/` that are
    not homozygous, and missing ones, belong to none.

    Args:
        sample: its name.
        column: of its genotypes, by `column_of`.
        network: the model, its genome and its window.
        method: of haplotypes.
    """

    sample: str
    column: int
    alleles: Alleles
    network: Network
    method: VariantMethod

    def call(self, row: Row) -> tuple[tuple[int, ...], str]:
        """The number of the allele on both copies, 0 for REF or none, and the phase set, empty for
        any; ValueError naming file and line for what is no genotype."""
        cells = row.text.split("\t")
        values = dict(zip(cells[8].split(":"), cells[self.column].split(":")))
        text = values.get("GT", ".")
        match = _GENOTYPE.fullmatch(text)
        first, mark, second = match.groups(".") if match else "???"
        numbers = tuple(int(each) if each.isdecimal() else 0 for each in (first, second))
        if match is None or max(numbers) > len(row.alts):
            raise ValueError(
                f"{row.where}: the genotype of {self.sample} is {text!r}, expected one or two of "
                f"the {len(row.alts) + 1} alleles, as 1, 0|1 or 0/1; correct the line, or leave "
                "phased out"
            )
        if mark == "." or first == second:
            return numbers, ""
        if mark == "/":
            return (0, 0), ""
        return numbers, values.get("PS", ".").replace(".", "0")

    def groups(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        """The rows in groups, with those between their first and last ones."""
        group: list[Row] = []
        chrom = phase_set = ""
        first = end = 0  # of the phased rows of the group
        for row in rows:
            numbers, own = self.call(row)
            after = row.pos + len(row.ref)
            is_same = row.chrom == chrom and own in ("", phase_set or own)
            is_near = first <= row.pos <= end + self.network.window // 4
            if group and not (is_same and is_near and after - first <= self.network.window // 2):
                yield group
                group = []
                chrom = phase_set = ""
            group.append(row)
            if any(numbers):
                first, end = (first, max(end, after)) if chrom else (row.pos, after)
                chrom, phase_set = row.chrom, phase_set or own
        if group:
            yield group

    def added(
        self, rows: Sequence[Row], results: Sequence[Sequence[Any]]
    ) -> tuple[list[list[Any]], list[float]]:
        """The effects of the rows of whole groups, with the columns of their haplotypes; and the
        LLR of each haplotype.

        Only haplotypes of several alleles have columns: `haplotype` is the phase set and the copy,
        as 5:1, `LLR_haplotype_1` that of copy 1, and `LLR_sum_1` the sum of its alleles' LLR.
        """
        found = [list(of_row) for of_row in results]
        waiting = iter(found)
        ratios = []
        for group in self.groups(rows):
            effects = list(islice(waiting, len(group)))
            calls = list(map(self.call, group))
            phase_set = max(own for _, own in calls) or "0"
            for copy in (1, 2):
                members = [
                    (row, of_row, number - 1)
                    for row, of_row, (numbers, _) in zip(group, effects, calls)
                    if (number := numbers[copy - 1]) and not isinstance(of_row[number - 1], Skipped)
                ]
                if len(members) < 2:
                    continue
                llr = self.llr(members)
                ratios.append(llr)
                values = {
                    f"LLR_haplotype_{copy}": llr,
                    f"LLR_sum_{copy}": sum(of_row[at].LLR for _, of_row, at in members),
                }
                for _, of_row, at in members:
                    name = f"{of_row[at].haplotype}|{phase_set}:{copy}".lstrip("|")
                    of_row[at] = of_row[at]._replace(haplotype=name, **values)
        return found, ratios

    def llr(self, members: Sequence[tuple[Row, object, int]]) -> float:
        """The LLR of one edit from the first allele to the last, given their rows and numbers; NaN
        if they overlap, or the edit has no value. Alleles are where the file has them: an indel in
        a repeat is not moved past its neighbors."""
        row = members[0][0]
        reference = self.network.reference
        record = self.alleles.record(row.chrom, row.where)
        edits = sorted(
            trimmed(Edit(record, each.pos - 1, each.ref.upper(), each.alts[at].upper()))
            for each, _, at in members
        )
        ref = alt = ""
        start = end = row.pos - 1
        for edit in edits:
            # the columns of an alignment would be shifted between an indel and the next variant
            if edit.start < end or (edit.surplus and self.network.alignment is not None):
                return nan
            between = TOKENIZER.decode(clipped(reference, record, end, edit.start))
            ref, alt, end = ref + between + edit.ref, alt + between + edit.alt, edit.end
        here = TOKENIZER.decode(clipped(reference, record, start, end))
        whole = self.alleles.edit_of(row, Edit(record, start, ref, alt), here)
        if isinstance(whole, str):  # the reason
            return nan
        unused = np.zeros((len(self.network.strands), 1, 0))  # predictions at the site
        return float(self.method.llr(self.network, [whole], unused)[0].mean())
