"""Export: runs written as Hugging Face folders, GGUF and ONNX files."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
