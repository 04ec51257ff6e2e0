"""Running the training loop: what ends it, and with which exit status."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.utilities.exceptions import SIGTERMException

from dnadiff.data.loader import worker_loss
from dnadiff.training.parallel import lost_process
from dnadiff.training.stopping import Stopped

if TYPE_CHECKING:
    from lightning import Trainer

    from dnadiff.training.data_module import TrainingData
    from dnadiff.training.module import DiffusionModule


def fit(
    trainer: Trainer, module: DiffusionModule, data: TrainingData, start_from: Path | None
) -> int:
    """Train, and return the exit status: 0, or 128 + the number of the signal that stopped the run.

    Raises:
        ValueError: if a process that loads data, or another process of the run, has ended.
    """
    try:
        trainer.fit(module, data, ckpt_path=start_from, weights_only=True if start_from else None)
    except Stopped as stopped:
        return stopped.status
    except SIGTERMException:  # of Lightning, with status 0: SIGTERM arrived before `Checkpoints` handled it, or there is no such callback
        return 128 + signal.SIGTERM
    except (RuntimeError, ConnectionError, EOFError) as error:
        step, remedy = (
            trainer.global_step,
            f"add resume=true hydra.run.dir={trainer.default_root_dir} to continue from the last "
            "checkpoint",
        )
        if (reason := worker_loss(error, data.data.num_workers)) is not None:
            text = (
                f"a process that loads data ended at step {step}: {reason}; often memory was "
                f"short: set data.num_workers lower and {remedy}"
            )
        elif (reason := lost_process(error, trainer)) is not None:
            text = (
                f"another process of this run ended at step {step} ({reason}); its own message "
                f"says why; {remedy}"
            )
        else:
            raise
        raise ValueError(text) from error
    return 0
