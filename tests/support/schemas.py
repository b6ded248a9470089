"""JSON schemas that do harm."""

from __future__ import annotations

import json


def nested(key: str, levels: int) -> str:
    """Objects in objects: what many compilers take cubic time for."""
    return f'{{"{key}":' * levels + "true" + "}" * levels


def slow_schema(properties: int) -> str:
    """Takes the longer the more there are: seconds at 1000, half a minute at 2000."""
    names: dict[str, object] = {f"p{i}": {} for i in range(properties)}
    schema = {"type": "object", "properties": names, "minProperties": properties // 2}
    return json.dumps(schema)
