'use strict';
// While there is no token yet: how long that has been so, and what it waits for.

const LOOK_AFTER_MS = 1_500; // most requests have begun by then
const LOOK_EVERY_MS = 1_000;

class WaitingNote {
  /** `askOther(model)`: the user wants one that is served; null: they are not asked. */
  constructor(api, model, askOther = null) {
    this.api = api;
    this.askOther = askOther;
    this.model = model;
    this.since = performance.now();
    this.reason = '';
    this.clock = el('span', { class: 'clock' });
    this.words = el('span');
    this.offer = el('button', { type: 'button', hidden: true, onclick: () => this.askOther(this.other) });
    this.element = el('p', { class: 'waiting' }, el('span', { class: 'dots', 'aria-hidden': 'true' }, el('i'), el('i'), el('i')), this.words, this.clock, this.offer);
    this.isOver = false;
    this.say('Sending');
    this.#tick();
    this.timer = setTimeout(() => this.#look(), LOOK_AFTER_MS);
  }

  say(words) {
    this.words.textContent = words;
  }

  /** The request is stored: from here on nothing can lose it. */
  accepted() {
    if (!this.reason) this.say('In the queue');
  }

  end() {
    this.isOver = true;
    clearTimeout(this.timer);
    this.element.remove();
  }

  #tick() {
    if (this.isOver) return;
    const seconds = (performance.now() - this.since) / 1000;
    this.clock.textContent = seconds < 0.5 ? '' : `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    setTimeout(() => this.#tick(), 100);
  }

  /** Of a model that is served, while the one that was asked is not. */
  #showOffer(asked, models) {
    const isServed = ['ready', 'loading'].includes(asked?.status);
    const other = models.find(({ status, tasks }) => status === 'ready' && tasks.includes('generate'));
    this.offer.hidden = !this.askOther || isServed || !other;
    this.other = other?.id;
    this.offer.textContent = `Ask ${this.other} instead`;
  }

  async #look() {
    try {
      const { data: models } = await this.api.json('v1/models');
      const asked = models.find(({ id }) => id === this.model);
      this.reason = reasonToWait(await this.api.json('v1/loads'), asked?.parent ?? this.model); // an adapter's workers are its model's
      this.say(this.reason);
      this.#showOffer(asked, models);
    } catch {
      // it is only a note
    }
    if (!this.isOver) this.timer = setTimeout(() => this.#look(), LOOK_EVERY_MS);
  }
}

/** What a request of `model` waits for, as far as the loads of the service tell. */
function reasonToWait(loads, model) {
  const workers = loads.loads.filter((worker) => worker.model === model);
  const queues = loads.queues.filter((queue) => queue.model === model && queue.class === 'interactive');
  const numWaiting = queues.reduce((sum, queue) => sum + queue.num_waiting, 0);
  const ready = workers.filter((worker) => worker.state === 'ready');
  const loading = workers.find((worker) => worker.state === 'loading');
  if (ready.length && !numWaiting) return 'Reading the prompt';
  if (ready.length) return `In the queue, ${numWaiting} waiting`;
  if (loading) {
    const percent = loading.progress ? ` ${Math.round(loading.progress * 100)} %` : '';
    return `A worker is starting${loading.phase ? `: ${loading.phase}${percent}` : ''}`;
  }
  if (workers.length) return `In the queue: its workers are ${workers[0].state}`;
  return `In the queue: no worker is serving ${model}. It will be answered as soon as one does`;
}
