"""What a task predicts: classes, values or several labels. One class for each kind;
`build.build_target` chooses it."""
