"""The options of commands: declared once as a typed class, composed with Hydra, checked, shown by
`--help`, and the keyword arguments of a Python function."""
