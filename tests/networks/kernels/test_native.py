import re
from pathlib import Path

from dnadiff.networks.kernels import build, native


def test_the_types_of_arguments_are_those_of_the_source():
    """A missing argument type would pass a 64-bit size as 32 bits and whatever is above them."""
    folder, declared = Path(build.__file__).parent, {}
    for source in build._SOURCES:
        for name, parameters in re.findall(
            r"^(?:void|int64_t) (dnadiff_\w+)\(([^)]*)\)",
            (folder / source).read_text(),
            re.MULTILINE,
        ):
            kinds = [
                "pointer" if "*" in parameter else parameter.split()[-2]
                for parameter in parameters.split(",")
            ]
            declared[name] = tuple(
                kinds.count(kind) for kind in ("pointer", "int64_t", "double", "int")
            )
            assert kinds == sorted(kinds, key=("pointer", "int64_t", "double", "int").index), name
    assert declared == native._SIGNATURES
