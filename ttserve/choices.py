"""One of several texts, as a grammar.

vLLM's own conversion leaves line breaks and other control characters as they
are, which xgrammar's lexer refuses; both sides use this one instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence


def choice_grammar(texts: Sequence[str]) -> str:
    """An EBNF grammar of exactly these texts; JSON's escapes are EBNF's too."""
    alternatives = (json.dumps(text, ensure_ascii=False) for text in texts)
    return "root ::= " + " | ".join(alternatives)
