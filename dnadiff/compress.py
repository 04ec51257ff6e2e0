"""`python -m dnadiff.compress`: lossless compression of a FASTA file with a trained model.
`dnadiff.decompress` restores it."""

from dnadiff.fields import PositiveInt
from dnadiff.options.base import Accelerator, ModelOptions, Result
from dnadiff.options.command import command
from dnadiff.progress import table
from dnadiff.store.address import file_name


class CompressOptions(ModelOptions):
    """Compress a FASTA file losslessly with a trained model.

        python -m dnadiff.compress checkpoint=RUN input=x.fa output=x.dnd
        python -m dnadiff.decompress checkpoint=RUN input=x.dnd output=x.fa

    Lossless: names, case, line breaks, N and other letters are restored byte for byte.
    Decompression requires the same model, versions, processor type, number of threads and kernel;
    this is checked. Needs pip install -e '.[compress]'.
    """

    chooses_threads = False
    input: str
    """FASTA, plain or gzip"""
    output: str | None = None
    """.dnd; null: INPUT.dnd in the run folder"""
    num_groups: PositiveInt = 64
    """network calls per batch of windows, or for each block of block_mdlm; more calls give a
    shorter code"""
    window: PositiveInt | None = None
    """bases; longer records are cut into windows; null: the training window"""
    batch_size: PositiveInt = 32
    """the code depends on it, as on the seed"""
    threads: PositiveInt | None = None
    """the code depends on it; null: PyTorch's default"""
    accelerator: Accelerator = "cpu"
    """where the network computes"""


@command(CompressOptions)
def compress(options: CompressOptions) -> Result:
    """Compress, and print the sizes."""
    from dnadiff.genomics.compression import coding, container

    name = file_name(options.input).removeprefix("bundled:")
    output = options.new_output(f"{name}.dnd")
    sizes = options.into(
        coding.compress, path=options.input, output=output, model=options.checkpoint
    )
    needed = sizes.pop("needed")
    bits = {
        "code length of the model": sizes["code_length"],
        "code": sizes["code"],
        "file, with side information": sizes["file"],
        "text": sizes["text"],
        "2 bits per base": 2 * sizes["bases"],
    }
    rows = [
        (name, f"{size / 8:,.0f}", f"{size / max(sizes['bases'], 1):.4f}")
        for name, size in bits.items()
    ]
    print(table(rows, ("", "bytes", "bits per coded base")))
    print(f"files are in {output}")
    if needed > container.size_limit(int(sizes["file"]) // 8):
        print(f"the text is much longer than the file: to decompress it set max_bytes={needed}")
    return Result(sizes, (output,))


main = compress.main

if __name__ == "__main__":
    main()
