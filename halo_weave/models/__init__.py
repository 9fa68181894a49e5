"""GGUF model files: the catalogue, downloads, the models on this machine, their headers and the memory they need."""
