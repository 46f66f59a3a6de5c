"""Training loops whose bodies are written as for MMEngine's, importable by spawned ranks."""

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


class OwnIterations(IterBasedTrainLoop):
    def run(self):
        self.runner.call_hook("before_train")
        self.runner.call_hook("before_train_epoch")
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(self.dataloader_iterator))
            if self.runner.val_loop is not None and self._iter % self.val_interval == 0:
                self.runner.val_loop.run()
        self.runner.call_hook("after_train_epoch")
        self.runner.call_hook("after_train")
        return self.runner.model


class OwnIterationsAndStep(OwnIterations):
    def run_iter(self, data_batch):
        runner, idx = self.runner, self._iter
        runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
        outputs = runner.model.train_step(data_batch, optim_wrapper=runner.optim_wrapper)
        runner.call_hook("after_train_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs)
        self._iter += 1


OF_EPOCHS = [OwnEpoch, OwnStep, OwnRun, OwnEpochAndStep, OwnAll]
OF_ITERATIONS = [OwnIterations, OwnIterationsAndStep]


def train_cfg(loop, **more):
    """Three passes over 24 samples in batches of 4."""
    if issubclass(loop, EpochBasedTrainLoop):
        return {"type": loop, "max_epochs": 3, **more}
    return {"type": loop, "max_iters": 18, "val_interval": 6, **more}


def ours_of(loop):
    by_epoch = issubclass(loop, EpochBasedTrainLoop)
    return EpochBasedTrainLoop if by_epoch else IterBasedTrainLoop
