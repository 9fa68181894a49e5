"""Engines that run a language model: llama.cpp in this process, a KoboldAI or OpenAI-compatible server, and a placeholder while there is no model."""
