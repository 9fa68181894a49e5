"""The API of Halo Weave, one module per resource."""
