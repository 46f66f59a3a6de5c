"""The recipe's evaluation, as a metric of the Runner."""

from mm_runner.evaluator import BaseMetric


class Losses(BaseMetric):
    """The mean loss on each split."""

    reported_metrics = ("train_loss", "val_loss")

    def process(self, data_batch, data_samples):
        self.results.append((data_batch["split"][0], data_samples.item()))

    def compute_metrics(self, results):
        values = {split: [loss for name, loss in results if name == split] for split, _ in results}
        return {f"{split}_loss": sum(losses) / len(losses) for split, losses in values.items()}
