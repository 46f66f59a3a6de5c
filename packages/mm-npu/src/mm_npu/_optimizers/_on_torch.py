"""What the optimizers that are torch's own share: the fused kernel where torch has one."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._arguments import check_dense_gradients
from ._fused import has_fused_kernels, mark_changed
from ._named import AbstractNamedOptimizer
from ._operands import is_dense

# Strides of the parameters of a group, and of their gradients, None where there is none.
_Layouts = tuple[list[tuple[int, ...]], list[tuple[int, ...] | None]]
_NO_STATE: Mapping[str, Any] = {}


class AbstractTorchOptimizer(AbstractNamedOptimizer):
    """An optimizer of torch under the name of ``torch_npu``'s.

    A concrete class derives from this one and then from torch's, and sets ``plain_step``.
    """

    plain_step: Callable[..., Any]
    # Those that torch's fused kernel is right for.
    fused_dtypes: ClassVar[Container[torch.dtype]] = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    )

    def update_parameters(self) -> None:
        """Update the parameters that have a gradient.

        Raises:
            ConfigError: If a gradient is sparse.
        """
        met: dict[int, _Layouts] = self.__dict__.setdefault("_met", {})
        calls = []
        for index, group in enumerate(self.param_groups):
            # In every step: the fused kernel would mix up the elements of a gradient that is laid
            # out in another way, as those that somebody assigns may be.
            layouts = self._look(group["params"])
            if met.get(index) != layouts:
                check_dense_gradients(type(self).__name__, group["params"])
                self.choose_kernel(group)
                met[index] = layouts
            calls.append(self._make_call(group))
        if any(call is None for call in calls):
            self._run_plain_step()
            return
        for call in calls:
            assert call is not None
            call()

    def _run_plain_step(self) -> None:
        for group in self.param_groups:
            self.prepare_plain_step(group)
        type(self).plain_step(self)
        for group in self.param_groups:
            if group.get("fused"):
                mark_changed([p for p in group["params"] if p.grad is not None])

    def _look(self, params: Sequence[Tensor]) -> _Layouts:
        grads = [p.grad for p in params]
        try:
            strides = [None if grad is None else grad.stride() for grad in grads]
        except RuntimeError:  # some sparse ones have none, others zeros
            check_dense_gradients(type(self).__name__, params)
            raise
        return [p.stride() for p in params], strides

    def choose_kernel(self, group: dict[str, Any]) -> None:
        """Switch torch's fused kernel on for a group, where it exists for the CPU and is right.

        Elsewhere torch chooses between multi-tensor and per-tensor kernels, as ever.
        """
        if "fused" in group:  # not in torch.optim.AdamW of 1.13, and in SGD before 2.3
            trained = [p for p in group["params"] if p.requires_grad]
            can_fuse = all(self._may_fuse(p) and self._is_laid_alike(p) for p in trained)
            group["fused"] = True if can_fuse else None

    def prepare_plain_step(self, group: dict[str, Any]) -> None:
        """Choose the kernel of a group once more, where it depends on the states."""

    @abstractmethod
    def make_kernel_call(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        entries: Sequence[Mapping[str, Any]],
        group: Mapping[str, Any],
    ) -> Callable[[], None]:
        """Return the call of torch's fused kernel for parameters of one dtype, on the CPU.

        Raises:
            KeyError: If a parameter's state is not there yet.
        """

    def _make_call(self, group: dict[str, Any]) -> Callable[[], None] | None:
        """Return the kernel's call, None if torch's own step is to find out what to call.

        That looks at each parameter several times, which takes longer than small ones' update.
        """
        if not group.get("fused") or group["maximize"] or isinstance(group["lr"], Tensor):
            return None
        pairs = [(p, grad) for p in group["params"] if (grad := p.grad) is not None]
        params, grads = [p for p, _ in pairs], [grad for _, grad in pairs]
        if len({p.dtype for p in params}) != 1 or getattr(self, "found_inf", None) is not None:
            return None
        entries = [self.state.get(p, _NO_STATE) for p in params]
        try:
            run_kernel = self.make_kernel_call(params, grads, entries, group)
        except KeyError:
            return None

        def call() -> None:
            run_kernel()
            mark_changed(params)

        return call

    def _may_fuse(self, p: Tensor) -> bool:
        return (
            has_fused_kernels()
            and p.device.type == "cpu"
            and p.dtype in self.fused_dtypes
            and type(p) in {Tensor, torch.nn.Parameter}
            and is_dense(p)
        )

    def _is_laid_alike(self, p: Tensor) -> bool:
        # The kernels walk through memory, and mix elements up where parameter, gradient and state
        # are not laid out alike.
        partners = [*self.state.get(p, {}).values(), p.grad]
        return all(
            _has_strides_of(p, partner)
            for partner in partners
            if isinstance(partner, Tensor) and partner.shape == p.shape
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own; see ``torch.optim.Optimizer``.

        Raises:
            ConfigError: If a hyper-parameter is out of range, or a parameter is not real.
        """
        super().add_param_group(param_group)
        self.choose_kernel(self.param_groups[-1])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, of ``torch_npu``'s class of this name, or of torch's twin.

        Args:
            state_dict: What ``state_dict`` of one of them gave. Not changed.

        Raises:
            ConfigError: If it lacks a hyper-parameter of this one, or maximizes.
        """
        super().load_state_dict(state_dict)
        self.__dict__.pop("_met", None)
        for group in self.param_groups:
            self.choose_kernel(group)


def plain_step_of(optimizer: type[Optimizer]) -> Callable[..., Any]:
    """Return ``step`` as ``optimizer`` defines it, without what torch wraps around it.

    The wrappers run the step hooks and set the gradient mode. Our own ``step`` has them around it
    already: the hooks would run twice.
    """
    step: Callable[..., Any] = inspect.unwrap(optimizer.step)
    return step


def _has_strides_of(p: Tensor, tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    strides = zip(tensor.stride(), p.stride(), p.shape, strict=True)
    return all(own == other or size == 1 for own, other, size in strides)
