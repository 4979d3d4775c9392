'use strict';
// The list of conversations, and their way in and out of this browser.

class ChatSidebar {
  /** `actions`: open(id), begin(), changed(id), remove(id), imported(count), failed(error). */
  constructor(book, actions) {
    this.book = book;
    this.actions = actions;
    this.list = byId('conversation-list');
    this.file = byId('import-file');
    this.search = byId('conversation-search');
    this.search.addEventListener('input', () => this.show(this.currentId, this.runningIds));
    byId('new-chat').addEventListener('click', () => actions.begin());
    byId('export-button').addEventListener('click', () => this.#export());
    byId('import-button').addEventListener('click', () => this.file.click());
    this.file.addEventListener('change', () => this.#import());
  }

  show(currentId, runningIds) {
    this.currentId = currentId;
    this.runningIds = runningIds;
    if (this.list.querySelector('input')) return; // a name is being typed
    const { list } = this.book;
    const found = list.filter((each) => each.has(this.search.value.trim()));
    byId('export-button').disabled = !list.length;
    this.search.hidden = !list.length;
    const none = list.length ? 'No conversations match.' : 'Your conversations stay in this browser.';
    this.list.replaceChildren(...(found.length ? found.map((each) => this.#entry(each)) : [el('li', { class: 'empty' }, none)]));
  }

  #entry(conversation) {
    const { id, title, isPinned } = conversation;
    const isCurrent = id === this.currentId;
    const name = title || 'Untitled';
    const open = el(
      'button',
      { type: 'button', class: 'conversation', 'aria-current': isCurrent ? 'true' : null },
      this.runningIds.has(id) && el('span', { class: 'running-mark', role: 'img', 'aria-label': 'Being answered' }),
      isPinned && icon('pin'),
      el('span', { class: 'conversation-title' }, name),
    );
    open.addEventListener('click', () => this.actions.open(id));
    return el('li', {}, open, isCurrent && this.#buttons(conversation, name, open));
  }

  /** What can be done with the conversation that is open. */
  #buttons(conversation, name, open) {
    const { id, isPinned } = conversation;
    return el(
      'div',
      { class: 'conversation-buttons' },
      iconButton('pin', `${isPinned ? 'Unpin' : 'Pin'} “${name}”`, () => this.#change(conversation, { isPinned: !isPinned })),
      iconButton('edit', `Rename “${name}”`, () => this.#rename(conversation, open)),
      iconButton('download', `Export “${name}” as Markdown`, () => download(markdownOf(conversation), 'text/markdown', `${fileName(name)}.md`)),
      iconButton('delete', `Delete “${name}”`, () => this.#remove(id, name)),
    );
  }

  #change(conversation, fields) {
    this.book.save(Object.assign(conversation, fields));
    this.actions.changed(conversation.id);
  }

  /** Types a name in place of the button: Enter keeps it, Escape does not. */
  #rename(conversation, open) {
    const input = el('input', { 'aria-label': 'Name', maxlength: 200 });
    input.value = conversation.title;
    let isLeft = false; // to take the field away is to leave it, too
    const leave = (title) => {
      if (isLeft) return;
      isLeft = true;
      input.remove();
      this.#change(conversation, { title });
    };
    input.addEventListener('blur', () => leave(input.value.trim() || conversation.title));
    input.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') leave(input.value.trim() || conversation.title);
      else if (event.key === 'Escape') leave(conversation.title);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    open.replaceWith(input);
    input.select();
  }

  async #remove(id, name) {
    if (await confirmed(`Delete “${name}”?`, 'It is not stored anywhere else.', 'Delete')) this.actions.remove(id);
  }

  #export() {
    const day = new Date().toISOString().slice(0, 10);
    download(this.book.export(), 'application/json', `jetflock-conversations-${day}.json`);
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

function download(text, type, name) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Of a title: what every system takes. */
function fileName(title) {
  return title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'conversation';
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
