"""Synonymous against nonsense and missense SNVs in the held-out genes of E. coli K-12.

    python scripts/studies/variants/coding.py --checkpoint RUN [--output DIR] [--genes N]
    [--per-class N] [--list] [--table] [--collect FILE]

Only genes that are inside the test part of the network's own split, read once. All SNVs of the
codons between start and stop are classified by the genetic code, and of each gene and class at most
`--per-class` are drawn. Left out: genes of several parts (joined, or with alternative products),
those that are not one open reading frame, and SNVs where coding sequences overlap. Scores: the
network (`masked`), Markov models of orders 6 and 12 of the training part, and codon usage of the
training genes, which is given the reading frame. AUROC is the probability that a synonymous SNV has
the higher score; intervals are over genes. Novel bases are in no 24-mer of the training part.
"""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path += [str(Path(__file__).parent)]
import measures
import scoring
import study

from dnadiff.data.genome.genome import Genome
from dnadiff.data.kmers import KmerSet
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.store.files import bundled

CDS = "ecoli_K12_MG1655.CDS.bed.gz"
CLASSES = ("synonymous", "missense", "nonsense")
MARKOV = ("order 6", "order 12")
NAMES = ("network", *MARKOV, "codon usage")
BASES = "ACGT"
COMPLEMENT = dict(zip(BASES, "TGCA"))


class Gene(NamedTuple):
    """A coding sequence in one part."""

    name: str
    record: str
    start: int
    end: int
    strand: str


class SNV(NamedTuple):
    """A single-nucleotide variant of a gene.

    Attributes:
        position: 0-based.
        ref, alt: bases of the + strand.
        codons: as in CTG>CTA.
    """

    gene: str
    record: str
    position: int
    ref: str
    alt: str
    kind: str
    codons: str


def genetic_code() -> dict[str, str]:
    """Codon to amino acid, * for stops (bacterial code, table 11)."""
    from Bio.Data import CodonTable

    table = CodonTable.unambiguous_dna_by_id[11]
    return {**table.forward_table, **dict.fromkeys(table.stop_codons, "*")}


def snvs_of_gene(letters: str, gene: Gene) -> list[SNV]:
    """All SNVs of a gene without those in its first and last codon and in stops.

    Args:
        letters: of the + strand.
    """
    code = genetic_code()
    found = []
    body = letters if gene.strand == "+" else str(reverse_complement(letters))
    for place in range(3, len(body) - 3):
        codon_start = place - place % 3
        codon = body[codon_start : codon_start + 3]
        for alt in BASES:
            if alt == body[place] or codon not in code or code[codon] == "*":
                continue
            new = codon[: place % 3] + alt + codon[place % 3 + 1 :]
            kind = (
                "nonsense"
                if code[new] == "*"
                else "synonymous"
                if code[new] == code[codon]
                else "missense"
            )
            position = gene.start + place if gene.strand == "+" else gene.end - 1 - place
            ref, there = (
                (body[place], alt)
                if gene.strand == "+"
                else (COMPLEMENT[body[place]], COMPLEMENT[alt])
            )
            found.append(SNV(gene.name, gene.record, position, ref, there, kind, f"{codon}>{new}"))
    return found


def read_parts(path: Path) -> list[Gene]:
    """The rows of a BED file of coding sequences; a gene of several parts has several."""
    with gzip.open(path, "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if line.strip()]
    return [Gene(r[3], r[0], int(r[1]), int(r[2]), r[5]) for r in rows]


class Genes:
    """The coding sequences of a genome that can be read codon by codon.

    Attributes:
        frames: genes in one part whose length is a multiple of 3, with at most one stop inside (a
            selenocysteine).
        left_out: the other rows by reason.
        overlaps: for each record (L,) bool, whether several coding sequences share a base.
    """

    def __init__(self, parts: list[Gene], genome: Genome) -> None:
        self.genome = genome
        rows = Counter(part.name for part in parts)
        self.frames: list[Gene] = []
        self.left_out: dict[str, list[Gene]] = {"several parts": [], "no open reading frame": []}
        depth = {record: np.zeros(length, np.uint8) for record, length in genome.lengths.items()}
        for part in parts:
            depth[part.record][part.start : part.end] += 1
            if rows[part.name] > 1:
                self.left_out["several parts"].append(part)
            elif not self._is_open(part):
                self.left_out["no open reading frame"].append(part)
            else:
                self.frames.append(part)
        self.overlaps = {record: each > 1 for record, each in depth.items()}

    def letters(self, gene: Gene, strand: str = "+") -> str:
        """The bases of a gene."""
        return DNATokenizer().decode(self.genome.window(gene.record, gene.start, gene.end, strand))

    def codons(self, gene: Gene) -> list[str]:
        """The codons of a gene in reading direction."""
        letters = self.letters(gene, gene.strand)
        return [letters[i : i + 3] for i in range(0, len(letters), 3)]

    def _is_open(self, gene: Gene) -> bool:
        code = genetic_code()
        codons = self.codons(gene)
        return (gene.end - gene.start) % 3 == 0 and sum(
            code.get(codon) == "*" for codon in codons[:-1]
        ) <= 1


def inside(gene: Gene, interval: tuple[str, int, int]) -> bool:
    """Whether a gene is inside (record, start, end)."""
    record, low, high = interval
    return gene.record == record and low <= gene.start and gene.end <= high


def chosen_snvs(
    genes: Genes, held_out: tuple[str, int, int], number: int | None, per_class: int
) -> tuple[list[SNV], dict]:
    """SNVs of the first genes of the held-out part, and how many genes and SNVs were left out."""
    draw = np.random.default_rng(0)
    rows = []
    overlapping = 0
    chosen = [gene for gene in genes.frames if inside(gene, held_out)][:number]
    for gene in chosen:
        found = snvs_of_gene(genes.letters(gene), gene)
        alone = [each for each in found if not genes.overlaps[each.record][each.position]]
        overlapping += len(found) - len(alone)
        for kind in CLASSES:
            of_kind = [each for each in alone if each.kind == kind]
            rows += [
                of_kind[i] for i in sorted(draw.permutation(len(of_kind))[:per_class].tolist())
            ]
    left_out = {
        reason: len({part.name for part in parts if inside(part, held_out)})
        for reason, parts in genes.left_out.items()
    }
    kinds = Counter(row.kind for row in rows)
    return rows, {
        "genes": len(chosen),
        **{kind: kinds[kind] for kind in CLASSES},
        **left_out,
        "SNVs in overlaps": overlapping,
    }


def codon_usage(genes: Genes, training: tuple[str, int, int], rows: list[SNV]) -> np.ndarray:
    """log frequency of the new codon minus that of the old one in the genes of the training
    part."""
    counts = Counter(
        codon
        for gene in genes.frames
        if inside(gene, training)
        for codon in genes.codons(gene)[:-1]
    )
    logs = {codon: np.log(counts[codon] + 0.5) for codon in genetic_code()}
    return np.array(
        [logs[new] - logs[old] for old, _, new in (row.codons.partition(">") for row in rows)]
    )


class Study:
    """The pieces of the study; scores of SNVs are kept in files of their own, and tables need
    `snvs` and `auroc` alone."""

    tables = "snvs", "auroc", "auroc_novel"

    def __init__(self, subject: scoring.Subject, options) -> None:
        self.subject = subject
        self.genes = Genes(read_parts(bundled(CDS)), subject.genome)
        number, per_class = (4, 3) if options.quick else (options.genes, options.per_class)
        self.rows, self.counts = chosen_snvs(self.genes, subject.part("test"), number, per_class)
        self.kept = subject.kept(
            options, options.output, snvs=scoring.digest(self.rows), split=subject.split
        )
        self.pieces = {
            "snvs": lambda: (
                self.counts
                | {"novel": int(self.novel().sum()), "weights": subject.hashes["weights"]}
            ),
            "network": self.network,
            "markov": self.markov,
            "codon_usage": lambda: {
                "codon usage": codon_usage(self.genes, subject.part("train"), self.rows).tolist()
            },
            "auroc": lambda: self.auroc(np.ones(len(self.rows), bool)),
            "auroc_novel": lambda: self.auroc(self.novel()),
        }

    def network(self) -> dict:
        """LLR by `masked`, the default for SNVs, on both strands."""
        rows = [scoring.Variant(r.record, r.position + 1, r.ref, r.alt) for r in self.rows]
        return {"network": self.subject.scores(self.kept, "network", rows)["LLR"].tolist()}

    def markov(self) -> dict:
        """LLR by Markov models of the training part."""
        positions = np.array([r.position for r in self.rows])
        alts = np.array([BASES.index(r.alt) for r in self.rows])
        where = self.subject.genome, self.subject.part("test")[0], positions, alts
        return {
            f"order {order}": measures.markov_llr(model, order, *where).tolist()
            for order, model in self.subject.markov.items()
        }

    def novel(self) -> np.ndarray:
        """Whether no 24-mer of the training part covers the site: (n,)."""
        to_bases, (record, low, high) = DNATokenizer().bases, self.subject.part("test")
        seen = KmerSet([to_bases(ids) for ids in self.subject.data.sequences("train")])
        covered = seen.covered(to_bases(self.subject.genome.window(record, low, high)))
        return ~covered[[row.position - low for row in self.rows]]

    def auroc(self, chosen: np.ndarray) -> dict:
        """AUROC of synonymous against each other class, of the chosen SNVs."""
        pieces = {**self.kept["network"], **self.kept["markov"], **self.kept["codon_usage"]}
        scores = {name: np.array(pieces[name]) for name in NAMES}
        kinds = np.array([row.kind for row in self.rows])
        gene = np.array([row.gene for row in self.rows])
        found = {}
        for other in CLASSES[1:]:
            used = np.isin(kinds, ("synonymous", other)) & chosen
            positive = kinds[used] == "synonymous"

            def measure(score, weight, positive=positive):
                return measures.auroc(score, positive, weight)

            found[other] = measures.bootstrap(
                measure, {n: s[used] for n, s in scores.items()}, gene[used], MARKOV
            )
        return found


def table(rows: dict) -> str:
    """The numbers of SNVs and AUROC with intervals, from the file that `--collect` writes."""
    if not {"snvs", "auroc"} <= rows.keys():
        return ""
    counts = rows["snvs"]
    lines = []
    for other in reversed(CLASSES[1:]):
        for name, each in rows["auroc"][other].items():
            minus = [
                measures.shown(each["minus"][order], sign=True) if order in each["minus"] else ""
                for order in MARKOV
            ]
            novel = (
                measures.shown(rows["auroc_novel"][other][name]) if "auroc_novel" in rows else ""
            )
            lines.append([name, other, measures.shown(each), *minus, novel])
    header = [
        "score",
        "synonymous against",
        "AUROC (95 %)",
        "minus order 6",
        "minus order 12",
        "AUROC, novel bases",
    ]
    said = (
        f"{counts['genes']} genes; {counts['synonymous']:,} synonymous, {counts['missense']:,} "
        f"missense and {counts['nonsense']:,} nonsense SNVs, "
        f"{counts['novel']:,} of all at novel bases. Left out in the test part: "
        f"{counts['several parts']} genes of several parts, "
        f"{counts['no open reading frame']} that are no open reading frame, and "
        f"{counts['SNVs in overlaps']:,} SNVs where coding sequences overlap."
    )
    return f"{said}\n\n{study.markdown(header, lines)}"


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/variants/coding")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--genes", type=int, help="only the first of them")
    parser.add_argument(
        "--per-class",
        type=int,
        default=15,
        help="SNVs of each gene and class (default: %(default)s)",
    )
    options = parser.parse_args()
    scoring.run(
        lambda: Study(scoring.Subject(options.checkpoint, scoring.ECOLI), options), options, table
    )


if __name__ == "__main__":
    main()
