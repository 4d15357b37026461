"""Export: runs written as Hugging Face folders, GGUF and ONNX files."""
