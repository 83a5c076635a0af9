"""A platform for verl that is the CPU, and a device module that answers like `torch.cuda` on a machine without memory
to report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform import PlatformBase, PlatformRegistry


class DeviceModule:
    """What verl asks of `torch.cuda`; numbers of bytes are 0 and calls that order something do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
            return lambda *_: 0
        if name in ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"):
            return lambda *_: None
        raise AttributeError(f"the CPU stand-in for torch.cuda has no {name!r}; verl asks for something new")

    def is_available(self) -> bool:
        return False

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return 0, 0

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    """One device, which is the CPU; Ray counts it as a logical GPU."""

    _devices = DeviceModule()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> Any:
        return self._devices

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"  # verl writes tensor.to(current_device())

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        """'gloo'. verl asks right before it makes the default group as 'cpu:gloo,cpu:gloo', which torch refuses as a
        duplicate; it leaves a group alone that already stands, so the group of a worker is made here."""
        if "WG_BACKEND" in os.environ and not dist.is_initialized():
            dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
