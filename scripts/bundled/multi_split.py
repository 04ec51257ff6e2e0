"""Write the split of the bundled model `multi`: every genome is divided as for the model that was
trained on it alone.

    python scripts/bundled/multi_split.py

80-90 % of each record of E. coli, yeast and C. elegans chrI are for test and 90-100 % for
validation; human chr20 has its own split.
"""

from pathlib import Path

from dnadiff.data.splits import PARTS, FractionSplit

LENGTHS = {
    "ecoli": {"U00096.3": 4641652},
    "worm": {"chrI": 15072434},
    "yeast": {
        **{
            "chrI": 230218,
            "chrII": 813184,
            "chrIII": 316620,
            "chrIV": 1531933,
            "chrV": 576874,
            "chrVI": 270161,
            "chrVII": 1090940,
        },
        **{
            "chrVIII": 562643,
            "chrIX": 439888,
            "chrX": 745751,
            "chrXI": 666816,
            "chrXII": 1078177,
            "chrXIII": 924431,
            "chrXIV": 784333,
        },
        **{"chrXV": 1091291, "chrXVI": 948066, "chrM": 85779},
    },
}
FOLDER = Path(__file__).resolve().parents[2] / "dnadiff" / "data" / "bundled"


def rows() -> list[str]:
    """The lines of the BED file."""
    lines = [
        f"human:{line}"
        for line in (FOLDER / "human_chr20_GRCh37.split.bed")
        .read_text(encoding="ascii")
        .splitlines()
    ]
    for genome, lengths in LENGTHS.items():
        names = list(lengths)
        parts = FractionSplit()(list(lengths), list(lengths.values()))
        found = [(i.record, i.start, i.end, part) for part in PARTS for i in parts.get(part, ())]
        lines += [
            f"{genome}:{names[record]}\t{start}\t{end}\t{part}"
            for record, start, end, part in sorted(found)
        ]
    return lines


if __name__ == "__main__":
    (FOLDER / "multi.split.bed").write_text("\n".join(rows()) + "\n", encoding="ascii")
