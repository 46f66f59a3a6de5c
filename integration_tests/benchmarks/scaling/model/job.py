"""What is trained, and how."""

from dataclasses import dataclass

# torch's own: distributed/constants.py, and kProcessGroupNCCLDefaultTimeout.
_TIMEOUTS_S = {"gloo": 1800.0, "nccl": 600.0}
BACKENDS = tuple(_TIMEOUTS_S)


@dataclass(frozen=True)
class Job:
    """A model, and how its ranks work together.

    Attributes:
        parameters: How many the model has.
        backend: ``"nccl"`` or ``"gloo"``.
        ranks_per_node: How many ranks a machine takes.
        bytes_per_gradient: What all-reduces carry per parameter: 4 for float32, 2 for bfloat16.
        bytes_per_parameter: What a checkpoint holds per parameter: 12 for float32 with the two
            moments of Adam.
        object_bytes: What a rank gives to ``all_gather_object`` or ``collect_results``.
        timeout: Longest time of a collective in seconds; ``None`` for torch's own.
        is_environment_shared: Whether Python and torch lie on the storage that all machines share.
        is_saving_behind: Whether checkpoints are written while training goes on.
        is_gloo_lazy: Whether gloo connects two ranks when they first talk
            (``TORCH_GLOO_LAZY_INIT=1``), and not everybody at the start.
    """

    parameters: float = 7e9
    backend: str = "nccl"
    ranks_per_node: int = 8
    bytes_per_gradient: float = 4.0
    bytes_per_parameter: float = 12.0
    object_bytes: float = 1e6
    timeout: float | None = None
    is_environment_shared: bool = True
    is_saving_behind: bool = False
    is_gloo_lazy: bool = False

    @property
    def gradient_bytes(self) -> float:
        """What one all-reduce of all gradients carries."""
        return self.parameters * self.bytes_per_gradient

    @property
    def checkpoint_bytes(self) -> float:
        """What a checkpoint holds."""
        return self.parameters * self.bytes_per_parameter

    @property
    def timeout_s(self) -> float:
        """The timeout that counts."""
        return _TIMEOUTS_S[self.backend] if self.timeout is None else self.timeout
