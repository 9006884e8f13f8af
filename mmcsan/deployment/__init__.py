"""Models that leave the lab: graphs for ONNX and TorchScript."""
from .export import FORMATS, ExportError, export_model, load_exported
from .graphs import ExportedModel, make_exportable
from .quantize import quantize_onnx

__all__ = [
    'FORMATS', 'ExportError', 'export_model', 'load_exported',
    'ExportedModel', 'make_exportable', 'quantize_onnx'
]
