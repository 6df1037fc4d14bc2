"""Declares the operators that torchvision's package from PyPI, made for CUDA, looks for beside a
CPU's torch.

A ``.pth`` file imports this at the start of each process; it acts when torchvision is first
imported.
"""

import sys

kept = []


class BeforeTorchvision:
    """A finder that finds nothing, and is asked first."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(
                    f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
            kept.append(library)


sys.meta_path.insert(0, BeforeTorchvision())
