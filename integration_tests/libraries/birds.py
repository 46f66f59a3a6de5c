"""A small library in OpenMMLab's style, registered with MMEngine."""
# ruff: noqa: ARG002, FBT002, RUF012 - signatures and attributes are MMEngine's

import numpy as np
import torch
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.logging import MessageHub, MMLogger
from mmengine.model import BaseDataPreprocessor, BaseModel, BaseModule
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import (
    DATASETS,
    EVALUATOR,
    HOOKS,
    LOOPS,
    METRICS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    TRANSFORMS,
)
from mmengine.runner import EpochBasedTrainLoop, ValLoop
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer
from torch import nn


@TRANSFORMS.register_module(name="PackFlights")
class PackFlights:
    def __call__(self, results):
        inputs = torch.from_numpy(results["features"])
        return {"inputs": inputs, "data_samples": BaseDataElement(label=results["label"])}


@DATASETS.register_module(name="Flights")
class Flights(BaseDataset):
    METAINFO = {"classes": ("low", "high", "far")}

    def __init__(self, size, **options):
        self._size = size
        super().__init__(**options)

    def load_data_list(self):
        features = np.random.default_rng(0).normal(size=(self._size, 4)).astype("float32")
        return [{"features": row, "label": int(row[:3].argmax())} for row in features]


@MODELS.register_module(name="Stack")
class Stack(BaseDataPreprocessor):
    def forward(self, data, training=False):
        data = self.cast_data(data)
        return {"inputs": torch.stack(data["inputs"]), "data_samples": data["data_samples"]}


@MODELS.register_module(name="Wing")
class Wing(BaseModule):
    def __init__(self, width, init_cfg=None):
        super().__init__(init_cfg)
        self.layer = nn.Linear(4, width)

    def forward(self, inputs):
        return self.layer(inputs).relu()


@MODELS.register_module(name="Bird")
class Bird(BaseModel):
    def __init__(self, wing, data_preprocessor=None, init_cfg=None):
        super().__init__(data_preprocessor, init_cfg)
        self.wing = MODELS.build(wing)
        self.head = nn.Linear(wing["width"], 3)

    def forward(self, inputs, data_samples=None, mode="tensor"):
        scores = self.head(self.wing(inputs))
        if mode == "loss":
            labels = torch.tensor([one.label for one in data_samples])
            return {"loss": nn.functional.cross_entropy(scores.float(), labels)}
        if mode == "predict":
            for sample, row in zip(data_samples, scores, strict=True):
                sample.pred = int(row.argmax())
            return data_samples
        return scores


@METRICS.register_module(name="HitRate")
class HitRate(BaseMetric):
    default_prefix = "birds"

    def process(self, data_batch, data_samples):
        # MMEngine gives metrics dicts.
        self.results += [sample["pred"] == sample["label"] for sample in data_samples]

    def compute_metrics(self, results):
        assert self.dataset_meta["classes"][0] == "low"
        return {"hits": sum(results) / len(results)}


@LOOPS.register_module(name="TwiceLoop")
class TwiceLoop(ValLoop):
    """Goes through the data twice, as loops of libraries with several outputs do."""

    def run(self):
        super().run()
        return super().run()


@OPTIM_WRAPPER_CONSTRUCTORS.register_module(name="SlowHead")
class SlowHead(DefaultOptimWrapperConstructor):
    def add_params(self, params, module, prefix="", is_dcn_module=None):
        scale = self.paramwise_cfg["head_scale"]
        params.append({"params": list(module.wing.parameters()), "lr": self.base_lr})
        params.append({"params": list(module.head.parameters()), "lr": self.base_lr * scale})


@HOOKS.register_module(name="Watcher")
class Watcher(Hook):
    """Reads what hooks of libraries read, and logs it by MMEngine's logger."""

    priority = "LOW"

    def __init__(self):
        self.visualizer = Visualizer.get_current_instance()

    def before_train(self, runner):
        if runner.iter == 0:
            assert (runner.model.wing.layer.weight == 0.1).all(), "init_cfg was not used"
        hub = MessageHub.get_current_instance()
        MMLogger.get_current_instance().info(
            f"birds: {hub.get_info('max_epochs')} epochs, {len(runner.train_dataloader)} batches"
        )

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        assert MessageHub.get_current_instance().get_info("iter") == runner.iter
        assert set(outputs) == {"loss"}

    def after_val_epoch(self, runner, metrics=None):
        self.visualizer.add_image("seen", np.zeros((4, 4, 3), dtype="uint8"), step=runner.iter)
        MMLogger.get_current_instance().info(f"birds: {sorted(metrics)}")


@LOOPS.register_module(name="LoudLoop")
class LoudLoop(EpochBasedTrainLoop):
    """A training loop that derives from MMEngine's."""

    def run_epoch(self):
        MMLogger.get_current_instance().info(f"birds: epoch {self.epoch + 1}")
        super().run_epoch()


@EVALUATOR.register_module(name="Panel")
class Panel(Evaluator):
    """An evaluator that derives from MMEngine's, as those of several datasets do."""

    def evaluate(self, size):
        return {f"panel/{name}": value for name, value in super().evaluate(size).items()}
