"""Validation and test."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

import mm_amp
from mm_runner._torch_private import stop_workers
from mm_runner.data import BatchFeed, num_batches
from mm_runner.errors import ConfigError
from mm_runner.model import eval_step_of

from ._base_loop import BaseLoop

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

    from mm_runner.evaluator import Evaluator
    from mm_runner.run_view import RunView


class ValLoop(BaseLoop):
    """Goes through the validation set once.

    Args:
        runner: The run: model, hooks.
        dataloader: Validation batches.
        evaluator: Takes in the predictions.
        fp16: Predict under autocast, in the device's default low precision.

    Attributes:
        limit: Batches at most, of each process; ``None`` for all, which is the default.

    Raises:
        ConfigError: If the loader or its dataset has no length, or the loader no batch.
    """

    phase = "val"

    def __init__(
        self,
        runner: RunView,
        dataloader: DataLoader[Any],
        evaluator: Evaluator,
        fp16: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
    ) -> None:
        where = f"{self.phase}_dataloader"
        length = num_batches(dataloader, where)
        dataset: Any = dataloader.dataset
        world_size, size = runner.num_data_ranks, len(dataset)
        # One process of several may have no sample of a small dataset, of which others have some.
        needed = (dataloader.batch_size or 1) if getattr(dataloader, "drop_last", False) else 1
        if length == 0 and (world_size == 1 or -(-size // world_size) < needed):
            raise ConfigError(
                f"{where} gives no batch: the dataset has {size} samples for {world_size} "
                f"process(es), and a batch takes {needed} of each. Make batch_size smaller, "
                "drop_last false, or the dataset larger."
            )
        metainfo = getattr(dataset, "metainfo", None)
        if metainfo is not None:
            evaluator.dataset_meta = metainfo
        super().__init__(runner, dataloader)
        self.evaluator = evaluator
        self.fp16 = fp16
        self.limit: int | None = None
        self._step: Any = None

    @torch.no_grad()
    def run(self) -> dict[str, float]:
        """Return the metrics, equal on all ranks. The model is left as it was, training or not."""
        runner, phase = self.runner, self.phase
        self.use_model(runner.model)
        modes = [(module, module.training) for module in runner.model.modules()]
        runner.call_hook(f"before_{phase}")
        runner.call_hook(f"before_{phase}_epoch")
        runner.model.eval()
        self.evaluator.reset()
        drawn = iter(self.dataloader)
        try:
            batches = BatchFeed(self.dataloader, runner).pairs(drawn)
            for index, (batch, placed) in enumerate(islice(batches, self.limit)):
                self.run_iter(index, batch, placed)
                if runner.interruption.cuts_validation(runner):
                    break
            if runner.is_training:
                runner.interruption.settle(runner, at_once=True)
            size = len(self.dataloader.dataset)
            if self.limit is not None and self.dataloader.batch_size is not None:
                size = min(size, self.limit * self.dataloader.batch_size * runner.num_data_ranks)
            metrics = self.evaluator.evaluate(size)  # what is beyond it is padding
        finally:
            if not getattr(self.dataloader, "persistent_workers", False):
                stop_workers(drawn)  # it may have been cut short
            self._step = None
            for module, was_training in modes:  # a frozen part may be in evaluation mode
                module.training = was_training
        runner.call_hook(f"after_{phase}_epoch", metrics=metrics)
        runner.call_hook(f"after_{phase}")
        return metrics

    def use_model(self, model: nn.Module) -> None:
        """Let ``model`` predict in the evaluation under way, instead of the model of the run.

        It is for hooks, in ``before_val`` or ``before_test``; the next evaluation is by the model
        of the run again. Only that one is put into evaluation mode, with all of ``model`` that is
        part of it.

        Raises:
            ConfigError: If ``model`` has no ``val_step``, or ``test_step`` for a test.

        Example:
            >>> runner.test_loop.use_model(averaged)  # doctest: +SKIP
        """
        self._step = eval_step_of(model, f"{self.phase}_step")

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any, placed: Any = None) -> None:
        """Predict for one batch, and let the metrics take the predictions in.

        Args:
            idx: Its number, counted from 0.
            data_batch: As the loader gave it: hooks and metrics get that.
            placed: The same on the model's device, if it is there already.
        """
        runner, phase = self.runner, self.phase
        step = self._step or eval_step_of(runner.model, f"{phase}_step")
        runner.call_hook(f"before_{phase}_iter", batch_idx=idx, data_batch=data_batch)
        with mm_amp.autocast(runner.device.type) if self.fp16 else nullcontext():
            outputs = step(data_batch if placed is None else placed)
        # Of the processes that see the same batch, the first gives it to the metrics.
        if runner.rank * runner.num_data_ranks == runner.data_rank * runner.world_size:
            self.evaluator.process(data_samples=outputs, data_batch=data_batch)
        runner.call_hook(
            f"after_{phase}_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs
        )

    def close(self) -> None:
        """End the workers that a loader of the Runner's own keeps for the next evaluation."""
        if getattr(self.dataloader, "generator", None) is self.runner.loader_generator:
            stop_workers(None, self.dataloader)


class TestLoop(ValLoop):
    """Goes through the test set once."""

    __test__ = False  # not a test of pytest's

    phase = "test"
