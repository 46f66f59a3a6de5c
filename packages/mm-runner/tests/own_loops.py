"""Training loops whose bodies are written as for MMEngine's, importable by spawned ranks."""

import torch

from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop


class OwnEpoch(EpochBasedTrainLoop):
    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        for idx, data_batch in enumerate(self.dataloader):
            self.run_iter(idx, data_batch)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


class OwnStep(EpochBasedTrainLoop):
    def run_iter(self, idx, data_batch):
        runner = self.runner
        runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
        outputs = runner.model.train_step(data_batch, optim_wrapper=runner.optim_wrapper)
        runner.call_hook("after_train_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs)
        self._iter += 1


class OwnRun(EpochBasedTrainLoop):
    def run(self):
        self.runner.call_hook("before_train")
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._decide_current_val_interval()
            is_due = self._epoch >= self.val_begin and self._epoch % self.val_interval == 0
            if self.runner.val_loop is not None and is_due:
                self.runner.val_loop.run()
        self.runner.call_hook("after_train")
        return self.runner.model


class OwnEpochAndStep(OwnEpoch, OwnStep):
    pass


class OwnAll(OwnRun, OwnEpoch, OwnStep):
    pass


class InOnePiece(EpochBasedTrainLoop):
    """Calls neither ``run_epoch`` nor ``run_iter``."""

    def run(self):
        runner = self.runner
        runner.call_hook("before_train")
        for _ in range(self._epoch, self._max_epochs):
            runner.call_hook("before_train_epoch")
            runner.model.train()
            for idx, data_batch in enumerate(self.dataloader):
                runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
                outputs = runner.model.train_step(data_batch, runner.optim_wrapper)
                runner.call_hook(
                    "after_train_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs
                )
                self._iter += 1
            runner.call_hook("after_train_epoch")
            self._epoch += 1
            if runner.val_loop is not None:
                runner.val_loop.run()
        runner.call_hook("after_train")


class OwnIterations(IterBasedTrainLoop):
    """Goes forward first by what was done, as MMEngine's loop does."""

    goes_forward = True

    def run(self):
        self.runner.call_hook("before_train")
        self.runner.call_hook("before_train_epoch")
        if self.goes_forward and self._iter > 0:
            for _ in range(self._iter):
                next(self.dataloader_iterator)
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            data_batch = next(self.dataloader_iterator)
            self.run_iter(data_batch)
            self._decide_current_val_interval()
            if self.runner.val_loop is not None and self._iter % self.val_interval == 0:
                self.runner.val_loop.run()
        self.runner.call_hook("after_train_epoch")
        self.runner.call_hook("after_train")
        return self.runner.model


class NotForward(OwnIterations):
    goes_forward = False


class OwnIterationsAndStep(OwnIterations):
    def run_iter(self, data_batch):
        runner, idx = self.runner, self._iter
        runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
        outputs = runner.model.train_step(data_batch, optim_wrapper=runner.optim_wrapper)
        runner.call_hook("after_train_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs)
        self._iter += 1


class PassAfterPass(IterBasedTrainLoop):
    """Begins each pass over the data by itself."""

    def run(self):
        self.runner.call_hook("before_train")
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        batches = iter(self.dataloader)
        while self._iter < self._max_iters and not self.stop_training:
            try:
                data_batch = next(batches)
            except StopIteration:
                batches = iter(self.dataloader)
                data_batch = next(batches)
            self.run_iter(data_batch)
        self.runner.call_hook("after_train_epoch")
        self.runner.call_hook("after_train")


class Merging(OwnStep):
    """Draws two batches for a step."""

    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        batches = iter(self.dataloader)
        for idx, (one, other) in enumerate(zip(batches, batches, strict=True)):
            self.run_iter(idx, {name: torch.cat([one[name], other[name]]) for name in one})
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


class MergingInOurs(IterBasedTrainLoop):
    def run_iter(self, data_batch):
        other = next(self.dataloader_iterator)
        super().run_iter({name: torch.cat([data_batch[name], other[name]]) for name in other})


class MergingIterations(OwnIterations, MergingInOurs):
    goes_forward = False


class Choosing(OwnEpoch):
    """Leaves out a batch now and then."""

    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for idx, data_batch in enumerate(self.dataloader):
            if data_batch["labels"].sum() % 3:
                self.run_iter(idx, data_batch)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


class Looking(OwnEpoch):
    """Looks at a batch before training, and before each epoch."""

    def run(self):
        assert next(iter(self.dataloader))["inputs"].shape == (4, 4)
        return super().run()

    def run_epoch(self):
        self.shape = next(iter(self.runner.train_dataloader))["inputs"].shape
        super().run_epoch()


class EpochAfterEpoch(IterBasedTrainLoop):
    """Calls each pass over the data an epoch."""

    def run(self):
        self.runner.call_hook("before_train")
        while self._iter < self._max_iters:
            self.runner.call_hook("before_train_epoch")
            for data_batch in self.dataloader:
                self.run_iter(data_batch)
            self.runner.call_hook("after_train_epoch")
        self.runner.call_hook("after_train")


class Elsewhere(OwnEpochAndStep):
    """Draws its batches from a loader of its own."""

    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for idx, data_batch in enumerate(list(self.runner.train_dataloader)):
            self.run_iter(idx, data_batch)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


class Twice(OwnEpoch):
    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for _ in range(2):
            for idx, data_batch in enumerate(self.dataloader):
                self.run_iter(idx, data_batch)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


class ElsewhereInIterations(OwnIterationsAndStep):
    goes_forward = False

    def run(self):
        self.dataloader_iterator = iter(list(self.dataloader) * 10)
        super().run()


OF_EPOCHS = [OwnEpoch, OwnEpochAndStep, OwnAll, InOnePiece]
OF_ITERATIONS = [OwnIterations, NotForward, OwnIterationsAndStep, PassAfterPass]


def train_cfg(loop, **more):
    """Three passes over 24 samples in batches of 4."""
    if issubclass(loop, EpochBasedTrainLoop):
        return {"type": loop, "max_epochs": 3, **more}
    return {"type": loop, "max_iters": 18, "val_interval": 6, **more}


def ours_of(loop):
    by_epoch = issubclass(loop, EpochBasedTrainLoop)
    return EpochBasedTrainLoop if by_epoch else IterBasedTrainLoop
