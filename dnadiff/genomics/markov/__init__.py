"""Back-off Markov models: the baselines of every likelihood."""
