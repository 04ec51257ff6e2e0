"""The page of the effects of variants in a file."""

import json
import tracemalloc

import pytest

from dnadiff.genomics.variants.work import PLACE, effects_of
from dnadiff.options.base import Result
from dnadiff.report.page import write
from dnadiff.report.variants import groups_of, kind_of_change, page
from dnadiff.variants import VariantsOptions

CSQ = (
    '##INFO=<ID=CSQ,Number=.,Type=String,Description="Consequence annotations from Ensembl VEP. '
    'Format: Allele|Consequence|IMPACT">'
)
ANN = (
    '##INFO=<ID=ANN,Number=.,Type=String,Description="Functional annotations: '
    "'Allele | Annotation | Annotation_Impact' \">"
)
LLR = (
    "##INFO=<ID=LLR,Number=A,Type=Float,"
    'Description="log p(ALT) - log p(REF) under the model, nats">'
)
ROWS = [
    ("c", 2, "a", "A", "C,G", "CSQ=G|missense_variant|x,C|stop_gained&splice|x;LLR=-3,0.5"),
    ("c", 5, ".", "CA", "C", "CSQ=-|frameshift_variant|x;LLR=-4"),
    ("c", 7, ".", "C", "T", "DP=3;LLR=1"),
    ("c", 9, ".", "C", "<DEL>", "CSQ=-|coding|x"),
]


def vcf(path, line=CSQ, rows=ROWS):
    header = ["##fileformat=VCFv4.2", line, LLR, "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"]
    lines = ["\t".join(map(str, [*row[:5], ".", ".", row[5]])) for row in rows]
    path.write_text("\n".join([*header, *lines]) + "\n")
    return path


def test_alleles_are_grouped_by_their_first_consequence(tmp_path):
    path = vcf(tmp_path / "x.vcf")
    frame = effects_of(path)
    assert frame["LLR"].tolist() == [-3, 0.5, -4, 1] and list(frame)[:5] == list(PLACE)
    groups = ["stop_gained", "missense_variant", "frameshift_variant", "none"]
    assert groups_of(path, frame) == ("consequence (CSQ)", groups)
    texts = [(*row[:5], row[5].replace("CSQ", "ANN")) for row in ROWS]
    assert groups_of(vcf(path, ANN, texts), frame) == ("consequence (ANN)", groups)
    assert groups_of(vcf(path, "##x"), frame)[1] == [
        *("transversion", "transition", "deletion", "transition")
    ]
    assert [kind_of_change("AC", "GT"), kind_of_change("A", "ACC")] == ["MNV", "insertion"]


def test_alleles_of_some_places_are_read_from_every_format(tmp_path):
    path = vcf(tmp_path / "x.vcf")
    frame = effects_of(path)
    frame.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    for file in sorted(tmp_path.iterdir()):
        found = effects_of(file, chrom={"c"}, pos={2, 7, 9})
        assert found["pos"].tolist() == [2, 2, 7] and found["LLR"].tolist() == [-3, 0.5, 1]
        nothing = effects_of(file, chrom={"other"}, pos={2})
        assert nothing.empty and list(nothing) == list(frame)


def test_alleles_that_are_not_wanted_are_not_kept(tmp_path):
    rows = "".join(f"c\t{pos}\t.\tA\tC\t0.5\n" for pos in range(1, 20001))
    (tmp_path / "x.tsv").write_text("chrom\tpos\tid\tref\talt\tLLR\n" + rows)
    tracemalloc.start()
    assert len(effects_of(tmp_path / "x.tsv", chrom={"c"}, pos={1, 20000})) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6  # all rows need 19 MB


@pytest.mark.parametrize("kept", [4, 0])
def test_the_page_has_the_strongest_alleles_and_what_is_left_out(tmp_path, kept):
    path = vcf(tmp_path / "x.vcf", rows=[*ROWS[: kept or 0], ROWS[3]])
    options = VariantsOptions.model_construct(
        vcf=str(path), saturate=None, checkpoint="run", genome="g.fa", browser=None
    )
    content = {
        "rows": len(ROWS),
        "skipped": {"a symbolic allele": 1},
        "without_value": 0,
        "alleles": {"SNVs": 3, "indels": 1},
        "training_part": "none",
        "settings": {"window": 64},
    }
    found = page(Result(content, (path,)), options)
    text = write(found, tmp_path / "x.html").read_text()
    assert "a symbolic allele" in text
    if not kept:
        assert found.sentence == "No allele of 4 rows has a value." and found.table is None
        return
    assert found.sentence == (
        "4 alleles in 4 rows: LLR (nats) from -4.00 to 1.00, median -1.25; the strongest is c:5 "
        "CA>C with -4.00."
    )
    assert [row[1] for row in found.table.rows] == ["CA>C", "A>C", "C>T", "A>G"]
    assert json.dumps(found.table.rows[1]) == '["c:2", "A>C", "a", -3.0, "stop_gained"]'
