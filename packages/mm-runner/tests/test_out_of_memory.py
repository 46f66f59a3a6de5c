"""What devices, libraries and the system say when memory is full."""

import pytest

from mm_runner._out_of_memory import is_out_of_memory


@pytest.mark.parametrize(
    "text",
    [
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
        "unable to mmap 4096 bytes from file </weights>: Cannot allocate memory (12)",
        "A device of tomorrow is out of memory. Tried to allocate 2.00 GiB",
    ],
)
def test_full_memory_is_known_by_what_is_said_of_it(text):
    assert is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "cuSOLVER error: CUSOLVER_STATUS_NOT_INITIALIZED, when calling `cusolverDnCreate(handle)`",
        "cuFFT error: CUFFT_INVALID_PLAN",
        "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        "unable to mmap 4096 bytes from file </weights>: No such file or directory (2)",
        "cache: out of memory slots",
    ],
)
def test_other_failures_are_others(text):
    assert not is_out_of_memory(RuntimeError(text))
