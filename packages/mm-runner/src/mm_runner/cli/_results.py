"""``mm-runner predict`` and ``mm-runner export``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from mm_runner.config import Config
from mm_runner.errors import ConfigError

from ._configuration import add_config_arguments, load_config
from ._training import add_tta, check_writable, use_views

_OF_WORKERS = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context")


def predict(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Predict with a model.

    Predict every sample of the test data with a checkpoint, and write the predictions in the order
    of the dataset. Metrics are neither needed nor computed.
    """
    add_config_arguments(parser, switches=False)
    _add_files(parser, "ends in .jsonl, .csv (a column for each number), .npz or .pt")
    parser.add_argument(
        "--data", choices=["test", "val"], default="test", help="whose dataloader (%(default)s)"
    )
    add_tta(parser)
    return _run_predict


def _run_predict(options: Namespace) -> None:
    from mm_runner._main_process import run_on_main  # noqa: PLC0415 - imports torch, as the next
    from mm_runner.runner import Runner  # noqa: PLC0415
    from mm_runner.tools import _predictions  # noqa: PLC0415

    out, where = Path(options.out), f"{options.data}_dataloader"
    _predictions.check_predictions_format(out)
    check_writable(out)
    cfg = load_config(options)
    cfg.load_from, cfg.resume = None, False
    if cfg.get(where) is None:
        raise ConfigError(f"{where}: this key is missing; it gives the samples to predict.")
    if options.tta:
        use_views(cfg, where)
    loader = cfg[where]
    _drop_phases_without_metrics(cfg)
    runner = Runner.from_cfg(cfg)
    runner.load_checkpoint(options.checkpoint, strict=True)
    predictions = runner.predict(loader)
    run_on_main(lambda: _predictions.write_predictions(predictions, out))
    if predictions is not None:
        sys.stdout.write(f"{out}\n")


def export(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Export a model.

    Write the model of a checkpoint for use without mm-runner: its weights (.safetensors), a program
    of torch.export (.pt2), or ONNX (.onnx). What the file computes is compared with the model, on
    batches of three sizes, before it appears.
    """
    add_config_arguments(parser, switches=False, launcher=False)
    _add_files(parser, "ends in .safetensors, .pt2 or .onnx")
    return _run_export


def _run_export(options: Namespace) -> None:
    from mm_runner.model import unwrap_model  # noqa: PLC0415 - imports torch, as do the next
    from mm_runner.runner import Runner  # noqa: PLC0415
    from mm_runner.tools._export import check_export_format, export_model  # noqa: PLC0415

    out = Path(options.out)
    check_export_format(out)
    check_writable(out)
    cfg = load_config(options)
    cfg.launcher, cfg.load_from, cfg.resume = "none", None, False
    for key in ("compile", "activation_checkpointing"):
        cfg.pop(key, None)
    loaders = [cfg.get(f"{phase}_dataloader") for phase in ("test", "val", "train")]
    given = next((one for one in loaders if one is not None), None)
    if given is None:
        raise ConfigError("test_dataloader: this key is missing; its first batch is the example.")
    _drop_phases_without_metrics(cfg)
    runner = Runner.from_cfg(cfg)
    runner.load_checkpoint(options.checkpoint, strict=True)
    if isinstance(given, Mapping):  # one batch needs no workers
        given = {key: one for key, one in given.items() if key not in _OF_WORKERS}
    batch = next(iter(runner.build_dataloader(given)))
    text = export_model(unwrap_model(runner.model).cpu(), out, batch)
    sys.stdout.write(f"{text}\n")


def _drop_phases_without_metrics(cfg: Config) -> None:
    """Remove dataloaders whose evaluator is missing: a run would refuse them."""
    for phase in ("val", "test"):
        if cfg.get(f"{phase}_evaluator") is None:
            cfg.pop(f"{phase}_dataloader", None)


def _add_files(parser: ArgumentParser, endings: str) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="where the weights are")
    parser.add_argument("--out", required=True, metavar="FILE", help=endings)
