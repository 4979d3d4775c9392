'use strict';
// Talks to the frontend that served this page, under whatever path it lies.

const SERVER_AWAY = 'The server does not answer.';
const START_IT = 'Start it with: jetflock serve';

/** An answer that is not 2xx: its status, and what the server said. */
class ApiError extends Error {
  constructor(status, message, code = null, retryAfterS = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
  }

  static async of(response) {
    const text = await response.text();
    let error = {};
    try {
      error = JSON.parse(text).error ?? {};
    } catch {
      // a proxy's page: its status has to do
    }
    const message = error.message ?? `The server answered ${response.status} ${response.statusText}.`;
    return new ApiError(response.status, message, error.code, Number(response.headers.get('retry-after')) || null);
  }
}

/** Asks for the API key, and keeps it for this browser tab. */
class ApiKey {
  constructor(storageName) {
    this.storageName = storageName;
    this.dialog = byId('key-dialog');
    this.input = byId('key-input');
    this.asking = null;
    byId('key-cancel').addEventListener('click', () => this.dialog.close('cancel'));
  }

  get value() {
    return sessionStorage.getItem(this.storageName) ?? '';
  }

  /** Shows the dialog; the promise tells whether there is a key to try. One dialog serves all who ask at once. */
  ask(reason = null) {
    this.asking ??= this.#ask(reason).finally(() => (this.asking = null));
    return this.asking;
  }

  async #ask(reason) {
    if (reason) byId('key-reason').textContent = reason;
    this.input.value = this.value;
    this.dialog.returnValue = 'cancel';
    this.dialog.showModal();
    this.input.select();
    await new Promise((closed) => this.dialog.addEventListener('close', closed, { once: true }));
    if (this.dialog.returnValue !== 'save') return false;
    const key = this.input.value.trim();
    if (key) sessionStorage.setItem(this.storageName, key);
    else sessionStorage.removeItem(this.storageName);
    return key !== '';
  }
}

/** Where the page lies on its server; some leave the last slash out. */
function pagePath() {
  const { pathname } = window.location;
  return pathname.endsWith('/') ? pathname : `${pathname}/`;
}

/** Of what lies below the page. */
function pageUrl(path) {
  return new URL(path, window.location.origin + pagePath()).href;
}

/** Sends requests with the key, if there is one. Paths are relative to where the page lies. */
class Api {
  constructor() {
    this.path = pagePath();
    this.key = new ApiKey(`jetflock:${this.path}:key`);
  }

  url(path) {
    return pageUrl(path);
  }

  /** The response, of any status but 401: then the user is asked for a key, and it is tried again. */
  async fetch(path, init = {}) {
    for (;;) {
      const key = this.key.value;
      const headers = { ...init.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
      const response = await fetch(this.url(path), { ...init, headers });
      if (response.status !== 401) return response;
      const error = await ApiError.of(response);
      const isNewer = this.key.value !== key; // somebody else has asked meanwhile
      if (!isNewer && !(await this.key.ask(error.message))) throw error;
    }
  }

  /** The JSON of a 2xx answer. Throws ApiError. */
  async json(path, init = {}) {
    const response = await this.fetch(path, init);
    if (!response.ok) throw await ApiError.of(response);
    return response.json();
  }

  post(path, body, init = {}) {
    const headers = { 'Content-Type': 'application/json', ...init.headers };
    return this.fetch(path, { ...init, method: 'POST', headers, body: JSON.stringify(body) });
  }
}
