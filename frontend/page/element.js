'use strict';
// Makes elements. Text is always text: nothing here, or anywhere in the page, parses HTML.

const SVG_NAMESPACE = 'http://www.w3.org/2000/svg';

/** An element: `el('button', {class: 'primary', onclick: f}, 'Send')`.
 *
 * Properties that begin with "on" are listeners, true and false are attributes that are there or
 * not, everything else is an attribute; children that are null or false are left out.
 */
function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same in SVG: `svgEl('circle', {r: 4})`. */
function svgEl(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), properties, children);
}

/** A symbol of the page's sprite. */
function icon(name) {
  return svgEl('svg', { class: 'icon', 'aria-hidden': 'true' }, svgEl('use', { href: `#icon-${name}` }));
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

/** Arrow keys go along a row of elements of which Tab reaches one at a time. Returns whether the key was one. */
function moveAlong(event, elements) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return false;
  const next = elements[Array.prototype.indexOf.call(elements, event.target) + step];
  if (next) {
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
  return true;
}
