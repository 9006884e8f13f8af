"""Weights of eight bits for an ONNX file."""
from pathlib import Path


def quantize_onnx(path: Path) -> Path:
    """Write a copy of an ONNX file with linear layers in int8.

    Weights are rounded once, activations as they come (dynamic
    quantisation). Convolutions stay in float32.

    Args:
        path (Path): The ONNX file.

    Returns:
        Path: Beside it, with ``_int8`` behind its name.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    path = Path(path)
    target = path.with_name(f'{path.stem}_int8{path.suffix}')
    quantize_dynamic(
        str(path),
        str(target),
        op_types_to_quantize=['MatMul', 'Gemm'],
        weight_type=QuantType.QInt8)
    return target
