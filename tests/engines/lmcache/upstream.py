"""LMCache's own tests that our classes have to pass, at the version that the lane installs.

RUNS are its files, each with what of ours stands in it, how many tests then pass, and the tests
that cannot apply, with the reason. substitute.py puts ours in. APART are files that one might look
for in RUNS, and why they are not there. test_lmcache_upstream.py checks all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["APART", "RUNS", "VERSION", "Run"]

VERSION = "0.5.6"


@dataclass(frozen=True)
class Run:
    """One file, with one of ours in place.

    Attributes:
        file: Below the root of LMCache's source distribution.
        ours: What stands in place of theirs: the words of substitute.py's report.
        passed: How many tests pass.
        cannot: Tests that cannot apply: their names, and why.
        variables: For substitute.py.
    """

    file: str
    ours: str
    passed: int
    cannot: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For pytest."""
        stem = self.file.rpartition("/")[2].removesuffix(".py")
        return "-".join([stem, *self.variables])


_L2 = "tests/v1/distributed"
_REMOTE = "tests/v1/storage_backend"
_VERIFIED = {"KVFERRY_TEST_VERIFY": "1"}
_SIMULATED = {
    "test_store_completion_is_delayed_by_bandwidth": "of the mock's simulated slow bandwidth",
}

RUNS = (
    Run(f"{_L2}/test_native_connector_l2_adapter.py", "client", 92),
    Run(f"{_L2}/test_native_connector_l2_adapter.py", "client", 92, variables=_VERIFIED),
    Run(f"{_L2}/test_resp_l2_adapter_integration.py", "client for the extension's", 7),
    Run(
        f"{_L2}/test_resp_l2_adapter_integration.py",
        "client for the extension's",
        7,
        variables=_VERIFIED,
    ),
    Run(
        f"{_L2}/test_l2_adapter_factory.py",
        "client of a factory",
        44,
        {"test_create_raw_block_via_registry": "of LMCache's raw block extension, in no wheel"},
    ),
    Run(f"{_L2}/test_mock_l2_adapter.py", "L2 adapter", 43, _SIMULATED),
    Run(f"{_L2}/test_mock_l2_adapter.py", "L2 adapter", 43, _SIMULATED, _VERIFIED),
    Run(f"{_REMOTE}/test_resp_connector.py", "client for the extension's", 11),
    Run(
        f"{_REMOTE}/test_resp_connector.py",
        "connector",
        11,
        variables={"KVFERRY_TEST_CONNECTOR": "1"},
    ),
    Run(f"{_REMOTE}/test_remote_storage_plugin.py", "connector", 13),
)

APART = {
    "tests/v1/test_connector.py": (
        "of LMCache's file, Redis, Sentinel and cluster connectors over mocks: it stores 1000 "
        "tokens where a chunk has 256, as only a format with the shape beside the value can, and "
        "looks at the two keys of that format"
    ),
    f"{_L2}/test_resp_env_vars.py": "computes within itself; it makes no client",
    f"{_L2}/test_l2_adapter_base.py": "of the base class, which ours inherits unchanged",
    f"{_L2}/test_valkey_l2_adapter_integration.py": "of the glide client, which it needs",
}
