"""ReMDM (arXiv 2503.00307): tokens may return to the mask on the way, so that early mistakes can be put right."""

from __future__ import annotations

from dnadiff.sampler.remasking import RemaskingSampler


class ReMDM(RemaskingSampler):
    """The remasking sampler with a fixed strength a step: `sampler/remasking=cap`, `rescale`, `conf` or `loop`.

    As the strength does not fall with the length of a step, tokens revealed together keep an error of its order however many steps
    there are: not exact. The published settings go with nucleus 0.9. The arguments are those of `RemaskingSampler`.
    """

    exact = False
