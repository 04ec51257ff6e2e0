"""What is measured on samples: composition, structure, memorization and sample quality."""
