"""What collectives have to return, computed in plain Python, and random data for them."""

import math
from fractions import Fraction

import torch

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [*INTEGERS, *FLOATS, *COMPLEX, torch.bool]
OPERATIONS = ["sum", "product", "min", "max", "band", "bor", "bxor", "mean"]
SHAPES = [(), (1,), (3,), (0,), (2, 3), (2, 0, 3), (4, 1, 2)]


def operations_of(dtype):
    if dtype == torch.bool:
        return [op for op in OPERATIONS if op != "mean"]
    if dtype.is_complex:
        return ["sum", "mean"]
    bitwise = ("band", "bor", "bxor")
    return [op for op in OPERATIONS if not dtype.is_floating_point or op not in bitwise]


def random_tensor(rng, dtype, shape):
    """Sums and products of a few ranks' floats are exact; integers may overflow."""
    count = math.prod(shape)
    if dtype == torch.bool:
        values = [rng.random() < 0.5 for _ in range(count)]
    elif dtype.is_complex:
        values = [complex(rng.randint(-4, 4), rng.randint(-4, 4)) for _ in range(count)]
    elif dtype.is_floating_point:
        values = [rng.randint(-6, 6) / 2 for _ in range(count)]
    else:
        info = torch.iinfo(dtype)
        values = [rng.randint(info.min, info.max) for _ in range(count)]
    return torch.tensor(values, dtype=dtype).reshape(shape)


def random_layout(rng, tensor):
    """The same values, in memory of another form."""
    form = rng.choice(["contiguous", "transposed", "strided", "leaf"])
    if form == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim else tensor
    if form == "strided":
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    is_differentiable = tensor.is_floating_point() or tensor.is_complex()
    return tensor.requires_grad_() if form == "leaf" and is_differentiable else tensor


def expect_reduced(tensors, op):
    """Return the reduction of one tensor per rank; all have one dtype and shape."""
    first = tensors[0]
    columns = zip(*(tensor.detach().reshape(-1).tolist() for tensor in tensors), strict=True)
    values = [_reduce(list(column), op, first.dtype) for column in columns]
    return torch.tensor(values, dtype=first.dtype).reshape(first.shape)


def _reduce(values, op, dtype):
    if dtype == torch.bool:
        return _reduce_bools(values, op)
    if op in ("min", "max"):
        return min(values) if op == "min" else max(values)
    total = values[0]
    for value in values[1:]:
        total = {
            "sum": lambda a, b: a + b,
            "mean": lambda a, b: a + b,
            "product": lambda a, b: a * b,
            "band": lambda a, b: a & b,
            "bor": lambda a, b: a | b,
            "bxor": lambda a, b: a ^ b,
        }[op](total, value)
    if dtype.is_floating_point or dtype.is_complex:
        return total / len(values) if op == "mean" else total
    if op == "mean":
        # A sum of 64 bits wraps around, as in any arithmetic of the dtype; the division does not.
        return int(Fraction(_wrap(total, torch.int64), len(values)))
    return _wrap(total, dtype)


def _reduce_bools(values, op):
    if op == "bxor":
        return sum(values) % 2 == 1
    return any(values) if op in ("sum", "max", "bor") else all(values)


def _wrap(value, dtype):
    info = torch.iinfo(dtype)
    return (value - info.min) % (info.max - info.min + 1) + info.min


def assert_same(given, expected):
    """Compare nested data; floats may differ by the rounding of their dtype."""
    if isinstance(expected, torch.Tensor):
        assert given.dtype == expected.dtype
        torch.testing.assert_close(given.detach(), expected.detach())
    elif isinstance(expected, dict):
        assert type(given) is type(expected)
        assert list(given) == list(expected)
        for key, value in expected.items():
            assert_same(given[key], value)
    elif isinstance(expected, (list, tuple)):
        assert type(given) is type(expected)
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            assert_same(one, other)
    else:
        assert type(given) is type(expected)
        assert given == expected
