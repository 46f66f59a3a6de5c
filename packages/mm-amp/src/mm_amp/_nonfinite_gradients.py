"""Say which gradients are infinite or NaN."""

import math

from ._parameter_names import OwnedParameter

_NUM_SHOWN = 3


def describe_nonfinite(
    owned: list[OwnedParameter], norms: list[float]
) -> tuple[str, OwnedParameter | None]:
    """Return a sentence on the gradients that are not finite, and the first of their parameters.

    "First" is as backward meets them: from the loss towards the input, taking the order in which
    the model holds its parameters for that of its forward.

    Args:
        owned: The parameters, in that order.
        norms: Of their gradients.

    Returns:
        An empty sentence and ``None`` if all are finite.
    """
    pairs = list(zip(owned, norms, strict=True))
    bad = [(one, norm) for one, norm in reversed(pairs) if not math.isfinite(norm)]
    if not bad:
        return "", None
    shown = "; ".join(_describe(one, norm) for one, norm in bad[:_NUM_SHOWN])
    extent = f"{len(bad)} of {sum(one.parameter.requires_grad for one in owned)}"
    return f"Not finite, from the loss on: {shown} ({extent} gradients).", bad[0][0]


def _describe(one: OwnedParameter, norm: float) -> str:
    owner = f" of {one.module or 'the model'} ({one.module_type})" if one.module_type else ""
    return f"{one.name}{owner}, {one.parameter.dtype}, norm {norm:g}"
