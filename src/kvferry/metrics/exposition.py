"""Series as text: https://prometheus.io/docs/instrumenting/exposition_formats/, and OpenMetrics.

Neither needs a library, so an engine can be scraped by whatever serves HTTP already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from kvferry.metrics.series import Family

__all__ = ["Source", "exposition", "merged"]

Labels = Mapping[str, str]


class Source(Protocol):
    """What has series: an `CacheMetrics`, and whoever is like it."""

    @property
    def labels(self) -> Labels:
        """Constant labels of all of them."""

    def families(self) -> list[Family]:
        """All of them as they are now; of the same names in the same order for all sources."""


def merged(metrics: Iterable[Source]) -> Iterator[list[tuple[Labels, Family]]]:
    """The families of several caches by name, each with the constant labels of its cache."""
    rows = [[(one.labels, family) for family in one.families()] for one in metrics]
    for group in zip(*rows, strict=True):
        yield list(group)


def exposition(metrics: Iterable[Source], *, openmetrics: bool = False) -> str:
    """All series of some caches, which differ in their constant labels."""
    lines: list[str] = []
    for group in merged(metrics):
        first = group[0][1]
        total = "_total" if first.kind == "counter" else ""
        head = first.name if openmetrics else first.name + total
        lines.append(f"# HELP {head} {first.help}")
        lines.append(f"# TYPE {head} {first.kind}")
        for constant, family in group:
            for value, number in family.values.items():
                labels = _labels(constant, family.label, value)
                lines.append(f"{family.name}{total}{labels} {_number(number)}")
            for value, histogram in family.histograms.items():
                for bound, count in histogram.cumulative():
                    labels = _labels({**constant, "le": bound}, family.label, value)
                    lines.append(f"{family.name}_bucket{labels} {count}")
                labels = _labels(constant, family.label, value)
                lines.append(f"{family.name}_sum{labels} {_number(histogram.sum)}")
                lines.append(f"{family.name}_count{labels} {histogram.count}")
    return "\n".join([*lines, *(["# EOF"] if openmetrics else [])]) + "\n"


def _labels(constant: Labels, label: str, value: str) -> str:
    named = {**({label: value} if label else {}), **constant}
    texts = [f'{name}="{_escaped(text)}"' for name, text in named.items()]
    return f"{{{','.join(texts)}}}" if texts else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
