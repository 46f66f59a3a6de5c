"""What the last line says of an exception whose message has several lines."""

import pytest
import torch

from mm_dist.diagnose._error import describe_error, shorten_error


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        try:
            return {}[f"image {index}"]
        except KeyError as error:
            raise ValueError(f"broken image {index}\n  its second line\nits third") from error


def catch(function, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the caller looks at it)
        function(*arguments)
    return caught.value


def raise_from_worker():
    next(iter(torch.utils.data.DataLoader(Broken(), batch_size=2, num_workers=1)))


MISSING = 'Missing key(s) in state_dict: "weight", "bias".'
ERRORS = {
    "one line": (lambda: ValueError("boom"), "ValueError: boom"),
    "several": (lambda: ValueError("boom\nand more"), "ValueError: boom"),
    "newline first": (lambda: RuntimeError("\n\n  boom\n"), "RuntimeError: boom"),
    "heading": (
        lambda: catch(torch.nn.Linear(2, 2).load_state_dict, {}),
        f"RuntimeError: Error(s) in loading state_dict for Linear: {MISSING}",
    ),
    "worker": (
        lambda: catch(raise_from_worker),
        "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: broken image 0",
    ),
    "nothing": (RuntimeError, "RuntimeError"),
    "long": (lambda: ValueError("x" * 999), f"ValueError: {'x' * 288}..."),
    "syntax": (
        lambda: catch(compile, "a b", "s.py", "exec"),
        "SyntaxError: invalid syntax (s.py, line 1)",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_last_line_carries_the_cause(case):
    make, line = ERRORS[case]
    error = make()
    assert describe_error(error) == line
    # As the worker of mm-dist run records it, in full.
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    assert shorten_error(message) == line
