"""The Trainer of transformers, without evaluation and without reports to services."""

from __future__ import annotations

from transformers import Trainer, TrainingArguments

from .task import BATCH_SIZE, LEARNING_RATE, LOG_INTERVAL, Samples, TinyClassifier


class Classifier(TinyClassifier):
    def forward(self, inputs, labels):
        return {"loss": super().forward(inputs, labels)}


def train(num_steps, clock, directory):
    arguments = TrainingArguments(
        output_dir=str(directory),
        max_steps=num_steps,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        optim="sgd",
        logging_steps=LOG_INTERVAL,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Trainer(
        model=Classifier(clock),
        args=arguments,
        train_dataset=Samples(num_steps * BATCH_SIZE),
    ).train()
