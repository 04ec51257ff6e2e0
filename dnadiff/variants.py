"""`python -m dnadiff.variants`: effects of variants from a VCF file, a table, or of all variants of
some regions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from annotated_types import Interval
from pydantic import Field, model_validator

from dnadiff.fields import PositiveInt, as_list
from dnadiff.options.base import MODEL, BrowsedOptions, Group, ModelOptions, ShardedOptions, group
from dnadiff.options.command import command
from dnadiff.progress import log
from dnadiff.store.address import expand_user
from dnadiff.store.objects import build
from dnadiff.supervised import runs

if TYPE_CHECKING:
    from dnadiff.formats.regions import Region, VariantSource
    from dnadiff.jobs.job import Job

_OF_MODELS = ("window", "phased", "L2", "dependency", "sites_per_window", "calibrate_indels")
_OF_PRETRAINED = (*_OF_MODELS[1:], "stranded", "percentile")


class VariantsOptions(BrowsedOptions, ModelOptions, ShardedOptions):
    """Effects of variants, as log-likelihood ratios under a trained model.

        python -m dnadiff.variants checkpoint=RUN vcf=x.vcf.gz genome=g.fa output=y.vcf.gz
        python -m dnadiff.variants checkpoint=RUN saturate=promoter.bed genome=g.fa output=y.tsv
        python -m dnadiff.variants checkpoint=FINETUNE_RUN vcf=x.vcf.gz genome=g.fa output=y.tsv
        python -m dnadiff.variants variant_method=phylogeny alignment=g.aln vcf=x.vcf.gz genome=g.fa
          output=y.tsv

    Columns: LLR = log p(alt) - log p(ref) in nats, its Monte Carlo error SE (none for masked),
    LLR_forward and LLR_reverse of the strands, entropy (nats) and information (2 minus the entropy
    in bits) of the base at the site. An indel in a repeat has the same numbers wherever it is
    written. Of a fine-tuned run: predicted_REF, predicted_ALT, their
    difference (ALT minus REF) and SE_seeds. See docs/variants.md.
    """

    checkpoint: str | None = Field(  # type: ignore[assignment]
        None, description=f"{MODEL}; none for variant_method=phylogeny"
    )
    variant_method: Group = group("by_kind")
    """by_kind (masked for SNVs, block for others, log_prob for ar and block_mdlm), masked, block,
    window, log_prob; phylogeny reads the alignment alone, without a model"""
    alignment: str | None = None
    """of the genome with its relatives, from dnadiff.align: for a model that reads alignments, and
    variant_method=phylogeny"""
    vcf: str | None = None
    """VCF, BCF or a table with tabs and chrom, pos, ref, alt; plain, gzip or bgzip"""
    saturate: str | list[str] | None = None
    """BED, GTF, GFF or chr1:1001-2000: regions whose SNVs are all scored, with a heat map;
    deletions=true adds deletions of one base; feature=CDS chooses rows of a GTF file"""
    feature: str | None = None
    """saturate: rows of a GTF or GFF file with this third column; null: all"""
    deletions: bool = False
    """saturate: also every deletion of one base"""
    target: str | None = None
    """of a fine-tuned run: the class or column whose predictions are compared; null: the only one,
    or the second of two classes"""
    genome: str
    """FASTA, 2bit or GenBank"""
    output: str | None = None
    """.tsv, .tsv.gz, .vcf, .vcf.gz, .parquet; null: variants.tsv in the run folder; with a JSON
    file next to it"""
    filter: str | list[str] | None = None
    """of a VCF: score rows with this FILTER, such as PASS or [PASS,q10]; null: all"""
    phased: bool = False
    """of a phased VCF: also the LLR of neighboring alleles on one copy together"""
    sample_name: str | None = None
    """phased: of the VCF; null: its only one"""
    on_mismatch: Literal["error", "skip", "flag"] = "error"
    """REF differs from the genome: skip leaves the row out, flag marks it"""
    window: PositiveInt | None = None
    """bases that the network reads; null: the training window, or the longest sequence of a
    fine-tuned run's task"""
    stranded: bool = False
    """read the given strand alone"""
    sites_per_window: PositiveInt = 1
    """SNVs: at most so many sites are masked together, window / sites_per_window apart; faster,
    with an error that is reported"""
    block: PositiveInt | None = None
    """variant_method=block: bases around the variant, half on each side; null: 4 for SNVs and MNVs,
    16 for indels"""
    num_orders: Annotated[int, Interval(ge=2)] = 4
    """variant_method=block: random orders per variant and strand, divided among the places at which
    an indel in a repeat can be, with at least 2 for each"""
    num_draws: PositiveInt = 64
    """variant_method=window, and log_prob for block diffusion models: masks per variant and strand,
    even"""
    L2: bool = False
    """also the distance of the mean embeddings of both windows"""
    percentile: bool = False
    """also the percentile of each SNV among random SNVs of the genome with the same change; 20,000
    are scored once and kept in the folder of the model"""
    calibrate_indels: bool = False
    """also the LLR of each indel minus the mean of 64 random ones of its length and type, which are
    scored once for each"""
    dependency: str | None = None
    """.tsv file: how the predictions around the variant change; for a single variant"""
    dependency_span: PositiveInt = 32
    """bases on each side in it"""
    report: str | None = None
    """.html page: the distribution of the effects and the strongest; of saturate: heat maps with
    pictures next to it, null: report.html in the run folder"""
    genes: str | None = None
    """saturate: GTF or GFF file whose genes are in the heat maps"""
    resume: bool = False
    """resume an unfinished output="""

    @model_validator(mode="after")
    def _keys_belong_together(self) -> Self:
        if (self.vcf is None) == (self.saturate is None):
            raise ValueError(
                "give either vcf= (VCF, BCF or a table of variants) or saturate= (regions whose "
                "variants are all scored)"
            )
        for key in ("filter", "phased") if self.vcf is None else ():
            if getattr(self, key):
                raise ValueError(f"{key} is about rows of vcf=; leave it out, or give a VCF file")
        if self.sample_name is not None and not self.phased:
            raise ValueError("sample_name is for phased=true; set it, or leave sample_name out")
        for key in ("deletions", "feature", "genes") if self.saturate is None else ():
            if getattr(self, key):
                raise ValueError(
                    f"{key} belongs to saturate=regions.bed; leave it out, or give regions"
                )
        matrix = self.dependency
        if matrix is not None and not matrix.lower().endswith(".tsv"):
            raise ValueError(f"dependency {matrix} has another format; its name must end in .tsv")
        return self

    @property
    def pages(self) -> dict[str, str]:
        """Those of `saturate` have a report always."""
        report = {"report": str(self.run_dir / "report.html")} if self.saturate else {}
        return report | super().pages


@command(VariantsOptions)
def variants(options: VariantsOptions) -> list[Job]:
    """The file of effects: log-likelihood ratios of a pretrained model, or differences of the
    predictions of a fine-tuned run."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.formats.regions import open_source, read_regions
    from dnadiff.genomics.variants import effects, methods, phased, variant, work
    from dnadiff.store.disk import hash_file
    from dnadiff.store.files import resolve
    from dnadiff.supervised import ensemble
    from dnadiff.weights import tensors

    output = options.output_path("variants.tsv")
    method = build(options.variant_method, trust=None)
    needs_model = getattr(method, "needs_model", True)
    given = str(options.checkpoint or "")
    if needs_model and not given:
        raise ValueError(
            "checkpoint is missing; give a model, or an alignment of the genome with its relatives "
            "and variant_method=phylogeny, which needs none"
        )
    if given and not needs_model:
        log.info(f"variant_method=phylogeny reads no model: checkpoint={given} is not used")
    is_fine_tuned = needs_model and runs.is_fine_tuned(given)
    refused: tuple[str, ...] = ()
    if is_fine_tuned:
        refused, reason = _OF_PRETRAINED, f"a pretrained model, and {given} is a fine-tuned run"
    elif not needs_model:
        refused, reason = _OF_MODELS, "a model, and variant_method=phylogeny reads none"
    for key in refused:
        if getattr(options, key) != VariantsOptions.model_fields[key].default:
            raise ValueError(f"{key} applies to {reason}; leave {key} out")
    if options.target is not None and not is_fine_tuned:
        raise ValueError(
            f"target={options.target} belongs to a fine-tuned run, and {options.checkpoint} is "
            "a pretrained one; leave it out"
        )
    writer = work.writer_of(output, effects.PREDICTED_COLUMNS, options.on_mismatch == "flag")
    genome = Genome(options.genome)
    if options.genes:
        read_regions(options.genes, genome.lengths, "gene")  # refuses a wrong file
    model: Any = None
    window = 0
    if is_fine_tuned:
        model = ensemble.load(given, options.trust, options.device)
        window = model.window_of(options.window)
    elif needs_model:
        model = options.loaded()
        window = model.window(options.window)
    on_strands = is_fine_tuned and model.stranded
    regions: list[Region] = []
    filters = [] if options.filter is None else as_list(options.filter)
    sample = None
    if options.saturate is None:
        source: VariantSource = open_source(str(options.vcf))
        if options.phased:
            sample = phased.column_of(source, options.sample_name)
        if filters and not source.header:
            raise ValueError(
                f"filter={options.filter} chooses rows of a VCF or BCF file, and {options.vcf} is "
                "a table; leave filter out"
            )
    else:
        regions = read_regions(options.saturate, genome.lengths, options.feature)
        reverse = sum(region.strand == "-" for region in regions)
        if options.stranded and reverse:
            raise ValueError(
                f"stranded=true reads the strand of the genome alone, and {reverse} of "
                f"{len(regions)} regions of saturate have strand -; leave stranded out, which "
                "averages both strands, or remove these regions"
            )
        source = variant.Saturation(regions, genome, options.deletions, on_strands)
    places = [list(region[: 5 if on_strands else 3]) for region in regions]
    inputs = {
        "variants": places or hash_file(resolve(str(options.vcf))),
        "genome": genome.digest,
        "window": window,
        "indels": "normalized",
    }
    scored: Any = None
    scorer: Any
    earlier: Any = {}
    if needs_model:
        aligned = model.columns_for(options.alignment, genome)
    else:
        scored = methods.AlignedGenome.open(genome, options.alignment, options.stranded)
        aligned = scored.alignment
    added = {} if aligned is None else {"alignment": aligned.identity}
    added |= {"filter": filters} if filters else {}
    alleles = variant.Alleles(
        genome,
        window,
        options.on_mismatch == "skip",
        is_fine_tuned and model.limits.fixed is not None,
        filters,
    )
    if is_fine_tuned:
        target = model.classes[model.number_of(options.target)]
        writer.predicted = model.target.contrast_name(target)
        strand = ", read on strand + or that of a region" if on_strands else ""
        log.info(f"predictions are {writer.predicted}{strand}")
        scorer = model.scorer(alleles, aligned, options.target, options.batch_size)
        networks = [member.sha256 for member in model.members]
        known: dict[str, Any] = {"networks": networks, "device": model.device.type}
        own = {"target": target, "predicted": writer.predicted}
        keys = ["deletions", "on_mismatch", "batch_size"]
        training = effects.TrainingPart({}, "not known of a fine-tuned run")
    else:
        asked = options.only("percentile", "calibrate_indels")
        added |= {key: True for key, value in asked.items() if value}
        keys = ["deletions", "on_mismatch", "stranded"]
        known = {}
        training = effects.TrainingPart({}, "no model is read")
        if needs_model:
            scored = options.into(
                methods.Network,
                denoiser=model.denoiser,
                process=model.process,
                reference=genome,
                window=window,
                alignment=aligned,
            )
            method = methods.check_method(method, model.denoiser)
            known = {"model": tensors.identity(model.denoiser), "device": scored.device.type}
            keys += ["sites_per_window", "L2", "batch_size", "seed"]
            training = work.training_part(model, genome, options.trust)
            earlier = tensors.earlier_identities(model.denoiser)
        joined = None
        if sample is not None:
            block = options.into(phased.HaplotypeBlock, block=None)
            of_haplotypes = method if method.for_left_to_right else block
            joined = phased.Phased(*sample, alleles, scored, of_haplotypes)
            added["phased"] = joined.sample
        scorer = effects.Scorer(scored, method, alleles, options.L2, joined)
        if any(asked.values()):
            scorer.compare(Path(model.path if needs_model else aligned.path), **asked)
        writer.columns = scorer.columns
        own = {"variant_method": method.settings()}
    return [
        work.VariantJob(
            scorer,
            source,
            writer,
            output,
            training,
            options.on_mismatch == "error",
            {**known, **inputs, **own, **options.only(*keys), **added},
            earlier,
            None if options.dependency is None else expand_user(options.dependency),
            options.dependency_span,
            expand_user(options.pages["report"]) if regions else None,
        )
    ]


main = variants.main

if __name__ == "__main__":
    main()
