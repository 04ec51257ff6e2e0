"""`python -m dnadiff`: first commands to type, the list of all, and any command by its name."""

import sys

from dnadiff.options.base import pages
from dnadiff.options.command import Command, command_names, named, parse, report
from dnadiff.options.compose import import_plugins
from dnadiff.progress import closest
from dnadiff.renamed import VERSION

FIRST = """\
Start with a model of E. coli that ships with the package:

  python -m dnadiff.sample checkpoint=ecoli num_samples=10 length=512 output=samples.fa
  python -m dnadiff.variants checkpoint=ecoli saturate=U00096.3:4000001-4000060 \
genome=bundled:ecoli_K12_MG1655.fa.gz output=variants.tsv
  python -m dnadiff.embed checkpoint=ecoli input=samples.fa output=embeddings.npz

or train one on your genome:

  python -m dnadiff.train data=fasta data.path=my_genome.fa.gz
"""


def main(argv: list[str] | None = None) -> None:
    """Run the command that the first argument names, or print them all."""
    arguments = sys.argv[1:] if argv is None else argv
    name = "".join(arguments[:1])
    rest = arguments[1:]
    known = command_names()
    if name in ("", "-h", "--help"):
        print(
            f"dnadiff {VERSION}: masked diffusion language models for DNA and text (not "
            f"MUMmer's dnadiff)\n\n{FIRST}\nAll commands:\n"
        )
        for each in known:
            print(f"  python -m dnadiff.{each:12}  {pages(named(each).options)[0]}")
        return print("\nEach has --help.")
    try:
        if name not in known:  # of a plugin
            import_plugins(parse(rest)[2])
        if name not in [*known, *Command.known]:
            raise ValueError(
                f"there is no command {name}{closest(name, known)}; python -m dnadiff lists them"
            )
    except (ValueError, OSError) as error:
        print(report(error, []), file=sys.stderr)
        raise SystemExit(1) from None
    named(name).main(rest)


if __name__ == "__main__":
    main()
