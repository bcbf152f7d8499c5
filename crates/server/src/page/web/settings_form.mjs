// The settings as a form in a dialog.

import { button, make } from './elements.mjs';
import { DEFAULTS, NUMBERS, temperatureOf } from './settings.mjs';

export class SettingsForm {
  #inputs = {};

  /** `saved` is given what was changed. */
  constructor(dialog, saved) {
    this.dialog = dialog;
    this.saved = saved;
    for (const [name, { min, max, step }] of Object.entries(NUMBERS)) {
      const mode = step === 1 ? 'numeric' : 'decimal';
      this.#inputs[name] = make('input', { type: 'number', id: `set-${name}`, min, max, step, inputmode: mode, 'aria-describedby': `hint-${name}` });
    }
    this.#inputs.system = make('textarea', { id: 'set-system', rows: '3' });
    this.#inputs.key = make('input', { type: 'password', id: 'set-key', autocomplete: 'off', spellcheck: 'false', 'aria-describedby': 'hint-key' });
    this.#inputs.thinking = make('select', { id: 'set-thinking', 'aria-describedby': 'hint-thinking' },
      make('option', { value: 'model' }, 'as the model likes'), make('option', { value: 'on' }, 'on'), make('option', { value: 'off' }, 'off'));
    this.keyRow = this.#row('key', 'API key', 'kept in this browser and sent to this server only');
    this.thinkingHint = make('small', { id: 'hint-thinking' });
    const thinking = make('div', { class: 'row' }, make('label', { for: 'set-thinking' }, 'Thinking'), this.#inputs.thinking, this.thinkingHint);
    const numbers = Object.entries(NUMBERS).map(([name, { label, hint }]) => this.#row(name, label, hint));
    this.form = make('form', { method: 'dialog', submit: (event) => this.#submit(event) },
      make('h2', { id: 'settings-title' }, 'Settings'),
      this.keyRow,
      make('div', { class: 'row wide' }, make('label', { for: 'set-system' }, 'System prompt'), this.#inputs.system),
      make('div', { class: 'grid' }, ...numbers, thinking),
      make('div', { class: 'actions' }, button('Defaults', () => this.#fill({ ...DEFAULTS, key: this.#inputs.key.value })),
        button('Cancel', () => dialog.close()), make('button', { type: 'submit', class: 'first' }, 'Save')));
    dialog.append(this.form);
  }

  #row(name, label, hint) {
    return make('div', { class: 'row' }, make('label', { for: `set-${name}` }, label), this.#inputs[name], make('small', { id: `hint-${name}` }, hint));
  }

  /** What the server says of itself: its defaults stand where nothing is set. */
  describe(props, needsKey) {
    const model = props?.default_generation_settings?.params ?? null;
    for (const name of ['temperature', 'top_p', 'top_k', 'min_p']) {
      const value = name === 'temperature' ? temperatureOf(model) : model?.[name];
      this.#inputs[name].placeholder = typeof value === 'number' ? String(Number(value.toFixed(4))) : '';
    }
    this.#inputs.seed.placeholder = 'a new one each time';
    this.#inputs.max_tokens.placeholder = 'what the context leaves';
    this.keyRow.hidden = !needsKey;
    const canThink = props?.chat_template?.includes('enable_thinking') ?? true;
    this.#inputs.thinking.disabled = !canThink;
    this.thinkingHint.textContent = canThink ? 'before it answers' : 'this model has no switch for it';
  }

  open(settings, focus = null) {
    this.#fill(settings);
    if (!this.dialog.open) this.dialog.showModal();
    if (focus) this.#inputs[focus].focus();
  }

  #fill(settings) {
    for (const [name, input] of Object.entries(this.#inputs)) input.value = settings[name] ?? '';
  }

  #submit(event) {
    event.preventDefault();
    const changed = {};
    for (const [name, input] of Object.entries(this.#inputs)) {
      if (name in NUMBERS) changed[name] = input.value === '' ? null : input.valueAsNumber;
      else changed[name] = name === 'key' ? input.value.trim() : input.value;
    }
    this.dialog.close();
    this.saved(changed);
  }
}
