"""Which fields Kubeflow's and Kubernetes' objects have: a compact check of manifests.

It knows the part of them that the manifests here may use. As the API server does where it validates
strictly, it refuses a field that it does not know.

Sources: the types of ``kubeflow.org/v1`` in kubeflow/training-operator (``pkg/apis``), those of
``trainer.kubeflow.org/v1alpha1`` in kubeflow/trainer, and Kubernetes' ``core/v1`` and ``batch/v1``.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# A rule is a type, a pattern, a set of words, a list of one rule, or a mapping of fields. A field
# whose name ends in an exclamation mark has to be there; the field "*" is any other name.
Rule = Any

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_QUANTITIES: Rule = {"*": (int, _QUANTITY)}
_RESOURCES: Rule = {"limits": _QUANTITIES, "requests": _QUANTITIES}
_ENV: Rule = [{"name!": str, "value": str}]
_METADATA: Rule = {
    "name": _NAME,
    "namespace": _NAME,
    "labels": {"*": str},
    "annotations": {"*": str},
}
_CONTAINER: Rule = {
    "name!": _NAME,
    "image": str,
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "workingDir": str,
    "command": [str],
    "args": [str],
    "env": _ENV,
    "resources": _RESOURCES,
    "volumeMounts": [{"name!": _NAME, "mountPath!": str, "subPath": str, "readOnly": bool}],
}
_VOLUME: Rule = {
    "name!": _NAME,
    "persistentVolumeClaim": {"claimName!": _NAME, "readOnly": bool},
    "emptyDir": {"medium": {"", "Memory"}, "sizeLimit": _QUANTITY},
}
_POD: Rule = {
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "terminationGracePeriodSeconds": int,
    "containers!": [_CONTAINER],
    "volumes": [_VOLUME],
    "nodeSelector": {"*": str},
}
_POD_TEMPLATE: Rule = {"metadata": _METADATA, "spec!": _POD}
_REPLICAS: Rule = {
    "replicas": int,
    "restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
    "template!": _POD_TEMPLATE,
}
_PYTORCH_JOB: Rule = {
    "nprocPerNode": re.compile(r"auto|cpu|gpu|\d+"),
    "pytorchReplicaSpecs!": {"Master": _REPLICAS, "Worker": _REPLICAS},
    "elasticPolicy": {
        "minReplicas": int,
        "maxReplicas": int,
        "maxRestarts": int,
        "rdzvBackend": {"c10d", "etcd", "etcd-v2"},
        "rdzvHost": str,
        "rdzvPort": int,
        "rdzvId": str,
        "rdzvConf": [{"key": str, "value": str}],
    },
    "runPolicy": {
        "cleanPodPolicy": {"All", "Running", "None"},
        "backoffLimit": int,
        "activeDeadlineSeconds": int,
        "ttlSecondsAfterFinished": int,
        "suspend": bool,
    },
}
_TRAIN_JOB: Rule = {
    "runtimeRef!": {
        "name!": _NAME,
        "apiGroup": {"trainer.kubeflow.org"},
        "kind": {"TrainingRuntime", "ClusterTrainingRuntime"},
    },
    "trainer": {
        "image": str,
        "command": [str],
        "args": [str],
        "env": _ENV,
        "numNodes": int,
        "numProcPerNode": int,
        "resourcesPerNode": _RESOURCES,
    },
    "suspend": bool,
}
_JOB_TEMPLATE: Rule = {
    "metadata": _METADATA,
    "spec!": {
        "backoffLimit": int,
        "activeDeadlineSeconds": int,
        "template!": _POD_TEMPLATE,
    },
}
_TRAINING_RUNTIME: Rule = {
    "mlPolicy": {"numNodes": int, "torch": {"numProcPerNode": (int, {"auto", "cpu", "gpu"})}},
    "template!": {"spec!": {"replicatedJobs!": [{"name!": _NAME, "template!": _JOB_TEMPLATE}]}},
}
_SPECS = {
    ("kubeflow.org/v1", "PyTorchJob"): _PYTORCH_JOB,
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): _TRAIN_JOB,
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): _TRAINING_RUNTIME,
}


def find_faults(manifest: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an object: the path of each fault, and what it is."""
    key = (manifest.get("apiVersion"), manifest.get("kind"))
    if key not in _SPECS:
        return [f"apiVersion, kind: {key} is none of {sorted(_SPECS)}"]
    rule = {"apiVersion!": str, "kind!": str, "metadata!": _METADATA, "spec!": _SPECS[key]}
    return list(_check(manifest, rule, "")) or list(_MEANINGS[key[1]](manifest["spec"]))


def _check(value: Any, rule: Rule, path: str) -> Iterator[str]:
    if isinstance(rule, tuple):
        faults = [list(_check(value, one, path)) for one in rule]
        yield from [] if [] in faults else faults[0]
    elif isinstance(rule, dict):
        yield from _check_fields(value, rule, path)
    elif isinstance(rule, list):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for number, item in enumerate(value):
            yield from _check(item, rule[0], f"{path}[{number}]")
    elif not _is_scalar_right(value, rule):
        yield f"{path}: {value!r} is not {rule}"


def _is_scalar_right(value: Any, rule: Rule) -> bool:
    if isinstance(rule, re.Pattern):
        return isinstance(value, str) and rule.fullmatch(value) is not None
    if isinstance(rule, set):
        return value in rule
    return type(value) is rule  # to YAML, True is no number


def _check_fields(value: Any, rule: Mapping[str, Rule], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} has no fields"
        return
    rules = {name.rstrip("!"): one for name, one in rule.items()}
    for name in rule:
        if name.endswith("!") and name[:-1] not in value:
            yield f"{path}.{name[:-1]} is missing"
    for name, item in value.items():
        if name in rules:
            yield from _check(item, rules[name], f"{path}.{name}")
        elif "*" in rules:
            yield from _check(item, rules["*"], f"{path}.{name}")
        else:
            yield f"{path}.{name} is not known; there are: {', '.join(rules)}"


def _check_pod(pod: Mapping[str, Any], container: str) -> Iterator[str]:
    """Check what a pod has to be beyond its fields."""
    names = [one.get("name") for one in pod.get("containers", [])]
    if container not in names:
        yield f"containers: the operator looks for {container!r}, there are {names}"
    volumes = {one.get("name") for one in pod.get("volumes", [])}
    for one in pod.get("containers", []):
        mounted = {mount.get("name") for mount in one.get("volumeMounts", [])}
        if not mounted <= volumes:
            yield f"volumeMounts: there is no volume {sorted(mounted - volumes)}"


def _check_pytorch_job(spec: Mapping[str, Any]) -> Iterator[str]:
    replicas = spec.get("pytorchReplicaSpecs", {})
    if replicas.get("Master", {}).get("replicas", 1) != 1:
        yield ".spec.pytorchReplicaSpecs.Master.replicas: there is one master"
    for one in replicas.values():
        yield from _check_pod(one.get("template", {}).get("spec", {}), "pytorch")


def _check_runtime(spec: Mapping[str, Any]) -> Iterator[str]:
    label = "trainer.kubeflow.org/trainjob-ancestor-step"
    trainers = [
        job["template"]
        for job in spec.get("template", {}).get("spec", {}).get("replicatedJobs", [])
        if job["template"].get("metadata", {}).get("labels", {}).get(label) == "trainer"
    ]
    if len(trainers) != 1:
        yield f"replicatedJobs: {len(trainers)} have the label {label}: trainer"
    for template in trainers:
        pod = template["spec"]["template"]["spec"]
        yield from _check_pod(pod, "node")
        if pod.get("restartPolicy") == "Always":
            yield "restartPolicy: the pods of a batch/v1 Job have OnFailure or Never"


_MEANINGS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "PyTorchJob": _check_pytorch_job,
    "TrainJob": lambda _spec: iter(()),
    "TrainingRuntime": _check_runtime,
}
