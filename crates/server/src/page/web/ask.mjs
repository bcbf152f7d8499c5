// One question to the model: the request as the API wants it, its answer as a stream of happenings.

import { postJson } from './door.mjs';
import { Trouble } from './errors.mjs';
import { eventsOf } from './sse.mjs';

/** What is posted. Models without a chat template continue the text of all messages. */
export function requestOf({ messages, fields, speculative, isChat }) {
  const common = {
    ...fields,
    speculative,
    stream: true,
    stream_options: { include_usage: true },
    token_origins: true,
  };
  if (isChat) return { path: 'v1/chat/completions', body: { messages, ...common } };
  const { enable_thinking: _, ...rest } = common;
  return { path: 'v1/completions', body: { prompt: messages.map((m) => m.content).join(''), ...rest } };
}

/**
 * Yields `{tokens, content, reasoning, finish, usage, metrics}`, each only where a chunk has it. Returns after the server
 * said that all is told; throws a `Trouble` if it did not get there.
 */
export async function* ask(question, key, signal) {
  const { path, body } = requestOf(question);
  const response = await postJson(path, key, body, signal);
  try {
    for await (const data of eventsOf(response.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Trouble('failed', chunk.error);
      yield happening(chunk);
    }
  } catch (error) {
    // Browsers name a connection that broke in words of their own, and what is not JSON was cut by somebody on the way.
    if (error instanceof TypeError || error instanceof SyntaxError) throw new Trouble('cut');
    throw error;
  }
  throw new Trouble('cut');
}

export function happening(chunk) {
  const choice = chunk.choices?.[0];
  return {
    tokens: choice?.token_origins ?? [],
    content: choice?.delta?.content ?? choice?.text ?? '',
    reasoning: choice?.delta?.reasoning_content ?? '',
    finish: choice?.finish_reason ?? null,
    usage: chunk.usage ?? null,
    metrics: chunk.metrics ?? null,
  };
}
