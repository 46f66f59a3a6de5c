"""Base of the ``NpuFused*`` classes: the choice of an implementation, and state dicts.

On an NPU, constructing one gives ``torch_npu``'s own object, with checks around some of its methods
(``_guard``). Elsewhere it gives the portable implementation, which is the class itself. The two
exchange state dicts.
"""

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from mm_npu._availability import npu_unavailable_reason
from mm_npu._errors import ConfigError, NpuUnavailableError, PortableOptimizerWarning
from mm_npu._settings import is_strict

from ._checks import HyperParameters, check_real_parameters
from ._guard import guard_native
from ._npu_state import REFUSED_SWITCHES, with_int_step, without_switches

_warned: set[str] = set()  # names of classes: one warning per process and name


class AbstractNpuFused(Optimizer):
    """An optimizer that is ``torch_npu``'s on an NPU, and portable elsewhere.

    A concrete class names the class of ``torch_npu.optim`` that it stands for (``native_name``),
    the optimizer of torch with the same rule (``torch_twin``, None if there is none), the
    ``hyper_parameters`` of its groups, and arguments that are none of a group (``attributes``).
    ``implementation`` is what torch's class keeps in a group besides; state dicts leave it out.
    """

    native_name: ClassVar[str]
    torch_twin: ClassVar[str | None] = None
    hyper_parameters: ClassVar[HyperParameters]
    attributes: ClassVar[Mapping[str, Any]] = {}
    implementation: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # inspect would show the arguments of __new__ and __init__, which take anything.
        if "__init__" in vars(cls):
            signature = inspect.signature(cls.__init__)
            parameters = list(signature.parameters.values())[1:]
            cls.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        elif "hyper_parameters" in vars(cls):
            cls.__signature__ = _signature_of(cls)  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = _signature_of(type(self)).bind(*args, **kwargs)
        bound.apply_defaults()
        for name in self.attributes:
            setattr(self, name, bound.arguments[name])
        group = {name: bound.arguments[name] for name in self.hyper_parameters}
        self.check_group(group)
        self.initialize(bound.arguments["params"], group)

    def initialize(self, params: Iterable[Any], group: dict[str, Any]) -> None:
        """Call the constructor of torch with the defaults of the groups."""
        Optimizer.__init__(self, params, group)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return ``torch_npu``'s object on an NPU, else a portable one."""
        if not args and not kwargs:  # copy and pickle, which fill the object themselves
            return super().__new__(cls)
        strict = is_strict(kwargs.get("strict"))
        reason = _reason_for_portable(cls)
        if reason is None:
            kwargs.pop("strict", None)
            make_native = getattr(import_module("torch_npu.optim"), cls.native_name)
            _check_keywords(cls.__name__, make_native, kwargs)
            native = make_native(*args, **kwargs)
            guard_native(native)
            return native
        if strict:
            raise NpuUnavailableError(
                f"{cls.__name__} was asked for with strict=True or MM_NPU_STRICT=1, but {reason}"
            )
        _check_keywords(cls.__name__, cls, kwargs)
        _warn_once(cls, reason)
        return super().__new__(cls)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check the hyper-parameters of one parameter group, defaults filled in."""
        for name, (_, check) in self.hyper_parameters.items():
            check(type(self).__name__, name, group[name])

    @abstractmethod
    def update_parameters(self) -> None:
        """Update the parameters that have a gradient, without recording gradients."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient.

        Args:
            closure: Called first, with gradients enabled, to compute loss and gradients anew.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            ConfigError: If a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update_parameters()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own; see ``torch.optim.Optimizer``.

        Raises:
            ConfigError: If a hyper-parameter is out of range, or a parameter cannot be trained.
        """
        name = type(self).__name__
        for key in REFUSED_SWITCHES:
            if param_group.get(key):
                raise ConfigError(
                    f"{name} was given a group with {key}=True, which is not in torch_npu. Leave "
                    "it out, or take an optimizer of torch.optim."
                )
        self.check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            self.check_parameters(self.param_groups[-1]["params"])
        except ConfigError:
            self.param_groups.pop()
            raise

    def check_parameters(self, params: Iterable[torch.Tensor]) -> None:
        """Check that parameters can be trained."""
        check_real_parameters(type(self).__name__, params)

    def zero_grad(self, set_to_none: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients.

        Args:
            set_to_none: Drop the gradients instead of filling them with zeros. ``torch_npu``'s
                default is False, unlike torch's: a parameter that gets no gradient in a later step
                still moves by its momentum and weight decay.
        """
        super().zero_grad(set_to_none=set_to_none)

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all gradients together, as ``torch.nn.utils.clip_grad_norm_`` does.

        Args:
            max_norm: The largest norm that is left alone.
            norm_type: The kind of norm; ``float("inf")`` is the largest element.

        Returns:
            The norm before clipping, 0-d.
        """
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as ``torch_npu`` writes it, where ``step`` is an int."""
        portable = super().state_dict()
        # torch 1.13's SGD writes empty momentum buffers, torch_npu leaves them out.
        state = {
            index: with_int_step({key: v for key, v in entry.items() if v is not None})
            for index, entry in portable["state"].items()
        }
        return {
            **portable,
            "state": {index: entry for index, entry in state.items() if entry},
            "param_groups": [without_switches(group) for group in portable["param_groups"]],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, of ``torch_npu``'s class of this name, or of torch's twin.

        Args:
            state_dict: What ``state_dict`` of one of them gave. Not changed.

        Raises:
            ConfigError: If it lacks a hyper-parameter of this one, or maximizes.
        """
        groups = [self._complete_group(group) for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})
        # torch keeps tensors that need no conversion, and would update the caller's in place.
        given = {id(value) for entry in state_dict["state"].values() for value in entry.values()}
        for entry in self.state.values():
            for key, value in entry.items():
                if isinstance(value, torch.Tensor) and id(value) in given:
                    entry[key] = value.clone()

    def _complete_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        name = type(self).__name__
        missing = [key for key in self.hyper_parameters if key not in group]
        if missing:
            known = name if self.torch_twin is None else f"{name} or {self.torch_twin}"
            raise ConfigError(
                f"{name} was given a state without {', '.join(missing)}; it loads a state of "
                f"{known}. Name the optimizer that wrote the state."
            )
        if group.get("maximize"):
            raise ConfigError(f"{name} was given a state with maximize=True; it only minimizes.")
        return {**without_switches(group), **self.implementation}


def _signature_of(cls: type[AbstractNpuFused]) -> inspect.Signature:
    """Return the signature that ``torch_npu``'s class has, with ``strict`` besides."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    hyper_parameters = {name: default for name, (default, _) in cls.hyper_parameters.items()}
    values = {"params": inspect.Parameter.empty, **hyper_parameters, **cls.attributes}
    parameters = [inspect.Parameter(name, kind, default=value) for name, value in values.items()]
    strict = inspect.Parameter("strict", inspect.Parameter.KEYWORD_ONLY, default=None)
    return inspect.Signature([*parameters, strict])


def _check_keywords(name: str, made: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    parameters = inspect.signature(made).parameters
    unknown = [key for key in keywords if key not in parameters]
    if not unknown or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    known = ", ".join(key for key in parameters if key != "strict")
    raise ConfigError(
        f"{name} has no argument {', '.join(unknown)}; that of torch_npu, which is always fused, "
        f"takes {known}. Leave {unknown[0]} out."
    )


def _reason_for_portable(cls: type[AbstractNpuFused]) -> str | None:
    # torch_npu's object would lack what a user's subclass overrides.
    if "native_name" not in vars(cls):
        return f"{cls.__name__} is a subclass of {cls.native_name}, which torch_npu does not have."
    return npu_unavailable_reason()


def _warn_once(cls: type[AbstractNpuFused], reason: str) -> None:
    if cls.__name__ in _warned:
        return
    _warned.add(cls.__name__)
    twin = "" if cls.torch_twin is None else f", that of {cls.torch_twin}"
    message = (
        f"{cls.__name__} runs as its portable implementation: the same rule{twin}, with state "
        f"dicts that torch_npu loads. Reason: {reason} MM_NPU_STRICT=1 refuses it."
    )
    warnings.warn(message, PortableOptimizerWarning, stacklevel=3)
