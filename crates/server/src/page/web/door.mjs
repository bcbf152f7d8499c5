// The way to the server and back: the key goes with every request, and what goes wrong comes back as a `Trouble`.

import { Trouble, refusal } from './errors.mjs';

/** `credentials` are left out so that no refusal makes the browser ask for a password by itself: the page asks. */
async function send(path, key, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: 'omit', cache: 'no-store' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Trouble('unreachable', { message: '' });
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw refusal(response.status, body, response.headers.get('retry-after'));
}

export async function readJson(path, key) {
  return (await send(path, key)).json();
}

export function postJson(path, key, body, signal) {
  const headers = { 'content-type': 'application/json' };
  return send(path, key, { method: 'POST', headers, body: JSON.stringify(body), signal });
}
