"""Work that must not be trusted, in a process of its own with limits on time, memory and files."""
