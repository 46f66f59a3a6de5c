"""Lightning's Trainer, with its own logger of CSV files, and without checkpoints."""

from __future__ import annotations

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.loggers import CSVLogger

from .task import LOG_INTERVAL, TinyClassifier, build_loader, build_optimizer


class Module(LightningModule):
    def __init__(self, clock):
        super().__init__()
        self.model = TinyClassifier(clock)

    def training_step(self, batch, _index):
        loss = self.model(batch["inputs"], batch["labels"])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return build_optimizer(self.model)


def train(num_steps, clock, directory):
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(directory),
        log_every_n_steps=LOG_INTERVAL,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(clock), build_loader(num_steps))
