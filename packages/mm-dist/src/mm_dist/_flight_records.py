"""What torch's flight recorders hold, for programs that keep it."""


def read_flight_records() -> dict[str, bytes]:
    """Return what torch's flight recorders hold on this rank, by backend, as torch writes it.

    That is a pickle, which torch's ``torchfrtrace`` reads. Where nothing is recorded there is none:
    in a single process, or with a torch that does not record the collectives of the backend.
    ``init_dist`` switches NCCL's recorder on where the hang report is on.

    Example:
        >>> all(isinstance(one, bytes) for one in read_flight_records().values())
        True
    """
    from mm_dist._hang_report import read_flight_records as read  # noqa: PLC0415 (seldom needed)

    return read()
