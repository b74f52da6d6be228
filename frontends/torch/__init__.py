"""PyTorch's exports, through our own tables of core ATen lowerings; importing.py reads them."""
