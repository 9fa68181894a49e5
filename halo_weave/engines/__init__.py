"""Engines that run a language model: llama.cpp in this process, a KoboldAI or OpenAI-compatible server, and a placeholder
while there is no model. Also the interfaces that search needs (`base`), calibration, and the shadow model that supplies the
attention for servers."""
