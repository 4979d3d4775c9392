'use strict';
// The models that can be chosen, once for all tabs; asked again while there are none.

const NO_MODEL_RETRY_MS = 2_000;
const UNSERVED = ['failed', 'absent'];

class ModelList {
  constructor(api, store) {
    this.api = api;
    this.store = store;
    this.models = [];
    this.selects = [];
    this.watchers = [];
    this.problem = ''; // why there is none
    this.refresh();
  }

  /** Makes a <select> one of the places where the model is chosen. */
  attach(select) {
    this.selects.push(select);
    select.addEventListener('change', () => this.choose(select.value));
    this.#show();
  }

  /** Tells `watcher` the defaults of the model that is chosen, now and whenever it is another one. */
  watch(watcher) {
    this.watchers.push(watcher);
    watcher(this.#defaults());
  }

  /** Its name; null: there is none. */
  get chosen() {
    const wanted = this.store.read('model');
    const names = this.models.map(({ id }) => id);
    return names.includes(wanted) ? wanted : (names[0] ?? null);
  }

  /** What a request gets for the fields that it leaves open, by their names. */
  #defaults() {
    const model = this.models.find(({ id }) => id === this.chosen);
    return model ? { ...model.sampling_defaults, presence_penalty: 0, frequency_penalty: 0, max_tokens: 'what fits', seed: 'random' } : {};
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
      const served = data.filter(({ status }) => !UNSERVED.includes(status));
      this.models = served.filter(({ tasks }) => tasks.includes('generate'));
      if (served.length) this.problem = `No model here writes text: ${served.map(({ id, tasks }) => `${id} can ${tasks.join(', ')}`).join('; ')}.`;
    } catch (error) {
      this.models = [];
      this.problem = error instanceof ApiError ? error.message : `${SERVER_AWAY} ${START_IT}`;
      this.#show();
      if (error instanceof ApiError && error.status === 401) return; // until there is a key
    }
    this.#show();
    if (!this.models.length) this.timer = setTimeout(() => this.refresh(), NO_MODEL_RETRY_MS);
  }

  #show() {
    for (const select of this.selects) {
      const names = this.models.length ? this.models.map(({ id }) => id) : [''];
      select.replaceChildren(...names.map((name) => el('option', { value: name }, name || 'no model yet')));
      select.value = this.chosen ?? '';
      select.disabled = !this.models.length;
    }
    for (const watcher of this.watchers) watcher(this.#defaults());
  }
}
