"""Read torch's flight recorders, where this torch has them, and switch NCCL's on."""

import pickle
import sys
from collections.abc import Mapping

from mm_dist._torch_private import flight_recorders, has_common_flight_recorder

# The newer name, and the one that torch before 2.9 knows.
_BUFFER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_BUFFER_SIZE = 2000


def read_flight_records() -> dict[str, bytes]:
    """Return what torch's flight recorders hold on this rank, by backend, as torch writes it.

    That is a pickle, which torch's ``torchfrtrace`` reads. Where nothing is recorded there is none:
    in a single process, or with a torch that does not record the collectives of the backend.
    ``init_dist`` switches NCCL's recorder on where the hang report is on.

    Example:
        >>> all(isinstance(one, bytes) for one in read_flight_records().values())
        True
    """
    records: dict[str, bytes] = {}
    for dump in flight_recorders():
        # For the stacks torch imports its compiler's front end, which takes seconds; so they are
        # read only where it is there already, as wherever DistributedDataParallel is used.
        try:
            written = dump(includeStackTraces="torch._dynamo" in sys.modules)
            # torch wrote the pickle just now.
            entries = pickle.loads(written).get("entries", [])  # noqa: S301
        except (RuntimeError, EOFError, TypeError, ValueError, pickle.UnpicklingError):
            continue
        if entries:
            records[str(entries[-1]["profiling_name"]).rpartition(":")[0]] = written
    return records


def recorder_variables(backend: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make NCCL keep a record; none the user has chosen.

    They have to be set before the process group is created. torch has them on by default in some
    versions only. NCCL's watchdog then writes the record to a file as well when it gives up.
    """
    if "nccl" not in backend:
        return {}
    wanted = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if not any(name in env for name in _BUFFER_VARIABLES):
        wanted[_BUFFER_VARIABLES[0 if has_common_flight_recorder() else 1]] = str(_BUFFER_SIZE)
    return {name: value for name, value in wanted.items() if name not in env}
