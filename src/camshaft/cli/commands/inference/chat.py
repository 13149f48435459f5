"""`camshaft chat`: a conversation on the terminal or a pipe, with commands such as /save."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from camshaft.cli import options
from camshaft.cli.answers import stream
from camshaft.cli.command import command, one_line
from camshaft.cli.exits import FAILED
from camshaft.cli.sampling_options import SamplingOptions, of_model
from camshaft.errors import CamshaftError, ContextError, SettingError, count

if TYPE_CHECKING:
    from camshaft.generate.conversation import Conversation

_SHIFTS = {"on": True, "off": False}
_ContextShift = Annotated[
    str,
    typer.Option(
        metavar="on|off", help="on: drop the oldest turns when the context is full; off: end the chat with an error."
    ),
]
_QUOTES = '"""'


@command
def chat(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    system: options.System = None,
    max_tokens: options.MaxTokens = 512,
    stop: options.Stop = None,
    context_shift: _ContextShift = "on",
    speculate: options.Speculate = "auto",
    prompt_cache: options.PromptCache = None,
    sampling: SamplingOptions,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D or /bye ends the conversation, /help lists the other commands."""
    if context_shift not in _SHIFTS:
        raise SettingError(f"--context-shift {context_shift!r}; wanted on or off")
    wanted = sampling.generate(max_tokens=max_tokens, stop=tuple(stop or ()))
    with running.open(model, context) as lm, options.speculation(speculate, running, context) as drafts:
        wanted = of_model(wanted, lm).merge({"speculate": drafts, "prompt_cache": prompt_cache})
        conversation = lm.conversation(wanted, system=system, context_shift=_SHIFTS[context_shift])
        all_answered = _converse(conversation, keeps_on=_SHIFTS[context_shift])
    if not all_answered and not sys.stdin.isatty():
        raise typer.Exit(FAILED)


def _notice(text: str | Exception) -> None:
    line = text if isinstance(text, str) else one_line(text, chat.__annotations__)
    print("camshaft:", line, file=sys.stderr, flush=True)


def _input_prompt() -> str:
    """The input prompt: "> " on a terminal, empty for a pipe."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are not UTF-8 become U+FFFD
    if not sys.stdin.isatty():
        return ""
    if importlib.util.find_spec("readline"):
        importlib.import_module("readline")  # line editing in input(); built in on Windows
    return "> "


def _converse(conversation: Conversation, *, keeps_on: bool) -> bool:
    """Answer messages and obey commands until the input ends. Return whether every message got an answer."""
    prompt, all_answered = _input_prompt(), True
    while True:
        try:
            line = input(prompt)
            text = _rest_of_message(line, "... " if prompt else "")
        except EOFError:
            if prompt:
                print()
            return all_answered
        except KeyboardInterrupt:  # on a terminal, discard the line
            if not prompt:
                raise
            print()
            continue
        if line.startswith("/"):
            if not _obey(conversation, line):
                return all_answered
        elif text.strip():
            all_answered &= _answer(conversation, text, keeps_on=keeps_on)


def _rest_of_message(line: str, prompt: str) -> str:
    """The message that begins with `line`: the line itself, or all lines between three quotes and three quotes."""
    if not line.startswith(_QUOTES):
        return line
    text = line.removeprefix(_QUOTES)
    while not text.rstrip().endswith(_QUOTES):
        try:
            text += "\n" + input(prompt)
        except EOFError:
            _notice(f"the message has no closing {_QUOTES} and was not sent")
            raise
    return text.rstrip().removesuffix(_QUOTES).strip("\n")


def _answer(conversation: Conversation, text: str, *, keeps_on: bool) -> bool:
    """Stream one answer; Ctrl-C stops it. Return whether the message was answered."""
    dropped, answer = conversation.dropped, None
    try:
        answer = conversation.say(text)
        stream(answer, conversation.reader())
    except ContextError as error:
        if not keeps_on:
            raise
        _notice(error)
        return False
    except KeyboardInterrupt:
        if answer is not None:
            answer.close()
        print(flush=True)
        _notice("stopped; the message and its answer are not part of the conversation")
        return True
    if conversation.dropped > dropped:
        _notice(f"the context was full: dropped the oldest {conversation.dropped - dropped} messages")
    if answer.finish_reason == "length" and not answer.is_full:
        _notice("the context is full: the answer ends here")
    return True


class _Command(NamedTuple):
    """`run` gets the conversation and the text after the command, and returns whether the chat continues."""

    usage: str
    meaning: str
    run: Callable[[Conversation, str], bool]


def _obey(conversation: Conversation, line: str) -> bool:
    """Run the command in `line`; return whether the chat continues. Prints an error as one line."""
    name, _, argument = line.strip().partition(" ")
    if name not in _COMMANDS:
        _notice(f"unknown command {name!r}; /help lists them; a message may begin with a blank")
        return True
    try:
        return _COMMANDS[name].run(conversation, argument.strip())
    except (CamshaftError, OSError) as error:
        _notice(error)
        return True


def _help(conversation: Conversation, argument: str) -> bool:
    rows = [(row.usage, row.meaning) for row in dict.fromkeys(_COMMANDS.values())]
    rows += [(_QUOTES, f"begin a message of several lines, which ends with {_QUOTES}")]
    for usage, meaning in rows:
        print(f"  {usage:12}{meaning}", file=sys.stderr)
    return True


def _bye(conversation: Conversation, argument: str) -> bool:
    return False


def _clear(conversation: Conversation, argument: str) -> bool:
    conversation.messages = [message for message in conversation.messages if message["role"] == "system"]
    _notice("cleared")
    return True


def _save(conversation: Conversation, argument: str) -> bool:
    from camshaft.store.files import atomic_file

    path = _path(argument, "/save FILE")
    if path.exists():
        _saved_messages(path)  # only another chat is overwritten
    if any(not isinstance(message["content"], str) for message in conversation.messages):
        raise SettingError("the chat has images, which are not saved; wanted texts alone")
    # A lone surrogate becomes \udxxx, which is an escape in JSON too.
    text = json.dumps(conversation.messages, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")
    with atomic_file(path) as file:
        file.write(text)
    _notice(f"saved {len(conversation.messages)} messages in {path}")
    return True


def _load(conversation: Conversation, argument: str) -> bool:
    path = _path(argument, "/load FILE")
    conversation.messages = _saved_messages(path)
    _notice(f"loaded {len(conversation.messages)} messages from {path}")
    return True


def _image(conversation: Conversation, argument: str) -> bool:
    conversation.show(_path(argument, "/image FILE"))
    _notice(f"{count(conversation.n_shown, 'image')} for the next message")
    return True


def _path(argument: str, usage: str) -> Path:
    if not argument:
        raise SettingError(f"a file's name is missing: {usage}")
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise SettingError(f"{argument}: {error}") from error


def _saved_messages(path: Path) -> list[dict[str, Any]]:
    """The messages in a file. Raises SettingError if it is not a saved chat."""
    from camshaft.generate.conversation import checked_messages

    if path.exists() and not path.is_file():
        raise SettingError(f"{path} is not a regular file")
    try:
        return checked_messages(json.loads(path.read_bytes().decode("utf-8")))
    except (ValueError, RecursionError, SettingError) as error:
        raise SettingError(f"{path} is not a saved chat: {error}") from error


_COMMANDS = {
    "/help": _Command("/help", "show this list", _help),
    "/clear": _Command("/clear", "forget all messages but the system message", _clear),
    "/save": _Command("/save FILE", "write the messages to a JSON file", _save),
    "/load": _Command("/load FILE", "continue with the messages of a file", _load),
    "/image": _Command("/image FILE", "show the model an image with the next message (needs --mmproj)", _image),
    "/bye": _Command("/bye", "end the chat, as Ctrl-D does", _bye),
}
_COMMANDS |= {"/?": _COMMANDS["/help"], "/exit": _COMMANDS["/bye"], "/quit": _COMMANDS["/bye"]}
