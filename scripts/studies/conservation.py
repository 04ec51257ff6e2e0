"""What related genomes add: variants, constraint, likelihoods and samples of networks that read the
columns of an alignment, beside the columns alone.

    python scripts/studies/conservation.py [--output DIR] [--only NAME] [--list] [--table] [--quick]
    [--collect docs/tables/conservation.json] [--restore docs/tables/conservation.json]

Targets: E. coli K-12 with 47 other gammaproteobacteria, S. cerevisiae with four genomes of two
other species, and the human mitochondrion with 91 other animals, all in ../shared/data.

SNVs of genes of K-12 are drawn as in `variants/coding.py`. Everything is chosen on `valid` (90-100
% of the genome), and the pieces of `test` (80-90 %) are run once, at the end. AUROC is the
probability that a synonymous SNV has the higher score; intervals are over genes. Scores:

- `frequencies`, `HKY` and `mixture`: log p(alt) - log p(ref) of the column alone. `HKY` has one
  base profile and 12 rates. Transitions are 3 times as fast as transversions, chosen on `valid`.
- `INPUT-SEED`: networks of equal size and training; `none` reads no columns.
- `mixture and Markov`: `mixture` plus a quarter of a Markov model of order 6.
- `third`, `rate` and `phase` do not know the alleles: the third position of a codon, the mean log
  rate of the column, and its contrast to the other two phases nearby.

A gene is in a relative if half of its bases are aligned. A sample keeps the reading frame if it has
a stop codon at its end and no other.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pandas
import study
from matplotlib.figure import Figure

sys.path += [str(Path(__file__).parent / "variants")]
import coding
import measures
import scoring

from dnadiff.data.alignment import GAP, Alignment
from dnadiff.diffusion.bootstrap import ConfidenceInterval, blocks, ratio
from dnadiff.diffusion.vocab import DEPTH, FREQUENCY, POSTERIOR, RATE
from dnadiff.formats.sequences import iter_sequences, write_fasta
from dnadiff.genomics.held_out import Scores
from dnadiff.genomics.phylogeny import fit, phase_contrast, sample_positions
from dnadiff.plot import WIDTH, figure
from dnadiff.store.files import bundled

DATA = Path(__file__).parents[2] / "../shared/data"
GENOMES = DATA / "genomes"
VARIANTS = DATA / "variants"
RELATED = {  # files, target
    "ecoli": ("*bacter*/*.gz", scoring.ECOLI),  # enterobacterales and gammaproteobacteria
    "yeast": ("saccharomyces/*.gz", str(GENOMES / "scerevisiae_R64-1-1.fa.gz")),
    "human": ("metazoa_mitogenomes.fa.gz", ""),
}
FITNESS = {
    "ecoli": "dms_infA_ecoli_kelsic2016.tsv.gz",
    "yeast": "dms_HSP82_yeast_mishra2016.tsv.gz",
}
INPUTS = ("none", "posterior", "frequencies", "both")
SMALL = [
    *("backbone.d_model=16", "backbone.n_layers=1", "data.batch_size=4"),
    *("trainer.max_steps=4", "trainer.val_check_interval=4", "data.max_valid_windows=8"),
]
ORDER = 6  # of the Markov model
NUMBERS = (1, 2, 4, 8, 16, 32)  # of relatives
DEPTHS = (0, 1, 10, 20, 30, 38, 1000)  # edges of the groups
FEW = 25  # items of a class; with fewer there is no AUROC
GROUPS = {  # markers and colors of the picture
    "missense, all": "missense",
    "missense, all, third": "missense, third positions of codons",
    "nonsense, all": "nonsense",
}
NAMED = {  # rows of the picture
    "third": "third position or not",
    "none-1": "network without columns",
    "frequencies": "base frequencies",
    "HKY": "HKY posterior",
    "mixture": "mixture posterior",
    "frequencies-1": "network, frequencies",
    "posterior-1": "network, posterior",
    "both-1": "network, both",
}
ESSENTIAL = "EcoGene Essentiality: Escherichia coli BW25113"


def read_table(name: str) -> pandas.DataFrame:
    """A table of variants with `record` and `position`, from 0."""
    table = pandas.read_csv(VARIANTS / name, sep="\t")
    return table.assign(record=table.chrom, position=table.pos - 1)


def bases(letters: Sequence[str]) -> np.ndarray:
    """0 to 3 for A, C, G and T."""
    return np.array([coding.BASES.index(letter) for letter in letters])


def llr(log_probs: np.ndarray, table: pandas.DataFrame) -> np.ndarray:
    """log p(alt) - log p(ref) of SNVs, whose bases have log-probabilities (n, 4)."""
    rows = np.arange(len(table))
    return log_probs[rows, bases(table.alt)] - log_probs[rows, bases(table.ref)]


def column_scores(alignment: Alignment, table: pandas.DataFrame) -> dict[str, np.ndarray]:
    """Scores of SNVs of one record by its columns, and their depth."""
    record = table.record.iloc[0]
    columns = alignment.columns(record, 0, alignment.records[record])
    here = columns[table.position]
    known = columns[:, DEPTH] > 0
    return {
        "frequencies": llr(here[:, FREQUENCY], table),
        "mixture": llr(here[:, POSTERIOR], table),
        "rate": here[:, RATE],
        "phase": phase_contrast(columns[:, RATE], known)[table.position],
        "depth": np.expm1(here[:, DEPTH]).round(),
    }


def aurocs(
    scores: Mapping[str, np.ndarray],
    table: pandas.DataFrame,
    groups: Mapping[str, Sequence[bool]],
    reference: str = "mixture",
) -> dict[str, dict]:
    """AUROC of each score in each group of a table with columns `positive` and `unit`, with
    intervals over units; left out if a class has too few items."""
    rows: dict[str, dict] = {name: {} for name in scores}
    for group, used in groups.items():
        used = np.asarray(used)
        positive = table.positive.to_numpy()[used]
        unit = table.unit.to_numpy()[used]
        if min(positive.sum(), (~positive).sum()) >= FEW:
            ranks = {n: np.unique(each[used], return_inverse=True)[1] for n, each in scores.items()}
            measure = partial(measures.auroc_of_ranks, positive)
            for name, each in measures.bootstrap(measure, ranks, unit, (reference,)).items():
                rows[name][group] = each
    return rows


def in_bits(found: ConfidenceInterval) -> dict:
    """An interval of nats in bits."""
    return {key: each / np.log(2) for key, each in found._asdict().items()}


def keeps_frame(bases: np.ndarray) -> bool:
    """Whether a sequence has a stop codon at its end and no other."""
    codons = np.array([*coding.BASES])[bases].reshape(-1, 3)
    code = coding.genetic_code()
    stops = [code["".join(codon)] == "*" for codon in codons]
    return stops[-1] and sum(stops) == 1


class Study:
    """The pieces of the study; each has rows of cells, which are numbers or intervals."""

    def __init__(self, folder: Path, settings: dict) -> None:
        self.folder = folder
        self.quick = settings["quick"]
        self.kept = study.Kept(folder)
        self.reading = [f"alignment={folder / 'ecoli.aln'}"]
        seeds = (1,) if self.quick else (1, 2, 3)
        self.networks = [f"{name}-{seed}" for name, seed in product(INPUTS, seeds)]
        self.pieces = {f"align-{name}": partial(self.align, name) for name in RELATED}
        self.pieces |= {f"train-{name}": partial(self.train, name) for name in self.networks}
        works = self.coding, self.relatives, self.bits, self.samples
        for part, work in product(("valid", "test"), works):
            self.pieces[f"{work.__name__}-{part}"] = partial(work, part)
        self.pieces |= {w.__name__: w for w in (self.constraint, self.fitness, self.mtdna)}

    @cached_property
    def subject(self) -> scoring.Subject:
        """K-12 with its split and its Markov models."""
        return scoring.Subject("ecoli", scoring.ECOLI)

    @cached_property
    def genes(self) -> coding.Genes:
        return coding.Genes(coding.read_parts(bundled(coding.CDS)), self.subject.genome)

    @cached_property
    def essential(self) -> pandas.Series:
        """1 for essential genes, 0 for others, by locus."""
        table = pandas.read_csv(VARIANTS / "tradis_essentiality_K12.tsv.gz", sep="\t", index_col=0)
        return table[ESSENTIAL][~table.index.duplicated()]

    def aligned(self, name: str = "ecoli") -> Alignment:
        """A finished alignment."""
        self.kept[f"align-{name}"]  # or else an error
        return Alignment(self.folder / f"{name}.aln")

    def align(self, name: str) -> dict:
        """Align, and describe each genome."""
        pattern, target = RELATED[name]
        files = [str(path) for path in sorted(GENOMES.glob(pattern))]
        if name == "human":
            target = str(self.folder / "human.fa")
            self.folder.mkdir(parents=True, exist_ok=True)
            write_fasta(target, [r for r in iter_sequences(files[0]) if r.name == "NC_012920.1"])
        related = ",".join(files[:: 1 + len(files) // 5] if self.quick else files)
        about = (
            f"genome={target}",
            f"related=[{related}]",
            f"each_record={name == 'human'}",
            "kappa=3",
        )
        output = self.folder / f"{name}.aln"
        study.command("align", *about, f"output={output}", "overwrite=true")
        made = Alignment(output)
        keys = ("identity", "coverage", "chance", "reason")
        genomes = (*made.genomes, *made.left_out)
        return {"rows": {g.name: {key: getattr(g, key) for key in keys} for g in genomes}}

    def train(self, network: str) -> dict:
        """Train one network by the recipe `enterobacteria`."""
        name, _, seed = network.partition("-")
        columns = [f"columns={name}", f"data.{self.reading[0]}"]
        arguments = ["experiment=enterobacteria", f"seed={seed}"]
        arguments += ["data.alignment=null"] if name == "none" else columns
        found = study.train(self.folder / network, arguments + SMALL * self.quick)
        del found["arguments"]  # with paths of this machine
        return found

    def network(self, table: pandas.DataFrame, name: str) -> np.ndarray:
        """LLR of SNVs by a network, (n,)."""
        subject = scoring.Subject(self.folder / name, scoring.ECOLI)
        alleles = zip(table.record, table.position + 1, table.ref, table.alt)
        rows = [scoring.Variant(*each) for each in alleles]
        reading = self.reading * ("none" not in name)
        return subject.scores(self.kept, name, rows, *reading).LLR.to_numpy()

    def snvs(self, region: tuple[str, int, int], per_class: int = 15) -> pandas.DataFrame:
        """SNVs of the genes of a region, with the place in the codon, from 0."""
        number = 60 if self.quick else None
        table = pandas.DataFrame(coding.chosen_snvs(self.genes, region, number, per_class)[0])
        place = [next(i for i in range(3) if each[i] != each[i + 4]) for each in table.codons]
        return table.assign(place=place, positive=table.kind == "synonymous", unit=table.gene)

    def columns(self, rows: np.ndarray, positions: Sequence[int], **model: object) -> np.ndarray:
        """Columns of K-12 by a phylogeny that is fitted to some of the genomes, (n, 10)."""
        aligned = self.aligned()
        ((record, length),) = aligned.records.items()
        codes = aligned.codes(record, 0, length)
        sampled = sample_positions([length])
        target = aligned.target(record, 0, length)[sampled]
        fitted = fit(
            codes[np.ix_(rows, sampled)], target, [*map(str, rows)], "target", kappas=(3,), **model
        )
        return fitted.columns(codes[np.ix_(rows, positions)])

    def coding(self, part: str) -> dict:
        """Synonymous against missense and nonsense SNVs, by codon position, depth, and gene."""
        table = self.snvs(self.subject.part(part))
        aligned = self.aligned()
        scores = column_scores(aligned, table) | {"third": (table.place == 2).to_numpy()}
        depth = scores.pop("depth")
        every = np.arange(len(aligned.genomes))
        one = {"profiles": (), "rates": np.geomspace(0.05, 8, 12).tolist()}
        scores["HKY"] = llr(self.columns(every, table.position, **one)[:, POSTERIOR], table)
        scores |= {name: self.network(table, name) for name in self.networks}
        where = self.subject.genome, table.record[0], table.position.to_numpy(), bases(table.alt)
        scores["Markov"] = measures.markov_llr(self.subject.markov[ORDER], ORDER, *where)
        scores["mixture and Markov"] = scores["mixture"] + scores["Markov"] / 4
        essential = (self.essential.reindex(table.gene) == 1).to_numpy()
        groups = {"all": depth >= 0, "essential": essential, "other": ~essential}
        for low, end in pairwise(DEPTHS):
            groups[f"depth {low} to {end - 1}"] = (depth >= low) & (depth < end)
        chosen = {}
        for kind, (group, used) in product(coding.CLASSES[1:], groups.items()):
            used = used & table.kind.isin(("synonymous", kind))
            third = used & (table.place == 2)
            first = used & (table.place == 0)
            name = f"{kind}, {group}"
            chosen |= {name: used, f"{name}, third": third, f"{name}, first": first}
        return {"rows": aurocs(scores, table, chosen)}

    def relatives(self, part: str) -> dict:
        """The mixture by number and distance of the genomes."""
        table = self.snvs(self.subject.part(part))
        rows = {}
        identity = np.array([each.identity for each in self.aligned().genomes])
        order = np.argsort(-identity)
        missense = table.kind != "nonsense"
        groups = {"all": missense, "third": missense & (table.place == 2)}
        for number in (*(n for n in NUMBERS if n < len(order)), len(order)):
            spread = order[np.linspace(0, len(order) - 1, number).round().astype(int)]
            chosen = {"nearest": order[:number], "spread": spread, "farthest": order[-number:]}
            for name, of in chosen.items():
                log_probs = self.columns(np.sort(of), table.position)[:, POSTERIOR]
                found = aurocs({"mixture": llr(log_probs, table)}, table, groups)["mixture"]
                rows[f"{name} {number}"] = {"identity": float(identity[of].mean()), **found}
        return {"rows": rows}

    def bits(self, part: str) -> dict:
        """Bits per base of columns alone, and of networks with and without them."""
        record, low, end = self.subject.part(part)
        columns = self.aligned().columns(record, low, end)[:, POSTERIOR]
        own = columns[np.arange(len(columns)), self.aligned().target(record, low, end)]
        nats = np.where(columns.any(1), -own, np.log(4))
        units = blocks(len(nats), 512 * 16)  # as the intervals of evaluate
        rows = {"mixture": {"bits": in_bits(ratio(nats, np.ones(len(nats)), units))}}
        for name, key in product(self.networks, ("bits", "without columns")):
            file = self.folder / name / f"{part}-{key[:4]}.npz"
            options = [f"part={part}", "orders=[]", "num_draws=8", f"windows={file}"]
            options += ["alignment=none"] if key != "bits" else []
            if key == "bits" or "none" not in name:
                study.evaluate(self.folder / name, file.with_suffix(".json"), *options)
                rows.setdefault(name, {})[key] = in_bits(Scores.load(file).mean())
        return {"rows": rows}

    def constraint(self) -> dict:
        """Essential genes against others, by the number of relatives that have the gene, and by the
        mean score of missense SNVs, which also decides between genes of equal number."""
        aligned = self.aligned()
        record = self.subject.genome.names[0]
        table = self.snvs((record, 0, aligned.records[record]), 20)
        table = table[table.kind == "missense"].reset_index()
        scores = column_scores(aligned, table)
        scores |= {name: self.network(table, name) for name in ("none-1", "posterior-1")}
        means = -pandas.DataFrame(scores).groupby(table.gene).mean()
        means = means.join((self.essential == 1).rename("positive"), how="inner")
        codes = {gene.name: aligned.codes(*gene[1:4]) for gene in self.genes.frames}
        has = np.array([((codes[name] < 4).mean(1) >= 0.5).sum() for name in means.index])
        found = {"relatives": has}
        for name, each in means[[*scores]].items():
            ranks = each.rank(pct=True).to_numpy()
            found |= {name: ranks, f"relatives, then {name}": has + ranks / 2}
        groups = {"all genes": has >= 0, "in 90 %": has >= 0.9 * len(aligned.genomes)}
        return {"rows": aurocs(found, means.assign(unit=means.index), groups, "relatives")}

    def fitness(self) -> dict:
        """Spearman's correlation with the fitness of missense SNVs; intervals over amino acids."""
        rows = {}
        for target, file in FITNESS.items():
            table = read_table(file).dropna(subset="dms_score")
            scores = column_scores(self.aligned(target), table)
            if target == "ecoli":
                scores |= {name: self.network(table, name) for name in ("none-1", "posterior-1")}
            measure = partial(measures.spearman, table.dms_score.to_numpy())
            found = measures.bootstrap(measure, scores, table.aa_change.str[1:-1])
            rows |= {f"{target}, {name}": {"Spearman": each} for name, each in found.items()}
        return {"rows": rows}

    def mtdna(self) -> dict:
        """Confirmed pathogenic against common variants of the human mitochondrion, by kind."""
        (path, *_) = sorted(VARIANTS.glob("human_mtdna_*_snv.tsv.gz"))
        table = read_table(path.name)
        unit = table.gene_change.fillna("").str.split(":").str[0]
        table = table.assign(positive=table.mitomap_status != "Cfrm", unit=unit)
        table = table[~table.positive | (table.gnomad_AC_hom >= 10)]
        scores = column_scores(self.aligned("human"), table)
        scores["phyloP100way"] = -table.phyloP100way.to_numpy()
        kinds = {kind: table.consequence == kind for kind in table.consequence.unique()}
        return {"rows": aurocs(scores, table, kinds, "phyloP100way")}

    def samples(self, part: str) -> dict:
        """Sequences of one held-out gene, given its columns."""
        aligned = self.aligned()
        number = 8 if self.quick else 200
        places = [
            gene[1:4]
            for gene in self.genes.frames
            if coding.inside(gene, self.subject.part(part)) and gene.strand == "+"
            if 300 <= gene.end - gene.start <= 450
        ]
        # With most of the relatives, and not one of the most conserved.
        places.sort(key=lambda each: (aligned.codes(*each) < GAP).mean())
        place = places[3 * len(places) // 4]
        columns = aligned.columns(*place)[:, POSTERIOR]
        noise = np.random.default_rng(0).gumbel(size=(number, *columns.shape))
        sets = {"columns alone": (columns + noise).argmax(-1)}
        output = self.folder / f"{part}.fa"
        run = f"checkpoint={self.folder / 'posterior-1'}", f"genome={scoring.ECOLI}"
        where = f"regions={place[0]}:{place[1] + 1}-{place[2]}", *self.reading
        how = f"num_samples={number}", f"output={output}", "overwrite=true"
        study.command("sample", *run, *where, *how)
        made = [record.sequence.decode().upper() for record in iter_sequences(str(output))]
        sets["posterior-1"] = np.stack([bases(each) for each in made])
        target = aligned.target(*place)
        others = aligned.codes(*place)
        rows = {}
        identity = {}
        for name, each in sets.items():
            same = (others == each[:, None]).sum(2) / (others < GAP).sum(1).clip(1)
            identity[name] = (each == target).mean(1)
            rows[name] = {
                "identity to the target": identity[name].mean(),
                "to the nearest relative": same.max(1).mean(),
                "reading frame kept": np.mean([keeps_frame(one) for one in each]),
                "distinct": len(np.unique(each, axis=0)),
            }
        with figure(WIDTH, 3) as (made, (axes,)):
            for name, each in identity.items():
                axes.hist(100 * each, bins=range(87, 100), histtype="step", label=name)
            axes.set(xlabel="identity to the target, %", ylabel="sequences")
            axes.legend(loc="upper left")
        self.save(made, f"samples-{part}")
        return {"place": place, "rows": rows}

    def save(self, made: Figure, name: str) -> None:
        made.savefig(self.folder / f"{name}.svg", metadata={"Date": None})

    def draw(self, part: str) -> None:
        """The pictures of `coding` and `relatives`."""
        rows = self.kept[f"coding-{part}"]["rows"]
        shown = [name for name in NAMED if name in rows]
        with figure(1.6 * WIDTH, 3.6) as (made, (axes,)):
            for marker, group in zip("o^s", GROUPS):
                cells = pandas.DataFrame([rows[name][group] for name in shown])
                low, high = cells.value - cells.low, cells.high - cells.value
                places = range(len(shown))
                label = GROUPS[group]
                axes.errorbar(cells.value, places, xerr=(low, high), fmt=marker, label=label)
            axes.set(xlabel="AUROC against synonymous SNVs", yticks=range(len(shown)))
            axes.set_yticklabels([NAMED[name] for name in shown])
            axes.invert_yaxis()
            axes.legend()
        self.save(made, f"coding-{part}")
        rows = self.kept[f"relatives-{part}"]["rows"]
        with figure(WIDTH, 3) as (made, (axes,)):
            for name in ("nearest", "spread", "farthest"):
                chosen = [key for key in rows if key.startswith(name)]
                numbers = [int(key.split()[1]) for key in chosen]
                values = [rows[key]["third"]["value"] for key in chosen]
                axes.plot(numbers, values, marker="o", label=name)
            axes.set(xlabel="related genomes", ylabel="AUROC within third positions")
            axes.set(xscale="log", xticks=numbers, xticklabels=numbers)
            axes.minorticks_off()
            axes.legend()
        self.save(made, f"relatives-{part}")

    def table(self) -> str:
        """The rows of finished pieces, and their pictures."""
        found = []
        for part in ("valid", "test"):
            if all(f"{work}-{part}" in self.kept for work in ("coding", "relatives")):
                self.draw(part)
        for name in filter(self.kept.__contains__, self.pieces):
            table = pandas.DataFrame(self.kept[name].get("rows", {})).T
            cells = [[row, *map(shown, each)] for row, each in zip(table.index, table.to_numpy())]
            found += [study.markdown([name, *table], cells)] if cells else []
        return "\n\n".join(found)


def shown(cell: object) -> str:
    """A number or an interval."""
    return measures.shown(cell) if isinstance(cell, dict) else str(cell)


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/conservation", {"quick": False}, {"quick": True})
