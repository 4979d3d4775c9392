'use strict';
// The models that can be chosen, once for all tabs; asked again while there are none.

const NO_MODEL_RETRY_MS = 2_000;

class ModelList {
  constructor(api, store) {
    this.api = api;
    this.store = store;
    this.models = [];
    this.selects = [];
    this.problem = ''; // why there is none
    this.refresh();
  }

  /** Makes a <select> one of the places where the model is chosen. */
  attach(select) {
    this.selects.push(select);
    select.addEventListener('change', () => this.choose(select.value));
    this.#show();
  }

  get chosen() {
    const wanted = this.store.read('model');
    return this.models.includes(wanted) ? wanted : (this.models[0] ?? null);
  }

  choose(model) {
    if (model) this.store.write('model', model);
    this.#show();
  }

  async refresh() {
    clearTimeout(this.timer);
    this.problem = 'No model is being served yet.';
    try {
      const { data } = await this.api.json('v1/models');
      this.models = data.filter((model) => (model.tasks ?? ['generate']).includes('generate')).map((model) => model.id);
    } catch (error) {
      this.models = [];
      this.problem = error.message;
      this.#show();
      if (error instanceof ApiError && error.status === 401) return; // until there is a key
    }
    this.#show();
    if (!this.models.length) this.timer = setTimeout(() => this.refresh(), NO_MODEL_RETRY_MS);
  }

  #show() {
    for (const select of this.selects) {
      const names = this.models.length ? this.models : [''];
      select.replaceChildren(...names.map((name) => el('option', { value: name }, name || 'no model yet')));
      select.value = this.chosen ?? '';
      select.disabled = !this.models.length;
    }
  }
}
