"""No command asks a network, unless a name on the hub was typed: the demo runs where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.chaos


def test_the_demo_without_a_network(tmp_path):
    """In an empty network namespace, which has not even an address of its own."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], check=False).returncode:
        pytest.skip("a network namespace cannot be made here")
    check = "import socket\ntry:\n    socket.create_connection(('1.1.1.1', 53), 2)\nexcept OSError: print('none')"
    alone = subprocess.run([unshare, "-rn", sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert alone.stdout == "none\n"
    environment = {**os.environ, "HOME": str(tmp_path), "WEFT_CACHE": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(one) for one in sys.path if one)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [unshare, "-rn", sys.executable, "-m", "weft", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=900
        )

    for words in (("demo",), ("show", "nano-gpt"), ("predict", "sample:dates-run", "the 3rd of May 1987")):
        done = call(*words)
        assert done.returncode == 0, (words, done.stderr[-2000:])
    refused = call("import", "hf:nobody/nothing", "--out", str(tmp_path / "run"))
    assert refused.returncode == 2 and "Traceback" not in refused.stderr, refused.stderr[-2000:]
