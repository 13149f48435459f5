"""Matchers: which tokens may follow in a grammar, by llguidance."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from camshaft.errors import GrammarError, MissingExtraError, shortened
from camshaft.generate.grammar.grammar import Grammar
from camshaft.text.tokenizer import Tokenizer

Array = np.ndarray[Any, Any]
WORD = 32  # tokens of a word of a mask
MOST_KEPT = 16  # grammars that are remembered
MOST_TEXTS = 4096  # whose tokens are remembered
_LEXER_STATES = 50_000  # of 1 to 2 kB: the most memory that a grammar takes
_MOST_FORCED = 1000  # characters of a text that must follow, which are tokenized for the next tokens
_MOST_AHEAD = 8  # of these tokens; the last ones of many may change with the characters after them
# llguidance follows rules and references by recursion: 262,144 characters of them need up to 100 MB, 10,000 rules more than 8 MB.
_STACK_NBYTES = 256 << 20
_MOST_REASON, _MOST_LINE = 340, 100  # characters of llguidance's message, and of one line of it
# As Python writes JSON: few tokens, and no model writes blanks without end. A schema's "x-guidance" changes it.
JSON_AS_PYTHON = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


class Matcher:
    """How far a text is in its grammar. `is_complete` is whether nothing may follow but the end.

    `error` says why the grammar cannot be followed any further; it is empty before."""

    def __init__(self, state: Any, n_words: int, n_known: int) -> None:
        """A mask has `n_words`, of which llguidance writes the first `n_known`: more logits are of no token."""
        self._state, self._n_known = state, n_known
        # Made once: after a pass of the model no cache near the core has any of this, and each object that is touched costs time.
        self._mask = np.zeros(max(n_words, n_known), np.uint32)[:n_words]
        self._bits, self._place = self._mask.data, (self._mask.ctypes.data, n_known * self._mask.itemsize)
        self.error, self._error_ahead = _reason(state), ""
        self.is_complete = self._is_ahead = False
        self._forced, self._n_taken = list[int](), 0

    def copy(self) -> Matcher:
        """Another one in the same state, before any token."""
        return Matcher(self._state.deep_copy(), len(self._mask), self._n_known)

    def mask(self) -> Array:
        """The tokens that may follow, u32 [vocab / 32]: bit i % 32 of word i // 32 is that of token i. The next call overwrites
        it."""
        if not self._is_ahead:
            self._look_ahead()
        if self._forced:
            token = self._forced[self._n_taken]
            self._mask.fill(0)
            self._bits[token // WORD] = 1 << token % WORD
        self.error = self.error or self._error_ahead
        return self._mask

    def forced(self) -> int | None:
        """The only token that may follow, if that is known without a mask."""
        if not self._is_ahead:
            self._look_ahead()
        return self._forced[self._n_taken] if self._forced and not self._error_ahead else None

    def _look_ahead(self) -> None:
        """Find what may follow: tokens that must, or the mask of one."""
        self._forced, self._n_taken = self._state.compute_ff_tokens()[:_MOST_AHEAD], 0
        if not self._forced:
            self._state.unsafe_compute_mask_ptr(*self._place)
        self._error_ahead, self._is_ahead = _reason(self._state), True

    def consume(self, token: int) -> None:
        """Go on by a token. One that may not follow sets `error`."""
        if self._is_ahead and not self.error and not self._lets(token):
            self.error = "each token that may follow has a logit of -inf, as logit_bias gives it"
            return
        if self._forced:
            self._n_taken += 1
            if self._n_taken < len(self._forced):
                return
            self._state.consume_tokens(self._forced)
        else:
            self._state.consume_token(token)
        self.is_complete, self._is_ahead, self._forced = self._state.is_stopped(), False, []
        if self.is_complete:
            self.error = self.error or _reason(self._state)
        else:
            # Now llguidance is in the caches, which the next pass of the model empties: 5 us in place of 30 and more.
            self._look_ahead()

    def _lets(self, token: int) -> bool:
        if self._forced:
            return token == self._forced[self._n_taken]
        return bool(self._bits[token // WORD] >> token % WORD & 1)


@dataclass(frozen=True, repr=False)
class CompiledGrammar(Grammar):
    """A grammar with its matcher over a vocabulary, which lasts as long as the grammar does."""

    matcher: Matcher = field(compare=False)
    vocabulary: Any = field(compare=False)


class GrammarCompiler:
    """Makes the matchers of grammars over a vocabulary. Its making takes 0.3 s for 50,000 tokens, a grammar some milliseconds.

    Raises MissingExtraError without llguidance, and GrammarError if the vocabulary has no end token."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is the number of logits, which may be larger than the vocabulary."""
        if not tokenizer.eos_ids:
            raise GrammarError("a grammar needs an end token, and the model's vocabulary has none")
        guidance = _llguidance()
        self._guidance = guidance
        ends = sorted(tokenizer.eos_ids)
        self._tokenizer = guidance.LLTokenizer(_Vocabulary(tokenizer, ends[0]), n_vocab=vocab_size, eos_token=ends)
        self._n_words, self._n_known = -(-vocab_size // WORD), -(-self._tokenizer.vocab_size // WORD)
        self._limits = guidance.LLParserLimits(max_lexer_states=_LEXER_STATES, verbose_errors=False)
        self._kept: dict[Grammar, CompiledGrammar] = {}
        self._lock = threading.Lock()
        # A single one: however many grammars are compiled, generating keeps the other cores.
        self._thread = _deep_thread()

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the grammar's beginning. Raises GrammarError, in one line, for what the grammar has wrong."""
        return self.compiled(grammar).matcher.copy()

    def compiled(self, grammar: Grammar) -> CompiledGrammar:
        """The grammar with its matcher, for requests that wait. Raises GrammarError as `compile`."""
        if isinstance(grammar, CompiledGrammar) and grammar.vocabulary is self._tokenizer:
            return grammar
        key = Grammar(grammar.kind, grammar.text)
        return self._remembered(key) or self._thread.submit(self._make, key).result()

    def _remembered(self, key: Grammar) -> CompiledGrammar | None:
        with self._lock:
            if key in self._kept:
                self._kept[key] = self._kept.pop(key)  # the last used one last
            return self._kept.get(key)

    def _make(self, key: Grammar) -> CompiledGrammar:
        """Compile a grammar and remember it, unless another request that waited for the thread did so."""
        if (found := self._remembered(key)) is not None:
            return found
        made = self._compile(key)
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
        return made

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        try:
            text = _TRANSLATIONS[grammar.kind](self._guidance, grammar.text)
        except Exception as error:  # the translation of GBNF raises Exception itself
            raise _refusal(grammar, _one_line(str(error) or type(error).__name__)) from None
        state = self._guidance.LLMatcher(self._tokenizer, text, limits=self._limits, log_level=0)
        made = Matcher(state, self._n_words, self._n_known)
        if not made.error:
            made.mask()  # finds what no text can fit, and prepares most of a large grammar
        if made.error:
            raise _refusal(grammar, made.error)
        return CompiledGrammar(grammar.kind, grammar.text, made, self._tokenizer)


class _Vocabulary:
    """The tokenizer interface that llguidance expects."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        # A text that must follow, such as a key, is tokenized at each of its tokens: half of the time without memory.
        self._encode = lru_cache(MOST_TEXTS)(
            partial(tokenizer.encode, add_special=False, parse_special=False, at_start=False)
        )
        self.eos_token_id, self.bos_token_id = end, tokenizer.bos_id
        self.tokens = [tokenizer.spelled_bytes(i) for i in range(tokenizer.n_vocab)]
        self.special_token_ids = tokenizer.hidden_ids

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text[:_MOST_FORCED])


def _llguidance() -> Any:
    try:
        import llguidance
        import llguidance.gbnf_to_lark
    except ImportError as error:
        raise MissingExtraError("llguidance", "grammar", "generating by a grammar") from error
    return llguidance


# Kind of a grammar -> (llguidance, text) -> the text that llguidance's matcher takes.
_TRANSLATIONS: dict[str, Callable[[Any, str], str]] = {
    "json_schema": lambda g, text: g.LLMatcher.grammar_from_json_schema(text, JSON_AS_PYTHON),
    "regex": lambda g, text: g.LLMatcher.grammar_from_regex(text),
    "lark": lambda g, text: g.LLMatcher.grammar_from_lark(text),
    "gbnf": lambda g, text: g.LLMatcher.grammar_from_lark(g.gbnf_to_lark.gbnf_to_lark(text)),
}
_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar", "gbnf": "GBNF grammar"}


def _refusal(grammar: Grammar, reason: str) -> GrammarError:
    return GrammarError(f"the {_NAMES[grammar.kind]} cannot be used: {reason}")


def _reason(state: Any) -> str:
    """Why llguidance's state cannot continue, in one line; empty if it can."""
    if not state.is_error():
        return ""
    reason = str(state.get_error()).replace("<non-verbose/>", "")
    return "no token can follow" if "NoExtensionBias" in reason else _one_line(reason)


def _one_line(reason: str) -> str:
    """A message in one line. A long line of it quotes the grammar, and the reason comes after it."""
    lines = (shortened(line, _MOST_LINE) for line in reason.splitlines() if line.strip(" ^"))
    return shortened(" ".join(lines), _MOST_REASON)


def _deep_thread() -> ThreadPoolExecutor:
    """A thread with a deep stack."""
    before = threading.stack_size(_STACK_NBYTES)
    try:
        made = ThreadPoolExecutor(1, thread_name_prefix="camshaft-grammar")
        made.submit(int).result()  # starts the thread
    finally:
        threading.stack_size(before)
    return made
