"""Small models with random weights, for real engines on machines without a model hub.

    folder = model("tiny")                    # build/engines/models/tiny-<digest>, made once
    folder = model("tiny", seed=2)            # other weights of the same shape

build/engines/models/tiny leads to the first of these.

The weights are normal with a deviation of at least 0.05, so that what a model says depends on every
token before it: wrong KV changes the answer. (The dummy weights of engines are a thousandth of
that, and answers repeat two tokens, whatever is in the cache.)

model_maker.py, which needs torch, does the work in an engine's environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from engine_lane.install import InstallError, environment_for, home, install
from engine_lane.recipes import RECIPES

__all__ = ["MODELS", "model"]

# Name: parameters, roughly.
MODELS = {"tiny": "4 M", "small": "185 M", "mla": "5 M", "8b": "7 B"}
_MAKER = Path(__file__).with_name("model_maker.py")
_LIMIT_S = 600


def model(name: str, seed: int = 1) -> Path:
    """The folder of a model: config, tokenizer, weights; words.json has words for prompts.

    Raises:
        InstallError: It cannot be made.
    """
    digest = hashlib.sha256(_MAKER.read_bytes()).hexdigest()[:8]
    folder = home() / "models" / f"{name}-{seed}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half_done = folder.with_suffix(".unfinished")
            shutil.rmtree(half_done, ignore_errors=True)
            _make(name, seed, half_done)
            half_done.rename(folder)
        if seed == 1:  # for people
            plain = folder.parent / name
            plain.unlink(missing_ok=True)
            plain.symlink_to(folder.name)
    return folder


def _make(name: str, seed: int, folder: Path) -> None:
    python = install(next(iter(RECIPES)))
    command = [str(word) for word in (python, "-P", _MAKER, name, folder, seed)]
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    environment = {**environment_for(python), **offline}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"model {name}: not made within {_LIMIT_S} s") from error
    if done.returncode:
        raise InstallError(f"model {name}: {done.stderr.strip().splitlines()[-1]}")
