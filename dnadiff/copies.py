"""`python -m dnadiff.copies`: the longest exact match of each record of a FASTA file with a model's
training part, on either strand."""

from pydantic import Field

from dnadiff.options.base import MODEL, Group, Options, Result, group
from dnadiff.options.command import command
from dnadiff.progress import table


class CopiesOptions(Options):
    """The longest exact match of each record of a FASTA file with a model's training part, on
    either strand.

        python -m dnadiff.copies input=designs.fa checkpoint=RUN output=copies.tsv
    """

    chooses_threads = False
    tokenizer: Group | None = group()  # so that data=text gets its own error message
    data: Group | None = group()
    """the training data, for a model without a run or on another machine: data=fasta
    data.path=my.fa"""
    input: str
    """FASTA; if a header has designed=first-last, only that part is searched"""
    checkpoint: str = Field(description=f"the model whose training part is searched: {MODEL}")
    output: str | None = None
    """name, bases, longest match, fraction of 24-mers seen; null: copies.tsv in the run folder"""
    seed: int = 1
    """of the data"""


@command(CopiesOptions)
def copies(options: CopiesOptions) -> Result:
    """Search the training part."""
    from dnadiff.genomics.metrics import memorization
    from dnadiff.store.disk import atomic_write
    from dnadiff.store.files import resolve

    output = options.new_output("copies.tsv")
    resolve(options.input)  # refuses a missing file before the training part is read
    model = options.loaded()
    data = memorization.training_data(model, options.trust, options.data)
    found = memorization.of_file(options.input, memorization.indexed(data))
    with atomic_write(output, options.overwrite) as file:
        file.write(("\t".join(memorization.COLUMNS) + "\n").encode())
        file.writelines(
            f"{m.name}\t{m.length}\t{m.longest}\t{m.seen:.6f}\n".encode() for m in found
        )
    content = memorization.summary(found)
    seen = content["seen"]
    longest = content["longest"]
    rows = [
        ("records", f"{content['records']:,}"),
        ("longest match, mean", f"{longest['mean']:.1f} bases"),
        ("longest match, maximum", f"{longest['max']} bases, in {longest['record']}"),
        (
            "24-mers seen in training",
            "none in the records" if seen is None else f"{100 * seen:.3f} %",
        ),
    ]
    print(table(rows))
    print(f"files are in {output}")
    return Result(content, (output,))


main = copies.main

if __name__ == "__main__":
    main()
