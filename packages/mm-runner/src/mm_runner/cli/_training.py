"""``mm-runner train`` and ``mm-runner test``."""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from mm_runner.config import Config
from mm_runner.errors import ConfigError

from ._configuration import add_config_arguments, load_config


def train(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Train a model.

    Train the model of a configuration.
    """
    add_config_arguments(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
        help="resume from a checkpoint; without a value, or with auto, from the newest in work_dir",
    )
    start.add_argument(
        "--overwrite",
        action="store_true",
        help="train from the start, and delete the checkpoints of an earlier run in work_dir",
    )
    parser.add_argument(
        "--fast-dev-run",
        nargs="?",
        const=1,
        type=_number_of_batches,
        metavar="N",
        help="train, validate and test N batches each (default: 1) to see that all of it works, "
        "and keep nothing: no checkpoints, no resuming, a temporary work directory",
    )

    def run(options: Namespace) -> None:
        import mm_dist  # noqa: PLC0415 - imports torch, as do the next
        from mm_runner.runner import Runner  # noqa: PLC0415

        cfg = load_config(options)
        if options.fast_dev_run is None:
            Runner.from_cfg(cfg).train()
            return
        from mm_runner.tools import fast_dev_run  # noqa: PLC0415

        text = fast_dev_run(cfg, options.fast_dev_run, options.work_dir)
        if mm_dist.is_main_process():
            sys.stdout.write(f"{text}\n")

    return run


def _number_of_batches(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"a positive number is needed, got {text!r}; CONFIG stands first")
    return int(text)


def test(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Test a model.

    Test a checkpoint on the test data, and print the metrics.
    """
    add_config_arguments(parser, switches=False)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="where the weights are")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the predictions there if it ends in .pkl, .pickle, .pth or .pt (see "
        "DumpResults), else the metrics, as JSON",
    )
    add_tta(parser)
    return _run_test


def add_tta(parser: ArgumentParser) -> None:
    """Add ``--tta``, for :func:`use_views`."""
    parser.add_argument(
        "--tta",
        action="store_true",
        help="predict from several views of each sample: needs tta_model, and perhaps tta_pipeline",
    )


def _run_test(options: Namespace) -> None:
    import mm_dist  # noqa: PLC0415 - imports torch, as do the next
    from mm_runner.evaluator import PREDICTION_SUFFIXES, DumpResults  # noqa: PLC0415
    from mm_runner.runner import Runner  # noqa: PLC0415

    cfg = load_config(options)
    cfg.load_from, cfg.resume = options.checkpoint, False
    out = Path(options.out) if options.out else None
    holds_predictions = out is not None and out.suffix.lower() in PREDICTION_SUFFIXES
    if out is not None:
        check_writable(out)
    if options.tta:
        use_views(cfg)
    runner = Runner.from_cfg(cfg)
    if holds_predictions and runner.test_loop is not None:  # else test() says what is missing
        runner.test_evaluator.metrics.append(DumpResults(options.out))
    metrics = runner.test()
    if mm_dist.is_main_process():
        sys.stdout.writelines(f"{name}: {value}\n" for name, value in metrics.items())
        if out is not None and not holds_predictions:
            text = json.dumps(metrics, indent=2, default=str)  # a metric may be a table or text
            out.write_text(f"{text}\n", encoding="utf-8")


def check_writable(out: Path) -> None:
    """Raise if nothing can be written to ``out``: a long test must not end with that."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():
            out.open("ab").close()
        else:  # without leaving an empty file
            tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise ConfigError(f"--out: {out} was given, and it cannot be written: {error}.") from error


def use_views(cfg: Config, loader: str = "test_dataloader") -> None:
    """Change a configuration so that its test predicts from several views of each sample.

    ``tta_model``, the config of a :class:`~mm_runner.model.BaseTTAModel`, is put around the model;
    ``tta_pipeline``, if there is one, takes the place of the ``pipeline`` of the dataset.
    """
    model = cfg.get("tta_model")
    if not isinstance(model, Mapping):
        raise ConfigError(
            f"tta_model: --tta was given, and this key is {'missing' if model is None else model}. "
            "It is the config of a mm_runner.model.BaseTTAModel, which merges the predictions."
        )
    hook = {"type": "PrepareTTAHook", "tta_cfg": {k: v for k, v in model.items() if k != "module"}}
    cfg.custom_hooks = [*(cfg.get("custom_hooks") or []), hook]
    if cfg.get("tta_pipeline") is None:
        return
    dataset = (cfg.get(loader) or {}).get("dataset")
    while isinstance(dataset, Mapping) and "pipeline" not in dataset:
        dataset = dataset.get("dataset")
    if not isinstance(dataset, dict):
        raise ConfigError(
            f"tta_pipeline: --tta was given, and {loader}.dataset has no 'pipeline' that it "
            "could replace. Let the dataset give the views, and leave tta_pipeline out."
        )
    dataset["pipeline"] = cfg.tta_pipeline
