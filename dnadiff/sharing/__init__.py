"""Models for others: what is known about one, its model card, and the folder that holds both next
to its weights."""
