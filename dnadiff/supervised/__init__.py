"""Classification with a pretrained network: tasks, the classifier, baselines, and the study that
compares them."""
