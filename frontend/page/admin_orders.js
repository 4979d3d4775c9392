'use strict';
// Orders to workers, on behalf of an operator: to the admin plane, which has an address and a key of its own.

const ADMIN_PATHS = { drain: 'drain_worker', kill: 'kill_worker' };

class AdminOrders {
  constructor(api) {
    this.storageName = `jetflock:${api.path}:admin-key`;
    this.url = null; // of the admin plane
    this.onGiven = () => {}; // (verb, worker): it was obeyed
    this.input = el('input', { type: 'password', id: 'admin-key-input', autocomplete: 'off', spellcheck: 'false' });
    this.reason = el('p', {});
    this.dialog = el(
      'dialog',
      { 'aria-label': 'Admin key' },
      el(
        'form',
        { method: 'dialog' },
        el('h2', {}, 'Admin key'),
        this.reason,
        el('label', { for: 'admin-key-input' }, 'Key'),
        this.input,
        el('div', { class: 'dialog-buttons' }, el('button', { type: 'button', onclick: () => this.dialog.close('cancel') }, 'Cancel'), el('button', { value: 'save', class: 'primary' }, 'Use this key')),
      ),
    );
    document.body.append(this.dialog);
  }

  /** Tells a worker to drain or to die; false when the user has no key, or it did not work.
   *
   * `find` names the worker, and is asked when there is a key, not before: to type one takes a while.
   */
  async give(verb, find) {
    let worker = null;
    try {
      const response = await this.#post(ADMIN_PATHS[verb], async () => ({ worker: (worker = await find()) }));
      if (!response) return false;
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error?.message ?? answer.workers?.find(({ ok }) => !ok)?.message ?? `status ${response.status}`);
      this.onGiven(verb, worker);
      return true;
    } catch (error) {
      const why = error instanceof TypeError ? `the admin plane at ${this.url} cannot be reached` : error.message;
      toast(`${worker ? workerLabel(worker) : 'A worker'} was not told to ${verb}: ${why}`);
      return false;
    }
  }

  /** With the key; asks for it when there is none, or it is wrong. `makeBody` is called for each try. */
  async #post(path, makeBody) {
    let key = sessionStorage.getItem(this.storageName) ?? (await this.#ask());
    while (key) {
      const headers = { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' };
      const url = `${this.url.replace(/\/$/, '')}/${path}`;
      const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(await makeBody()) });
      if (response.status !== 401) return response;
      sessionStorage.removeItem(this.storageName);
      key = await this.#ask('That is not the key of the admin plane.');
    }
    return null;
  }

  async #ask(reason = 'Orders need the key of the admin plane. It is kept in this browser tab until you close it.') {
    this.reason.textContent = reason;
    this.input.value = '';
    this.dialog.returnValue = 'cancel';
    this.dialog.showModal();
    await new Promise((closed) => this.dialog.addEventListener('close', closed, { once: true }));
    const key = this.dialog.returnValue === 'save' ? this.input.value.trim() : '';
    if (key) sessionStorage.setItem(this.storageName, key);
    return key;
  }
}
