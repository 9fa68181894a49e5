"""llama.cpp in process: the binding that engines and embedders share. Declarations, handles, model files."""
