from torch import nn

from mm_amp._parameter_names import named_parameters, owned_parameters
from mm_amp._plain_names import walk


def test_module_called_module_by_its_user_keeps_the_name(sgd, model):
    inside = nn.ModuleDict({"module": model, "head": nn.Linear(1, 1)})
    assert [one.name for one in owned_parameters(sgd, nn.ModuleDict({"module": inside}))] == [
        f"module.{name}" for name, _ in model.named_parameters()
    ]


def test_shared_parameter_has_its_first_name_as_in_torch(model):
    model.add_module("again", model[0])
    model.tied = model[2].weight
    expected = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in named_parameters(model)] == expected


def test_walk_ends_where_modules_hold_each_other(model):
    model[0].back = model
    assert [name for name, _, _ in walk(model)] == ["", "0", "1", "2"]
