"""Export a model for inference without mm-runner, and verify the file against the model."""

from __future__ import annotations

import copy
import inspect
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mm_runner.checkpoint import first_line
from mm_runner.errors import ConfigError, TorchVersionError
from mm_runner.model import Supervised, unwrap_model
from mm_runner.model._steps import run_forward

_ONNX = ("onnx", "onnxscript", "onnxruntime")
_LIBRARIES = {".safetensors": ("safetensors",), ".pt2": (), ".onnx": _ONNX}
_TOLERANCE = 1e-4  # of the largest output, and of 1 at least


def check_export_format(path: Path) -> None:
    """Raise unless the ending of ``path`` names a format, and what writes it is installed."""
    suffix, version = path.suffix.lower(), torch.__version__
    if suffix not in _LIBRARIES:
        raise ConfigError(f"{path}: a path that ends in {', '.join(_LIBRARIES)} is needed.")
    if suffix != ".safetensors" and tuple(map(int, version.split(".")[:2])) < (2, 6):
        raise TorchVersionError(f"{path}: {suffix} needs torch 2.6; this is {version}.")
    missing = [name for name in _LIBRARIES[suffix] if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{path}: {', '.join(missing)} needed: pip install 'mm-runner[export]'.")


@torch.no_grad()
def export_model(model: nn.Module, path: str | Path, batch: Any) -> str:
    """Export a model, compare what the file computes with what the model does, and describe it.

    The model is put into evaluation mode, and called with the entries of a batch and
    ``mode="tensor"``, after its data preprocessor, which is not exported; of a
    :class:`mm_runner.model.Supervised` the module is.

    Args:
        model: Wrapped or not, on the device that the file is for.
        path: The file, which appears when it is verified. ``.safetensors`` holds the weights;
            ``.pt2`` a program for ``torch.export.load``, and ``.onnx`` one for ONNX runtimes, both
            of any batch size, and with the inputs alone that the outputs depend on.
        batch: As a loader gives it. Its tensors, which have a row for each sample, become inputs;
            anything else is a constant.

    Raises:
        ConfigError: If the file cannot be made, or differs from the model.
        TorchVersionError: If the format needs a newer torch.

    Example:
        >>> print(export_model(model, "model.onnx", next(iter(loader))))  # doctest: +SKIP
    """
    path, bare = Path(path), unwrap_model(model).eval()
    check_export_format(path)
    preprocess: Any = getattr(bare, "data_preprocessor", None)
    call = _Call(bare, preprocess(batch, False) if preprocess else batch)  # noqa: FBT003
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            exported = _WRITERS[path.suffix.lower()](call, Path(folder, path.name))
        worst = max(_difference(call, exported, size, path) for size in call.sizes)
        for file in Path(folder).iterdir():  # large ONNX weights lie beside the graph
            file.replace(path.with_name(file.name))
    inputs = zip(call.names, call.inputs(2), strict=True)
    shapes = [
        "; ".join(f"{name} {['batch', *one.shape[1:]]}".replace("'", "") for name, one in named)
        for named in (inputs, _tensors_in(call.reference(2)))
    ]
    sizes = ", ".join(map(str, call.sizes))
    verified = f"verified with batches of {sizes}: largest difference {worst:.2g}"
    return f"{path}: {' -> '.join(shapes)}\n{verified}"


class _Call(nn.Module):
    """The call of a model for inference, as a module whose arguments are tensors of a batch.

    Attributes:
        names: Of the arguments.
        sizes: Of batches to verify with; the first is the example.
    """

    def __init__(self, model: nn.Module, data: Any) -> None:
        super().__init__()
        self.model, self._is_mapping = model, isinstance(data, Mapping)
        if not self._is_mapping:
            if isinstance(model, Supervised) and len(data) > 1:
                data = data[:-1]  # without the target
            names = [*inspect.signature(_inner(model).forward).parameters]
            names += [f"input_{index}" for index in range(len(names), len(data))]
            data = dict(zip(names, data, strict=False))
        self._data: dict[str, Any] = dict(data)
        self.names = [k for k, v in data.items() if isinstance(v, Tensor) and v.ndim]
        if not self.names:
            raise ConfigError(
                "export: the batch has no tensor with a row for each sample; it holds "
                f"{', '.join(map(repr, data)) or 'nothing'}. Set collate_fn='default_collate'."
            )
        self.num_rows = len(data[self.names[0]])
        size = max(self.num_rows, 2)  # torch.export would make a constant of 1
        self.sizes = (size, size + 1, 1)

    def forward(self, *inputs: Tensor) -> Any:
        given = dict(zip(self.names, inputs, strict=True))
        return self._run({**self._resized(self.sizes[0]), **given})

    def reference(self, size: int) -> Any:
        """Return what the model computes for ``size`` samples."""
        return self._run(self._resized(size))

    def inputs(self, size: int) -> tuple[Tensor, ...]:
        """Return the arguments for ``size`` samples."""
        data = self._resized(size)
        return tuple(data[name] for name in self.names)

    def _run(self, data: dict[str, Any]) -> Any:
        outputs = run_forward(self.model, data if self._is_mapping else [*data.values()], "tensor")
        return outputs if isinstance(outputs, Tensor) else dict(_tensors_in(outputs))

    def _resized(self, size: int) -> dict[str, Any]:
        rows = torch.arange(size) % self.num_rows
        tensors = {name for name, one in self._data.items() if isinstance(one, Tensor) and one.ndim}
        return {name: one[rows] if name in tensors else one for name, one in self._data.items()}

    def program(self) -> tuple[Any, Any]:
        """Return the exported program, and its shapes; drop arguments that it does not use."""
        shapes = {"inputs": tuple({0: torch.export.Dim("batch")} for _ in self.names)}
        inputs = self.inputs(self.sizes[0])
        try:
            program = torch.export.export(self, inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            raise ConfigError(
                f"export: torch.export cannot trace {type(self.model).__name__} for any batch "
                f"size: {first_line(error)}"
            ) from error
        users = {node.name: node.users for node in program.graph.nodes}
        found = zip(self.names, program.graph_signature.user_inputs, strict=True)
        used = [name for name, placeholder in found if users[str(placeholder)]]
        if used == self.names:
            return program, shapes
        self.names = used
        return self.program()


def _inner(model: nn.Module) -> Any:
    """Return the module of a :class:`Supervised`, any other model as it is."""
    return model.net if isinstance(model, Supervised) else model


def _tensors_in(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of outputs by name; what is no tensor is left out."""
    if isinstance(value, Tensor):
        yield name or "output", value
    elif isinstance(value, (Mapping, list, tuple)):
        for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors_in(one, f"{name}_{key}".lstrip("_"))


def _write_weights(call: _Call, path: Path) -> Callable[..., Any]:
    from safetensors.torch import load_model, save  # noqa: PLC0415 - an extra

    weights: dict[Any, tuple[str, Tensor]] = {}
    for name, one in _inner(call.model).state_dict().items():
        # The first name of a shared tensor is kept, as Hugging Face's libraries do.
        key = (one.data_ptr(), one.shape, one.stride(), one.dtype) if one.numel() else name
        weights.setdefault(key, (name, one.detach().cpu().clone().contiguous()))
    path.write_bytes(save(dict(weights.values()), metadata={"format": "pt"}))
    loaded = copy.deepcopy(call)
    for one in _inner(loaded.model).state_dict().values():
        one.fill_(float("nan") if one.is_floating_point() else 0)
    load_model(_inner(loaded.model), str(path))
    return loaded


def _write_program(call: _Call, path: Path) -> Callable[..., Any]:
    torch.export.save(call.program()[0], path)
    return torch.export.load(path).module()


def _write_onnx(call: _Call, path: Path) -> Callable[..., Any]:
    import onnxruntime  # noqa: PLC0415 - an extra

    program, shapes = call.program()
    names = [name for name, _ in _tensors_in(call.reference(2))]
    options = {"input_names": call.names, "output_names": names, "dynamic_shapes": shapes}
    try:
        exported: Any = torch.onnx.export(program, dynamo=True, verbose=False, **options)
        exported.save(path)
    except Exception as error:
        raise ConfigError(f"{path}: ONNX cannot express the model: {first_line(error)}") from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> Any:
        arrays = {k: one.cpu().numpy() for k, one in zip(call.names, inputs, strict=True)}
        return [torch.from_numpy(one) for one in session.run(None, arrays)]

    return run


_WRITERS = {".safetensors": _write_weights, ".pt2": _write_program, ".onnx": _write_onnx}


def _difference(call: _Call, exported: Callable[..., Any], size: int, path: Path) -> float:
    """Return the largest difference between the file and the model; raise if it is too large."""
    worst, found = 0.0, [one for _, one in _tensors_in(exported(*call.inputs(size)))]
    for (name, one), other in zip(_tensors_in(call.reference(size)), found, strict=True):
        a, b = one.double().cpu(), other.double().cpu()
        limit = _TOLERANCE * max(1.0, a.nan_to_num(posinf=0, neginf=0).abs().max().item())
        try:
            torch.testing.assert_close(b, a, rtol=0, atol=limit, equal_nan=True)
        except AssertionError as error:
            raise ConfigError(
                f"{path}: with a batch of {size}, {name} is not the model's; nothing was written. "
                f"Does forward draw random numbers, or read values? {error}"
            ) from error
        worst = max(worst, (a - b).nan_to_num().abs().max().item())
    return worst
