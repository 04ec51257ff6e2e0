"""LLaDA's low-confidence remasking (arXiv 2502.09992): draw everywhere, keep the most probable
tokens."""

from dnadiff.diffusion.sampler.adaptive import StepsSampler, TokensFirstSampler


class LowConfidence(StepsSampler, TokensFirstSampler):
    """In each of K calls a token is drawn at every masked position; the most probable ones are
    kept, the rest are masked again.

    Probable tokens are kept more often than they are drawn, so the distribution is not the model's,
    whatever the number of calls: two positions with probabilities (.7, .3) in two calls give .805.
    Like a low temperature it trades diversity for likelihood.

    Args:
        num_steps: see `StepsSampler`.
        temperature, top_k, nucleus: see `Sampler`; tokens are compared by the model's own
            probabilities.

    Examples:
        >>> LowConfidence(num_steps=32).num_steps_for(length=512)
        32
    """
