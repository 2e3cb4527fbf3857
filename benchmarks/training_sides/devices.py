"""The GPU of this machine, if there is one."""

import functools
import os
import shutil
import subprocess


@functools.cache
def gpu_name() -> str | None:
    """Returns the name of the first GPU, or `None` on a machine without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    return found.stdout.splitlines()[0].strip() if found.stdout.strip() else None


def torch_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def allow_tf32() -> None:
    """Lets PyTorch multiply float32 matrices with TF32 on a GPU, as JAX does."""
    if gpu_name() is not None:
        import torch

        torch.set_float32_matmul_precision("high")


def synchronize() -> None:
    """Waits until the GPU has done all work of this process."""
    if gpu_name() is None:
        return
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        # Computations of a device run in order.
        jax.block_until_ready(jax.device_put(0) + 1)
    elif torch_device() == "cuda":
        import torch

        torch.cuda.synchronize()


def peak_gpu_mb() -> float:
    """Returns the peak memory that this process allocated on the GPU, in MB."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        statistics = jax.devices()[0].memory_stats() or {}
        return statistics.get("peak_bytes_in_use", 0) / 1024**2
    import torch

    return (
        torch.cuda.max_memory_allocated() / 1024**2 if torch_device() == "cuda" else 0
    )
