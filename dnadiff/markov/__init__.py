"""Back-off Markov models: the counting baselines of every likelihood."""
