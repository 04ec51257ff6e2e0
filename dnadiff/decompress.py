"""`python -m dnadiff.decompress`: restore the FASTA file that `dnadiff.compress` compressed, byte
for byte."""

from pydantic import Field

from dnadiff.fields import PositiveInt
from dnadiff.options.base import MODEL, Accelerator, Options, Result
from dnadiff.options.command import command
from dnadiff.store.address import file_name


class DecompressOptions(Options):
    """Restore the FASTA file that dnadiff.compress compressed, byte for byte.

        python -m dnadiff.decompress checkpoint=RUN input=x.dnd output=x.fa

    See docs/likelihood.md.
    """

    chooses_threads = False
    checkpoint: str = Field(description=f"the model used for compression: {MODEL}")
    input: str
    """.dnd"""
    output: str | None = None
    """FASTA; a name that ends in .gz is compressed; null: INPUT without .dnd in the run folder"""
    max_bytes: PositiveInt | None = None
    """refuse a file that expands to more; null: 1 MiB or 100 times its size, whichever is more"""
    accelerator: Accelerator = "cpu"
    """the type of device used for compression"""


@command(DecompressOptions)
def decompress(options: DecompressOptions) -> Result:
    """Decompress."""
    from dnadiff.genomics.compression import coding

    name = file_name(options.input).removeprefix("bundled:").removesuffix(".dnd")
    output = options.new_output(name)
    options.into(coding.decompress, path=options.input, output=output, model=options.checkpoint)
    print(f"files are in {output}")
    return Result({}, (output,))


main = decompress.main

if __name__ == "__main__":
    main()
