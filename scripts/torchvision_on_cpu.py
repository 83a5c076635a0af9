"""Lets the torchvision of PyPI, which is built for CUDA, be imported beside a torch without it.

Its compiled part cannot be loaded then, and its Python part fails because two operators are not declared. vLLM's models
import the Python part alone. `make test-vllm` puts this file into the environment, where a .pth file runs it at start.
"""

import importlib.abc
import sys

_libraries = []  # a library that is collected takes its operators along


class _DeclareOperators(importlib.abc.MetaPathFinder):
    """Finds nothing; declares what torchvision's Python part expects, just before torchvision is looked for."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            from torch import library

            operators = library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _libraries.append(operators)
        return None


sys.meta_path.insert(0, _DeclareOperators())
