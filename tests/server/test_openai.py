"""The openai package against the server: what it sends is taken, and what it gets it understands."""

import json
import os
import unittest

import openai

MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers."}]
GREEDY = {"model": "demo", "temperature": 0}


def client(**more):
    more.setdefault("api_key", os.environ["OVERDRAFT_KEY"])
    return openai.OpenAI(base_url=os.environ["OVERDRAFT_URL"] + "/v1", max_retries=0, **more)


class Chat(unittest.TestCase):
    def setUp(self):
        self.client = client()

    def ask(self, **more):
        return self.client.chat.completions.create(messages=MESSAGES, **{**GREEDY, "max_tokens": 24, **more})

    def test_a_stream_is_the_whole_answer_in_pieces(self):
        whole = self.ask()
        text, usage, finish = "", None, None
        for chunk in self.ask(stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual((finish, whole.choices[0].finish_reason), ("length", "length"))
        self.assertEqual(usage.completion_tokens, 24)
        self.assertEqual(usage.total_tokens, whole.usage.total_tokens)

    def test_the_stream_helper_puts_it_together(self):
        text = self.ask().choices[0].message.content
        # The helper takes an answer that was cut for a failure, so this one ends by a stop.
        stop = text[len(text) // 2 :][:3]
        more = {"max_tokens": 24, "stop": stop}
        with self.client.chat.completions.stream(messages=MESSAGES, **more, **GREEDY) as stream:
            completion = stream.get_final_completion()
        self.assertEqual(completion.choices[0].message.content, text[: text.index(stop)])

    def test_logprobs(self):
        choice = self.ask(logprobs=True, top_logprobs=4).choices[0]
        self.assertEqual(len(choice.logprobs.content), 24)
        for entry in choice.logprobs.content:
            self.assertEqual(len(entry.top_logprobs), 4)
            self.assertEqual(entry.top_logprobs[0].token, entry.token)
            self.assertLessEqual(entry.logprob, 0)
        text = b"".join(bytes(e.bytes) for e in choice.logprobs.content).decode()
        self.assertEqual(text, choice.message.content)

    def test_seeds_and_choices(self):
        hot = {"temperature": 1, "seed": 5, "n": 3}
        first, again = self.ask(**hot), self.ask(**hot)
        texts = [c.message.content for c in first.choices]
        self.assertEqual(texts, [c.message.content for c in again.choices])
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual([c.index for c in first.choices], [0, 1, 2])

    def test_stop(self):
        text = self.ask().choices[0].message.content
        stop = text[len(text) // 2 :][:3]
        choice = self.ask(stop=[stop]).choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), (text[: text.index(stop)], "stop"))

    def test_speculation_is_reported_and_changes_nothing(self):
        on, off = self.ask(), self.ask(extra_body={"speculative": False})
        self.assertEqual(on.choices[0].message.content, off.choices[0].message.content)
        spec = on.metrics["speculative_decoding"]
        self.assertEqual(sum(spec["acceptance_histogram"]), spec["num_spec_steps"])
        self.assertEqual(off.metrics["speculative_decoding"]["mode"], "off")

    def test_unknown_fields_are_named(self):
        raw = self.client.chat.completions.with_raw_response.create(
            messages=MESSAGES, max_tokens=1, extra_body={"frobnicate": 1}, **GREEDY
        )
        self.assertEqual(raw.headers["x-overdraft-ignored"], "frobnicate")
        self.assertTrue(raw.parse()._request_id)

    def test_leaving_a_stream_is_fine(self):
        stream = self.ask(stream=True, max_tokens=1500)
        next(iter(stream))
        stream.close()
        self.assertEqual(self.ask(max_tokens=1).usage.completion_tokens, 1)


class Errors(unittest.TestCase):
    def ask(self, client_=None, **more):
        return (client_ or client()).chat.completions.create(**{**GREEDY, "messages": MESSAGES, "max_tokens": 1, **more})

    def test_each_is_the_clients_own_kind(self):
        with self.assertRaises(openai.AuthenticationError):
            self.ask(client(api_key="a-wrong-key"))
        with self.assertRaises(openai.NotFoundError) as raised:
            self.ask(model="gpt-5")
        self.assertEqual(raised.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.ask(temperature=-1)
        self.assertEqual(raised.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.ask(messages=[{"role": "user", "content": "x " * 5000}])
        self.assertEqual(raised.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.ask(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
        self.assertEqual(raised.exception.param, "messages[0].content[0].type")


class Others(unittest.TestCase):
    def setUp(self):
        self.client = client()

    def test_models(self):
        models = list(self.client.models.list())
        self.assertEqual([m.id for m in models], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_completions(self):
        fixed = {**GREEDY, "prompt": "def add(a, b):", "max_tokens": 16}
        ask = lambda **more: self.client.completions.create(**{**fixed, **more})
        whole = ask(logprobs=2)
        self.assertEqual(len(whole.choices[0].logprobs.tokens), 16)
        streamed = "".join(c.choices[0].text for c in ask(stream=True) if c.choices)
        self.assertEqual(streamed, whole.choices[0].text)
        both = ask(prompt=["def add(a, b):", "class Stack:"])
        self.assertEqual(both.choices[0].text, whole.choices[0].text)

    def test_prompts_are_scored(self):
        fixed = {**GREEDY, "prompt": "def add(a, b):\n    return a + b", "echo": True, "logprobs": 2}
        whole = self.client.completions.create(max_tokens=0, **fixed)
        scores = whole.choices[0].logprobs
        self.assertEqual((whole.choices[0].text, whole.usage.completion_tokens), (fixed["prompt"], 0))
        self.assertEqual("".join(scores.tokens), fixed["prompt"])
        self.assertIsNone(scores.token_logprobs[0])
        self.assertTrue(all(p <= 0 for p in scores.token_logprobs[1:]))
        chunks = self.client.completions.create(max_tokens=1, stream=True, **fixed)
        lists = [c.choices[0].logprobs.token_logprobs for c in chunks if c.choices and c.choices[0].logprobs]
        self.assertEqual(sum(lists, [])[:-1], scores.token_logprobs)

    def test_responses(self):
        ask = lambda **more: self.client.responses.create(input="Add two numbers.", max_output_tokens=16, **{**GREEDY, **more})
        whole = ask()
        self.assertEqual((whole.status, whole.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(whole.usage.output_tokens, 16)
        text, last = "", None
        for event in ask(stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
        self.assertEqual(text, whole.output_text)
        self.assertEqual((last.type, last.response.output_text), ("response.incomplete", text))
        with self.assertRaises(openai.BadRequestError) as raised:
            ask(previous_response_id="resp_1")
        self.assertEqual(raised.exception.param, "previous_response_id")


class Forms(unittest.TestCase):
    """Answers of a set form, and calls of tools."""

    TOOL = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }

    def ask(self, **more):
        return client().chat.completions.create(messages=MESSAGES, **{**GREEDY, "max_tokens": 400, **more})

    def test_a_schema_is_kept(self):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "boolean"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        for more in ({}, {"temperature": 1, "seed": 3}, {"extra_body": {"speculative": False}}):
            choice = self.ask(response_format=form, **more).choices[0]
            value = json.loads(choice.message.content)
            self.assertEqual(set(value), {"a", "b"})
            self.assertIsInstance(value["b"], bool)
            self.assertEqual(choice.finish_reason, "stop")

    def test_a_tool_that_must_be_called_is(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("required", named):
            answer = self.ask(tools=[self.TOOL], tool_choice=choice, parallel_tool_calls=False).choices[0]
            self.assertEqual(len(answer.message.tool_calls), 1)
            self.assertEqual(answer.finish_reason, "tool_calls")
            call = answer.message.tool_calls[0]
            self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
            self.assertEqual(set(json.loads(call.function.arguments)), {"city"})

    def test_a_streamed_call_is_the_same(self):
        more = {"tools": [self.TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400}
        whole = self.ask(**more).choices[0].message.tool_calls[0]
        pieces = []
        with client().chat.completions.stream(messages=MESSAGES, **GREEDY, **more) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.delta":
                    pieces.append(event.arguments_delta)
            streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
        self.assertEqual("".join(pieces), whole.function.arguments)
        self.assertGreater(len(pieces), 1, "as they are written")
        self.assertEqual(streamed.function.name, whole.function.name)
        self.assertEqual(streamed.function.arguments, whole.function.arguments)

    def test_a_call_and_its_result_go_back(self):
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bonn"}'}}
        messages = MESSAGES + [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ]
        answer = client().chat.completions.create(messages=messages, tools=[self.TOOL], max_tokens=8, **GREEDY)
        self.assertGreater(answer.usage.completion_tokens, 0)


if __name__ == "__main__":
    unittest.main()
