"""`python -m dnadiff.distill`: train a student of a masked model that needs fewer network calls."""

from dnadiff.fields import Built
from dnadiff.options.base import Checkpoint, Group, Reported, Result, TrainingOptions, group
from dnadiff.options.command import command


class DistillOptions(TrainingOptions, Reported):
    """Distill a masked model into one that needs fewer network calls (SDTT, arXiv 2410.21035).

        python -m dnadiff.distill checkpoint=RUN
        python -m dnadiff.distill checkpoint=RUN objective.num_steps=64 objective.num_rounds=3
        python -m dnadiff.sample checkpoint=runs/student sampler.num_groups=8

    The student starts as a copy of the teacher. In each round it learns to do in one sampling step
    what its teacher does in two, and is the teacher of the next round: with num_steps=128 and
    num_rounds=4 the last student is for 8 steps. The teacher may be any masked model (objective
    mdlm, d3pm, sedd or mlm).

    What you may want to set: objective.num_steps, objective.num_rounds, objective.steps_per_round
    (their product with num_rounds is trainer.max_steps), optimizer.lr (5e-4), data.length and
    data.batch_size with data=. The run folder is one of training: all commands take it as
    checkpoint=, which is its last checkpoint. Its likelihood is usually worse than the teacher's.
    """

    checkpoint: Checkpoint
    data: Group | None = group()
    """what the student is trained on; null: the data of the teacher"""
    objective: Group = group("sdtt")
    """sdtt"""
    optimizer: Group = group("distill")
    callbacks: dict[str, Built | None] = group("distill")


@command(DistillOptions)
def distill(options: DistillOptions) -> Result:
    """Train the student; the content is that of `metrics.json`, the only path the run folder."""
    from dnadiff.training.run import of_teacher, run

    config = of_teacher(options.recorded(), options.trust)
    metrics, folder = run(config, options.run_dir, options.arguments)
    return Result(metrics, (folder,))


main = distill.main

if __name__ == "__main__":
    main()
