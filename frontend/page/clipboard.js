'use strict';
// Copying, also where the page came without TLS and the browser has no clipboard for it.

async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = el('textarea', { class: 'offscreen', readonly: true, 'aria-hidden': 'true' });
  area.value = text;
  (document.querySelector('dialog[open]') ?? document.body).append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

/** Of a request or a worker, of which the page shows the beginning. */
async function copyId(id) {
  await copyText(id);
  toast(`${id} was copied.`);
}

/** A button that copies what `text()` is then, and says so for a moment. */
function copyButton(text, { label = 'Copy', isIcon = false } = {}) {
  const caption = el('span', { class: isIcon ? 'offscreen' : '' }, label);
  const button = el('button', { type: 'button', class: isIcon ? 'icon-button' : 'quiet-button' }, icon('copy'), caption);
  button.addEventListener('click', async () => {
    await copyText(text());
    button.classList.add('is-done');
    caption.textContent = 'Copied';
    setTimeout(() => {
      button.classList.remove('is-done');
      caption.textContent = label;
    }, 1500);
  });
  return button;
}
