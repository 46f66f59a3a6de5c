"""Job scripts and manifests for Slurm, Ray and Kubernetes."""

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from mm_dist._command._job import import_yaml
from mm_dist._errors import ConfigError

# Ray and Kubernetes cannot tell a preemption from a failure: how often an attempt is repeated.
_RETRIES = {"ray": 3, "kubernetes": 20}
_TRAINER = "trainer.kubeflow.org"
# A client's command, and what it reads from its standard input, if anything.
Request: TypeAlias = tuple[list[str], str | None]


def write_slurm(job: dict[str, Any], script: Sequence[str]) -> Request:
    """Return ``sbatch``, and a job script that queues again when a rank ends with status 75."""
    cpus, time = job["cpus"], job.get("time")
    options = {
        "job-name": job["name"],
        "output": "%x-%j.log",
        "open-mode": "append",
        "nodes": job["nodes"],
        "ntasks-per-node": job["processes_per_node"],
        "cpus-per-task": cpus and cpus // job["processes_per_node"],
        "gres": job["gpus"] and f"gpu:{job['gpus']}",
        "mem": job.get("memory"),
        "time": time and f"{time // 60}:{time % 60:02}",
        "requeue" if job["requeue"] else "no-requeue": "True",
        # To every rank, a minute before the end: enough for a step and a checkpoint.
        "signal": time and job["requeue"] and "USR1@60",
        **job["slurm"],
    }
    lines = ["#!/bin/bash"]
    for key, value in options.items():
        if value and value != "False":
            ending = "" if value == "True" else f"={shlex.quote(str(value))}"
            lines.append(f"#SBATCH --{key}{ending}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job["env"].items()]
    if cpus:
        lines += [
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun does not take it from sbatch',
            'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}"',
        ]
    # The nodes share their files with the machine that submits, and so this Python.
    lines.append(f"srun --kill-on-bad-exit=1 {shlex.join([sys.executable, *script])}")
    if job["requeue"]:
        lines += [
            "status=$?",
            "# 75: stopped by a signal, after saving a checkpoint.",
            'if [ "$status" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
            'exit "$status"',
        ]
    return ["sbatch"], "\n".join(lines) + "\n"


def write_ray(job: dict[str, Any], script: Sequence[str]) -> Request:
    """Return ``ray job submit`` with a driver that runs the script by a ``TorchTrainer``."""
    own, count = job["ray"], job["processes_per_node"]
    amounts = {"CPU": job["cpus"] or count, "GPU": job["gpus"]}
    if "memory" in job:
        amounts["memory"] = int(job["memory"][:-1]) << 10 * (" MGT".index(job["memory"][-1]) + 1)
    plan = {
        "name": job["name"],
        "num_workers": job["nodes"] * count,
        "resources_per_worker": {key: value / count for key, value in amounts.items() if value},
        "storage_path": own.get("storage_path"),
        "max_failures": int(own.get("max_failures", _RETRIES["ray"])) if job["requeue"] else 0,
    }
    options = [
        *(["--address", own["address"]] if "address" in own else []),
        "--no-wait",
        f"--working-dir={own.get('working_dir', '.')}",
        f"--runtime-env-json={json.dumps({'env_vars': job['env']})}",
    ]
    driver = ["python", "-m", "mm_dist._command._ray_driver", json.dumps(plan), *script]
    return ["ray", "job", "submit", *options, "--", *driver], None


def write_kubernetes(job: dict[str, Any], script: Sequence[str]) -> Request:
    """Return ``kubectl apply``, and a runtime and a job of Kubeflow Trainer."""
    if "image" not in job:
        raise ConfigError("image: Kubernetes needs one that holds the packages and the script.")
    own = job["kubernetes"]
    metadata = {"name": job["name"], **{key: own[key] for key in own if key == "namespace"}}
    memory = f"{job['memory']}i" if "memory" in job else None
    wanted = {"cpu": job["cpus"], "memory": memory, "nvidia.com/gpu": job["gpus"]}
    amounts = {key: str(value) for key, value in wanted.items() if value}
    trainer = {
        "numNodes": job["nodes"],
        "numProcPerNode": job["processes_per_node"],
        "command": ["mm-dist", "run"],
        "args": list(script),
        "env": [{"name": name, "value": value} for name, value in job["env"].items()],
        "resourcesPerNode": {"limits": amounts, "requests": amounts.copy()} if amounts else {},
    }
    runtime = {
        "mlPolicy": {"numNodes": job["nodes"], "torch": {}},
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": _write_pods(job)}]}},
    }
    train_job = {
        "runtimeRef": {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": job["name"]},
        "trainer": {key: value for key, value in trainer.items() if value},
        **({"activeDeadlineSeconds": job["time"]} if "time" in job else {}),
    }
    manifests = [
        {"apiVersion": f"{_TRAINER}/v1alpha1", "kind": kind, "metadata": {**metadata}, "spec": spec}
        for kind, spec in (("TrainingRuntime", runtime), ("TrainJob", train_job))
    ]
    text = import_yaml().safe_dump_all(manifests, sort_keys=False)
    return ["kubectl", "apply", "--filename=-"], text


def _write_pods(job: dict[str, Any]) -> dict[str, Any]:
    """Return the template of the pods; the job says what runs in them."""
    own, claims = job["kubernetes"], job["kubernetes"].get("claims", {})
    # The shared memory of workers and NCCL: a container's own is 64 MiB.
    mounts = {**claims, "shared-memory": "/dev/shm"}  # noqa: S108 (a mount)
    container = {
        "name": "node",
        "image": job["image"],
        **({"workingDir": own["workdir"]} if "workdir" in own else {}),
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
    }
    volumes: list[dict[str, Any]] = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims
    ]
    pod = {
        # A pod that received SIGTERM exits with status 75.
        "restartPolicy": "OnFailure" if job["requeue"] else "Never",
        "terminationGracePeriodSeconds": 120,  # for the end of a step, and a checkpoint
        "containers": [container],
        "volumes": [*volumes, {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    retries = _RETRIES["kubernetes"] if job["requeue"] else 0
    return {
        "metadata": {"labels": {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}},
        "spec": {"backoffLimit": retries, "template": {"spec": pod}},
    }
