"""PyTorch's exports, through our own tables of core ATen lowerings; importing.py reads them.

In: a .pt2 file, an exported program or a torch.nn.Module with example inputs. Out: a module whose
weights are the export's. Imported by `frontends`, `girih`.
"""
