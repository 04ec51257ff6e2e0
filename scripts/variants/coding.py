"""Synonymous against nonsense and missense SNVs in the held-out genes of E. coli K-12.

    python scripts/variants/coding.py --checkpoint RUN [--output DIR] [--genes N] [--per-class N] [--list] [--table]

Only genes that are inside the held-out 80-90 % of the genome. All SNVs of the codons between start and stop are classified by the genetic
code, and of each gene and class at most `--per-class` are drawn. Scores: the network (`masked`), Markov models of orders 6 and 12 fitted
on the training part, and codon usage of the training genes, which is given the reading frame. AUROC is the probability that a
synonymous SNV has the higher score; intervals are over genes. Each piece is one gene set and one scorer.
"""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).parents[1] / "experiments"), str(Path(__file__).parent)]
import measures
import study

import dnadiff
from dnadiff.data import bundled
from dnadiff.data.genome.genome import Genome
from dnadiff.data.nucleotides import reverse_complement
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.markov.model import BackoffMarkov

FASTA, CDS = "bundled:ecoli_K12_MG1655.fa.gz", "ecoli_K12_MG1655.CDS.bed.gz"
CLASSES = ("synonymous", "missense", "nonsense")
BASES = "ACGT"
COMPLEMENT = dict(zip(BASES, "TGCA"))


def genetic_code() -> dict[str, str]:
    """Codon to amino acid, * for stops (bacterial code, table 11)."""
    from Bio.Data import CodonTable

    table = CodonTable.unambiguous_dna_by_id[11]
    return {**table.forward_table, **dict.fromkeys(table.stop_codons, "*")}


def snvs_of_gene(letters: str, start: int, end: int, strand: str) -> list[tuple[int, str, str, str, str]]:
    """(0-based position, base of the + strand, alternative there, class, codons as in CTG>CTA) of a gene without its first and last codon."""
    code, found = genetic_code(), []
    body = letters if strand == "+" else str(reverse_complement(letters))
    for place in range(3, len(body) - 3):
        codon_start = place - place % 3
        codon = body[codon_start : codon_start + 3]
        for alt in BASES:
            if alt == body[place] or codon not in code or code[codon] == "*":
                continue
            new = codon[: place % 3] + alt + codon[place % 3 + 1 :]
            kind = "nonsense" if code[new] == "*" else "synonymous" if code[new] == code[codon] else "missense"
            position = start + place if strand == "+" else end - 1 - place
            ref, there = (body[place], alt) if strand == "+" else (COMPLEMENT[body[place]], COMPLEMENT[alt])
            found.append((position, ref, there, kind, f"{codon}>{new}"))
    return found


def genes() -> list[tuple[str, int, int, str, str]]:
    """Record, start, end, name and strand of each coding sequence."""
    with gzip.open(bundled.path(CDS), "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if line.strip()]
    return [(r[0], int(r[1]), int(r[2]), r[3], r[5]) for r in rows if (int(r[2]) - int(r[1])) % 3 == 0]


def chosen_snvs(genome: Genome, number: int | None, per_class: int) -> list[tuple]:
    """(gene, record, position, ref, alt, class, codons) of the held-out genes."""
    (record, length), draw, rows = next(iter(genome.lengths.items())), np.random.default_rng(0), []
    low, high = round(0.8 * length), round(0.9 * length)
    held_out = [g for g in genes() if low <= g[1] and g[2] <= high][:number]
    for _, start, end, name, strand in held_out:
        found = snvs_of_gene(DNATokenizer().decode(genome.window(record, start, end)), start, end, strand)
        for kind in CLASSES:
            of_kind = [each for each in found if each[3] == kind]
            for i in sorted(draw.permutation(len(of_kind))[:per_class].tolist()):
                rows.append((name, record, *of_kind[i]))
    return rows


def codon_usage(genome: Genome, rows: list[tuple]) -> np.ndarray:
    """log frequency of the new codon minus that of the old one in the genes of the training part."""
    (record, length), counts = next(iter(genome.lengths.items())), Counter()
    for _, start, end, _, strand in genes():
        if end <= round(0.8 * length):
            letters = DNATokenizer().decode(genome.window(record, start, end, strand))
            counts.update(letters[i : i + 3] for i in range(0, len(letters) - 3, 3))  # without the stop
    logs = {codon: np.log(counts[codon] + 0.5) for codon in genetic_code()}
    return np.array([logs[r[6].partition(">")[2]] - logs[r[6].partition(">")[0]] for r in rows])


def markov_scores(genome: Genome, rows: list[tuple], order: int) -> np.ndarray:
    """LLR by a Markov model of the training part."""
    (record, length) = next(iter(genome.lengths.items()))
    bases = DNATokenizer().bases(genome.window(record, 0, length))
    model = BackoffMarkov.fit([bases[: round(0.8 * length)]], order).tuned([bases[round(0.9 * length) :]])
    positions, alts = np.array([r[2] for r in rows]), np.array([BASES.index(r[4]) for r in rows])
    return measures.markov_llr(model, order, genome, record, positions, alts)


def result(rows: list[tuple], scores: dict[str, np.ndarray], reference: str) -> dict:
    """AUROC of synonymous against each other class."""
    kinds, group = np.array([r[5] for r in rows]), np.array([r[0] for r in rows])
    found = {}
    for other in CLASSES[1:]:
        used = np.isin(kinds, ("synonymous", other))
        positive = kinds[used] == "synonymous"
        measure = lambda score, weight, positive=positive: measures.auroc(score, positive, weight)  # noqa: E731
        found[other] = measures.bootstrap(measure, {n: s[used] for n, s in scores.items()}, group[used], reference)
    return found


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/variants/coding")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--genes", type=int, help="only the first of them")
    parser.add_argument("--per-class", type=int, default=50, help="SNVs of each gene and class")
    options = parser.parse_args()
    genome = Genome.open(FASTA)
    rows = chosen_snvs(genome, 4 if options.quick else options.genes, 3 if options.quick else options.per_class)
    settings = {"checkpoint": options.checkpoint, "snvs": len(rows)}
    kept = study.Kept(options.output / "quick" if options.quick else options.output, settings)

    def network() -> dict:
        frame = dnadiff.load(options.checkpoint).variants([(r[1], r[2] + 1, r[3], r[4]) for r in rows], genome)
        return {"scores": frame["LLR"].tolist()}

    def compared() -> dict:
        names = ("network", "order 6", "order 12", "codon usage")
        scores = {name: np.array(kept[name.replace(" ", "_")]["scores"]) for name in names}
        return {kind: result(rows, scores, reference) for kind, reference in (("minus order 6", "order 6"), ("minus order 12", "order 12"))}

    pieces = {
        "network": network,
        "order_6": lambda: {"scores": markov_scores(genome, rows, 6).tolist()},
        "order_12": lambda: {"scores": markov_scores(genome, rows, 12).tolist()},
        "codon_usage": lambda: {"scores": codon_usage(genome, rows).tolist()},
        "auroc": compared,
    }
    study.work(pieces, kept, options)
    if "auroc" in kept and not options.list:
        print("\n" + table(kept))


def table(kept: study.Kept) -> str:
    """AUROC with intervals."""
    lines = ["| score | against | AUROC | 95 % | minus order 6 | minus order 12 |", "|---|---|---|---|---|---|"]
    found = kept["auroc"]
    for other in CLASSES[1:]:
        for name, six in found["minus order 6"][other].items():
            twelve = found["minus order 12"][other][name]
            cells = [f"{v['difference']:+.3f} [{v['difference_low']:+.3f}, {v['difference_high']:+.3f}]" for v in (six, twelve)]
            lines.append(f"| {name} | {other} | {six['value']:.3f} | {six['low']:.3f} to {six['high']:.3f} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
