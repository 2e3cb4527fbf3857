"""Models, training, tables and figures of `ablations.py`."""
