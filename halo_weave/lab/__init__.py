"""The lab: strategies compared on conversations that are given, on captures of real ones, and on several models."""
