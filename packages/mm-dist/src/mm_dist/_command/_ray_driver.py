"""Driver of a job on Ray: runs a script in every worker of a ``TorchTrainer``.

``ray job submit`` starts it: ``python -m mm_dist._command._ray_driver PLAN SCRIPT ARGUMENTS...``.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Train until the script has ended in all workers."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415 (a cluster's)
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    # The script and its data are in working_dir, not in the folder of the run.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    plan = json.loads(sys.argv[1])
    failures = FailureConfig(max_failures=plan.pop("max_failures"))
    run_config = {key: plan.pop(key) for key in ("name", "storage_path")}
    TorchTrainer(
        run_script,
        train_loop_config={"script": sys.argv[2:]},
        scaling_config=ScalingConfig(**plan, use_gpu="GPU" in plan["resources_per_worker"]),
        run_config=RunConfig(**run_config, failure_config=failures),
    ).fit()


def run_script(config: dict[str, Any]) -> None:
    """Run the script in one worker; raise RuntimeError where its exit status is not 0."""
    words: list[str] = list(config["script"])
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    sys.path.insert(0, str(Path.cwd() if is_module else Path(words[0]).resolve().parent))
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as error:
        # To Ray, which runs this in a thread, it would be a success.
        if error.code not in (None, 0):
            raise RuntimeError(f"{words[is_module]} ended with status {error.code}") from error


if __name__ == "__main__":
    main()
