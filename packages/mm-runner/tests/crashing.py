"""A model and a hook that fail in one step of a training, with what was in it."""

from toy import Classifier
from typing_extensions import override

from mm_runner.hooks import Hook


class Raise(Hook):
    """Fails after a step of the training, with what this process had in it."""

    def __init__(self, at_iter: int):
        self.at_iter = at_iter

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == self.at_iter:
            inputs, loss = data_batch["inputs"].sum().item(), outputs["loss"].item()
            raise ArithmeticError(f"inputs {inputs!r} loss {loss!r}")


class Crashing(Classifier):
    """Fails in one step of its training, with what was in it."""

    def __init__(self, at_step: int = 8, dropout: float = 0.5):
        super().__init__(dropout)
        self.at_step = at_step

    def train_step(self, data, optim_wrapper):
        steps = optim_wrapper.optimizer.state
        first = next(self.parameters())
        # As many steps as the momentum has seen: a resumed run counts on.
        done = int(steps[first]["step"].item()) if first in steps else 0
        if done == self.at_step:
            inputs = data["inputs"].sum().item()
            weights = sum(p.double().sum().item() for p in self.parameters())
            raise ArithmeticError(f"inputs {inputs!r} weights {weights!r}")
        return super().train_step(data, optim_wrapper)
