"""Train on handwritten digits with metrics of torchmetrics, and log to a local store of MLflow.

pip install 'mm-runner[examples,metrics]' mlflow
python examples/torchmetrics_mlflow.py
mlflow ui --backend-store-uri sqlite:///work_dirs/torchmetrics_mlflow/mlflow.db
"""

from digits import DigitsResNet, dataloader
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from mm_runner import Runner

WORK_DIR = "work_dirs/torchmetrics_mlflow"

if __name__ == "__main__":
    kinds = {"accuracy": MulticlassAccuracy, "f1": MulticlassF1Score, "auroc": MulticlassAUROC}
    runner = Runner(
        model={"type": DigitsResNet},
        work_dir=WORK_DIR,
        train_dataloader=dataloader("train", 32),
        train_cfg={"max_epochs": 3},
        val_dataloader=dataloader("val", 30),
        val_evaluator=MetricCollection({name: kind(10) for name, kind in kinds.items()}),
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.05}},
        default_hooks={"checkpoint": {"save_best": "f1"}},
        randomness={"seed": 0},
        cfg={"log_writers": [{"type": "MLflowWriter", "save_dir": WORK_DIR}]},
        overwrite=True,  # an example may be run again
    )
    runner.train()
    for name, value in runner.val().items():
        if runner.rank == 0:
            print(f"{name}: {value:.4f}")
