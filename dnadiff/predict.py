"""`python -m dnadiff.predict`: predictions of new sequences by the networks of a fine-tuned run, as
a table and a track."""

from typing import Self

from pydantic import model_validator

from dnadiff.fields import Name, PositiveInt, as_list
from dnadiff.formats.table import is_table
from dnadiff.formats.tracks import is_big_wig
from dnadiff.jobs.job import Job
from dnadiff.options.base import (
    Accelerator,
    BrowsedOptions,
    Checkpoint,
    PlacedOptions,
    ShardedOptions,
)
from dnadiff.options.command import command
from dnadiff.store.address import expand_user
from dnadiff.store.files import resolve

TABLES = (".tsv", ".tsv.gz", ".parquet")
PLACES = ("genome", "regions", "feature", "spliced", "alignment")


class PredictOptions(PlacedOptions, BrowsedOptions, ShardedOptions):
    """Class probabilities or values of new sequences by the networks of a fine-tuned run.

        python -m dnadiff.predict checkpoint=FINETUNE_RUN input=x.fa output=p.tsv
        python -m dnadiff.predict checkpoint=FINETUNE_RUN input=table.csv label_column=label
          output=p.tsv
        python -m dnadiff.predict checkpoint=FINETUNE_RUN input=genome.fa window=200 stride=100
          track=p.bw track_class=CLASS output=p.tsv.gz
        python -m dnadiff.predict checkpoint=FINETUNE_RUN genome=g.fa regions=r.bed alignment=g.aln

    Columns: chrom, start, end and strand of regions and their windows in the genome, or name, and
    start and end of windows in the record (0-based, half-open), length, predicted, p_CLASS
    (averaged over the seeds), spread (largest minus smallest probability of the predicted class
    over the seeds), with label_column label and log_p_CLASS_seed_N; of a regression
    predicted_COLUMN and spread_COLUMN; of several labels p_LABEL and spread_LABEL. Summary and
    metrics: OUTPUT.json.
    """

    shown_by = "track"
    checkpoint: Checkpoint
    input: str | None = None
    """FASTA, or a table (.csv, .tsv, .parquet), plain or gzip; or genome and regions"""
    sequence_column: str = "sequence"
    """of a table; with labels, metrics are printed and written"""
    name_column: str | None = None
    """of a table; null: the number of the line"""
    label_column: str | list[str] | None = None
    """of a table: true classes or values, for metrics; several as [a, b]"""
    window: PositiveInt | None = None
    """bases; null: complete sequences"""
    stride: PositiveInt | None = None
    """bases between the starts of windows; null: window"""
    per_seed: bool = False
    """true: also the predictions of each seed; a label_column implies it"""
    track: str | None = None
    """.bedgraph, .bedgraph.gz or .bw file of the probability of track_class (.bw needs pip install
    -e '.[tracks]')"""
    track_class: Name | None = None
    """a class, or a column of a regression; null: the only one, or the second of two classes"""
    batch_size: PositiveInt | None = None
    """null: as the test items of the task were predicted"""
    output: str | None = None
    """.tsv, .tsv.gz or .parquet; null: predictions.tsv in the run folder"""
    resume: bool = False
    """resume an interrupted run; the output is byte-identical to that of an uninterrupted one"""
    accelerator: Accelerator = "auto"

    @model_validator(mode="after")
    def _keys_belong_together(self) -> Self:
        if self.stride is not None and self.window is None:
            raise ValueError(f"stride={self.stride} needs window=, the bases in a window")
        if self.track_class is not None and self.track is None:
            raise ValueError(f"track_class={self.track_class} needs track=, the file to write")
        of_genome = {"browser": self.browser, "alignment": self.alignment}
        for key, value in of_genome.items():
            if value not in (None, "none") and is_table(self.input or ""):
                raise ValueError(
                    f"{key}={value} is for sequences of a genome, and input {self.input} is a "
                    f"table; give FASTA, or leave {key} out"
                )
        if self.track is not None:
            is_big_wig(self.track, "track")  # refuses other formats
            if self.spliced:
                raise ValueError(
                    "a track has values of a genome, not of spliced=true; leave one out"
                )
        return self


@command(PredictOptions)
def predict(options: PredictOptions) -> list[Job]:
    """The table of predictions, with its track."""
    from dnadiff.supervised import ensemble, predictions

    output = options.output_path("predictions.tsv")
    if not output.name.lower().endswith(TABLES):
        raise ValueError(
            f"output {output} is the name of another kind of file; give one that ends in "
            f"{', '.join(TABLES)}"
        )
    if options.input is not None:
        resolve(options.input)  # refuses a missing file before the networks are read
    model = ensemble.load(options.checkpoint, options.trust, options.device)
    alignment = model.columns_for(options.alignment)
    source = None
    given = {k: v for k, v in options.only(*PLACES).items() if v not in (None, "none", False)}
    if given or options.input is None:
        source = options.into(predictions.open_input, fasta=options.input)
        source.align(alignment)
    track_class = options.track_class
    if options.track is not None:
        track_class = model.classes[model.number_of(track_class, "track_class")]
    labels = None if options.label_column is None else as_list(options.label_column)
    target = model.target
    several = len(target.label_columns)
    if labels is not None and len(labels) != several:
        expected = f"{several}, for {', '.join(model.classes)}" if target.takes_several else "1"
        raise ValueError(
            f"label_column names {len(labels)} columns, and this model expects {expected}; name "
            "that many, in this order"
        )
    queries = predictions.SequenceFile(
        options.input or str(options.genome),
        model.tokenizer,
        target,
        predictions.Columns(options.sequence_column, options.name_column, labels),
        options.window,
        options.stride,
        model.limits,
        source,
    )
    has_labels = labels is not None
    columns = predictions.PredictionTable(
        target,
        model.seeds,
        options.window is not None,
        has_labels,
        has_labels or options.per_seed,
        source.regions if source is not None and options.genome else None,
    )
    keys = ("sequence_column", "name_column", "label_column", "window", "stride", "per_seed")
    shown = options.only("input", "label_column", "window", "stride", "track")
    return [
        predictions.PredictJob(
            model,
            queries,
            columns,
            output,
            batch_size=options.batch_size,
            track=None if options.track is None else expand_user(options.track),
            track_class=track_class,
            settings=options.only(*keys),
            inputs=shown | given | {"track_class": track_class},
        )
    ]


main = predict.main

if __name__ == "__main__":
    main()
