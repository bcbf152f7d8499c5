// What went wrong, in words, and what its reader can do about it.

export class Trouble extends Error {
  /** `kind`: refused (the server said no), unreachable, cut (the stream ended early), failed (an error within a stream). */
  constructor(kind, { status = 0, code = null, param = null, message = '', retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { kind, status, code, param, retryAfter });
  }
}

/** From a refusal's status, JSON and headers. */
export function refusal(status, body, retryAfter) {
  const error = body?.error ?? {};
  const seconds = Number.parseFloat(retryAfter);
  return new Trouble('refused', {
    status,
    code: error.code ?? null,
    param: error.param ?? null,
    message: typeof error.message === 'string' ? error.message : '',
    retryAfter: Number.isFinite(seconds) ? seconds : null,
  });
}

const BY_CODE = {
  invalid_api_key: () => ['This server wants an API key', 'Enter one of its keys in the settings.', 'settings'],
  context_length_exceeded: () => [
    'The conversation is longer than the model can read',
    'Begin a new chat, or edit an earlier message to go on from there.',
  ],
  host_not_allowed: () => [
    'The server does not answer to the name in your address bar',
    'Open it as localhost, or start it with --allow-host and that name.',
  ],
  model_not_found: () => ['The model is not served here any more', 'Reload the page to talk with the one that is.'],
  no_chat_template: () => ['This model only continues text', 'Reload the page to write on instead of chatting.'],
  queue_full: (t) => ['The server is full', `Try again ${inSeconds(t.retryAfter)}; others are being answered first.`],
  draining: () => ['The server is being stopped', 'Answers that run are finished, new ones are not begun. Try again once it is back.'],
  loading: (t) => ['The model is still being loaded', `Try again ${inSeconds(t.retryAfter)}.`],
  engine_stopped: () => ['The model has stopped', 'Restart the server; its log says why it stopped.'],
  deadline_exceeded: () => ['The answer took longer than the server allows', 'Ask for fewer tokens, or raise --request-timeout.'],
  slow_reader: () => ['The browser did not read fast enough', 'Keep the page in the foreground, then try again.'],
};

const BY_STATUS = {
  400: (t) => [
    'The server cannot do what was asked',
    t.param ? `Change “${t.param}” in the settings, then try again.` : 'Change the message or the settings, then try again.',
    t.param ? 'settings' : null,
  ],
  401: BY_CODE.invalid_api_key,
  403: () => ['The server does not answer this page', 'Open it under the address the server printed when it started.'],
  404: () => ['The server does not know this request', 'Reload the page: it may be of another version than the server.'],
  408: () => ['The server waited too long for the request', 'Look at the connection, then try again.'],
  413: () => ['The message is too long', 'Shorten it, or raise --max-body.'],
  429: BY_CODE.queue_full,
  503: () => ['The server cannot answer now', 'Try again in a moment.'],
};

const BY_KIND = {
  unreachable: () => ['The server does not answer', 'Look whether it runs, and at the connection; this page goes on by itself when it is back.'],
  cut: () => ['The connection broke while the answer came', 'What came is kept. Try again for a whole answer.'],
  failed: () => ['The answer broke off', 'Try again; the server’s log says more.'],
  refused: () => ['The server refused', 'Try again; the server’s log says more.'],
};

/** `{title, advice, said, offer}`: `said` are the server's own words, `offer` is "settings" where the remedy is there. */
export function inWords(trouble) {
  const known = trouble instanceof Trouble;
  const words = known
    ? (BY_CODE[trouble.code] ?? (trouble.kind === 'refused' ? BY_STATUS[trouble.status] : null) ?? BY_KIND[trouble.kind])(trouble)
    : ['The page made a mistake', 'Reload it. If it happens again, please report it.'];
  const [title, advice, offer = null] = words;
  return { title, advice, said: trouble.message ?? '', offer };
}

function inSeconds(seconds) {
  if (seconds === null) return 'in a moment';
  return seconds <= 1 ? 'in a second' : `in ${Math.ceil(seconds)} seconds`;
}
