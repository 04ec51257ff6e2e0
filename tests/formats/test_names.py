"""Names with control characters are refused by every reader; all others are written as they are."""

import gzip
import sys

import pytest

from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.regions import Rows, open_source, read_bed, read_gtf
from dnadiff.formats.sequences import read_sequences, write_fasta
from dnadiff.progress import PrintableOutput
from dnadiff.report.page import ENVIRONMENT
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.ensemble import LengthLimits
from dnadiff.supervised.predictions import Columns, SequenceFile
from dnadiff.supervised.tasks import CsvTask

BAD = [
    "a\x1b[2J",
    "a\x00b",
    "a\x07",
    "a\x1cb",
    "a\x85b",
    "a\x9b31m",
    "a\u2028b",
    "a\u202eb",
    "a\x0bb",
]
GOOD = [
    "chr\u00e9",
    "a\u00a0b",
    "x|y;z",
    "<b>&amp;</b>",
    "'\"",
    "a:1-2(+)",
    "=1+1",
    "\u6f22\U0001f9ec",
]


def write(path, text):
    path.write_bytes(text.encode())
    return path


VCF = "##fileformat=VCFv4.2\n##contig=<ID={0}>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
GENBANK = "LOCUS       {0} 4 bp DNA\nACCESSION   {0}\nVERSION     {0}\nORIGIN\n        1 acgt\n//\n"
READERS = {
    "fasta": ("x.fa", ">{0} some words\nACGT\n", read_sequences),
    "genome": ("x.fa", ">{0}\nACGT\n", Genome),
    "genbank": ("x.gb", GENBANK, read_sequences),
    "manifest": ("m.tsv", "path\tlabel\nx.fa\t{0}\n", Genome),
    "bed": ("x.bed", "{0}\t0\t4\n", read_bed),
    "name in bed": ("x.bed", "chr1\t0\t4\t{0}\n", read_bed),
    "gtf": ("x.gtf", '{0}\t.\texon\t1\t4\t.\t+\t.\tgene_id "g"\n', read_gtf),
    "gene": ("x.gtf", 'a\t.\texon\t1\t4\t.\t+\t.\tgene_id "{0}"\n', read_gtf),
    "vcf": ("x.vcf", VCF + "{0}\t1\t.\tA\tC\t.\t.\t.\n", lambda path: list(open_source(path))),
    "id in vcf": (
        "x.vcf",
        VCF.format("chr1") + "chr1\t1\t{0}\tA\tC\t.\t.\t.\n",
        lambda path: list(open_source(path)),
    ),
    "variants": (
        "x.tsv",
        "chrom\tpos\tid\tref\talt\nc\t1\t{0}\tA\tC\n",
        lambda path: list(open_source(path)),
    ),
    "table": (
        "x.csv",
        'sequence,id\nACGT,"{0}"\n',
        lambda path: list(
            SequenceFile(
                str(path),
                DNATokenizer(),
                ClassTarget(),
                Columns("sequence", "id"),
                None,
                None,
                LengthLimits(),
            )
        ),
    ),
    "labels": (
        "x.csv",
        'sequence,label\nACGT,"{0}"\nACGA,b\n',
        lambda path: CsvTask(path).read(DNATokenizer()),
    ),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_name_with_a_control_character_is_refused(tmp_path, kind, name):
    file, text, read = READERS[kind]
    (tmp_path / "x.fa").write_text(">one\nACGT\n")
    path = write(tmp_path / file, text.replace("{0}", name))
    with pytest.raises(ValueError, match=r"contains a control character") as error:
        read(path)
    assert file.partition(".")[0] in str(error.value) or "the genome" in str(error.value)
    assert str(error.value).isprintable()


def test_names_in_python_are_checked_too():
    with pytest.raises(ValueError, match=r"variant 0: the name one\\x1b contains a control"):
        Rows([("one\x1b", 1, "A", "C")])


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "x.fa").write_bytes(b">chr\xe9 Jos\xe9\nACGT\n")
    with pytest.raises(ValueError, match="is not UTF-8 text; rename it"):
        read_sequences(tmp_path / "x.fa")
    (tmp_path / "x.fa").write_bytes(b">chr Jos\xe9\nACGT\n")  # a description may be
    assert read_sequences(tmp_path / "x.fa")[0].name == "chr"


@pytest.mark.parametrize("name", GOOD)
def test_other_names_are_written_as_they_are(tmp_path, name):
    path = write(tmp_path / "x.fa", f">{name} words\nACGT\n")
    records = read_sequences(path)
    write_fasta(tmp_path / "y.fa", records)
    assert (tmp_path / "y.fa").read_text(encoding="utf-8") == f">{name} words\nACGT\n"
    assert Genome(path).names == [name]
    bed = write(tmp_path / "x.bed", f"{name}\t0\t4\t{name}\n")
    assert read_bed(bed, {name: 4})[0][:4] == (name, 0, 4, name)
    row = next(iter(Rows([{"chrom": name, "pos": 1, "ref": "A", "alt": "C", "id": name}])))
    assert (row.chrom, row.id) == (name, name)
    shown = ENVIRONMENT.from_string("{{ name }}").render(name=name)
    assert "<b>" not in shown


def test_no_escape_sequence_reaches_a_page_or_the_terminal(capsys):
    page = ENVIRONMENT.from_string("{{ path }} {{ 2 }}").render(path="a\x1b[2J<b>")
    assert page == r"a\x1b[2J&lt;b&gt; 2"
    print("one\x1b[31m\ttwo\r\nthree", file=PrintableOutput(sys.stdout), end="")
    assert capsys.readouterr().out == "one\\x1b[31m\ttwo\\r\nthree"


def test_commands_print_names_of_files_escaped(cli, tmp_path):
    (tmp_path / "g.fa").write_text(">one\n" + "ACGTTGCAAC" * 200 + "\n")
    output = "'a\x1b[31mb.json'"
    status, out, err = cli("genome", "data.path=g.fa", f"output={output}", "hydra.run.dir=run")
    assert status == 0 and "\x1b" not in out + err and r"a\x1b[31mb.json" in out, err


def test_compressed_names_are_checked(tmp_path):
    (tmp_path / "x.fa.gz").write_bytes(gzip.compress(b">a\x1b[2J\nACGT\n"))
    with pytest.raises(ValueError, match=r"x\.fa\.gz: line 1: the name a\\x1b\[2J contains"):
        read_sequences(tmp_path / "x.fa.gz")
