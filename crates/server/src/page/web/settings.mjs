// What its reader has set, kept in the browser. A number left empty is the server's to choose.

export const NUMBERS = {
  temperature: { label: 'Temperature', min: 0, max: 100, step: 'any', hint: '0 always takes the likeliest token' },
  top_p: { label: 'Top p', min: 0, max: 1, step: 'any', hint: 'of the likeliest tokens, those that make up this share' },
  top_k: { label: 'Top k', min: 0, max: 4294967295, step: 1, hint: 'only so many of the likeliest; 0 for all' },
  min_p: { label: 'Min p', min: 0, max: 1, step: 'any', hint: 'at least so likely, against the likeliest' },
  seed: { label: 'Seed', min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, hint: 'the same seed gives the same text; empty for a new one each time' },
  max_tokens: { label: 'Most tokens', min: 1, max: 1e9, step: 1, hint: 'of an answer' },
};

export const DEFAULTS = {
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  seed: null,
  max_tokens: 512,
  system: '',
  thinking: 'model',
  key: '',
  speculative: true,
  colours: true,
};

const STORED_AS = 'overdraft';

/** Whatever was stored, as settings: what cannot be one is its default. */
export function clean(stored) {
  const settings = { ...DEFAULTS };
  if (typeof stored !== 'object' || stored === null) return settings;
  for (const [name, { min, max, step }] of Object.entries(NUMBERS)) {
    const value = stored[name];
    const fits = typeof value === 'number' && value >= min && value <= max && (step === 'any' || Number.isInteger(value));
    if (fits || value === null) settings[name] = value;
  }
  for (const name of ['system', 'key']) if (typeof stored[name] === 'string') settings[name] = stored[name];
  for (const name of ['speculative', 'colours']) if (typeof stored[name] === 'boolean') settings[name] = stored[name];
  if (['model', 'on', 'off'].includes(stored.thinking)) settings.thinking = stored.thinking;
  return settings;
}

export function load(storage) {
  try {
    return clean(JSON.parse(storage.getItem(STORED_AS)));
  } catch {
    // Browsers may forbid storage; then settings last as long as the page.
    return clean(null);
  }
}

export function save(storage, settings) {
  try {
    storage.setItem(STORED_AS, JSON.stringify(settings));
  } catch {
    // As above.
  }
}

/** The temperature where none is set: the model's own, and the likeliest token where its makers recommend nothing at all. */
export function temperatureOf(model) {
  if (!model) return null;
  const isNeutral = model.temperature === 1 && model.top_p === 1 && model.top_k === 0 && model.min_p === 0;
  return isNeutral ? 0 : model.temperature;
}

/** A request's fields. The seed is always named, so that an answer can be had again. */
export function fieldsOf(settings, seed, model) {
  const fields = { seed };
  const temperature = temperatureOf(model);
  if (temperature !== null) fields.temperature = temperature;
  for (const name of ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens']) {
    if (settings[name] !== null) fields[name] = settings[name];
  }
  if (settings.thinking !== 'model') fields.enable_thinking = settings.thinking === 'on';
  return fields;
}

export function freshSeed(settings) {
  return settings.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
}
