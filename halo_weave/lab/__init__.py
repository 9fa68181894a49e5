"""What users run in the lab: replay and compare captures, plot them, evaluate strategies on given conversations."""
