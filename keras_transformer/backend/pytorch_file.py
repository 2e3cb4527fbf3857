"""Files of `torch.save`, read by the weights-only reader of PyTorch."""

import os
import zipfile
from typing import TYPE_CHECKING

from keras_transformer_runtime.files import check_zip_members
from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    import torch

# The maximum number of names that a matrix has: those of the shared embedding, of the
# embeddings of both sides, and of the output.
MAX_NAMES = 4


def read_pytorch_file(path: str | os.PathLike) -> "dict[str, torch.Tensor]":
    """Reads a dictionary of dense tensors that `torch.save` has written.

    With `weights_only=True`, no function that the file names is called. The tensors of
    a zip archive stay in the file until they are used. Any other file raises
    `ValueError`.
    """
    require_extra("torch", f"{os.fspath(path)}")
    import torch

    with open(path, "rb") as file:
        is_archive = zipfile.is_zipfile(file)
    try:
        if is_archive:
            _check_not_compressed(path)
        # PyTorch maps only archives, not its format before version 1.6.
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=is_archive
        )
        _check_tensors(content, os.path.getsize(path))
    except Exception as error:  # A damaged file can raise almost anything.
        raise ValueError(
            f"{os.fspath(path)} must be a dictionary of tensors, written by "
            f"`torch.save`; it is another file or damaged ({error!s:.200}). Nothing in "
            "it was executed."
        ) from error
    return dict(content)


def _check_not_compressed(path: str | os.PathLike) -> None:
    # PyTorch compresses nothing. A small compressed file can have any size.
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{info.filename!r:.80} is compressed")
        check_zip_members(archive, os.path.getsize(path))


def _check_tensors(content: object, file_size: int) -> None:
    import torch

    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}")
    size = 0
    for name, tensor in content.items():
        is_dense = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
        if not isinstance(name, str) or not is_dense or tensor.device.type != "cpu":
            raise ValueError(f"{name!r:.80} is no dense tensor")
        size += tensor.numel() * tensor.element_size()
    if size > MAX_NAMES * file_size:
        raise ValueError(f"its tensors share memory and have {size} bytes in all")
