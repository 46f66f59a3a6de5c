"""Driver of a job on Ray: runs a script in every worker of a ``TorchTrainer``.

``ray job submit`` starts it: ``python -m mm_dist._command._ray_driver PLAN SCRIPT ARGUMENTS...``.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Train until the script has ended in all workers."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415 (a cluster's)
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    plan, script = json.loads(sys.argv[1]), sys.argv[2:]
    resources, failures = plan["resources_per_worker"], FailureConfig(plan["max_failures"])
    TorchTrainer(
        run_script,
        train_loop_config={"script": script},
        scaling_config=ScalingConfig(
            plan["num_workers"], use_gpu="GPU" in resources, resources_per_worker=resources
        ),
        run_config=RunConfig(plan["name"], plan["storage_path"], failure_config=failures),
    ).fit()


def run_script(config: dict[str, Any]) -> None:
    """Run the script in one worker, as ``python`` would.

    Raises:
        RuntimeError: If the script exits with another status than 0.
    """
    target, *arguments = config["script"]
    is_module = target == "-m"
    sys.argv = list(arguments) if is_module else [target, *arguments]
    sys.path.insert(0, str(Path.cwd() if is_module else Path(target).resolve().parent))
    try:
        if is_module:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except SystemExit as error:
        # To Ray, which runs this in a thread, it would be a success.
        if error.code not in (None, 0):
            raise RuntimeError(f"{target} ended with status {error.code}") from error


if __name__ == "__main__":
    main()
