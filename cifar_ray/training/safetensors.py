"""Read and write the safetensors format: tensors by name, and nothing that could be executed.

The format (https://github.com/huggingface/safetensors#format) is eight bytes of header length, a JSON
header with dtype, shape and offsets, and the raw little-endian bytes. It is written here rather than
taken from the library so that training needs nothing beyond PyTorch; the tests exchange files with the
library in both directions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 100_000_000  # the library's own limit


def save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write ``tensors`` in the order of their names: equal tensors give equal bytes.

    Raises:
        OSError: when the file cannot be written.
    """
    header: dict[str, object] = {}
    blobs: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        blob = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for blob in blobs:
            file.write(blob)


def load(path: Path) -> dict[str, Tensor]:
    """Read a file of this format.

    Raises:
        ValueError: when it is not one.
        OSError: when it cannot be read.
    """
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(_MAX_HEADER, len(content) - 8):
        raise ValueError(f"{path} is not a safetensors file: its header is cut off")
    try:
        header = json.loads(content[8 : 8 + length])
        header.pop("__metadata__", None)
        return {name: _tensor(entry, content, 8 + length) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def _tensor(entry: Mapping[str, Any], content: bytes, start: int) -> Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
    begin, end = (int(offset) for offset in entry["data_offsets"])
    if end - begin != math.prod(shape) * dtype.itemsize or start + end > len(content):
        raise ValueError("its offsets and shapes disagree")
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content[start + begin : start + end]), dtype=dtype).reshape(shape)
