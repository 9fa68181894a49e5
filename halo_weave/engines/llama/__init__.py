"""llama.cpp in this process: the library and its bindings (which the embedders use too), the engine, its KV cache and attention capture."""
