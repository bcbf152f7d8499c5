"""The anthropic package against the server."""

import os
import unittest

import anthropic

ASK = {
    "model": "demo",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Add two numbers."}],
    "extra_body": {"temperature": 0},
}


def client(**more):
    more.setdefault("api_key", os.environ["OVERDRAFT_KEY"])
    return anthropic.Anthropic(base_url=os.environ["OVERDRAFT_URL"], max_retries=0, **more)


class Messages(unittest.TestCase):
    def setUp(self):
        self.client = client()

    def test_a_stream_is_the_whole_message_in_pieces(self):
        whole = self.client.messages.create(**ASK)
        self.assertEqual((whole.role, whole.stop_reason, whole.usage.output_tokens), ("assistant", "max_tokens", 16))
        with self.client.messages.stream(**ASK) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, whole.content[0].text)
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 16))

    def test_tokens_are_counted_as_they_are_charged(self):
        usage = self.client.messages.create(**ASK).usage
        counted = self.client.messages.count_tokens(model="demo", messages=ASK["messages"])
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_stop_sequences(self):
        text = self.client.messages.create(**ASK).content[0].text
        stop = text[4:6]
        cut = self.client.messages.create(**{**ASK, "stop_sequences": [stop]})
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(cut.content[0].text, text[: text.index(stop)])

    def test_system_and_thinking_are_taken(self):
        more = {"system": [{"type": "text", "text": "Write Python."}], "thinking": {"type": "disabled"}}
        self.assertEqual(self.client.messages.create(**ASK, **more).type, "message")

    def test_bearer_keys_are_keys(self):
        by_token = client(api_key=None, auth_token=os.environ["OVERDRAFT_KEY"])
        self.assertEqual(by_token.messages.create(**ASK).type, "message")

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(anthropic.AuthenticationError):
            client(api_key="a-wrong-key").messages.create(**ASK)
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(**{**ASK, "model": "claude"})
        with self.assertRaises(anthropic.BadRequestError) as raised:
            self.client.messages.create(**{**ASK, "messages": []})
        self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")


class Tools(unittest.TestCase):
    TOOL = {
        "name": "get_weather",
        "description": "The weather of a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }

    def test_a_tool_that_must_be_called_is(self):
        choice = {"type": "any", "disable_parallel_tool_use": True}
        more = {"tools": [self.TOOL], "tool_choice": choice, "max_tokens": 400}
        whole = client().messages.create(**{**ASK, **more})
        self.assertEqual(whole.stop_reason, "tool_use")
        block = next(b for b in whole.content if b.type == "tool_use")
        self.assertEqual((block.name, set(block.input)), ("get_weather", {"city"}))
        with client().messages.stream(**{**ASK, **more}) as stream:
            final = stream.get_final_message()
        streamed = next(b for b in final.content if b.type == "tool_use")
        self.assertEqual((streamed.name, streamed.input), (block.name, block.input))

    def test_a_result_goes_back(self):
        messages = ASK["messages"] + [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Bonn"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
        ]
        answer = client().messages.create(**{**ASK, "messages": messages, "tools": [self.TOOL]})
        self.assertGreater(answer.usage.output_tokens, 0)


if __name__ == "__main__":
    unittest.main()
