"""What a /metrics endpoint says, as numbers."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples by name and labels; families by name: kind and help."""

    samples: Mapping[str, Mapping[Labels, float]]
    families: Mapping[str, tuple[str, str]]

    @classmethod
    def parse(cls, text: str) -> Scrape:
        samples: dict[str, dict[Labels, float]] = {}
        families: dict[str, tuple[str, str]] = {}
        for family in text_string_to_metric_families(text):
            families[family.name] = (family.type, family.documentation)
            for sample in family.samples:
                labels = frozenset(sample.labels.items())
                samples.setdefault(sample.name, {})[labels] = sample.value
        return cls(samples, families)

    @classmethod
    def of(cls, url: str) -> Scrape:
        """Ask `url`; blocks."""
        with urllib.request.urlopen(url, timeout=30) as response:
            return cls.parse(response.read().decode())

    def value(self, name: str, **labels: str) -> float:
        """One sample, by all of its labels."""
        return self.samples[name][frozenset(labels.items())]

    def total(self, name: str) -> float:
        """All samples of a name together."""
        return sum(self.samples[name].values())
