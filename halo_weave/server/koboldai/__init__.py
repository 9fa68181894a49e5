"""The KoboldAI API, for SillyTavern, KoboldAI Lite and other clients, and its extension for attention."""
