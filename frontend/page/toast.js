'use strict';
// A sentence that the user should read, for a few seconds.

const TOAST_MS = 6_000;

function toast(text) {
  const line = el('div', { class: 'toast' }, text);
  byId('toasts').append(line);
  setTimeout(() => line.remove(), TOAST_MS);
}
