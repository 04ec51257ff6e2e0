"""`python -m dnadiff`: first commands to type, and the list of all."""

from __future__ import annotations

import sys

from dnadiff.commands import COMMANDS
from dnadiff.renamed import VERSION

FIRST = """\
Start with a model of E. coli that ships with the package:

  python -m dnadiff.sample checkpoint=ecoli num_samples=10 length=512 output=samples.fa
  python -m dnadiff.variants checkpoint=ecoli saturate=U00096.3:4000001-4000060 genome=bundled:ecoli_K12_MG1655.fa.gz output=variants.tsv
  python -m dnadiff.embed checkpoint=ecoli input=samples.fa output=embeddings.npz

or train one on your genome:

  python -m dnadiff.train data=fasta data.path=my_genome.fa.gz
"""


def main() -> None:
    """Print them."""
    width = max(map(len, COMMANDS))
    print(
        f"dnadiff {VERSION}: masked diffusion language models for DNA and text (not MUMmer's "
        f"dnadiff)\n\n{FIRST}\nAll commands:\n"
    )
    for name, description in COMMANDS.items():
        print(f"  python -m dnadiff.{name.ljust(width)}  {description}")
    print("\nEach has --help.")
    if len(sys.argv) > 1 and sys.argv[1] not in ("-h", "--help"):
        print(
            f"\nerror: python -m dnadiff takes no arguments, got {sys.argv[1]!r}; did you mean "
            f"python -m dnadiff.{sys.argv[1]}?",
            file=sys.stderr,
        )
        raise SystemExit(1)


if __name__ == "__main__":
    main()
