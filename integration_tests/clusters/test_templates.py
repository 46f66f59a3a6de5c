"""What users copy: it is well-formed, and what it starts trains."""

import copy
import re
import signal

import pytest
import yaml
from hosts import under_names
from launching import finish, run_on, started
from manifest_fields import find_faults
from training import (
    CONFIG,
    FEW_EPOCHS,
    SLOW,
    TEMPLATES,
    assert_equal_runs,
    hurry,
    wait_until_it_trains,
)


def read_objects(name):
    return list(yaml.safe_load_all((TEMPLATES / name).read_text()))


@pytest.mark.cut
@pytest.mark.parametrize("name", ["pytorchjob.yaml", "trainjob.yaml"])
def test_manifest_has_only_fields_that_there_are(name):
    for one in read_objects(name):
        assert find_faults(one) == []


MISTAKES = {
    "misspelt": (("spec", "pytorchReplicaSpecs"), "Workers", {}, r"Workers is not known"),
    "number-as-text": (("spec",), "nprocPerNode", 8, r"nprocPerNode: 8 is not"),
    "policy": (
        ("spec", "pytorchReplicaSpecs", "Worker"),
        "restartPolicy",
        "OnError",
        r"restartPolicy: 'OnError' is not",
    ),
    "two-masters": (("spec", "pytorchReplicaSpecs", "Master"), "replicas", 2, "one master"),
    "container": (
        ("spec", "pytorchReplicaSpecs", "Worker", "template", "spec", "containers", 0),
        "name",
        "main",
        "looks for 'pytorch'",
    ),
    "volume": (
        ("spec", "pytorchReplicaSpecs", "Worker", "template", "spec"),
        "volumes",
        [],
        "no volume",
    ),
    "no-pods": (("spec", "pytorchReplicaSpecs", "Worker"), "template", {}, "spec is missing"),
    "version": ((), "apiVersion", "kubeflow.org/v2", "is none of"),
}


@pytest.mark.cut
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_check_finds(mistake):
    path, key, value, message = mistake
    (manifest,) = read_objects("pytorchjob.yaml")
    # Its two pods are one object to YAML.
    manifest = place = copy.deepcopy(manifest)
    for step in path:
        place = place[step]
    place[key] = value
    assert re.search(message, "\n".join(find_faults(manifest)))


def operator_variables(number, name):
    """What the operator sets in the pod of that number; ``name`` is that of the first pod."""
    return {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(number),
        "PET_MASTER_ADDR": name,
        "PET_MASTER_PORT": "23456",
    }


def training_operator_variables(number):
    """Those of a PyTorchJob, which speaks also to scripts that are started without torchrun."""
    own = {"MASTER_ADDR": "digits-master-0", "MASTER_PORT": "23456", "PYTHONUNBUFFERED": "0"}
    numbers = {"WORLD_SIZE": "2", "RANK": str(number)}
    return operator_variables(number, "digits-master-0") | own | numbers


def trainer_variables(number):
    """Those of a TrainJob."""
    return operator_variables(number, "digits-node-0-0.digits")


def read_pytorch_job():
    (manifest,) = read_objects("pytorchjob.yaml")
    roles = manifest["spec"]["pytorchReplicaSpecs"]
    pods = [roles[role]["template"]["spec"]["containers"][0] for role in ("Master", "Worker")]
    return [(*pod["command"], *pod["args"]) for pod in pods]


def read_train_job():
    trainer = read_objects("trainjob.yaml")[1]["spec"]["trainer"]
    return [(*trainer["command"], *trainer["args"])] * 2


@pytest.fixture
def pods(tmp_path):
    """``pods(commands, variables, *more)`` returns what runs in each of two pods."""
    names = tmp_path / "names"
    lines = ["127.0.0.1 localhost", "10.77.0.11 digits-master-0 digits-node-0-0.digits n1"]
    names.write_text("\n".join([*lines, "10.77.0.12 n2"]))

    def dress(commands, variables, *more):
        dressed = []
        for number, command in enumerate(commands):
            mounted = [word.replace("/work_dirs/digits", str(tmp_path)) for word in command]
            own = [f"{name}={value}" for name, value in variables(number).items()]
            dressed.append((*under_names(names), "env", *own, *mounted, *FEW_EPOCHS, *more))
        return dressed

    return dress


def test_pods_of_a_pytorch_job_save_when_one_is_evicted_and_go_on(
    pods, nodes, config_reference, tmp_path
):
    commands = pods(read_pytorch_job(), training_operator_variables, SLOW)
    with started(*zip(nodes, commands, strict=True)) as (first, second):
        alive = lambda: first.poll() is None and second.poll() is None  # noqa: E731
        wait_until_it_trains(tmp_path, 2, alive)
        nodes[1].send(second, signal.SIGTERM)
        outputs = finish((first, second))
    # Any status but 0 starts a pod again.
    assert [first.returncode, second.returncode] == [75, 75], "\n".join(outputs)
    hurry(tmp_path)
    run_on(nodes, *commands)
    assert_equal_runs(tmp_path, config_reference(*FEW_EPOCHS))


def test_pods_of_a_train_job_train(pods, nodes, config_reference, tmp_path):
    run_on(nodes, *pods(read_train_job(), trainer_variables))
    assert_equal_runs(tmp_path, config_reference(*FEW_EPOCHS))


def test_two_machines_script_trains_by_either_launcher(nodes, config_reference, tmp_path):
    expected = config_reference(*FEW_EPOCHS)
    for launcher in ("mm-dist run", "python -m torch.distributed.run"):
        work_dir = tmp_path / launcher.partition(" ")[0]
        variables = (f"LAUNCHER={launcher}", "NPROC_PER_NODE=1")
        script = ("bash", TEMPLATES / "two_machines.sh", "n1", CONFIG, "--work-dir", work_dir)
        run_on(nodes, *[("env", *variables, *script, *FEW_EPOCHS)] * 2)
        assert_equal_runs(work_dir, expected)
