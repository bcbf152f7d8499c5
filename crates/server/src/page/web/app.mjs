// The page: settings, conversation, figures and keyboard put together, and what it knows of the server.

import { Conversation } from './conversation.mjs';
import { readJson } from './door.mjs';
import { button, find, make } from './elements.mjs';
import { Trouble, inWords } from './errors.mjs';
import { Figures } from './figures.mjs';
import { clean, load, save } from './settings.mjs';
import { SettingsForm } from './settings_form.mjs';

const EXAMPLES = [
  'Write a main function with argparse for input and output files',
  'Write a function that downloads a file',
  'Write a function to read a CSV file',
];
/** A server that is away is asked so often whether it is back. */
const RETRY_MS = 2000;

/** Browsers that forbid storage forbid to name it, too. */
const storage = (() => {
  try {
    return localStorage;
  } catch {
    return null;
  }
})();
let settings = load(storage);
let props = null;
let needsKey = settings.key !== '';
let isWaiting = false;

const prompt = find('#prompt');
const scroller = find('#conversation');
const announcer = find('#announcer');
const speculation = find('#speculative');

function change(changed) {
  settings = clean({ ...settings, ...changed });
  save(storage, settings);
  document.body.classList.toggle('coloured', settings.colours);
  speculation.checked = settings.speculative;
}

const form = new SettingsForm(find('#settings'), (changed) => {
  const isOtherKey = changed.key !== settings.key;
  change(changed);
  if (!isOtherKey) return;
  meet();
  // The button that led here goes with the banner.
  prompt.focus();
});

function openSettings(focus = null) {
  form.open(settings, focus);
}

const figures = new Figures(find('#plots'), find('#strip'), {
  coloursChanged: (colours) => change({ colours }),
  areColoured: settings.colours,
});

const conversation = new Conversation(find('#turns'), {
  settings: () => settings,
  model: () => props?.default_generation_settings?.params ?? null,
  isChat: () => props?.chat_template !== null,
  announce: (text) => announcer.append(make('p', {}, text)),
  openSettings: () => openSettings(needsKey && !props ? 'key' : null),
  changed: (answers, isBusy) => {
    figures.show(answers);
    find('#welcome').hidden = conversation.turns.length > 0;
    showBusy(isBusy);
    follow();
  },
  ended: (answer) => {
    const trouble = answer.trouble;
    if (trouble instanceof Trouble && (trouble.kind === 'unreachable' || trouble.kind === 'cut')) meet();
    if (trouble?.status === 401) meet();
    const words = { done: 'Answer complete.', stopped: 'Stopped.' }[answer.state];
    if (words) announcer.append(make('p', {}, words));
  },
  compared: (turn) => {
    isFollowing = false;
    turn.reveal();
  },
});

// The newest text stays in view, unless its reader went back to something.
let isFollowing = true;
scroller.addEventListener('scroll', () => {
  isFollowing = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
});
function follow() {
  if (isFollowing) scroller.scrollTop = scroller.scrollHeight;
}

/** One of Send and Stop is there. Focus that was on the other, or on what an edit took away, goes on from it. */
function showBusy(isBusy) {
  const [send, stop] = [find('#send'), find('#stop')];
  if (stop.hidden === !isBusy) return;
  const isLost = [send, stop, document.body].includes(document.activeElement);
  send.hidden = isBusy;
  stop.hidden = !isBusy;
  find('#compare').setAttribute('aria-disabled', String(isBusy));
  if (isLost) (isBusy ? stop : send).focus();
}

function say(compare) {
  if (conversation.isBusy) return;
  const text = prompt.value;
  isFollowing = true;
  announcer.replaceChildren();
  if (text.trim() === '') {
    if (compare && conversation.turns.length > 0) conversation.compare();
    else prompt.focus();
    return;
  }
  prompt.value = '';
  fit();
  conversation.send(text, { compare });
}

/** The box grows with its text; how far, the style says. */
function fit() {
  prompt.style.height = 'auto';
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

prompt.addEventListener('input', fit);
prompt.addEventListener('keydown', (event) => {
  // While a character is composed, Enter is part of it.
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  say(false);
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !find('#settings').open) conversation.stop();
});
find('#composer').addEventListener('submit', (event) => {
  event.preventDefault();
  say(false);
});
find('#compare').addEventListener('click', () => say(true));
find('#stop').addEventListener('click', () => conversation.stop());
find('#open-settings').addEventListener('click', () => openSettings());
find('#new-chat').addEventListener('click', () => {
  conversation.clear();
  prompt.focus();
});
speculation.addEventListener('change', () => change({ speculative: speculation.checked }));

for (const example of EXAMPLES) {
  find('#examples').append(make('li', {}, button(example, () => {
    prompt.value = example;
    say(false);
    prompt.focus();
  })));
}

function tell(...words) {
  const banner = find('#banner');
  banner.hidden = words.length === 0;
  banner.replaceChildren(...words);
}

/** Learns what is served here, and goes on asking while nobody answers. */
async function meet() {
  try {
    props = await readJson('props', settings.key);
    needsKey = props.keys_needed;
    tell();
    find('#model').textContent = [props.model_alias, props.device].filter(Boolean).join(' · ');
    find('#model').title = props.draft ? `with the draft ${props.draft}` : 'without a draft: guesses come from the text itself';
    prompt.placeholder = props.chat_template === null ? 'Begin a text; the model writes on' : 'Ask for something';
  } catch (trouble) {
    const { title, advice } = inWords(trouble);
    const isKey = trouble.status === 401;
    needsKey ||= isKey;
    tell(make('p', {}, make('strong', {}, `${title}. `), advice), isKey ? button('Enter a key', () => openSettings('key'), { class: 'first' }) : '');
    if (!isKey && !isWaiting) {
      isWaiting = true;
      setTimeout(() => {
        isWaiting = false;
        meet();
      }, RETRY_MS);
    }
  }
  form.describe(props, needsKey);
}

change({});
fit();
meet();
