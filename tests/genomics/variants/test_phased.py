"""Haplotypes of a sample: a world of two sites is enumerated, and files are literal."""

import itertools
import json
import math
import re

import numpy as np
import pandas
import pytest
import torch

import dnadiff
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.regions import open_source
from dnadiff.genomics.variants.effects import Scorer, default_method
from dnadiff.genomics.variants.methods import Block, ByKind, LogProb, Masked, Reading, VariantMethod
from dnadiff.genomics.variants.phased import HaplotypeBlock, Phased, column_of
from dnadiff.genomics.variants.variant import Alleles, Edit

VOCAB = DNATokenizer().vocab
GENOME = "ACGTTACGATGC"
SITES = 4, 7  # T and G


class AllOrders(HaplotypeBlock):
    """Every order, whose ratios are kept."""

    def orders(self, count, draws):
        return np.array(list(itertools.permutations(range(count))))


class Asked(VariantMethod):
    """Which edits are scored."""

    def __init__(self):
        self.edits = []

    def llr(self, network, edits, at_sites):
        self.edits += edits
        return np.full((len(network.strands), len(edits)), 2.0), None


@pytest.fixture
def vcf(tmp_path):
    """vcf(rows of (pos, ref, alt, genotype), samples): a VCF file of one record."""

    def write(*rows, samples="me", form="GT"):
        header = (
            "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\t"
            f"{samples}"
        )
        lines = [
            f"one\t{pos}\t.\t{ref}\t{alt}\t.\t.\t.\t{form}\t{call}" for pos, ref, alt, call in rows
        ]
        (tmp_path / "x.vcf").write_text("\n".join([header, *lines]) + "\n")
        return open_source(tmp_path / "x.vcf")

    return write


def scored(source, network, method, sample=None):
    """The effects of all alleles."""
    alleles = Alleles(network.reference, network.window)
    phased = Phased(*column_of(source, sample), alleles, network, method)
    scorer = Scorer(network, default_method(), alleles, phased=phased)
    return [each for chunk in scorer.chunks(source) for _, found in chunk for each in found], scorer


@pytest.mark.parametrize("independent", [True, False])
def test_two_sites_have_the_ratio_of_the_joint_distribution(
    independent, make_oracle, make_network, vcf
):
    draw = np.random.default_rng(3)
    joint = np.outer(*draw.random((2, 4))) if independent else draw.random((4, 4))
    joint /= joint.sum()
    letters = []
    for pair in itertools.product("ACGT", repeat=2):
        text = list(GENOME)
        text[SITES[0]], text[SITES[1]] = pair
        letters.append(DNATokenizer().encode("".join(text)).astype(np.int64))
    world = make_oracle(torch.tensor(np.array(letters)), torch.tensor(joint.ravel()), VOCAB)
    network = make_network(world, GENOME, window=12, stranded=True)
    source = vcf((5, "T", "A", "1|0"), (8, "G", "C,T", "1|2"))
    p = {
        pair: math.log(joint.ravel()[n])
        for n, pair in enumerate(itertools.product("ACGT", repeat=2))
    }
    exact = p["A", "C"] - p["T", "G"]
    singles = p["A", "G"] + p["T", "C"] - 2 * p["T", "G"]
    for method in (HaplotypeBlock(num_orders=2), AllOrders()):
        effects, scorer = scored(source, network, method)
        first, second, other = effects
        for each in (first, second):
            assert each.haplotype == "0:1" and each.LLR_haplotype_1 == pytest.approx(
                exact, abs=1e-6
            )
            assert each.LLR_sum_1 == pytest.approx(singles, abs=1e-6)
            assert math.isnan(each.LLR_haplotype_2)
        assert other.haplotype == "" and math.isnan(other.LLR_sum_2)  # alone on its copy
        assert scorer.audit.haplotypes == 0
    assert (abs(exact - singles) < 1e-9) == independent
    edit = Edit("one", 4, "TACG", "AACC")
    ((_, variance),) = [AllOrders().difference(Reading(network, edit, np.zeros(4), False))]
    assert variance < 1e-12  # each order is exact


@pytest.mark.parametrize(
    ("calls", "labels"),
    [
        (("0|1", "0|1", "1|1"), ("0:2", "0:2", "0:2")),
        (("1|0", "0/1", "1|0"), ("0:1", "", "0:1")),
        (("1/1", "1|1", "./."), ("0:1|0:2", "0:1|0:2", "")),
        (("1", "1", "."), ("0:1", "0:1", "")),
        (("1|0", "0|1", "1|."), ("0:1", "", "0:1")),
        (("0|1:7", "0|1:8", "0|1:8"), ("", "8:2", "8:2")),
        (("0|1:7", "1|1:.", "0|1:7"), ("7:2", "7:2", "7:2")),
        (("0|1:7", "0|1:.", "1/1:."), ("", "0:2", "0:2")),
    ],
)
def test_alleles_of_one_copy_and_one_phase_set_are_joined(
    calls, labels, inconsistent, make_network, vcf
):
    network = make_network(inconsistent(length=24, local=True), GENOME * 4, window=24)
    rows = [(pos, "ACGT"[n], "T", call) for pos, n, call in zip((1, 2, 3), (0, 1, 2), calls)]
    source = vcf(*rows, form="GT:PS")
    effects, _ = scored(source, network, Asked())
    assert tuple(each.haplotype for each in effects) == labels
    for each in effects:
        assert [each.LLR_haplotype_1 == 2, each.LLR_haplotype_2 == 2] == [
            f":{copy}" in each.haplotype for copy in "12"
        ]


def test_far_alleles_are_not_joined_and_indels_stay_where_they_are_written(
    inconsistent, make_network, vcf
):
    network = make_network(inconsistent(length=24, local=True), GENOME * 4, window=24)
    asked = Asked()
    rows = (
        (2, "C", "G"),
        (5, "TA", "T"),
        (8, "G", "GTT"),
        (24, "C", "A"),
        (31, "C", "T"),
        (38, "C", "T"),
    )
    effects, _ = scored(vcf(*((*row, "1|1") for row in rows)), network, asked)
    names = [bool(each.haplotype) for each in effects]
    assert names == [True, True, True, True, True, False]
    # the first three are within 12 bases; 24 and 31 follow each other within 6
    joined = Edit("one", 1, "CGTTACG", "GGTTCGTT"), Edit("one", 23, "CACGTTAC", "AACGTTAT")
    assert asked.edits == [joined[0], joined[0], joined[1], joined[1]]
    # a base that another row deletes
    effects, scorer = scored(vcf((5, "TAC", "T", "1|0"), (6, "A", "G", "1|0")), network, asked)
    assert math.isnan(effects[0].LLR_haplotype_1) and not math.isnan(effects[0].LLR_sum_1)
    assert scorer.audit.haplotypes == 1 and len(asked.edits) == 4


def test_a_haplotype_with_an_indel_predicts_all_places_between(inconsistent, make_network):
    network = make_network(inconsistent(length=12), GENOME * 3, window=12)
    edit = Edit("one", 14, "GTTA", "CTTAGG")
    pair = network.pair(edit, False)
    assert [len(each) for each in HaplotypeBlock().blocks(pair)[0]] == [6, 6]
    substitutions = network.pair(Edit("one", 14, "GTTA", "CTTG"), False)
    assert len(HaplotypeBlock().blocks(substitutions)[0][0]) == 2
    long = make_network(inconsistent(length=200), "ACGT" * 100, window=200)
    assert HaplotypeBlock().blocks(long.pair(Edit("one", 100, "A" * 70, "C"), False)) == [None]


@pytest.mark.parametrize(
    ("samples", "chosen", "call", "message"),
    [
        (
            "a\tb",
            None,
            "1|0\t0|1",
            "sample_name is missing; set sample_name to one of a, b, the samples of .*x.vcf",
        ),
        ("a\tb", "c", "1|0\t0|1", "sample_name is c; set sample_name to one of a, b"),
        (
            "a",
            None,
            "0|2",
            r"x.vcf: line 3: the genotype of a is '0\|2', expected one or two of the 2",
        ),
        ("a", None, "0|1|1", r"x.vcf: line 3: the genotype of a is '0\|1\|1', expected one or two"),
        ("a", None, "A|C", r"x.vcf: line 3: the genotype of a is 'A\|C', expected one or two of"),
    ],
)
def test_what_is_no_genotype_of_one_sample_is_refused(
    samples, chosen, call, message, inconsistent, make_network, vcf
):
    network = make_network(inconsistent(), GENOME)
    with pytest.raises(ValueError, match=message):
        scored(vcf((3, "G", "T", call), samples=samples), network, Asked(), chosen)


def test_the_command_writes_haplotypes_in_every_format(cli, trained, tmp_path):
    (tmp_path / "g.fa").write_text(f">two\n{'ACGTTGA' * 40}\n")
    header = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\ta\tb\n"
    rows = [f"two\t{pos}\t.\t{ref}\t{alt}\t.\t.\t.\tGT\t0/1\t1|0" for pos, ref, alt in (
        (50, "A", "C"), (54, "TG", "T"), (57, "A", "C"), (200, "T", "A"),
    )]  # fmt: skip
    (tmp_path / "x.vcf").write_text(header + "\n".join(rows) + "\n")
    args = [f"checkpoint={trained}", "vcf=x.vcf", "genome=g.fa", "phased=true", "num_orders=2"]
    for name in ("y.tsv", "y.vcf", "y.parquet"):
        status, out, err = cli(
            "variants", *args, "sample_name=b", f"output={name}", "report=y.html"
        )
        assert status == 0, err
        assert re.search(r"haplotypes with several alleles +1\n", out)
        assert "haplotypes without a value" in out and "no haplotype" not in err + out
        (tmp_path / "y.html").unlink()
    found = pandas.read_csv("y.tsv", sep="\t", na_values=".")
    other = pandas.read_parquet("y.parquet")
    assert found["haplotype"].fillna("").tolist() == ["0:1"] * 3 + [""]
    assert found["LLR_haplotype_1"].notna().tolist() == [True] * 3 + [False]
    assert found["LLR_haplotype_1"].nunique() == 1 and found["LLR_haplotype_2"].isna().all()
    np.testing.assert_allclose(found["LLR_sum_1"][0], found["LLR"][:3].sum(), atol=2e-6)
    np.testing.assert_allclose(other["LLR_haplotype_1"], found["LLR_haplotype_1"])
    assert other["haplotype"].tolist()[0] == "0:1" and other["haplotype"].isna().tolist()[3]
    text = (tmp_path / "y.vcf").read_text()
    assert "##INFO=<ID=haplotype,Number=A,Type=String," in text
    assert re.search(r"haplotype=0:1;LLR_haplotype_1=-?\d", text)
    assert json.loads((tmp_path / "y.tsv.json").read_text())["settings"]["phased"] == "b"
    given = {"method": ByKind(Masked(), *[Block(num_orders=2)] * 2, LogProb()), "sample_name": "b"}
    frame = dnadiff.load(trained, device="cpu").variants("x.vcf", "g.fa", phased=True, **given)
    assert frame["haplotype"].tolist() == found["haplotype"].fillna("").tolist()
    np.testing.assert_allclose(frame["LLR_sum_1"], found["LLR_sum_1"], atol=2e-6)
    # all calls of the other sample are unphased
    status, out, err = cli("variants", *args, "sample_name=a", "output=u.tsv")
    assert status == 0 and re.search(r"haplotypes with several alleles +0\n", out)
    assert (err + out).count("no haplotype has several alleles: the genotypes in x.vcf") == 1
    (tmp_path / "t.tsv").write_text("chrom\tpos\tref\talt\ntwo\t50\tA\tC\n")
    for given, message in (
        (args, "sample_name is missing; set sample_name to one of a, b"),
        (
            [args[0], "vcf=t.tsv", *args[2:]],
            "phased=true needs a VCF with genotypes, and t.tsv has none; leave phased out",
        ),
        ([args[0], "saturate=two:1-9", *args[2:]], "phased is about rows of vcf="),
        ([*args[:3], "sample_name=a"], "sample_name is for phased=true"),
    ):
        status, _, err = cli("variants", *given, "output=z.tsv")
        assert status == 1 and message in err and len(err.splitlines()) == 1
        assert not (tmp_path / "z.tsv").exists()
