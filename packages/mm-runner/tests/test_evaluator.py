import pytest
import torch
from toy import Scripted, loader_cfg, runner_arguments

from mm_runner import ComponentNotFoundError, ConfigError, Runner
from mm_runner.evaluator import Accuracy, BaseMetric, Evaluator
from mm_runner.tools import make_plan

SCORES = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])


def test_accuracy_is_the_share_of_right_labels():
    metric = Accuracy()
    metric.process(None, (SCORES, torch.tensor([0, 1, 1])))
    metric.process(None, [SCORES[:1], torch.tensor([0])])
    assert metric.evaluate(4) == {"accuracy": 0.75}
    assert metric.results == []


def test_more_results_than_samples_are_dropped_and_told():
    metric = Accuracy()
    metric.process(None, (SCORES, torch.tensor([0, 1, 1])))
    with pytest.warns(UserWarning, match=r"has 3 results of a dataset of 2 samples, 1 too"):
        assert metric.evaluate(2) == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (SCORES, r"got Tensor\(3, 2\) and None"),
        ((SCORES[:, :1], torch.ones(3)), r"two classes at least.*; got Tensor\(3, 1\) and"),
        ((SCORES, torch.ones(3, 2)), r"and Tensor\(3, 2\)"),
    ],
    ids=["one-tensor", "one-class", "one-hot"],
)
def test_accuracy_says_what_it_takes(prediction, message):
    with pytest.raises(ConfigError, match=rf"takes \(scores, labels\).*'predict'.*{message}"):
        Accuracy().process(None, prediction)


def test_accuracy_of_nothing_is_told():
    with pytest.raises(
        ConfigError, match=r"Accuracy has no prediction .* the loader gave no batch"
    ):
        Accuracy().evaluate(3)


@pytest.mark.parametrize("phase", ["val", "test"])
def test_a_loader_without_a_batch_is_refused_before_anything_runs(make_runner, phase):
    loader = loader_cfg(size=9, batch_size=10, drop_last=True)
    parts = {"dataloader": loader, "cfg": {}, "evaluator": {"type": "Accuracy"}}
    runner = make_runner(**{f"{phase}_{name}": part for name, part in parts.items()})
    message = rf"{phase}_dataloader gives no batch: .* 9 samples for 1 .*, and a batch takes 10"
    with pytest.raises(ConfigError, match=message):
        (runner.train if phase == "val" else runner.test)()
    assert runner.iter == 0


def _evaluate_by_two(rank, work_dir):
    del rank
    sampler = {"type": "DefaultSampler", "shuffle": False, "round_up": False}
    loader = loader_cfg(size=1, sampler=sampler)
    runner = Runner(**runner_arguments(work_dir, val_dataloader=loader))
    assert set(runner.val()) == {"accuracy"}
    loader = loader_cfg(size=7, batch_size=5, drop_last=True)
    runner = Runner(**runner_arguments(work_dir, val_dataloader=loader))
    with pytest.raises(ConfigError, match=r"val_dataloader gives no batch: .* 7 samples for 2 pro"):
        runner.val()
    try:
        import torchmetrics.classification  # noqa: F401, PLC0415
    except ImportError:  # not there, or for a newer torch
        return
    metric = {"type": "torchmetrics.classification:MulticlassAccuracy", "num_classes": 3}
    loader = loader_cfg(size=7, batch_size=2)  # the last sample of one rank fills up
    evaluator = [{**metric, "average": "micro"}, {"type": "Accuracy"}]
    changes = {"val_dataloader": loader, "val_evaluator": evaluator}
    found = Runner(**runner_arguments(work_dir, **changes)).val()
    assert found["multiclass_accuracy"] == pytest.approx(found["accuracy"])


def test_a_rank_without_a_sample_evaluates_with_the_others_and_none_counts_twice(
    run_ranks, tmp_path
):
    run_ranks(_evaluate_by_two, 2, tmp_path)


def test_what_a_metric_computes_is_a_dict():
    class Forgets(Scripted):
        def compute_metrics(self, results):
            del results

    with pytest.raises(ConfigError, match=r"Forgets\.compute_metrics returned None; a dict of"):
        Forgets().evaluate(0)


def test_metrics_know_what_the_dataset_says_of_itself(make_runner):
    loader = loader_cfg(size=9)
    loader["dataset"].metainfo = {"classes": ["a", "b", "c"]}
    metrics = [Scripted(name=name, values=[0.5]) for name in ("one", "other")]
    runner = make_runner(val_evaluator=metrics, val_dataloader=loader)
    runner.val()
    assert [metric.dataset_meta for metric in metrics] == [loader["dataset"].metainfo] * 2
    assert runner.val_loop.evaluator.dataset_meta == loader["dataset"].metainfo


@pytest.mark.parametrize(
    "metrics", [{"type": "Accuracy"}, Accuracy(), [Accuracy()]], ids=["cfg", "metric", "list"]
)
def test_evaluator_takes_a_config_a_metric_or_a_list(metrics):
    evaluator = Evaluator(metrics)
    evaluator.process(data_samples=(SCORES, torch.tensor([0, 1, 1])), data_batch={})
    assert evaluator.evaluate(3) == {"accuracy": pytest.approx(2 / 3)}


def test_evaluator_turns_numbers_of_other_libraries_into_pythons():
    numpy = pytest.importorskip("numpy")
    for value in (numpy.float64(0.5), numpy.float32(0.5), torch.tensor(0.5)):
        (number,) = Evaluator(Scripted(values=[value])).evaluate(0).values()
        assert type(number) is float
        assert number == 0.5


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ([], ConfigError, r"val_evaluator: at least one metric is needed"),
        (3, ConfigError, r"val_evaluator: a metric with process\(\) and evaluate\(\).*got 3"),
        ("Accuracy", ConfigError, r"val_evaluator: .*got 'Accuracy'"),
        ({"prefix": "a"}, ConfigError, r"val_evaluator: the key 'type' is missing"),
        (
            {"type": "Acuracy"},
            ComponentNotFoundError,
            r"No metric named 'Acuracy'; there are: .*Did you mean 'Accuracy'",
        ),
    ],
    ids=["empty", "number", "text", "no-type", "unknown"],
)
def test_evaluator_says_what_is_wrong_with_a_metric(metrics, error, message):
    with pytest.raises(error, match=message):
        Evaluator(metrics, where="val_evaluator")


class Doubled(Evaluator):
    """An evaluator of a user's own, with an argument of its own."""

    def __init__(self, metrics, factor=2):
        super().__init__(metrics)
        self.factor = factor

    def evaluate(self, size):
        return {name: self.factor * value for name, value in super().evaluate(size).items()}


ACCURACY = {"type": "Accuracy"}
EVALUATORS = {
    "metrics": {"metrics": ACCURACY},
    "name": {"type": "Evaluator", "metrics": [ACCURACY]},
    "path": {"type": "mm_runner.evaluator:Evaluator", "metrics": [ACCURACY]},
    "built": Evaluator([Accuracy()]),
    "subclass": {"type": Doubled, "metrics": [ACCURACY], "factor": 1},
}


@pytest.mark.parametrize("evaluator", EVALUATORS.values(), ids=EVALUATORS)
def test_the_config_of_an_evaluator_measures_what_its_metrics_do(make_runner, evaluator):
    # Nine samples of which not all are right, in batches of four: no other count gives the same.
    options = {"val_dataloader": loader_cfg(size=9), "test_cfg": {}}
    options["test_dataloader"] = options["val_dataloader"]
    plain = make_runner(val_evaluator=ACCURACY, test_evaluator=ACCURACY, **options)
    runner = make_runner(val_evaluator=evaluator, test_evaluator=evaluator, **options)
    measured = plain.val()
    assert 0 < measured["accuracy"] < 1
    assert runner.val() == runner.test() == measured
    assert runner.build_evaluator(evaluator).metrics[0].__class__ is Accuracy


def test_an_evaluator_of_ones_own_gets_its_arguments(make_runner):
    measured = make_runner().val()["accuracy"]
    own = {"type": Doubled, "metrics": [ACCURACY], "factor": 3}
    assert make_runner(val_evaluator=own).val() == {"accuracy": 3 * measured}


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        ({"metrics": [{**ACCURACY, "prefx": "a"}]}, r"metrics\[0\]\.prefx: unknown.*'prefix'"),
        ({"metrics": [ACCURACY, 3]}, r"metrics\[1\]: a metric, or a dict .*got 3"),
        ({"type": "Evaluator"}, r"metrics: Evaluator needs this argument"),
        ({"type": Doubled, "metrics": ACCURACY, "facto": 1}, r"facto: unknown.*'factor'"),
    ],
    ids=["key", "number", "no-metrics", "subclass"],
)
def test_what_is_wrong_in_the_config_of_an_evaluator_is_named_by_its_path(
    tmp_path, evaluator, message
):
    cfg = runner_arguments(tmp_path, val_evaluator=evaluator)
    for check in (lambda: Runner.from_cfg(cfg), lambda: make_plan(cfg)):
        with pytest.raises(ConfigError, match=rf"^val_evaluator\.{message}"):
            check()


def test_two_metrics_of_one_name_are_told_apart_by_a_prefix():
    with pytest.raises(ConfigError, match=r"Two metrics report 'accuracy'; give.*'prefix'"):
        Evaluator([Scripted(values=[1]), Scripted(values=[2])]).evaluate(0)
    evaluator = Evaluator([Scripted(values=[1]), Scripted(values=[2], prefix="b")])
    assert evaluator.evaluate(0) == {"accuracy": 1, "b/accuracy": 2}


class _PerBatchAccuracy(BaseMetric):
    """Keeps one entry per batch, as MMEngine's guide shows."""

    def process(self, data_batch, data_samples):  # noqa: ARG002
        scores, labels = data_samples
        hits = (scores.argmax(dim=1) == labels).sum().item()
        self.results.append({"batch_size": len(labels), "correct": hits})

    def compute_metrics(self, results):
        total = sum(entry["batch_size"] for entry in results)
        return {"accuracy": sum(entry["correct"] for entry in results) / total}


def test_metric_may_keep_one_entry_per_batch():
    metric = _PerBatchAccuracy()
    for labels in ([0, 1], [1]):
        metric.process(None, (torch.eye(2)[: len(labels)], torch.tensor(labels)))
    assert metric.evaluate(size=3) == {"accuracy": 2 / 3}


def _torchmetrics_in_any_form(classification):
    return [
        classification.MulticlassAccuracy(num_classes=3, average="micro"),
        [
            {
                "type": "torchmetrics.classification:MulticlassAccuracy",
                "num_classes": 3,
                "average": "micro",
            },
            {"type": "Accuracy"},
        ],
        {"type": classification.MulticlassAccuracy, "num_classes": 3, "average": "micro"},
    ]


@pytest.mark.parametrize("form", range(3), ids=["object", "import-path", "class"])
def test_a_metric_of_torchmetrics_is_one(make_runner, form):
    classification = pytest.importorskip("torchmetrics.classification", exc_type=ImportError)
    metric = _torchmetrics_in_any_form(classification)[form]
    checkpoint = {"type": "CheckpointHook", "save_best": "multiclass_accuracy"}
    runner = make_runner(val_evaluator=metric, default_hooks={"checkpoint": checkpoint})
    runner.train()
    assert (runner.work_dir / "best_multiclass_accuracy.pth").exists()
    ours = make_runner(load_from=str(runner.work_dir / "epoch_2.pth"))
    for _ in range(2):
        found = runner.val()["multiclass_accuracy"]
        assert found == pytest.approx(ours.val()["accuracy"])


def test_a_collection_reports_each_of_its_metrics(make_runner):
    torchmetrics = pytest.importorskip("torchmetrics", exc_type=ImportError)
    accuracy = torchmetrics.classification.MulticlassAccuracy
    both = {"micro": accuracy(3, average="micro"), "each": accuracy(3, average=None)}
    metrics = make_runner(val_evaluator=torchmetrics.MetricCollection(both)).val()
    assert metrics.keys() == both.keys()
    assert len(metrics["each"]) == 3


def test_more_results_than_samples_are_told_of_a_metric_of_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics", exc_type=ImportError)
    evaluator = Evaluator(torchmetrics.MeanMetric())
    evaluator.process({"value": torch.ones(3)})
    with pytest.warns(UserWarning, match="MeanMetric has 3 results of a dataset of 2 samples"):
        evaluator.evaluate(2)


def test_a_metric_of_torchmetrics_takes_what_its_update_does():
    torchmetrics = pytest.importorskip("torchmetrics", exc_type=ImportError)
    evaluator = Evaluator([torchmetrics.MeanMetric(), torchmetrics.MeanSquaredError()])
    values = torch.tensor([1.0, 2.0, 6.0])
    for rows in (slice(0, 2), slice(2, 4)):
        given = {"value": values[rows], "preds": values[rows], "target": values[rows] + 2}
        evaluator.process({**given, "of_another": values[rows]})
    assert evaluator.evaluate(3) == {"mean_metric": 3.0, "mean_squared_error": 4.0}
    evaluator = Evaluator(torchmetrics.MeanMetric())
    evaluator.process((values,))
    assert evaluator.evaluate(3) == {"mean_metric": 3.0}
    with pytest.raises(ConfigError, match=r"MeanMetric takes .* a dict of what its .* got Tensor"):
        evaluator.process(values)
