"""Metrics of torchmetrics, each with predictions for a dataset.

As a script it evaluates all of them with a Runner, and writes the results to a file.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torchmetrics import MeanSquaredError, Metric, MetricCollection, MinMaxMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.wrappers import ClasswiseWrapper, MultioutputWrapper, MultitaskWrapper

import mm_dist
from mm_runner import Runner

SIZE = 7  # divided by neither 2 nor 3
_random = torch.Generator()


class Predicts(nn.Module):
    """Returns the rows that belong to the indices of a batch."""

    def __init__(self, data):
        super().__init__()
        self.data = data
        self.weight = nn.Parameter(torch.zeros(1))  # without one there is nothing to wrap

    def forward(self, indices, mode="predict"):
        assert mode == "predict"
        return rows_of(self.data, indices)

    def val_step(self, indices):
        return self(indices)


def rows_of(data, indices):
    if isinstance(data, torch.Tensor):
        return data[indices]
    if isinstance(data, dict):
        return {name: rows_of(one, indices) for name, one in data.items()}
    if isinstance(data, tuple):
        return tuple(rows_of(one, indices) for one in data)
    return [data[index] for index in indices]


class EveryReduction(Metric):
    """Has a state for each way of reducing one."""

    def __init__(self):
        super().__init__()
        zero = torch.tensor(0.0)
        self.add_state("total", zero.clone(), dist_reduce_fx="sum")
        self.add_state("most", zero - 1e9, dist_reduce_fx="max")
        self.add_state("least", zero + 1e9, dist_reduce_fx="min")
        self.add_state("scale", zero + 2, dist_reduce_fx="mean")
        self.add_state("joined", [], dist_reduce_fx="cat")
        self.add_state("listed", [], dist_reduce_fx=None)
        self.add_state("squared", zero, dist_reduce_fx=lambda stacked: stacked.sum(0))

    def update(self, values):
        self.total += values.sum()
        self.most = torch.maximum(self.most, values.max())
        self.least = torch.minimum(self.least, values.min())
        self.joined.append(values)
        self.listed += list(values)
        self.squared += (values**2).sum()

    def compute(self):
        joined = self.joined if isinstance(self.joined, torch.Tensor) else torch.cat(self.joined)
        return {
            "total": self.total * self.scale,
            "most": self.most,
            "least": self.least,
            "joined": joined.sort().values,
            "listed": torch.stack(self.listed).sort().values,
            "squared": self.squared,
        }


def scores(*shape):
    return torch.rand(SIZE, *shape, generator=_random)


def labels(count, *shape):
    return torch.randint(count, (SIZE, *shape), generator=_random)


def boxes(number):
    corners = torch.rand(number, 4, generator=_random) * 20
    corners[:, 2:] += corners[:, :2] + 5
    return corners


def images_with_boxes(*, masks=False):
    """Return detections and truths of images with 1, 2, 3, 1, ... objects."""
    preds, target = [], []
    for image in range(SIZE):
        number = image % 3 + 1
        found = {"labels": torch.arange(number) % 2}
        if masks:
            mask = torch.rand(number, 12, 12, generator=_random) > 0.4
            found["masks"], guess = (
                mask,
                {"masks": mask | (torch.rand(mask.shape, generator=_random) > 0.9)},
            )
        else:
            found["boxes"] = boxes(number)
            guess = {"boxes": found["boxes"] + torch.rand(number, 4, generator=_random)}
        target.append(found)
        number_scores = torch.rand(number, generator=_random)
        preds.append({**guess, "labels": found["labels"], "scores": number_scores})
    return preds, target


def classified():
    return scores(3).softmax(dim=1), labels(3)


TEXTS = ["a cat sat on the mat", "the dog ran off", "it is late now", "who is there", "yes", "no"]
TEXTS.append("a longer sentence of more words than the others have")
GUESSES = [text.replace("is", "was").replace("the", "a") for text in TEXTS]


def cases():
    """Return metrics, or their configs, with predictions, by name; the same at each call."""
    _random.manual_seed(0)
    detection = "torchmetrics.detection:MeanAveragePrecision"
    three = {"num_classes": 3}
    both = {"accuracy": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)}
    both["counts"] = MulticlassConfusionMatrix(3)
    tasks = {"kind": MulticlassAccuracy(3), "size": MultioutputWrapper(MeanSquaredError(), 2)}
    kinds, sizes = classified(), (scores(2), scores(2))
    found = {
        "accuracy": (
            {"type": "torchmetrics:Accuracy", "task": "multiclass", **three},
            classified(),
        ),
        "confusion_matrix": ({"type": MulticlassConfusionMatrix, **three}, classified()),
        "auroc_of_lists": (
            {"type": "torchmetrics.classification:BinaryAUROC"},
            (scores(), labels(2)),
        ),
        "roc": (
            {"type": "torchmetrics.classification:BinaryROC", "thresholds": 5},
            (scores(), labels(2)),
        ),
        "not_synchronized": (
            {"type": "torchmetrics.classification:MulticlassF1Score", "sync_on_compute": False}
            | three,
            classified(),
        ),
        "mean_squared_error": ({"type": "torchmetrics:MeanSquaredError"}, (scores(), scores())),
        "pearson": ({"type": "torchmetrics:PearsonCorrCoef"}, (scores(), scores())),
        "spearman": ({"type": "torchmetrics:SpearmanCorrCoef"}, (scores(), scores())),
        "r2": ({"type": "torchmetrics:R2Score"}, (scores(), scores())),
        "mean": ({"type": "torchmetrics:MeanMetric"}, (scores(),)),
        "retrieval": (
            {"type": "torchmetrics.retrieval:RetrievalMAP"},
            {"preds": scores(4), "target": labels(2, 4), "indexes": labels(3, 4), "loss": scores()},
        ),
        "retrieval_by_position": (
            {"type": "torchmetrics.retrieval:RetrievalMRR"},
            (scores(4), labels(2, 4), labels(3, 4)),
        ),
        "bleu": (
            {"type": "torchmetrics.text:BLEUScore", "n_gram": 2},
            (GUESSES, [[t] for t in TEXTS]),
        ),
        "word_errors": ({"type": "torchmetrics.text:WordErrorRate"}, (GUESSES, TEXTS)),
        "perplexity": (
            {"type": "torchmetrics.text:Perplexity"},
            (scores(5, 4).log(), labels(4, 5)),
        ),
        "psnr": (
            {"type": "torchmetrics.image:PeakSignalNoiseRatio", "data_range": 1.0},
            (scores(3, 8, 8), scores(3, 8, 8)),
        ),
        "collection": (MetricCollection(both, prefix="val_"), classified()),
        "classwise": (ClasswiseWrapper(MulticlassAccuracy(3, average=None)), classified()),
        "min_max": (MinMaxMetric(MulticlassAccuracy(3)), classified()),
        "multitask": (
            MultitaskWrapper(tasks),
            {
                "task_preds": {"kind": kinds[0], "size": sizes[0]},
                "task_targets": {"kind": kinds[1], "size": sizes[1]},
            },
        ),
        "sum_of_metrics": (MulticlassAccuracy(3) + MulticlassF1Score(3), classified()),
        "every_reduction": (EveryReduction(), (scores(),)),
    }
    if find_spec("torchvision"):  # which needs a torch that was built for the same devices
        segmentation = {"type": detection, "iou_type": "segm"}
        found["detection"] = {"type": detection}, images_with_boxes()
        found["segmentation"] = segmentation, images_with_boxes(masks=True)
    return found


def evaluate(metric, data, work_dir, size=SIZE, batch_size=2):
    """Return what a Runner's validation reports."""
    loader = {"dataset": list(range(size)), "batch_size": batch_size}
    loader["collate_fn"] = "default_collate"
    runner = Runner(
        model=Predicts(data),
        work_dir=work_dir,
        val_dataloader=loader,
        val_cfg={},
        val_evaluator=metric,
    )
    return runner.val()


if __name__ == "__main__":
    results = {}
    for number in (SIZE, 2):
        for case, (given, predictions) in cases().items():
            found = evaluate(given, predictions, sys.argv[1], size=number)
            results[f"{case} of {number}"] = found
    Path(sys.argv[1], f"rank_{mm_dist.get_rank()}.json").write_text(json.dumps(results))
