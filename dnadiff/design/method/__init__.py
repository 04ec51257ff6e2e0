"""Methods that design sequences with a high reward; each is one file and one yaml in
`configs/method`."""
