'use strict';
// The list of conversations, and their way in and out of this browser.

class ChatSidebar {
  /** `actions`: open(id), begin(), remove(id), imported(count), failed(error). */
  constructor(book, actions) {
    this.book = book;
    this.actions = actions;
    this.list = byId('conversation-list');
    this.file = byId('import-file');
    byId('new-chat').addEventListener('click', () => actions.begin());
    byId('export-button').addEventListener('click', () => this.#export());
    byId('import-button').addEventListener('click', () => this.file.click());
    this.file.addEventListener('change', () => this.#import());
  }

  show(currentId, runningIds) {
    const conversations = this.book.list;
    byId('export-button').disabled = !conversations.length;
    if (!conversations.length) {
      this.list.replaceChildren(el('li', { class: 'empty' }, 'Your conversations stay in this browser.'));
      return;
    }
    this.list.replaceChildren(...conversations.map((each) => this.#entry(each, each.id === currentId, runningIds.has(each.id))));
  }

  #entry({ id, title, updatedAt }, isCurrent, isRunning) {
    const name = title || 'Untitled';
    const open = el(
      'button',
      { type: 'button', class: 'conversation', title: new Date(updatedAt).toLocaleString(), 'aria-current': isCurrent ? 'true' : null },
      isRunning && el('span', { class: 'running-mark', title: 'an answer is being made' }),
      el('span', { class: 'conversation-title' }, name),
    );
    open.addEventListener('click', () => this.actions.open(id));
    const remove = iconButton('delete', `Delete “${name}”`, () => this.#remove(id, name));
    return el('li', {}, open, remove);
  }

  async #remove(id, name) {
    if (await confirmed(`Delete “${name}”?`, 'It is kept nowhere else.', 'Delete')) this.actions.remove(id);
  }

  #export() {
    const url = URL.createObjectURL(new Blob([this.book.export()], { type: 'application/json' }));
    const day = new Date().toISOString().slice(0, 10);
    el('a', { href: url, download: `jetflock-conversations-${day}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  async #import() {
    const [file] = this.file.files;
    if (!file) return;
    try {
      this.actions.imported(this.book.import(await file.text()));
    } catch (error) {
      this.actions.failed(error);
    } finally {
      this.file.value = '';
    }
  }
}

/** Whether the user says yes. */
async function confirmed(title, text, verb) {
  const dialog = byId('confirm-dialog');
  byId('confirm-title').textContent = title;
  byId('confirm-text').textContent = text;
  byId('confirm-yes').textContent = verb;
  dialog.returnValue = '';
  dialog.showModal();
  await new Promise((closed) => dialog.addEventListener('close', closed, { once: true }));
  return dialog.returnValue === 'yes';
}
