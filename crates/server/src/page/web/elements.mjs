// Making elements. Text becomes text nodes and nothing else.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

/** `make('p', {class: 'quiet', click: () => …}, 'text', element)` */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function button(label, click, attributes = {}) {
  return make('button', { type: 'button', click, ...attributes }, label);
}

export function find(selector) {
  return document.querySelector(selector);
}
