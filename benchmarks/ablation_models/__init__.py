"""The models of `ablations.py`, and what trains and shows them."""
